{{/* Names: those of pods are names on the broker, of 64 characters at most with the `.N` of a worker's process. */}}
{{- define "mqinfer.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-mqinfer" .Release.Name) (contains "mqinfer" .Release.Name) -}}
{{- $name | trunc 28 | trimSuffix "-" -}}
{{- end }}

{{- define "mqinfer.selector" -}}
app.kubernetes.io/name: mqinfer
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .group }}
mqinfer/group: {{ . }}
{{- end }}
{{- end }}

{{- define "mqinfer.labels" -}}
{{ include "mqinfer.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "mqinfer.image" -}}
{{- $image := .root.Values.image -}}
image: {{ printf "%s/%s:%s" $image.registry (index $image.names .image) (default .root.Chart.AppVersion $image.tag) }}
imagePullPolicy: {{ $image.pullPolicy }}
command: [mqinfer]
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* What all pods have in common. Nothing of mqinfer asks Kubernetes for anything. */}}
{{- define "mqinfer.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # a Service named mqinfer-broker would be MQINFER_BROKER_PORT, which sets an option
{{- with .root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}

{{/* The broker's port, and its URL. */}}
{{- define "mqinfer.brokerPort" -}}
{{- $broker := .Values.broker -}}
{{- if eq $broker.engine "nats" }}4222{{ else }}{{ ternary 8883 1883 (not (empty .Values.tls.secret)) }}{{ end -}}
{{- end }}

{{- define "mqinfer.brokerUrl" -}}
{{- $broker := .Values.broker -}}
{{- if eq $broker.engine "external" -}}
{{- $broker.url -}}
{{- else -}}
{{- $tls := not (empty .Values.tls.secret) -}}
{{- $scheme := ternary (ternary "tls" "nats" $tls) (ternary "mqtts" "mqtt" $tls) (eq $broker.engine "nats") -}}
{{- printf "%s://%s-broker:%s" $scheme (include "mqinfer.fullname" .) (include "mqinfer.brokerPort" .) -}}
{{- end -}}
{{- end }}

{{/* Where each client connects, and under which name. */}}
{{- define "mqinfer.connection" -}}
- {{ printf "--broker=%v" (include "mqinfer.brokerUrl" .) | quote }}
- {{ printf "--root=%v" .Values.root | quote }}
- {{ printf "--log-level=%v" .Values.logLevel | quote }}
- --log-format=json
{{- if .Values.tls.secret }}
- --ca-file=/etc/mqinfer/broker/ca.crt
- --cert-file=/etc/mqinfer/broker/client.crt
- --key-file=/etc/mqinfer/broker/client.key
{{- end }}
{{- end }}

{{- define "mqinfer.podName" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: HOME
  value: /tmp
{{- end }}

{{/* Of the secret with all logins a container sees the pair of its own; one that is renewed counts with the next pod. */}}
{{- define "mqinfer.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tls.secret }}
- {name: login, mountPath: /etc/mqinfer/broker/ca.crt, subPath: ca.crt, readOnly: true}
- {name: login, mountPath: /etc/mqinfer/broker/client.crt, subPathExpr: {{ .login }}.crt, readOnly: true}
- {name: login, mountPath: /etc/mqinfer/broker/client.key, subPathExpr: {{ .login }}.key, readOnly: true}
{{- end }}
{{- with .of.tlsSecret }}
- {name: page, mountPath: /etc/mqinfer/page, readOnly: true}
{{- end }}
{{- with .of.keysSecret }}
- {name: keys, mountPath: /etc/mqinfer/keys, readOnly: true}
{{- end }}
{{- end }}

{{- define "mqinfer.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .root.Values.tls.secret }}
- name: login
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .of.tlsSecret }}
- name: page
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .of.keysSecret }}
- name: keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* A Deployment; with certificates a StatefulSet, since each pod needs a name of its own that is known beforehand. */}}
{{- define "mqinfer.workload" -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" (not (empty .root.Values.tls.secret)) }}
metadata:
  name: {{ .name }}
  labels: {{- include "mqinfer.labels" . | nindent 4 }}
spec:
  {{- with .replicas }}
  replicas: {{ . }}
  {{- end }}
  selector:
    matchLabels: {{- include "mqinfer.selector" . | nindent 6 }}
  {{- if .root.Values.tls.secret }}
  serviceName: {{ .service }}
  podManagementPolicy: Parallel
  {{- else }}
  strategy: {type: RollingUpdate, rollingUpdate: {{ ternary "{maxSurge: 0, maxUnavailable: 1}" "{maxSurge: 1, maxUnavailable: 0}" (gt (int .of.gpus) 0) }}}
  {{- end }}
{{- end }}

{{- define "mqinfer.disruption" -}}
{{- if .root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "mqinfer.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .root.Values.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "mqinfer.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* Headless: for Prometheus and KEDA, also while a pod is not ready. */}}
{{- define "mqinfer.metrics" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels:
    mqinfer/metrics: "true"
    {{- include "mqinfer.labels" . | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "mqinfer.selector" . | nindent 4 }}
  ports:
    - {name: metrics, port: 8002, targetPort: metrics}
{{- end }}

{{- define "mqinfer.from" -}}
{{- with . }}
from: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
