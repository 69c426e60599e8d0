package verify

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

const chartFolder = "../helm/stint"

var write = flag.Bool("write", false, "write deploy/kubernetes anew")

// render renders the chart with values over its own, as "helm template" does.
func render(t *testing.T, values string) (string, error) {
	t.Helper()
	c, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	var given map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: "stint", Namespace: "shop", IsInstall: true}
	all, err := chartutil.ToRenderValues(c, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(files[name]) != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		for document := range strings.SplitSeq(files[name], "\n---\n") {
			b.WriteString("---\n" + strings.TrimSpace(strings.TrimPrefix(document, "---\n")) + "\n")
		}
	}
	return b.String(), nil
}

// monitor is a ServiceMonitor of the operator of Prometheus, as far as the chart uses it.
type monitor struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Selector  struct{ MatchLabels map[string]string }
		Endpoints []struct {
			Port, Path, Interval, Scheme string
			TLSConfig                    map[string]any `json:"tlsConfig"`
			Authorization                map[string]any
		}
	}
}

// objects are the manifests of a release by their kind; every field is one that Kubernetes knows.
type objects struct {
	pod      core.PodTemplateSpec
	workload string
	claims   []core.PersistentVolumeClaim
	selector map[string]string
	services []core.Service
	limits   *core.ConfigMap
	key      *core.Secret
	role     *rbac.Role
	kinds    []string
}

func decode(t *testing.T, text string) objects {
	t.Helper()
	var o objects
	for document := range strings.SplitSeq(strings.TrimPrefix(text, "---\n"), "---\n") {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		o.kinds = append(o.kinds, kind.Kind)
		strict := func(to any) {
			t.Helper()
			if err := yaml.UnmarshalStrict([]byte(document), to); err != nil {
				t.Errorf("%s: %v\n%s", kind.Kind, err, document)
			}
		}
		switch kind.Kind {
		case "StatefulSet":
			var s apps.StatefulSet
			strict(&s)
			o.pod, o.selector, o.claims, o.workload = s.Spec.Template, s.Spec.Selector.MatchLabels, s.Spec.VolumeClaimTemplates, s.Spec.ServiceName
		case "Deployment":
			var d apps.Deployment
			strict(&d)
			o.pod, o.selector = d.Spec.Template, d.Spec.Selector.MatchLabels
		case "Service":
			var s core.Service
			strict(&s)
			o.services = append(o.services, s)
		case "ConfigMap":
			o.limits = &core.ConfigMap{}
			strict(o.limits)
		case "Secret":
			o.key = &core.Secret{}
			strict(o.key)
		case "Role":
			o.role = &rbac.Role{}
			strict(o.role)
		default:
			to, ok := map[string]any{
				"ServiceAccount": &core.ServiceAccount{}, "RoleBinding": &rbac.RoleBinding{}, "ServiceMonitor": &monitor{},
				"PodDisruptionBudget": &policy.PodDisruptionBudget{}, "NetworkPolicy": &networking.NetworkPolicy{},
			}[kind.Kind]
			if !ok {
				t.Fatalf("unknown kind %q in\n%s", kind.Kind, document)
			}
			strict(to)
		}
	}
	slices.Sort(o.kinds)
	return o
}

const everything = `
cluster: {shards: 8, leaseKeySecret: mine}
storeSecret: {name: redis}
tls: {secret: tls, clientCA: true}
auth: {secret: auth, peerTokenKey: peer.token}
insecure: false
trustedProxies: [10.0.0.0/8]
httpHosts: [limits.example.com]
persistence: {enabled: true, storageClass: fast}
service: {type: LoadBalancer, annotations: {a: b}}
serviceMonitor: {enabled: true, labels: {release: prometheus}, tokenSecret: {name: metrics}}
networkPolicy: {from: [{namespaceSelector: {matchLabels: {team: edge}}}], adminFrom: [{namespaceSelector: {}}]}
extraArgs: [--rls-headers]
extraEnv: [{name: GOMAXPROCS, value: "2"}]
podAnnotations: {a: b}
podLabels: {team: edge}
nodeSelector: {disk: ssd}
tolerations: [{key: a, operator: Exists}]
affinity: {podAntiAffinity: {}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
priorityClassName: high
imagePullSecrets: [{name: pull}]
`

// ways are values for each way to run the chart.
var ways = map[string]string{
	"as it is":         "",
	"everything":       everything,
	"Redis":            "{cluster: {enabled: false}, store: 'redis://redis:6379'}",
	"one pod":          "{cluster: {enabled: false}, replicas: 1, existingConfigMap: mine}",
	"limits by pushes": "{configURL: 'kubernetes://shop/limits', networkPolicy: {enabled: false}, podDisruptionBudget: {enabled: false}}",
}

// TestChartLints: Helm's own linter has nothing to say, in its strict mode, whatever the values.
func TestChartLints(t *testing.T) {
	for way, values := range ways {
		var given map[string]any
		if err := yaml.Unmarshal([]byte(values), &given); err != nil {
			t.Fatal(err)
		}
		l := lint.AllWithKubeVersion(chartFolder, given, "shop", &chartutil.DefaultCapabilities.KubeVersion)
		if len(l.Messages) > 0 && !slices.ContainsFunc(l.Messages, func(m support.Message) bool { return m.Severity > support.InfoSev }) {
			t.Logf("%s: %v", way, l.Messages) // advice
		} else if len(l.Messages) > 0 {
			t.Errorf("%s: %v", way, l.Messages)
		}
	}
}

// TestManifests: Kubernetes knows every field of what the chart renders, and what belongs together agrees.
func TestManifests(t *testing.T) {
	for way, values := range ways {
		t.Run(way, func(t *testing.T) {
			text, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			o := decode(t, text)
			checkPod(t, o)
			for name, value := range o.selector {
				if o.pod.Labels[name] != value {
					t.Errorf("the workload selects %s=%s, the pod has %q", name, value, o.pod.Labels[name])
				}
			}
			if len(o.services) != 2 || o.workload != "" && o.workload != o.services[1].Name {
				t.Errorf("the members' service is %q, there are %d", o.workload, len(o.services))
			}
			ports := map[string]int32{}
			for _, p := range o.pod.Spec.Containers[0].Ports {
				ports[p.Name] = p.ContainerPort
			}
			for _, s := range o.services {
				for name, value := range s.Spec.Selector {
					if o.pod.Labels[name] != value {
						t.Errorf("%s selects %s=%s", s.Name, name, value)
					}
				}
				for _, p := range s.Spec.Ports {
					if ports[p.TargetPort.StrVal] != p.Port {
						t.Errorf("%s: port %d goes to %s, which is %d", s.Name, p.Port, p.TargetPort.StrVal, ports[p.TargetPort.StrVal])
					}
				}
			}
			leases := strings.Contains(text, "kubernetes://")
			if (o.role != nil) != leases || *o.pod.Spec.AutomountServiceAccountToken != leases {
				t.Errorf("needs leases of Kubernetes: %t, has the rights %v and the token %v", leases, o.role, *o.pod.Spec.AutomountServiceAccountToken)
			}
			if leases && !slices.Equal(o.role.Rules[0].Verbs, []string{"get", "list", "watch", "create", "patch", "delete"}) {
				t.Errorf("rights %v, and internal/cluster/kubernetes asks for others", o.role.Rules)
			}
			t.Logf("%v", o.kinds)
		})
	}
}

// checkPod: the pod meets the restricted standard of Kubernetes, mounts what it has and stops in time.
func checkPod(t *testing.T, o objects) {
	t.Helper()
	spec := o.pod.Spec
	c := spec.Containers[0]
	s := c.SecurityContext
	if !*spec.SecurityContext.RunAsNonRoot || *spec.SecurityContext.RunAsUser == 0 || spec.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
		*s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Contains(s.Capabilities.Drop, "ALL") || len(s.Capabilities.Add) > 0 {
		t.Errorf("the pod is not restricted: %+v %+v", spec.SecurityContext, s)
	}
	volumes := map[string]bool{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range o.claims {
		volumes[v.Name] = true
	}
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s is mounted, and there is no such volume", m.Name)
		}
		delete(volumes, m.Name)
		mounted[m.MountPath] = m.Name
	}
	if len(volumes) > 0 {
		t.Errorf("volumes that nobody mounts: %v", volumes)
	}
	for _, arg := range c.Args {
		if m := regexp.MustCompile(`=(/etc/stint/[a-z]+|/var/lib/stint)`).FindStringSubmatch(arg); m != nil && mounted[m[1]] == "" {
			t.Errorf("%s is in no volume", arg)
		}
	}
	for name, p := range map[string]*core.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p == nil || p.HTTPGet.Path != name || p.HTTPGet.Port.StrVal != "admin" {
			t.Errorf("probe %+v, want %s at admin", p, name)
		}
	}
}

// TestArguments: the service that ships takes the arguments of every way, and their limits: it gets as far as
// the files of a pod, which are not here. What runs on no API server is ready by the pod's own probe.
func TestArguments(t *testing.T) {
	stint := filepath.Join(t.TempDir(), "stint")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", stint, "./cmd/stint").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for way, want := range map[string]string{
		"as it is": "runs in no pod", "limits by pushes": "runs in no pod", "everything": "/etc/stint/", "Redis": "", "one pod": "",
	} {
		text, err := render(t, ways[way])
		if err != nil {
			t.Fatal(err)
		}
		o := decode(t, text)
		folder := t.TempDir()
		limits := "limits: [{name: mine, rate: 1/s}]\n"
		if o.limits != nil {
			limits = o.limits.Data["limits.yaml"]
		}
		if err := os.WriteFile(filepath.Join(folder, "limits.yaml"), []byte(limits), 0o600); err != nil {
			t.Fatal(err)
		}
		args := strings.Join(o.pod.Spec.Containers[0].Args, "\n")
		if key := filepath.Join(folder, "lease"); way != "everything" {
			text := strings.Repeat("A", 43) + "=\n"
			if o.key != nil {
				text = string(o.key.Data["lease.key"])
			}
			if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			args = strings.ReplaceAll(args, "/etc/stint/lease/lease.key", key)
		}
		args = strings.NewReplacer("/etc/stint/limits", folder, "/var/lib/stint", filepath.Join(folder, "state"), "$(POD_NAME)", "stint-0",
			"redis://redis:6379", "redis://127.0.0.1:1", ":8080", ":0", "grpc=0.0.0.0:8081", "grpc=0.0.0.0:0", "admin=0.0.0.0:8082", "admin=127.0.0.1:0").Replace(args)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, stint, strings.Split(args, "\n")...)
		var out bytes.Buffer
		if want == "" {
			// It is there; a Redis that is not keeps it from being ready, and it says so.
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for lines := bufio.NewScanner(pipe); lines.Scan(); {
				if l := lines.Text(); l == "ready" || strings.HasPrefix(l, "listening, ") {
					out.WriteString(l)
					break
				}
			}
			cancel()
			_ = cmd.Wait() // it was killed
			if (way == "one pod") != (out.String() == "ready") || out.Len() == 0 {
				t.Errorf("%s: %q", way, out.String())
			}
			continue
		}
		cmd.Stderr = &out
		err = cmd.Run()
		cancel()
		if err == nil || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "unknown flag") {
			t.Errorf("%s: %v, %s, want an error with %q", way, err, out.String(), want)
		}
	}
}

// TestRefusedValues: what cannot work is not rendered, and the error says the way out.
func TestRefusedValues(t *testing.T) {
	for values, want := range map[string]string{
		"{replicas: 0}":                       "replicas",
		"{replica: 3}":                        "replica",
		"{cluster: {shards: 65}}":             "shards",
		"{drainDelay: soon}":                  "drainDelay",
		"{maxBytes: 1GB}":                     "maxBytes",
		"{cluster: {enabled: false}}":         "set cluster.enabled, store, or replicas: 1",
		"{insecure: false}":                   "give tls.secret, or say insecure: true",
		"{tls: {clientCA: true}}":             "tls.clientCA needs tls.secret",
		"{auth: {peerTokenKey: a}}":           "auth.peerTokenKey needs auth.secret",
		"{insecure: false, tls: {secret: a}}": "the admin port needs a proof",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", values, err, want)
		}
	}
}

// TestPlainManifests: deploy/kubernetes is what the chart renders, and the chart's version is that of the code.
func TestPlainManifests(t *testing.T) {
	text, err := render(t, "cluster: {leaseKeySecret: stint-lease-key}")
	if err != nil {
		t.Fatal(err)
	}
	text = "# Three members in the namespace shop:\n" +
		"#   kubectl -n shop create secret generic stint-lease-key --from-literal=lease.key=\"$(openssl rand -base64 32)\"\n" +
		"#   kubectl -n shop apply -f stint.yaml\n" +
		"# Written by ./scripts/generate from deploy/helm/stint.\n" +
		regexp.MustCompile(`(?m)^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n| +$`).ReplaceAllString(text, "")
	file := filepath.Join("..", "kubernetes", "stint.yaml")
	if *write {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != text {
		t.Errorf("%s is not what the chart renders (%v): run ./scripts/generate", file, err)
	}
	source, err := os.ReadFile("../../cmd/stint/root.go")
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(source), `const next = "`+c.AppVersion()+`"`) || c.Metadata.Version != c.AppVersion() {
		t.Errorf("the chart is %s of version %s, the code of another", c.Metadata.Version, c.AppVersion())
	}
}
