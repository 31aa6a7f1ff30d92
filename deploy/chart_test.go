package deploy_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// release is a cluster in which a real Helm installs the chart. There is no kubelet: the test runs
// the pods of Jobs, and one controller in place of the Deployment's pods.
type release struct{ cluster }

// TestChart installs, upgrades and uninstalls the chart.
func TestChart(t *testing.T) {
	t.Parallel()
	r := release{cluster{testbed.New(t, testbed.Config{
		ControllerManager: true,
		Flags: testbed.Flags{
			APIServer: []string{"--enable-aggregator-routing=true"},
			// The test writes the status of a Deployment and the Endpoints of a Service, and no kubelet sends
			// heartbeats.
			ControllerManager: []string{"--controllers=*,-deployment-controller,-endpoints-controller", "--node-monitor-grace-period=1h", "--node-startup-grace-period=1h"},
		},
	})}}
	testkit.Value(r.CreateNodes(t.Context(), testbed.Nodes{Count: 5})).Must(t)
	install.RunJobs(t, r.Cluster)
	testkit.Must(t, remediator.Install(t.Context(), r.Cluster))
	// Another tool has created the shared namespace, and OpenShift's console shows health checks.
	r.kubectl(t, "create", "namespace", "medik8s-leases")
	r.runsDeployment(t, "node-healthcheck-node-remediation-console-plugin")
	before, nodesBefore := r.objects(t), r.nodes(t)

	t.Run("installs nothing beside another operator", r.checksFirst)
	if !t.Run("installs a release that changes only conditions", r.installsRelease) {
		return
	}
	controller := r.runsController(t)
	t.Run("enforces when told to", r.enforces)
	t.Run("writes statuses that Argo CD's health checks read", r.showsPoliciesInArgo)
	t.Run("upgrades CRDs and keeps policies", r.upgrades)
	t.Run("uninstalls everything but policies and shared objects", func(t *testing.T) { r.uninstalls(t, controller, before, nodesBefore) })
	t.Run("installs another release in other namespaces", r.installsElsewhere)
}

// helm runs Helm. Only some of its commands need a cluster.
func helm(t *testing.T, kubeconfig string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../bin/tools/helm", args...)
	folder := t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+filepath.Join(folder, "cache"),
		"HELM_CONFIG_HOME="+filepath.Join(folder, "config"), "HELM_DATA_HOME="+filepath.Join(folder, "data"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (r release) helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helm(t, r.Kubeconfig(), args...)
}

// upgrade installs or upgrades the release.
func (r release) upgrade(t *testing.T, args ...string) error {
	t.Helper()
	_, err := r.helm(t, append([]string{"upgrade", "--install", "autohealer", "chart", "--namespace", namespace, "--create-namespace"}, args...)...)
	return err
}

// runsController runs a controller with the token and the arguments of the Deployment, behind the
// Service of the webhook.
func (r release) runsController(t *testing.T) *install.Controller {
	t.Helper()
	controller, _, err := install.StartDeployed(t.Context(), r.Cluster, install.Options{})
	testkit.Must(t, err)
	testkit.Eventually(t, "the controller to be ready", func() error { return testkit.Answers(t.Context(), "http://"+controller.Probes+"/readyz") })
	return controller
}

// runsDeployment creates a Deployment of another tool in the namespace default, with a ready replica.
func (r release) runsDeployment(t *testing.T, name string) {
	t.Helper()
	r.kubectl(t, "create", "deployment", name, "--image=a")
	r.kubectl(t, "patch", "deployment", name, "--subresource=status", "--type=merge", "-p", `{"status": {"replicas": 1, "readyReplicas": 1}}`)
}

func (r release) checksFirst(t *testing.T) {
	before := r.objects(t)
	fails := func(want string, args ...string) {
		t.Helper()
		testkit.Fails(t, r.upgrade(t, args...), want)
	}
	leaves := func(isEarly func(object string) bool) {
		t.Helper()
		for object := range r.objects(t) {
			testkit.Check(t, before[object] || isEarly(object), "a failed check has left %s", object)
		}
	}
	for _, args := range [][]string{{"--skip-crds"}, {"--dry-run=server"}} {
		fails("The CRDs are missing", args...)
	}
	leaves(func(string) bool { return false })
	r.runsDeployment(t, "node-healthcheck-controller-manager")
	const operatorRuns = "medik8s' node-healthcheck-operator runs: Deployment default/node-healthcheck-controller-manager has ready replicas"
	fails(operatorRuns, "--dry-run=server")
	fails(operatorRuns)
	r.kubectl(t, "delete", "deployment", "node-healthcheck-controller-manager")
	r.kubectl(t, "create", "-f", seedGuardrails)
	fails("Guardrails cluster exists, and this release has not written it. Set guardrails.create=false to keep it")
	r.kubectl(t, "delete", "guardrails", "cluster")
	r.kubectl(t, "create", "clusterrole", account, "--verb=get", "--resource=nodes")
	fails("Autohealer is already installed in this cluster without Helm")
	r.kubectl(t, "annotate", "clusterrole", account, "meta.helm.sh/release-name=other", "meta.helm.sh/release-namespace=elsewhere")
	fails("Autohealer is already installed in this cluster as release other in namespace elsewhere")
	r.kubectl(t, "delete", "clusterrole", account)
	fails("at '/preset': value must be one of", "--set", "preset=gke")
	// Helm installs CRDs before it renders the templates, and Kubernetes serves their APIs.
	leaves(func(object string) bool {
		return strings.Contains(object, " CustomResourceDefinition ") || strings.Contains(object, " APIService ")
	})
}

const chartPolicy = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: users}
spec: {type: Users, effect: NoSchedule, taintKey: example.com/users, conditions: {KernelDeadlock: {status: true}}}
`

func (r release) installsRelease(t *testing.T) {
	testkit.Must(t, r.upgrade(t))
	if mode := r.kubectl(t, "get", "guardrails", "cluster", "-o", "jsonpath={.spec.mode}"); mode != "Observe" {
		t.Errorf("the mode is %s", mode)
	}
}

// tainted returns the nodes with the taint of the user's policy.
func (r release) tainted(t *testing.T) (names []string) {
	t.Helper()
	for _, node := range testkit.Value(clientFor(t, r.AdminConfig()).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})).Must(t).Items {
		if slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "example.com/users" }) {
			names = append(names, node.Name)
		}
	}
	return names
}

func (r release) enforces(t *testing.T) {
	r.kubectl(t, "apply", "-f", file(t, chartPolicy))
	r.kubectl(t, "patch", "node", mine, "--subresource=status", "--type=strategic", "-p", `{"status": {"conditions": [`+row("KernelDeadlock", "True")+`]}}`)
	testkit.Eventually(t, "the set to match without a taint", func() error {
		got := r.kubectl(t, "get", "conditionset", "users", "-o", "jsonpath={.status.matched} {.status.conditions[?(@.type==\"Ready\")].message}")
		if !strings.HasPrefix(got, "1 ") || !strings.Contains(got, "Guardrails cluster has mode Observe") {
			return fmt.Errorf("the status is %q", got)
		}
		return nil
	})
	testkit.Same(t, len(r.tainted(t)), 0, "tainted nodes")
	testkit.Must(t, r.upgrade(t, "--set", "enforce={Taint}"))
	testkit.Eventually(t, "the taint", func() error {
		if got := r.tainted(t); !slices.Equal(got, []string{mine}) {
			return fmt.Errorf("tainted are %v", got)
		}
		return nil
	})
	r.showsInArgo(t, "conditionset/users", "Healthy")
	r.showsInArgo(t, "guardrails/cluster", "Healthy")
}

// argoPolicies lack a NodePool and a template. The second RepairPolicy has no effect beside the first.
const argoPolicies = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: RepairPolicy
metadata: {name: first}
spec:
  nodePool: blue
  repair: {policies: [{conditionType: Ready, toleration: 30m}]}
---
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: RepairPolicy
metadata: {name: second}
spec:
  nodePool: blue
  repair: {policies: [{conditionType: Ready, toleration: 30m}]}
---
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: workers}
spec:
  selector: {matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: DoesNotExist}]}
  unhealthyConditions: [{type: Ready, status: "False", duration: 300s}]
  remediationTemplate: {apiVersion: remediator.example.com/v1, kind: ExampleRemediationTemplate, namespace: default, name: reboot}
`

const argoTemplate = `
apiVersion: remediator.example.com/v1
kind: ExampleRemediationTemplate
metadata: {namespace: default, name: reboot}
spec: {template: {spec: {}}}
`

// showsPoliciesInArgo looks at the kinds for which no other part of this test does.
func (r release) showsPoliciesInArgo(t *testing.T) {
	policies, template := file(t, argoPolicies), file(t, argoTemplate)
	r.kubectl(t, "apply", "-f", policies)
	r.showsInArgo(t, "repairpolicy/first", "Healthy")
	r.showsInArgo(t, "repairpolicy/second", "Degraded")
	r.showsInArgo(t, "nodehealthcheck/workers", "Degraded")
	r.kubectl(t, "apply", "-f", template)
	r.showsInArgo(t, "nodehealthcheck/workers", "Healthy")
	r.kubectl(t, "annotate", "repairpolicy", "first", "autohealer.resourcestack.com/paused=storage fails")
	r.kubectl(t, "patch", "nodehealthcheck", "workers", "--type=merge", "-p", `{"spec": {"pauseRequests": ["storage fails"]}}`)
	r.showsInArgo(t, "repairpolicy/first", "Suspended")
	r.showsInArgo(t, "nodehealthcheck/workers", "Suspended")
	r.kubectl(t, "delete", "-f", policies, "-f", template)
}

func (r release) upgrades(t *testing.T) {
	const ours, theirs = "crd/conditionsets.autohealer.resourcestack.com", "crd/nodehealthchecks.remediation.medik8s.io"
	about := func(crd string) string {
		return r.kubectl(t, "get", crd, "-o", "jsonpath={.spec.versions[0].schema.openAPIV3Schema.description}")
	}
	upgrade := func(args ...string) {
		t.Helper()
		testkit.Must(t, r.upgrade(t, append([]string{"--reset-then-reuse-values"}, args...)...))
	}
	modeIs := func(where, want string) {
		t.Helper()
		testkit.Eventually(t, "the mode "+want, func() error {
			if got := r.kubectl(t, "get", "guardrails", "cluster", "-o", "jsonpath={."+where+".mode}"); got != want {
				return fmt.Errorf("the mode is %s", got)
			}
			return nil
		})
	}
	current := about(ours)
	// An older version had another description, and medik8s' CRD has no category.
	const old = `{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "old"}`
	r.kubectl(t, "patch", ours, "--type=json", "-p", "["+old+"]")
	r.kubectl(t, "patch", theirs, "--type=json", "-p", "["+old+`, {"op": "remove", "path": "/spec/names/categories"}]`)
	r.kubectl(t, "annotate", "guardrails", "cluster", "autohealer.resourcestack.com/paused=storage fails")
	modeIs("status", "Paused")
	r.showsInArgo(t, "guardrails/cluster", "Suspended")
	// An older version did not have the kind.
	r.kubectl(t, "delete", "crd/repairpolicies.autohealer.resourcestack.com")
	upgrade("--set", "controller.replicas=3")
	r.kubectl(t, "get", "crd/repairpolicies.autohealer.resourcestack.com")
	modeIs("status", "Paused")
	notes := testkit.Value(r.helm(t, "get", "notes", "autohealer", "--namespace", namespace)).Must(t)
	testkit.Check(t, strings.Contains(notes, "It is paused") && !strings.Contains(notes, "It acts"), "the notes of an upgrade during a pause are\n%s", notes)
	testkit.Same(t, about(ours), current, "the description in the CRD")
	testkit.Same(t, about(theirs), "old", "the description in the CRD of another tool")
	testkit.Same(t, r.kubectl(t, "get", "conditionset", "users", "-o", "jsonpath={.spec.taintKey}"), "example.com/users", "the policy after an upgrade")

	r.kubectl(t, "annotate", "guardrails", "cluster", "autohealer.resourcestack.com/paused-")
	modeIs("status", "Enforce")
	r.kubectl(t, "patch", "guardrails", "cluster", "--type=merge", "-p", `{"spec": {"mode": "Paused"}}`)
	upgrade("--set", "enforce={Taint,Remediate}")
	modeIs("spec", "Paused")
	testkit.Check(t, slices.Equal(r.tainted(t), []string{mine}), "tainted are %v", r.tainted(t))
}

// nodes returns the metadata and the spec of every node.
func (r release) nodes(t *testing.T) map[string]string {
	t.Helper()
	contents := map[string]string{}
	for _, node := range testkit.Value(clientFor(t, r.AdminConfig()).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})).Must(t).Items {
		delete(node.Annotations, "node.alpha.kubernetes.io/ttl") // of the controller manager
		contents[node.Name] = fmt.Sprint(node.Annotations, node.Labels, node.Finalizers, node.Spec)
	}
	return contents
}

// deadlockCheck remediates a node as soon as its kernel is deadlocked.
const deadlockCheck = `
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: deadlocked}
spec:
  selector: {}
  unhealthyConditions: [{type: KernelDeadlock, status: "True", duration: 0s}]
  remediationTemplate: {apiVersion: remediator.example.com/v1, kind: ExampleRemediationTemplate, namespace: default, name: reboot}
`

// uninstalls removes the release without deleting the policies first, without removing the agents
// first, and during a remediation.
func (r release) uninstalls(t *testing.T, controller *install.Controller, before map[string]bool, nodesBefore map[string]string) {
	t.Helper()
	// kubectl 1.30 would read YAML that begins with a brace as JSON.
	const configMap = `---
{apiVersion: v1, kind: ConfigMap, metadata: {name: sets, namespace: autohealer-system, labels: {autohealer.resourcestack.com/condition-sets: "true"}}, data: {sets.yaml: %q}}`
	r.kubectl(t, "apply", "-f", file(t, fmt.Sprintf(configMap, "type: ConditionSets\nconditionSets:\n- type: Mirrored\n  effect: NoSchedule\n  taintKey: example.com/mirrored\n  conditions:\n  - {ConditionType: A, conditionStatus: true}\n")))
	testkit.Eventually(t, "the mirror of the set in the ConfigMap", func() error {
		if got := r.kubectl(t, "get", "conditionsets", "-l", "autohealer.resourcestack.com/mirror", "-o", "name"); got == "" {
			return errors.New("there is none")
		}
		return nil
	})
	api := clientFor(t, r.AdminConfig())
	testkit.Must(t, createLease(namespace, agent+"-"+mine)(t.Context(), api))
	r.kubectl(t, "-n", namespace, "label", "lease", agent+"-"+mine, "app.kubernetes.io/name="+agent)
	r.kubectl(t, "patch", "guardrails", "cluster", "--type=merge", "-p", `{"spec": {"mode": "Enforce"}}`)
	r.kubectl(t, "apply", "-f", file(t, argoTemplate), "-f", file(t, deadlockCheck))
	testkit.Eventually(t, "the remediation and its Lease", func() error {
		_, err := r.Kubectl(t.Context(), "get", "exampleremediations", mine)
		_, errLease := r.Kubectl(t.Context(), "-n", nodeLocks, "get", "lease", "node-"+mine)
		return errors.Join(err, errLease)
	})
	stopped := make(chan error, 1)
	go func() { // like a kubelet
		_, err := r.Kubectl(t.Context(), "wait", "--for=delete", "--timeout=2m", "-n", namespace, "deployment/"+account)
		stopped <- errors.Join(err, controller.Stop(t.Context()))
	}()
	testkit.Value(r.helm(t, "uninstall", "autohealer", "--namespace", namespace)).Must(t)
	testkit.Must(t, <-stopped)
	testkit.Equal(t, "the nodes", nodesBefore, r.nodes(t))
	remain := map[string]bool{
		"v1 ConfigMap " + namespace + " sets": true,
		"v1 Namespace <none> " + namespace:    true, "v1 ServiceAccount " + namespace + " default": true, "v1 ConfigMap " + namespace + " kube-root-ca.crt": true,
		"autohealer.resourcestack.com/v1alpha1 ConditionSet <none> users":                   true,
		"remediation.medik8s.io/v1alpha1 NodeHealthCheck <none> deadlocked":                 true,
		"remediator.example.com/v1 ExampleRemediation default " + mine:                      true,
		"remediator.example.com/v1 ExampleRemediationTemplate default reboot":               true,
		"apiregistration.k8s.io/v1 APIService <none> v1alpha1.autohealer.resourcestack.com": true, "apiregistration.k8s.io/v1 APIService <none> v1alpha1.remediation.medik8s.io": true,
	}
	for _, crd := range testkit.Value(deploy.CRDNames()).Must(t) {
		remain["apiextensions.k8s.io/v1 CustomResourceDefinition <none> "+crd] = true
	}
	testkit.Eventually(t, "Kubernetes to delete the namespace of the agents", func() error {
		left := r.objects(t)
		maps.DeleteFunc(left, func(object string, _ bool) bool { return before[object] })
		if !maps.Equal(left, remain) {
			return fmt.Errorf("left are %v, want %v", slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(remain)))
		}
		return nil
	})
}

// installsElsewhere installs another release after the first, with all that presets add. The API
// server has the CRDs, one of them of another tool, so no Job runs.
func (r release) installsElsewhere(t *testing.T) {
	before := r.objects(t)
	const image, digest = "registry.example.com:5000/team/a", "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	args := []string{"install", "other", "chart", "--namespace", "elsewhere", "--create-namespace", "--no-hooks", "--set", "preset=openshift,resourceQuota=true,agent.gpu=true,agent.namespace=agents," +
		"images.controller.repository=" + image + ",images.agent.repository=" + image + ",images.agent.tag=" + digest}
	_, err := r.helm(t, args...)
	testkit.Fails(t, err, "failed to install CRD crds/remediation.medik8s.io_nodehealthchecks.yaml: conflict")
	testkit.Value(r.helm(t, append(args, "--server-side=false")...)).Must(t)
	description := r.kubectl(t, "get", "crd/nodehealthchecks.remediation.medik8s.io", "-o", "jsonpath={.spec.versions[0].schema.openAPIV3Schema.description}")
	testkit.Same(t, description, "old", "the description in the CRD of another tool")
	for object := range r.objects(t) {
		testkit.Check(t, before[object] || !strings.Contains(object, " "+namespace+" "), "a release in another namespace has %s", object)
	}
	get := func(namespace, object, path string) string {
		return r.kubectl(t, "get", "-n", namespace, object, "-o", "jsonpath={"+path+"}")
	}
	const images = ".spec.template.spec.containers[*].image"
	testkit.Check(t, strings.HasPrefix(get("elsewhere", "deployment/"+account, images), image+":v"), "the Deployment has another image")
	testkit.Same(t, get("agents", "daemonset/"+agent, images), image+"@"+digest, "the image of the agents")
	for where, class := range map[string]string{"elsewhere": "system-cluster-critical", "agents": "system-node-critical"} {
		testkit.Same(t, get(where, "resourcequota/autohealer-priority", ".spec.scopeSelector.matchExpressions[*].values[*]"), class, "the priority class of the quota")
	}
}

// TestPresets renders the chart without a cluster, in a namespace that no template names.
func TestPresets(t *testing.T) {
	t.Parallel()
	parts := map[string]string{
		"containerd": `unix:///run/containerd/containerd.sock`, "the folder of containerd": "path: /run/containerd\n",
		"CRI-O": `unix:///run/crio/crio.sock`, "the folder of CRI-O": "path: /run/crio\n", "a reason without containerd": `"reason": "ContainerRuntimeUnhealthy"`,
		"privileges": "privileged: true\n", "the journal": `"plugin": "journald"`, "GPUs": "/config/gpu-monitor.json",
		"a fixed user": "runAsUser: 65532\n", "SecurityContextConstraints": "name: system:openshift:scc:privileged\n",
		"no Fargate": "{key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}", "quotas": "kind: ResourceQuota\n",
	}
	usual := []string{"a fixed user", "privileges", "containerd", "the folder of containerd"}
	for values, want := range map[string][]string{
		"preset=default":                    usual,
		"preset=baremetal":                  usual,
		"preset=eks":                        append(slices.Clone(usual), "no Fargate"),
		"preset=gpu":                        append(slices.Clone(usual), "GPUs"),
		"preset=openshift":                  {"privileges", "CRI-O", "the folder of CRI-O", "a reason without containerd", "SecurityContextConstraints"},
		"preset=gpu,agent.privileged=false": {"a fixed user", "the journal", "GPUs"},
		"preset=openshift,openshift=false":  {"a fixed user", "privileges", "CRI-O", "the folder of CRI-O", "a reason without containerd"},
		"agent.runtimeSocket=none":          {"a fixed user", "privileges"},
		"agent.enabled=false,preset=gpu":    {"a fixed user"},
		"resourceQuota=true":                append(slices.Clone(usual), "quotas"),
	} {
		out := testkit.Value(helm(t, "", "template", "other", "chart", "--namespace", "elsewhere", "--set", values)).Must(t)
		testkit.Check(t, !strings.Contains(out, namespace), "the manifests with %s name the namespace %s", values, namespace)
		for part, text := range parts {
			if got := strings.Contains(out, text); got != slices.Contains(want, part) {
				t.Errorf("%s: the manifests have %s: %t", values, part, got)
			}
		}
	}
	examples := testkit.Value(filepath.Glob("../examples/values-*.yaml")).Must(t)
	testkit.Check(t, len(examples) >= 4, "there are %d examples of values", len(examples))
	for _, example := range examples {
		testkit.Value(helm(t, "", "template", "autohealer", "chart", "--values", example)).Must(t)
	}
}

// TestWrongValuesAreRefused renders the chart without a cluster.
func TestWrongValuesAreRefused(t *testing.T) {
	t.Parallel()
	render := func(args ...string) error {
		t.Helper()
		_, err := helm(t, "", append([]string{"template", "autohealer", "chart", "--namespace", namespace}, args...)...)
		return err
	}
	// The schema names all mistakes at once.
	mistakes := map[string]string{
		"preset=gke":                              "at '/preset': value must be one of 'default', 'eks', 'baremetal', 'gpu', 'openshift'",
		"enforce={Tain}":                          "at '/enforce/0': value must be one of 'Taint', 'Remediate', 'Repair'",
		"agent.privilegd=true":                    "at '/agent': additional properties 'privilegd' not allowed",
		"agent.privileged=maybe":                  "at '/agent/privileged': got string, want null or boolean",
		"images.agent=null":                       "at '/images': missing property 'agent'",
		"controller.resources.limits.memory=lots": "at '/controller/resources/limits/memory': 'lots' does not match pattern",
		"guardrails.spec.mode=Foo":                "at '/guardrails/spec': additional properties 'mode' not allowed",
		"guardrails.spec.maxInTreatment=foo":      "at '/guardrails/spec/maxInTreatment': 'foo' does not match pattern",
		"guardrails.spec.pace.maxx=1":             "at '/guardrails/spec/pace': additional properties 'maxx' not allowed",
		"guardrails.spec.maxAttempts.limit=0":     "at '/guardrails/spec/maxAttempts/limit': minimum: got 0, want 1",
	}
	err := render("--set", strings.Join(slices.Collect(maps.Keys(mistakes)), ","))
	for _, want := range mistakes {
		testkit.Fails(t, err, want)
	}
	for value, want := range map[string]string{
		"networkPolicy.enabled=true":                        "networkPolicy.apiServers: is empty",
		"agent.runtimeSocket=unix:///run/a/a.sock":          "want a path without unix://, or none",
		"agent.runtimeSocket=/etc/a.sock":                   "cannot mount all of /etc",
		"agent.runtimeSocket=/var/log/a/../a.sock":          "cannot mount all of /var/log",
		"enforce={Taint},guardrails.create=false":           "enforce: has no effect with guardrails.create=false",
		"createNamespace=true,agent.namespace=" + namespace: "this namespace is restricted and refuses the agents: want another namespace",
	} {
		testkit.Fails(t, render("--set", value), want)
	}
	testkit.Fails(t, render("--kube-version", "1.29.4"), "The cluster has Kubernetes v1.29.4, and Autohealer needs 1.30 or newer")
}
