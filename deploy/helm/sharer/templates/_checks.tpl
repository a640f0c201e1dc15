{{/* What cannot be without a value. `null` takes a default away (--set NAME=null); whatever is not here is empty then. */}}
{{- define "sharer.needs" -}}
{{- $needed := list
  "image.repository" "image.pullPolicy" "distribution" "host.stateDir" "host.runDir" "driver.access" "injection.ways"
  "injection.cdiKind" "policy.source" "policy.check" "kubernetes.enabled" "features.hostPids" "features.publish"
  "features.evict" "features.nodeLabels" "features.driverLimits" "features.mig" "features.mps" "http.port" "logFormat"
  "gpuOperator" "nodes" "priorityClassName" "priorityQuota" "updateStrategy.maxUnavailable" "namespace.create"
  "crd.install" "admission.requests" "admission.workloads" "admission.bypass" "admission.agents"
  "monitoring.podMonitor.enabled" "monitoring.podMonitor.interval" "monitoring.rules.enabled"
  "monitoring.dashboard.enabled" "networkPolicy.enabled" "networkPolicy.apiServerPorts"
-}}
{{- $problems := list -}}
{{- range $name := $needed -}}
{{- $here := $.Values -}}
{{- $path := list -}}
{{- range splitList "." $name -}}
{{- if kindIs "map" $here -}}
{{- $path = append $path . -}}
{{- $here = index $here . -}}
{{- end -}}
{{- end -}}
{{- if kindIs "invalid" $here -}}
{{- $problems = append $problems (printf "%s is null, and cannot be without a value; leave it out to have the chart's own, or give it one" (join "." $path)) -}}
{{- end -}}
{{- end -}}
{{- if $problems -}}
{{- $problems = append $problems "After helm upgrade --reuse-values these are values that the chart before did not have: say --reset-then-reuse-values instead" -}}
{{- fail (printf "\n\n%s\n" (uniq $problems | join "\n\n")) -}}
{{- end -}}
{{- end }}
{{/* What the schema cannot say: values that are right alone and cannot work together. Each message says what to do. */}}
{{- define "sharer.checks" -}}
{{- $v := .Values -}}
{{- $problems := list -}}
{{- if and $v.policy.inline $v.policy.existingConfigMap -}}
{{- $problems = append $problems "policy.inline and policy.existingConfigMap are both set, and only one can be in force; remove one of them" -}}
{{- end -}}
{{- if and $v.policy.inline (not (hasKey $v.policy.inline "default")) -}}
{{- $problems = append $problems (printf "policy.inline has no key \"default\" (it has %s), so a Node without the label sharer.dev/policy would offer nothing; rename one, or add it" (keys $v.policy.inline | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if not $v.kubernetes.enabled -}}
{{- if eq $v.policy.source "api" -}}
{{- $problems = append $problems "policy.source is api, and kubernetes.enabled is false; set policy.source=mount, or kubernetes.enabled=true" -}}
{{- end -}}
{{- range list "publish" "evict" "nodeLabels" -}}
{{- if get $v.features . -}}
{{- $problems = append $problems (printf "features.%s needs the API server, and kubernetes.enabled is false; set features.%s=false, or kubernetes.enabled=true" . .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.features.evict (not $v.features.hostPids) -}}
{{- $problems = append $problems "features.evict acts on used memory, which is not known without features.hostPids; set features.hostPids=true, or features.evict=false" -}}
{{- end -}}
{{- if and $v.features.driverLimits (not $v.features.hostPids) -}}
{{- $problems = append $problems "features.driverLimits verifies each process of a container, which needs features.hostPids=true" -}}
{{- end -}}
{{- if and $v.features.mps (eq $v.driver.access "privileged") -}}
{{- $problems = append $problems "features.mps runs NVIDIA's MPS programs, which only NVIDIA's runtime brings into a pod, and driver.access is privileged; set driver.access=envvar or volume-mounts, or features.mps=false" -}}
{{- end -}}
{{- if and (eq $v.driver.access "privileged") (hasPrefix "/run/nvidia/driver" $v.driver.folder) -}}
{{- $problems = append $problems "driver.folder is below /run/nvidia/driver, which GPU Operator's driver container mounts anew at each start, unseen by a pod that has mounted it; set driver.folder=/run/nvidia" -}}
{{- end -}}
{{- if and (eq $v.driver.access "envvar") (eq $v.distribution "bottlerocket") -}}
{{- $problems = append $problems "driver.access=envvar is ignored by Bottlerocket, whose NVIDIA runtime takes requests by mount from pods without privileges; set driver.access=volume-mounts, and driver.runtimeClassName=\"\" unless you have made a RuntimeClass: NVIDIA's runtime is the default there" -}}
{{- end -}}
{{- if and $v.features.publish (not $v.crd.install) (not (.Capabilities.APIVersions.Has "sharer.dev/v1alpha1/GpuNode")) -}}
{{- $problems = append $problems "features.publish writes GpuNodes, and this cluster has no such resource; set crd.install=true, or features.publish=false" -}}
{{- end -}}
{{- if ne $v.driver.access "privileged" -}}
{{- if or $v.driver.folder $v.driver.library -}}
{{- $problems = append $problems (printf "driver.folder and driver.library are used with driver.access=privileged only; with %s NVIDIA's toolkit brings the library. Set driver.access=privileged, or leave both empty" $v.driver.access) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.driver.access "privileged") (eq $v.distribution "bottlerocket") (not $v.driver.folder) -}}
{{- $problems = append $problems "driver.access=privileged needs the host's folder of libnvidia-ml.so.1, which differs between Bottlerocket's versions; set driver.folder, or driver.access=volume-mounts and driver.runtimeClassName=\"\"" -}}
{{- end -}}
{{- if and $v.affinity (eq $v.nodes "all") -}}
{{- $problems = append $problems "nodes is all, and affinity chooses some; leave nodes out, or affinity empty" -}}
{{- end -}}
{{- if and (or $v.monitoring.podMonitor.enabled $v.monitoring.rules.enabled) (not $v.http.port) -}}
{{- $problems = append $problems "monitoring needs /metrics, and http.port is 0; set http.port=9465, or switch monitoring.podMonitor and monitoring.rules off" -}}
{{- end -}}
{{- range list "name" "instance" "component" -}}
{{- if hasKey ($v.podLabels | default dict) (printf "app.kubernetes.io/%s" .) -}}
{{- $problems = append $problems (printf "podLabels has app.kubernetes.io/%s, by which each DaemonSet finds its pods, so the API server would refuse it; choose another label" .) -}}
{{- end -}}
{{- end -}}
{{- range $v.extraArgs -}}
{{- $flag := splitList "=" . | first -}}
{{- with get (include "sharer.flags" $ | fromYaml) $flag -}}
{{- $problems = append $problems (printf "extraArgs has %s, which the chart sets together with the mounts, probes and rights that go with it; %s" $flag .) -}}
{{- end -}}
{{- end -}}
{{- if eq $v.host.stateDir $v.host.runDir -}}
{{- $problems = append $problems (printf "host.stateDir and host.runDir are both %s, and a pod cannot mount one path twice; give each a directory of its own" $v.host.stateDir) -}}
{{- end -}}
{{- if not $v.admission.resources -}}
{{- $problems = append $problems "admission.resources is empty, so no request would be checked; name what your policies share, such as nvidia.com/gpu.shared: 1" -}}
{{- end -}}
{{- range $resource, $most := $v.admission.resources -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$" $resource) -}}
{{- $problems = append $problems (printf "admission.resources names %q, which is no resource; one is nvidia.com/gpu.shared" $resource) -}}
{{- end -}}
{{- end -}}
{{- range $key, $policy := $v.policy.inline -}}
{{- $read := dict -}}
{{- if kindIs "string" $policy }}{{ $read = fromYaml $policy }}{{ else }}{{ $read = $policy }}{{ end -}}
{{- if kindIs "slice" (get $read "rules") -}}
{{- range get $read "rules" -}}
{{- if and (kindIs "map" .) (has (get . "strategy") (list "time-slicing" "mps")) -}}
{{- $memory := dict -}}
{{- if kindIs "map" (get . "memory") }}{{ $memory = get . "memory" }}{{ end -}}
{{- if and (eq (get . "strategy") "mps") (not $v.features.mps) -}}
{{- $problems = append $problems (printf "policy.inline.%s uses MPS, and features.mps is false, so nobody would serve its slices; set features.mps=true" $key) -}}
{{- end -}}
{{- if and (eq (get $memory "onExceed" | toString) "evict") (not $v.features.evict) -}}
{{- $problems = append $problems (printf "policy.inline.%s evicts (memory.onExceed), and features.evict is false, so the API server would refuse it; set features.evict=true, or onExceed: report" $key) -}}
{{- end -}}
{{- if and (eq (get $memory "required" | toString) "true") (eq (get . "strategy") "time-slicing") (not $v.features.driverLimits) -}}
{{- $problems = append $problems (printf "policy.inline.%s offers slices only where their limit can be held (memory.required), and features.driverLimits is false, so there would be none; set features.driverLimits=true" $key) -}}
{{- end -}}
{{- if ne $v.admission.requests "Off" -}}
{{- $resource := get . "resource" | default "nvidia.com/gpu.shared" -}}
{{- if not (hasKey ($v.admission.resources | default dict) $resource) -}}
{{- $problems = append $problems (printf "policy.inline.%s shares %s, and admission.resources does not know it, so its requests would not be checked; add it there: --set admission.resources.%s=1" $key $resource (replace "." "\\." $resource)) -}}
{{- else -}}
{{- $most := get $v.admission.resources $resource -}}
{{- $request := dict -}}
{{- if kindIs "map" (get . "request") }}{{ $request = get . "request" }}{{ end -}}
{{- $wanted := get $request "max" -}}
{{- if and (or (kindIs "int64" $wanted) (kindIs "float64" $wanted)) (gt (int $wanted) (int $most)) -}}
{{- $problems = append $problems (printf "policy.inline.%s lets a container have %d of %s (request.max), and admission.resources %d; set both to the same number" $key (int $wanted) $resource (int $most)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if and (eq (get $labels "app.kubernetes.io/name") "sharer") (eq (get $labels "app.kubernetes.io/component" ) "agent") -}}
{{- if or (ne .metadata.namespace $.Release.Namespace) (ne (get $labels "app.kubernetes.io/instance") $.Release.Name) -}}
{{- $problems = append $problems (printf "sharer is installed already, as release %s in namespace %s, and two agents on a node take each other's resources away; upgrade or uninstall that one" (get $labels "app.kubernetes.io/instance") .metadata.namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "\n\n%s\n" (uniq $problems | join "\n\n")) -}}
{{- end -}}
{{- end }}

{{/* Flags of the agent that the chart sets, as YAML: what to do instead. A test compares them with the pod. */}}
{{- define "sharer.flags" -}}
{{- $fixed := "leave it out, it follows from where the pod runs" -}}
--cdi-dir: set host.cdiDirs
--cdi-kind: set injection.cdiKind
--checkpoint: {{ $fixed }}
--dev-root: {{ $fixed }}
--device-plugin-dir: {{ $fixed }}
--driver-library: set driver.library
--host-root: {{ $fixed }}
--http: set http.port
--injection: set injection.ways
--kubernetes: set kubernetes.enabled
--log-format: set logFormat
--mps-dir: set host.stateDir
--namespace: {{ $fixed }}
--node-labels: set features.nodeLabels
--node-name: {{ $fixed }}
--pause-label: set gpuOperator.pauseLabels
--pod-resources-socket: set host.kubeletDir
--policy: set policy.inline or policy.existingConfigMap
--policy-configmap: set policy.inline or policy.existingConfigMap
--publish: set features.publish
--run-dir: set host.runDir
--state-dir: set host.stateDir
{{- end }}
