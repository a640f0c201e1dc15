{{/* Variables that every policy about pods shares. `spec` is the one before them. Call with the root. */}}
{{- define "sharer.podVariables" -}}
- name: all
  expression: >-
    variables.spec.containers + (has(variables.spec.initContainers) ? variables.spec.initContainers : [])
- name: shared  # what may be asked for, and at most how much of it (request.max)
  expression: "{ {{- range $i, $name := keys .Values.admission.resources | sortAlpha }}{{ if $i }}, {{ end }}'{{ $name }}': {{ get $.Values.admission.resources $name }}{{ end -}} }"
- name: asking  # "> 0": a pod may ask for "0", and passes the API server's own checks
  expression: >-
    variables.all.filter(c, has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r,
    r in variables.shared && quantity(string(c.resources.limits[r])).isGreaterThan(quantity('0'))))
{{- end }}

{{/* Names of variables that only the plugin may set. They decide which GPUs a container sees, and its limits. */}}
{{- define "sharer.ownVariables" -}}
^(NVIDIA_VISIBLE_DEVICES|NVIDIA_GPU_MEMORY_(LIMIT|REQUEST)|CUDA_MPS_.*|CUDA_DISABLE_CONTROL|SHARER_(DEVICE_IDS|GPU_UUIDS|STRATEGY|MEMORY_LIMIT_BYTES|COMPUTE_PERCENT))$
{{- end }}

{{/* Annotations by which containerd, CRI-O, NVIDIA's runtime or its NRI plugin give a container CDI devices. */}}
{{- define "sharer.deviceAnnotations" -}}
^([-a-z0-9.]+[.])?cdi[.]k8s[.]io(/.*)?$
{{- end }}

{{/* The RuntimeClasses of NVIDIA's toolkit: nvidia, nvidia-cdi, nvidia-legacy, and the one that agents use. */}}
{{- define "sharer.runtimeClasses" -}}
^(nvidia(-cdi|-legacy)?{{ with .Values.driver.runtimeClassName }}{{ if ne . "nvidia" }}|{{ . | replace "." "[.]" }}{{ end }}{{ end }})$
{{- end }}

{{/* What holds for a container that asks for slices. */}}
{{- define "sharer.requestRules" -}}
- expression: "variables.setting.size() == 0"
  reason: Forbidden
  messageExpression: "'sharer: container ' + variables.setting.join(', ') + ' asks for a GPU slice and sets a variable that only sharer may set; remove NVIDIA_VISIBLE_DEVICES and its like from env'"
- expression: "variables.asking.all(c, !has(c.envFrom) || c.envFrom.size() == 0)"
  reason: Forbidden
  message: "sharer: a container that asks for a GPU slice may not use envFrom, which can override what sharer sets; name the variables one by one in env"
- expression: >-
    variables.asking.all(c, c.resources.limits.all(r, !(r in variables.shared)
    || quantity(string(c.resources.limits[r])).compareTo(quantity(string(variables.shared[r]))) <= 0))
  reason: Forbidden
  message: "sharer: a container asks for more slices than its resource allows:{{ range $i, $name := keys .Values.admission.resources | sortAlpha }}{{ if $i }},{{ end }} at most {{ get $.Values.admission.resources $name }} of {{ $name }}{{ end }}"
{{- if ne .Values.injection.ways "cdi" }}
- expression: >-
    variables.asking.all(c, c.resources.limits.filter(r, r in variables.shared
    && quantity(string(c.resources.limits[r])).isGreaterThan(quantity('0'))).size() <= 1)
  reason: Forbidden
  message: "sharer: two shared resources in one container, of which the kubelet would keep the variables of one; ask for them in two containers"
{{- end }}
{{- end }}

{{- define "sharer.setting" -}}
- name: setting
  expression: >-
    variables.asking.filter(c, has(c.env) && c.env.exists(e, e.name.matches('{{ include "sharer.ownVariables" . }}'))).map(c, c.name)
{{- end }}

{{/* Namespaces that the policies about pods leave alone. Ours is one: agents do what the policies forbid. */}}
{{- define "sharer.namespaceSelector" -}}
matchExpressions:
  - {key: sharer.dev/admission, operator: NotIn, values: [exempt]}
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ append (default list .Values.admission.exemptNamespaces) .Release.Namespace | uniq | sortAlpha | toJson }}}
{{- end }}

{{- define "sharer.actions" -}}
{{ ternary "[Deny, Audit]" "[Warn, Audit]" (eq . "Deny") }}
{{- end }}
