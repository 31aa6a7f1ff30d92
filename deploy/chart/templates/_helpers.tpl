{{/* autohealer.labels has the labels of every object of a program. */}}
{{- define "autohealer.labels" -}}
app.kubernetes.io/name: autohealer-{{ . }}
app.kubernetes.io/part-of: autohealer
{{- end }}

{{/* autohealer.setting returns a setting: the value, if it is set, otherwise that of the preset. */}}
{{- define "autohealer.setting" -}}
{{- $root := index . 0 -}}
{{- $path := splitList "." (index . 1) -}}
{{- $presets := $root.Files.Get "presets.yaml" | fromYaml -}}
{{- $found := "" -}}
{{- range $source := list $root.Values (get $presets $root.Values.preset) $presets.default -}}
{{-   if kindIs "string" $found -}}
{{-     $at := $source -}}
{{-     range $key := $path -}}
{{-       $at = kindIs "map" $at | ternary (get (default dict $at) $key) "" -}}
{{-     end -}}
{{-     if not (or (kindIs "invalid" $at) (and (kindIs "string" $at) (eq $at ""))) -}}
{{-       $found = dict "value" $at -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- if kindIs "map" $found -}}{{- $found.value -}}{{- end -}}
{{- end }}

{{/* autohealer.storedGuardrails returns the object of the cluster, or nothing. */}}
{{- define "autohealer.storedGuardrails" -}}
{{- if .Capabilities.APIVersions.Has "autohealer.resourcestack.com/v1alpha1/Guardrails" -}}
{{- lookup "autohealer.resourcestack.com/v1alpha1" "Guardrails" "" "cluster" | toYaml -}}
{{- end -}}
{{- end }}

{{/*
autohealer.binding binds the account of a program to the role of a name. Without a namespace,
the role and the binding are for the whole cluster.
*/}}
{{- define "autohealer.binding" -}}
{{- $kind := empty .namespace | ternary "ClusterRole" "Role" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .role }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "autohealer.labels" .program | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .role }}
subjects:
- kind: ServiceAccount
  name: autohealer-{{ .program }}
  namespace: {{ .home }}
{{- end }}

{{/* autohealer.agentMetricsAreSecure says whether agents serve their metrics outside their nodes. */}}
{{- define "autohealer.agentMetricsAreSecure" -}}
{{- with .Values.agent }}{{ and .enabled (or .metrics.secure .metrics.podMonitor.enabled) }}{{ end -}}
{{- end }}

{{/* autohealer.image is an image with its tag or digest. */}}
{{- define "autohealer.image" -}}
{{- $image := index . 1 -}}
{{- $tag := default (index . 0).Chart.AppVersion $image.tag -}}
{{ $image.repository }}{{ hasPrefix "sha256:" $tag | ternary "@" ":" }}{{ $tag }}
{{- end }}

{{/* autohealer.policyBinding puts an admission policy in force. */}}
{{- define "autohealer.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .policy }}
  labels:
    {{- include "autohealer.labels" .program | nindent 4 }}
spec:
  policyName: {{ .policy }}
  validationActions: [Deny]
{{- end }}

{{/* autohealer.webhook is a webhook for one kind of policy. */}}
{{- define "autohealer.webhook" -}}
- name: {{ .name }}.autohealer.resourcestack.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: {{ .failurePolicy }}
  matchPolicy: Equivalent
  timeoutSeconds: {{ .timeout }}
  {{- if .hasMirrors }}
  objectSelector: # only the controller writes mirrors
    matchExpressions: [{key: autohealer.resourcestack.com/mirror, operator: DoesNotExist}]
  {{- end }}
  rules:
  - apiGroups: [{{ .kind.group }}]
    apiVersions: [{{ .kind.version }}]
    resources: [{{ .kind.resource }}]
    operations: {{ .operations }}
    scope: Cluster
  {{- with .conditions }}
  matchConditions:
  {{- range . }}
  - name: {{ .name }}
    expression: >-
      {{- .expression | nindent 6 }}
  {{- end }}
  {{- end }}
  clientConfig:
    service:
      name: autohealer-webhook
      namespace: {{ .namespace }}
      port: 443
      path: /validate-{{ .kind.group | replace "." "-" }}-{{ .kind.version }}-{{ trimSuffix "s" .kind.resource | replace "policie" "policy" }}
{{- end }}

{{/* autohealer.hook has the annotations of an object that exists only during a step of Helm. */}}
{{- define "autohealer.hook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: "{{ index . 1 }}"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/*
autohealer.jobPod has fields of the pod of a Job. The Job tolerates every taint: the uninstallation
removes the taints of policies, and all nodes may have one.
*/}}
{{- define "autohealer.jobPod" -}}
{{- $program := index . 1 }}
{{- with index . 0 -}}
automountServiceAccountToken: true
restartPolicy: Never
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.controller.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
tolerations:
# If the node is not ready, the Job soon creates another pod, on another node.
- key: node.kubernetes.io/not-ready
  operator: Exists
  effect: NoExecute
  tolerationSeconds: 20
- key: node.kubernetes.io/unreachable
  operator: Exists
  effect: NoExecute
  tolerationSeconds: 20
- operator: Exists
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          app.kubernetes.io/name: autohealer-{{ $program }}
{{ include "autohealer.podSecurity" . }}
{{- end }}
{{- end }}

{{/* autohealer.jobContainer has fields of the container of a Job. */}}
{{- define "autohealer.jobContainer" -}}
image: {{ include "autohealer.image" (list . .Values.images.controller) }}
{{- with .Values.images.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
env:
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: metadata.namespace
resources:
  requests:
    cpu: 50m
    memory: 64Mi
  limits:
    memory: 256Mi
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* autohealer.podSecurity runs a pod without root. OpenShift chooses the user itself. */}}
{{- define "autohealer.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  {{- if ne (include "autohealer.setting" (list . "openshift")) "true" }}
  runAsUser: 65532
  runAsGroup: 65532
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}
