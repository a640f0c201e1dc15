{{/* Names. One installation shares a cluster's GPUs, so the release's name is enough. */}}
{{- define "sharer.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "sharer.agent" -}}
{{ include "sharer.name" . }}-agent
{{- end }}

{{- define "sharer.mps" -}}
{{ include "sharer.name" . }}-mps
{{- end }}

{{- define "sharer.policies" -}}
{{ .Values.policy.existingConfigMap | default (printf "%s-policies" (include "sharer.name" .)) }}
{{- end }}

{{- define "sharer.labels" -}}
app.kubernetes.io/name: sharer
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels of an object with more of the user's, who has the last word; no key twice, which Helm lets pass and Argo CD,
     Flux and kustomize do not. Call with (list . LABELS). */}}
{{- define "sharer.labelsAnd" -}}
{{ merge (deepCopy (index . 1 | default dict)) (include "sharer.labels" (index . 0) | fromYaml) | toYaml }}
{{- end }}

{{/* … of a workload's pods. Those that it finds them by are not the user's: see _checks.tpl. Call with (list . "agent"). */}}
{{- define "sharer.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "sharer.labelsAnd" (list $root (merge (dict "app.kubernetes.io/component" (index . 1)) ($root.Values.podLabels | default dict))) }}
{{- end }}

{{/* Annotations of a workload's pods. Call with (list . "agent"). */}}
{{- define "sharer.podAnnotations" -}}
{{- $root := index . 0 -}}
{{- $ours := merge (dict "kubectl.kubernetes.io/default-container" (index . 1)) (include "sharer.driverAnnotation" . | fromYaml) -}}
{{ merge (deepCopy ($root.Values.podAnnotations | default dict)) $ours | toYaml }}
{{- end }}

{{/* Of one workload: no two of them select the same pods (bug case P06). Call with (list . "agent"). */}}
{{- define "sharer.selector" -}}
app.kubernetes.io/name: sharer
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "sharer.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* What a distribution puts elsewhere, as YAML. Anything not named is as the kubelet and the runtimes have it. */}}
{{- define "sharer.distribution" -}}
{{- $usual := dict "kubeletDir" "/var/lib/kubelet" "cdiDirs" (list "/etc/cdi" "/var/run/cdi") "folder" "/usr/lib/x86_64-linux-gnu" "seLinuxOptions" dict -}}
{{- $own := dict
  "microk8s" (dict "kubeletDir" "/var/snap/microk8s/common/var/lib/kubelet")
  "k0s" (dict "kubeletDir" "/var/lib/k0s/kubelet")
  "talos" (dict "cdiDirs" (list "/var/cdi/static" "/var/cdi/dynamic") "folder" "/usr/local/glibc/usr/lib")
  "bottlerocket" (dict "seLinuxOptions" (dict "user" "system_u" "role" "system_r" "type" "super_t" "level" "s0"))
-}}
{{- $chosen := merge (get $own .Values.distribution | default dict | deepCopy) $usual -}}
{{- with .Values.host.kubeletDir }}{{ $_ := set $chosen "kubeletDir" . }}{{ end -}}
{{- with .Values.host.cdiDirs }}{{ $_ := set $chosen "cdiDirs" . }}{{ end -}}
{{- with .Values.driver.folder }}{{ $_ := set $chosen "folder" . }}{{ end -}}
{{- with .Values.seLinuxOptions }}{{ $_ := set $chosen "seLinuxOptions" . }}{{ end -}}
{{ toYaml $chosen }}
{{- end }}

{{/* "true" if the agent writes anything to the API that an admission policy can bind to its node. */}}
{{- define "sharer.writes" -}}
{{- if and .Values.kubernetes.enabled (or .Values.features.publish .Values.features.nodeLabels) }}true{{ end -}}
{{- end }}

{{/* What is the same in every pod of ours. */}}
{{- define "sharer.pod" -}}
{{- $node := include "sharer.distribution" . | fromYaml -}}
enableServiceLinks: false
priorityClassName: {{ .Values.priorityClassName }}
terminationGracePeriodSeconds: 30
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if include "sharer.usesRuntime" . }}
{{- with .Values.driver.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsUser: 0  # the kubelet's checkpoint and sockets are root's, and a capability has no effect for anybody else
  seccompProfile: {type: RuntimeDefault}
  {{- with $node.seLinuxOptions }}
  seLinuxOptions: {{- toYaml . | nindent 4 }}
  {{- end }}
nodeSelector: {kubernetes.io/os: linux}
tolerations: {{- prepend (default list .Values.tolerations) (dict "key" "nvidia.com/gpu" "operator" "Exists") | toYaml | nindent 2 }}
{{- end }}

{{/* Which nodes get a pod of ours, as YAML: none that is labelled sharer.dev/gpu=false, and those that are chosen.
     Call with (dict "root" . "also" (list …)), expressions that must hold too. */}}
{{- define "sharer.affinity" -}}
{{- $affinity := deepCopy (default dict .root.Values.affinity) -}}
{{- if and (not $affinity) (eq .root.Values.nodes "labelled") -}}
{{- $terms := list -}}
{{- range include "sharer.gpuLabels" . | fromYamlArray }}{{ $terms = append $terms (dict "matchExpressions" (list (fromYaml .))) }}{{ end -}}
{{- $affinity = dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) -}}
{{- end -}}
{{- $also := prepend .also (dict "key" "sharer.dev/gpu" "operator" "NotIn" "values" (list "false")) -}}
{{- $node := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- with omit $affinity "nodeAffinity" }}{{ toYaml . }}
{{ end -}}
nodeAffinity:
{{- with omit $node "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- toYaml . | nindent 2 }}
{{- end }}
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range get $required "nodeSelectorTerms" | default (list dict) }}
      - {{ merge (dict "matchExpressions" (concat (get . "matchExpressions" | default list) $also)) . | toJson }}
      {{- end }}
{{- end }}

{{/* Labels that say "this node has an NVIDIA GPU": ours, GPU feature discovery, node feature discovery, the clouds. */}}
{{- define "sharer.gpuLabels" -}}
- '{key: sharer.dev/gpu, operator: In, values: ["true"]}'
- '{key: nvidia.com/gpu.present, operator: In, values: ["true"]}'
- '{key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}'
- '{key: feature.node.kubernetes.io/pci-0302_10de.present, operator: In, values: ["true"]}'
- '{key: feature.node.kubernetes.io/pci-0300_10de.present, operator: In, values: ["true"]}'
- '{key: cloud.google.com/gke-accelerator, operator: Exists}'
- '{key: k8s.amazonaws.com/accelerator, operator: Exists}'
- '{key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia]}'
- '{key: kubernetes.azure.com/accelerator, operator: In, values: [nvidia]}'
{{- end }}

{{/* A container's rights. Call with (dict "root" . "capabilities" (list …)). */}}
{{- define "sharer.securityContext" -}}
{{- if eq .root.Values.driver.access "privileged" -}}
privileged: true
readOnlyRootFilesystem: true
{{- else -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with .capabilities }}
  add: {{ toJson . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* "true" where NVIDIA's container runtime gives our containers the driver. */}}
{{- define "sharer.usesRuntime" -}}
{{- if has .Values.driver.access (list "envvar" "volume-mounts") }}true{{ end -}}
{{- end }}

{{/* How a container of ours reaches the driver: an annotation. Call with (list . "agent"). */}}
{{- define "sharer.driverAnnotation" -}}
{{- if eq (index . 0).Values.driver.access "nri" -}}
nvidia.cdi.k8s.io/container.{{ index . 1 }}: management.nvidia.com/gpu=all
{{- end }}
{{- end }}

{{/* … variables. */}}
{{- define "sharer.driverEnv" -}}
{{- if eq .root.Values.driver.access "envvar" }}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
{{- end }}
{{- if include "sharer.usesRuntime" .root }}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: {{ .driverCapabilities | quote }}}
{{- if .root.Values.features.mig }}
- {name: NVIDIA_MIG_MONITOR_DEVICES, value: all}
{{- end }}
{{- end }}
{{- end }}

{{/* … and mounts. */}}
{{- define "sharer.driverMounts" -}}
{{- $node := include "sharer.distribution" . | fromYaml -}}
{{- if eq .Values.driver.access "volume-mounts" }}
- {name: all-gpus, mountPath: /var/run/nvidia-container-devices/all, readOnly: true}
{{- else if eq .Values.driver.access "privileged" }}
- {name: driver, mountPath: "/host{{ $node.folder }}", readOnly: true, mountPropagation: HostToContainer}
{{- end }}
{{- end }}

{{- define "sharer.driverVolumes" -}}
{{- $node := include "sharer.distribution" . | fromYaml -}}
{{- if eq .Values.driver.access "volume-mounts" }}
- {name: all-gpus, hostPath: {path: /dev/null}}
{{- else if eq .Values.driver.access "privileged" }}
- {name: driver, hostPath: {path: {{ $node.folder }}, type: Directory}}
{{- end }}
{{- end }}
