{{- define "nearhit.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "nearhit.triton" -}}
{{ include "nearhit.fullname" . }}-triton
{{- end -}}

{{/* What never changes of a release: selectors may say nothing else. */}}
{{- define "nearhit.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The dictionary: `root`, and `component`. */}}
{{- define "nearhit.selectorOf" -}}
{{ include "nearhit.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "nearhit.labels" -}}
{{ include "nearhit.selectorOf" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end -}}

{{- define "nearhit.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* A listener's port; fails where the address could not be reached from outside the pod. Dictionary: `of`, `address`. */}}
{{- define "nearhit.port" -}}
{{- if not (regexMatch "^(0[.]0[.]0[.]0|\\[::\\]):[1-9][0-9]*$" .address) -}}
{{- fail (printf "%s: %q is not reached from outside its pod, expected 0.0.0.0:PORT or [::]:PORT" .of .address) -}}
{{- end -}}
{{- regexFind "[0-9]+$" .address -}}
{{- end -}}
{{- define "nearhit.dataPort" -}}
{{ include "nearhit.port" (dict "of" "config.server.listen" "address" .Values.config.server.listen) }}
{{- end -}}
{{- define "nearhit.adminPort" -}}
{{ include "nearhit.port" (dict "of" "config.server.admin" "address" .Values.config.server.admin) }}
{{- end -}}
{{- define "nearhit.grpcPort" -}}
{{- with .Values.config.server.grpc -}}
{{ include "nearhit.port" (dict "of" "config.server.grpc" "address" .) }}
{{- end -}}
{{- end -}}

{{/* Whole seconds, rounded up, of a duration as config.yaml has it: 250ms, 30s, 5m, 1h, 1d. */}}
{{- define "nearhit.seconds" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $each := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- if not (hasKey $each $unit) -}}
{{- fail (printf "config.server.drain_timeout: %q is no duration, expected a number and ms, s, m, h or d" .) -}}
{{- end -}}
{{- mulf $number (get $each $unit) | ceil | int -}}
{{- end -}}

{{/* preStop, then the drain of the gRPC port, then that of the data port, then 20 s: leave is taken, the index written, an
     embedded store closed; a supervisor of workers gives them 15 of them. */}}
{{- define "nearhit.grace" -}}
{{- $drain := include "nearhit.seconds" .Values.config.server.drain_timeout | int -}}
{{- $ports := ternary 2 1 (not (empty .Values.config.server.grpc)) -}}
{{- $needed := add .Values.preStopSeconds (mul $drain $ports) 20 -}}
{{- $given := .Values.terminationGracePeriodSeconds | int -}}
{{- if and $given (lt $given ($needed | int)) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d s cuts requests short, expected at least %d: preStopSeconds, config.server.drain_timeout of each port, and 20 s to close" $given $needed) -}}
{{- end -}}
{{- default $needed $given -}}
{{- end -}}

{{/* Restricted, by the Pod Security Standards. */}}
{{- define "nearhit.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "nearhit.env" -}}
{{- range $name, $value := .env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range $name, $secret := .secretEnv }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $secret.name | quote }}, key: {{ $secret.key | quote }}}}
{{- end }}
{{- end -}}

{{/* What cannot work says so before anything is installed. */}}
{{- define "nearhit.checked" -}}
{{- if empty .Values.config.backends -}}
{{- fail "config.backends: none is given, expected at least one; examples/endpoint.yaml of the chart has a whole set" -}}
{{- end -}}
{{- if empty .Values.policies -}}
{{- fail "policies: none is given, expected at least one file, such as default.yaml; examples/endpoint.yaml has one" -}}
{{- end -}}
{{- $store := (.Values.config.store | default dict).url | default "embedded" -}}
{{- $many := or (gt (.Values.replicas | int) 1) (ne .Values.autoscaling.by "none") -}}
{{- if and (eq $store "embedded") $many -}}
{{- fail "config.store.url: replicas with an embedded store each share nothing, expected a redis:// URL, or replicas: 1" -}}
{{- end -}}
{{- if and (eq $store "embedded") (not .Values.persistence.enabled) -}}
{{- fail "persistence.enabled: an embedded store without a volume forgets everything, expected true" -}}
{{- end -}}
{{- with (.Values.config.auth | default dict).admin_token_env -}}
{{- if not (or (hasKey $.Values.secretEnv .) (hasKey $.Values.env .)) -}}
{{- fail (printf "secretEnv: config.auth.admin_token_env names %s, which is not there" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
