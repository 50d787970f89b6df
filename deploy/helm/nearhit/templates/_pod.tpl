{{/* The gateway's pod, of the StatefulSet and of the Deployment. */}}
{{- define "nearhit.pod" -}}
{{- $gateway := dict "root" . "component" "gateway" -}}
{{- $server := .Values.config.server -}}
metadata:
  labels:
    {{- include "nearhit.selectorOf" $gateway | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: nearhit
    # A changed config.yaml takes a restart; policies reload by themselves.
    checksum/config: {{ include "nearhit.configYaml" . | sha256sum }}
    {{- if .Values.restartOnPolicyChange }}
    checksum/policies: {{ include "nearhit.policyFiles" . | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "nearhit.fullname" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "nearhit.grace" . }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: nearhit
      image: {{ include "nearhit.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/nearhit/config.yaml]
      ports:
        - {name: data, containerPort: {{ include "nearhit.dataPort" . }}}
        - {name: admin, containerPort: {{ include "nearhit.adminPort" . }}}
        {{- if $server.grpc }}
        - {name: grpc, containerPort: {{ include "nearhit.grpcPort" . }}}
        {{- end }}
      {{- if or .Values.env .Values.secretEnv }}
      env:
        {{- include "nearhit.env" .Values | trim | nindent 8 }}
      {{- end }}
      # The gRPC port opens last: who answers there has started.
      startupProbe:
        {{- if and $server.grpc (not $server.tls) }}
        grpc: {port: {{ include "nearhit.grpcPort" . }}}
        {{- else }}
        {{- include "nearhit.probe" (dict "server" $server "path" "/healthz") | nindent 8 }}
        {{- end }}
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: 60
      livenessProbe:
        {{- include "nearhit.probe" (dict "server" $server "path" "/healthz") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 3
        failureThreshold: 6
      readinessProbe:
        {{- include "nearhit.probe" (dict "server" $server "path" "/readyz") | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      # Who routes to this pod needs a moment to hear that it goes; until then its port stays open.
      lifecycle:
        preStop:
          sleep: {seconds: {{ .Values.preStopSeconds }}}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- include "nearhit.containerSecurity" . | nindent 8 }}
        readOnlyRootFilesystem: true
      volumeMounts:
        - {name: config, mountPath: /etc/nearhit/config.yaml, subPath: config.yaml, readOnly: true}
        - {name: policies, mountPath: /etc/nearhit/policies, readOnly: true}
        - {name: state, mountPath: {{ .Values.config.data_dir | quote }}}
        - {name: tmp, mountPath: /tmp}
        {{- with .Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: config, configMap: {name: {{ include "nearhit.fullname" . }}-config}}
    - {name: policies, configMap: {name: {{ include "nearhit.fullname" . }}-policies}}
    - {name: tmp, emptyDir: {sizeLimit: {{ .Values.tmpSize | quote }}}}
    {{- if not .Values.persistence.enabled }}
    - {name: state, emptyDir: {sizeLimit: {{ .Values.persistence.size | quote }}}}
    {{- end }}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpread }}
  topologySpreadConstraints:
    {{- range $key, $otherwise := . }}
    - topologyKey: {{ $key }}
      maxSkew: 1
      whenUnsatisfiable: {{ $otherwise }}
      labelSelector:
        matchLabels:
          {{- include "nearhit.selectorOf" $gateway | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* Over TLS that asks for a client's certificate the kubelet has none: then an open port has to do. */}}
{{- define "nearhit.probe" -}}
{{- $tls := .server.tls -}}
{{- if and $tls $tls.client_ca -}}
tcpSocket: {port: data}
{{- else -}}
httpGet: {path: {{ .path }}, port: data, scheme: {{ ternary "HTTPS" "HTTP" (not (empty $tls)) }}}
{{- end -}}
{{- end -}}

{{- define "nearhit.configYaml" -}}
{{ toYaml .Values.config }}
{{- end -}}

{{/* Files by name: text as it is, anything else as YAML. */}}
{{- define "nearhit.policyFiles" -}}
{{- range $name, $content := .Values.policies }}
{{ $name }}: |
  {{- if kindIs "string" $content }}
  {{- $content | nindent 2 }}
  {{- else }}
  {{- toYaml $content | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}
