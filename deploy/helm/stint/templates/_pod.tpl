{{- define "stint.name" -}}
{{- ternary .Release.Name (printf "%s-stint" .Release.Name) (contains "stint" .Release.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "stint.selector" -}}
app.kubernetes.io/name: stint
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stint.labels" -}}
{{ include "stint.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "stint.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "stint.name" .) }}
{{- end }}

{{- define "stint.leaseKey" -}}
{{ .Values.cluster.leaseKeySecret | default (printf "%s-lease-key" (include "stint.name" .)) }}
{{- end }}

{{- /* What cannot work is refused here, with the way out. */}}
{{- define "stint.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.cluster.enabled) (not .Values.store) (not .Values.storeSecret.name) }}
{{- fail "several replicas without a cluster and without a store would each count alone: set cluster.enabled, store, or replicas: 1" }}
{{- end }}
{{- if not .Values.insecure }}
{{- if not .Values.tls.secret }}{{ fail "give tls.secret, or say insecure: true" }}{{ end }}
{{- if not .Values.auth.secret }}{{ fail "the admin port needs a proof of who comes: give auth.secret, or say insecure: true" }}{{ end }}
{{- end }}
{{- if and .Values.tls.clientCA (not .Values.tls.secret) }}{{ fail "tls.clientCA needs tls.secret" }}{{ end }}
{{- if and .Values.auth.peerTokenKey (not .Values.auth.secret) }}{{ fail "auth.peerTokenKey needs auth.secret" }}{{ end }}
{{- end }}

{{- define "stint.pod" -}}
metadata:
  labels:
    {{- include "stint.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .Values.podAnnotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "stint.serviceAccount" . }}
  automountServiceAccountToken: {{ or .Values.cluster.enabled (hasPrefix "kubernetes://" .Values.configURL) }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{ include "stint.selector" . | nindent 10 }}
    {{- with .Values.topologySpreadConstraints }}{{ toYaml . | nindent 4 }}{{ end }}
  containers:
    - name: stint
      image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --http=0.0.0.0:8080
        - --grpc=0.0.0.0:8081
        - --admin=0.0.0.0:8082
        - --config={{ .Values.configURL | default "/etc/stint/limits" }}
        - --state-dir=/var/lib/stint
        - --max-bytes={{ .Values.maxBytes }}
        - --drain-delay={{ .Values.drainDelay }}
        - --grace={{ .Values.grace }}
        - --log=json
        {{- if .Values.cluster.enabled }}
        - --cluster=kubernetes://{{ .Release.Namespace }}/{{ include "stint.name" . }}
        - --cluster-shards={{ .Values.cluster.shards }}
        - --cluster-ttl={{ .Values.cluster.ttl }}
        - --lease-key-file=/etc/stint/lease/lease.key
        - --node=$(POD_NAME)
        - --advertise=$(POD_NAME).{{ include "stint.name" . }}-members.{{ .Release.Namespace }}.svc:8081
        {{- end }}
        {{- with .Values.store }}
        - --store={{ . }}
        {{- end }}
        {{- if .Values.tls.secret }}
        - --tls-cert=/etc/stint/tls/tls.crt
        - --tls-key=/etc/stint/tls/tls.key
        {{- if .Values.tls.clientCA }}
        - --tls-client-ca=/etc/stint/tls/ca.crt
        # The probes of Kubernetes show no certificate.
        - --admin-tls-client-ca=none
        {{- end }}
        {{- if .Values.cluster.enabled }}
        - --peer-ca=/etc/stint/tls/ca.crt
        - --peer-cert=/etc/stint/tls/tls.crt
        - --peer-key=/etc/stint/tls/tls.key
        {{- end }}
        {{- end }}
        {{- if .Values.auth.secret }}
        - --auth=/etc/stint/auth/auth.yaml
        {{- with .Values.auth.peerTokenKey }}
        - --peer-token-file=/etc/stint/auth/{{ . }}
        {{- end }}
        {{- end }}
        {{- if .Values.insecure }}
        - --insecure
        {{- end }}
        {{- range .Values.trustedProxies }}
        - --trusted-proxy={{ . }}
        {{- end }}
        {{- range .Values.httpHosts }}
        - --http-host={{ . }}
        {{- end }}
        {{- range .Values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- if .Values.storeSecret.name }}
        - name: STINT_STORE
          valueFrom: {secretKeyRef: {name: {{ .Values.storeSecret.name }}, key: {{ .Values.storeSecret.key }}}}
        {{- end }}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: http, containerPort: 8080}
        - {name: grpc, containerPort: 8081}
        - {name: admin, containerPort: 8082}
      {{- $scheme := ternary "HTTPS" "HTTP" (ne .Values.tls.secret "") }}
      startupProbe:
        httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 10
        failureThreshold: 3
      readinessProbe:
        httpGet: {path: /readyz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 2
        failureThreshold: 2
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: {{ toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - {name: state, mountPath: /var/lib/stint}
        {{- if not .Values.configURL }}
        - {name: limits, mountPath: /etc/stint/limits, readOnly: true}
        {{- end }}
        {{- if .Values.cluster.enabled }}
        - {name: lease, mountPath: /etc/stint/lease, readOnly: true}
        {{- end }}
        {{- if .Values.tls.secret }}
        - {name: tls, mountPath: /etc/stint/tls, readOnly: true}
        {{- end }}
        {{- if .Values.auth.secret }}
        - {name: auth, mountPath: /etc/stint/auth, readOnly: true}
        {{- end }}
  volumes:
    {{- if not (and .Values.persistence.enabled .Values.cluster.enabled) }}
    - name: state
      emptyDir: {}
    {{- end }}
    {{- if not .Values.configURL }}
    - name: limits
      configMap: {name: {{ .Values.existingConfigMap | default (printf "%s-limits" (include "stint.name" .)) }}}
    {{- end }}
    {{- if .Values.cluster.enabled }}
    - name: lease
      secret: {secretName: {{ include "stint.leaseKey" . }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.tls.secret }}
    - name: tls
      secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.auth.secret }}
    - name: auth
      secret: {secretName: {{ .Values.auth.secret }}, defaultMode: 0440}
    {{- end }}
{{- end }}
