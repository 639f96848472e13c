{{- define "flowsched.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* What a selector says, which never changes: (dict "root" $ "component" "service"). */ -}}
{{- define "flowsched.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "flowsched.labels" -}}
{{ include "flowsched.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: flowsched
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "flowsched.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* A Secret's name: the one that is given, or the chart's own: (dict "root" $ "given" … "own" "token"). */ -}}
{{- define "flowsched.secret" -}}
{{- .given.existingSecret.name | default (printf "%s-%s" (include "flowsched.name" .root) .own) -}}
{{- end -}}

{{/* The claims that every task sees, as FLOWSCHED_SHARED has them. */}}
{{- define "flowsched.shared" -}}
{{- $told := list -}}
{{- range . -}}
{{- $told = append $told (printf "%s:%s%s" .claim .path (ternary ":ro" "" (default false .readOnly))) -}}
{{- end -}}
{{- join "," $told -}}
{{- end -}}
