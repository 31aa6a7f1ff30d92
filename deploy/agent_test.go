package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	agent         = "autohealer-agent" // the account, its namespace and the DaemonSet
	agentAccount  = "system:serviceaccount:autohealer-agent:autohealer-agent"
	agentPolicies = 3
)

// TestAgent installs the agent next to the controller's namespace. The controller manager
// and the scheduler create the pods of the DaemonSet, whose tokens name their nodes.
func TestAgent(t *testing.T) {
	t.Parallel()
	c := cluster{testbed.New(t, testbed.Config{ControllerManager: true, Scheduler: true})}
	if !t.Run("installs with one command", c.installsAgent) {
		return
	}
	t.Run("has admission policies that compile", func(t *testing.T) {
		c.understandsPolicies(t, agent, agentPolicies, "['"+agentAccount+"']")
	})
	t.Run("has its pods admitted in its own namespace, but not in a restricted one", c.admitsAgents)
	t.Run("gives an agent exactly the necessary rights", c.givesAgentLeastRights)
	t.Run("lets an agent with the rights of node-problem-detector do all but its Lease", c.takesOldRights)
	t.Run("binds an agent to its own node", c.guardsNodes)
	t.Run("lets an agent yield conditions to other writers, and keeps these conditions", c.yieldsUnderGuard)
	t.Run("lets an agent report findings up to the limits", c.staysWithinLimits)
	t.Run("gives agents their own priority level in the API server", c.sharesAPIServer)
	t.Run("does not affect other clients", c.ignoresOtherClients)
	t.Run("runs the Jobs of the chart on nodes with taints of policies", c.schedulesJobs)
}

func (c cluster) installsAgent(t *testing.T) {
	c.appliesAll(t, 1+1+7+2*agentPolicies+3+2, "-f", templates(t, "controller/namespace", "agent/namespace", "agent/rights", "agent/guard", "agent/flow", "agent/agent"))
	// One variant replaces the other.
	for _, way := range [][]string{{}, {"--server-side"}} {
		out, err := c.Kubectl(t.Context(), append([]string{"apply", "--validate=strict", "--dry-run=server", "-f", unprivilegedAgent}, way...)...)
		testkit.Check(t, err == nil && strings.Contains(out, "daemonset.apps/"+agent), "the other variant, %v: %v\n%s", way, err, out)
	}
	// Nodes of realistic size, because the admission policies compare them field by field.
	testkit.Value(c.CreateNodes(t.Context(), testbed.RealNodes(2))).Must(t)
}

// schedulesJobs runs the scheduler on the cleanup, while every node has taints.
func (c cluster) schedulesJobs(t *testing.T) {
	c.kubectl(t, "taint", "nodes", "--all", "example.com/Unhealthy:NoSchedule", "example.com/Unhealthy:NoExecute")
	c.kubectl(t, "apply", "-f", templates(t, "shared/medik8s-leases"), "-f", "cleanup.yaml")
	testkit.Eventually(t, "the pod of the cleanup to get a node", func() error {
		state := c.kubectl(t, "get", "pods", "-n", namespace, "-l", "batch.kubernetes.io/job-name=autohealer-cleanup", "-o", "jsonpath={range .items[*]}{.spec.nodeName}{.status.conditions}{end}")
		if !strings.HasPrefix(state, "node-") {
			return fmt.Errorf("its state is %q", state)
		}
		return nil
	})
}

// understandsPolicies checks that the admission policies of a component compile, and that
// they name the right clients and the conditions that belong to Kubernetes in the catalog.
func (c cluster) understandsPolicies(t *testing.T, component string, count int, clients ...string) {
	t.Helper()
	admin := clientFor(t, c.AdminConfig())
	policies := admin.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	list, err := policies.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + component})
	testkit.Must(t, err)
	testkit.Require(t, len(list.Items) == count, "%d policies are there, want %d", len(list.Items), count)
	for i := range list.Items {
		policy := &list.Items[i]
		testkit.Eventually(t, "the expressions being checked", func() error {
			if policy, err = policies.Get(t.Context(), policy.Name, metav1.GetOptions{}); err != nil {
				return err
			}
			if policy.Status.ObservedGeneration != policy.Generation || policy.Status.TypeChecking == nil {
				return fmt.Errorf("%s: the status is %+v", policy.Name, policy.Status)
			}
			return nil
		})
		for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", policy.Name, warning.FieldRef, warning.Warning)
		}
		testkit.Check(t, *policy.Spec.FailurePolicy == admissionv1.Fail, "%s: a request that cannot be evaluated is admitted", policy.Name)
		for _, validation := range policy.Spec.Validations {
			if validation.Reason == nil || *validation.Reason != metav1.StatusReasonForbidden {
				t.Errorf("%s: %s is not refused as a matter of rights", policy.Name, validation.Expression)
			}
		}
		if who := policy.Spec.MatchConditions; len(who) != 1 || !slices.ContainsFunc(clients, func(client string) bool { return strings.Contains(who[0].Expression, client) }) {
			t.Errorf("%s holds for %+v", policy.Name, who)
		}
		for _, variable := range policy.Spec.Variables {
			want, listed := map[string][]string{"native": nativeConditions(), "others": report.OtherComponents()}[variable.Name]
			if got := quoted(variable.Expression); listed && !slices.Equal(got, want) {
				t.Errorf("%s: %s are %v, want %v", policy.Name, variable.Name, got, want)
			}
		}
	}
}

func nativeConditions() []string {
	var types []string
	for _, condition := range catalog.Conditions() {
		if condition.Source == catalog.Kubernetes {
			types = append(types, condition.Type)
		}
	}
	return types
}

func quoted(expression string) []string {
	var words []string
	for _, found := range regexp.MustCompile(`'([^']*)'`).FindAllStringSubmatch(expression, -1) {
		words = append(words, found[1])
	}
	return words
}

// admitsAgents checks the pods of the DaemonSet, and those of the other variant.
func (c cluster) admitsAgents(t *testing.T) {
	admin := clientFor(t, c.AdminConfig())
	for _, node := range []string{"node-0001", "node-0002"} {
		pod := c.agentPod(t, node)
		if pod.Spec.ServiceAccountName != agent || pod.Spec.Priority == nil || *pod.Spec.Priority != 2000001000 {
			t.Errorf("%s runs as %s with priority %v", pod.Name, pod.Spec.ServiceAccountName, pod.Spec.Priority)
		}
		for _, mount := range pod.Spec.Containers[0].VolumeMounts {
			testkit.Check(t, mount.ReadOnly || mount.Name == "state" || mount.Name == "problems", "%s may write %s", pod.Name, mount.MountPath)
		}
		if n := len(pod.Spec.Containers[0].VolumeMounts); n != len(pod.Spec.Volumes) {
			t.Errorf("%s has %d volumes and %d mounts: the API server has added its own token", pod.Name, len(pod.Spec.Volumes), n)
		}
	}
	for variant, privileged := range map[string]bool{templates(t, "agent/agent"): true, unprivilegedAgent: false} {
		out, err := c.Kubectl(t.Context(), "apply", "--dry-run=server", "-o", "json", "-f", variant)
		testkit.Must(t, err)
		var list struct{ Items []json.RawMessage }
		var daemons appsv1.DaemonSet
		testkit.Must(t, errors.Join(json.Unmarshal([]byte(out), &list), json.Unmarshal(list.Items[len(list.Items)-1], &daemons)))
		spec := daemons.Spec.Template.Spec
		if got := spec.Containers[0].SecurityContext.Privileged; (got != nil && *got) != privileged {
			t.Errorf("%s: privileged is %v", variant, got)
		}
		if !*spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem || spec.HostPID || spec.HostIPC {
			t.Errorf("%s has more of its node than it needs", variant)
		}
		powerful := slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
			return v.HostPath != nil && slices.Contains([]string{"/run/containerd", "/run/dbus", "/run/systemd", "/proc", "/run", "/"}, v.HostPath.Path)
		})
		testkit.Check(t, !powerful || privileged, "%s is unprivileged, but a mounted folder gives it all privileges", variant)
		create := func(namespace string, change func(*corev1.PodSpec)) error {
			// The account has the same name in the other namespace.
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "trial", Namespace: namespace}, Spec: *spec.DeepCopy()}
			pod.Spec.ServiceAccountName = "default"
			change(&pod.Spec)
			_, err := admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		asItIs := func(*corev1.PodSpec) {}
		testkit.Eventually(t, "the default accounts", func() error { return create(agent, asItIs) })
		err = create(namespace, asItIs)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
			t.Errorf("%s in %s: %v", variant, namespace, err)
		}
		// Only the host folders, the host network and the user violate the restricted
		// profile.
		testkit.Check(t, privileged == strings.Contains(fmt.Sprint(err), "privileged ("), "%s in %s: %v", variant, namespace, err)
		if variant == "journal" {
			err := create(namespace, func(p *corev1.PodSpec) {
				p.Containers[0].SecurityContext.RunAsUser = new(int64(65532))
				p.Containers[0].SecurityContext.RunAsNonRoot = new(true)
				p.Volumes, p.Containers[0].VolumeMounts = nil, nil
				p.HostNetwork, p.Containers[0].Ports = false, nil
				for _, probe := range []*corev1.Probe{p.Containers[0].LivenessProbe, p.Containers[0].ReadinessProbe} {
					probe.HTTPGet.Host, probe.HTTPGet.Port = "", intstr.FromInt32(20256)
				}
			})
			testkit.Check(t, err == nil, "without its folders, its network and its user: %v", err)
		}
	}
}

// Both variants have the same checks as far as their rights allow, and the catalog has all
// of their conditions.
func TestTheVariantsOfTheAgentLookForTheSame(t *testing.T) {
	read := func(variant, file string) (monitor map[string]any) {
		data, _ := agentManifest(t, variant)
		if err := json.Unmarshal([]byte(data.Data[file]), &monitor); err != nil {
			t.Fatalf("%s: %s: %v", variant, file, err)
		}
		return monitor
	}
	kmsg, journal := read(privilegedAgent, "kernel-monitor.json"), read(unprivilegedAgent, "kernel-monitor.json")
	if kmsg["plugin"] != "kmsg" || kmsg["logPath"] != "/dev/kmsg" || journal["plugin"] != "journald" || journal["logPath"] != nil || fmt.Sprint(journal["pluginConfig"]) != "map[source:kernel]" {
		t.Errorf("they read %v and %v", kmsg["plugin"], journal["plugin"])
	}
	for _, differs := range []string{"plugin", "pluginConfig", "logPath"} {
		delete(kmsg, differs)
		delete(journal, differs)
	}
	testkit.Check(t, reflect.DeepEqual(kmsg, journal), "they look for\n%v\n%v", kmsg, journal)
	// Access to the container runtime allows everything, so the unprivileged variant does
	// not have it.
	checks, fewer := read(privilegedAgent, "health-checks.json"), read(unprivilegedAgent, "health-checks.json")
	taken := 0
	for _, list := range []string{"conditions", "rules"} {
		all, _ := checks[list].([]any)
		checks[list] = slices.DeleteFunc(all, func(each any) bool {
			row, _ := each.(map[string]any)
			is := row["condition"] == runtimeUnhealthy || row["type"] == runtimeUnhealthy
			if is {
				taken++
			}
			return is
		})
	}
	testkit.Check(t, taken == 2 && reflect.DeepEqual(checks, fewer), "but for the runtime (%d) they check\n%v\n%v", taken, checks, fewer)
	seen := 0
	for _, monitor := range []map[string]any{kmsg, read(privilegedAgent, "health-checks.json")} {
		conditions, _ := monitor["conditions"].([]any)
		for _, condition := range conditions {
			kind, _ := condition.(map[string]any)["type"].(string)
			if known, ok := catalog.Lookup(kind); !ok || known.Source == catalog.Kubernetes {
				t.Errorf("%q is not a condition of agents in the catalog", kind)
			}
			seen++
		}
	}
	testkit.Check(t, seen >= 7, "there are %d conditions", seen)
}

const runtimeUnhealthy = "ContainerRuntimeUnhealthy"

// agentPod waits for the pod of the DaemonSet on a node.
func (c cluster) agentPod(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	admin := clientFor(t, c.AdminConfig())
	var pod *corev1.Pod
	testkit.Eventually(t, "an agent on "+node, func() error {
		pods, err := admin.CoreV1().Pods(agent).List(t.Context(), metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=" + agent, FieldSelector: "spec.nodeName=" + node,
		})
		if err != nil {
			return err
		}
		if len(pods.Items) == 1 {
			pod = &pods.Items[0]
			return nil
		}
		complaints, err := c.Kubectl(t.Context(), "get", "events", "-n", agent, "-o", "jsonpath={range .items[*]}{.message}{'\\n'}{end}")
		return errors.Join(fmt.Errorf("%d pods are there; %s", len(pods.Items), complaints), err)
	})
	return pod
}

// agentOn returns a client with the token that a node's kubelet would mount into the
// agent's pod.
func (c cluster) agentOn(t *testing.T, node string) kubernetes.Interface {
	t.Helper()
	pod := c.agentPod(t, node)
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), agent, agent, func(spec *authenticationv1.TokenRequestSpec) {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
		for _, volume := range pod.Spec.Volumes {
			if volume.Name == "token" {
				spec.ExpirationSeconds = volume.Projected.Sources[0].ServiceAccountToken.ExpirationSeconds
			}
		}
	})).Must(t)
	return clientFor(t, config)
}

// agentWithoutNode returns a client with an unbound token.
func (c cluster) agentWithoutNode(t *testing.T) kubernetes.Interface {
	t.Helper()
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), agent, agent)).Must(t)
	return clientFor(t, config)
}

var agentAllowed = []request{
	{"get", "nodes n1", ""}, {"patch", "nodes/status n1", ""},
	{"create", "events", "default"}, {"patch", "events e1", "default"},
	{"create", leases, namespace}, {"patch", leases + " autohealer-agent-n1", namespace},
}

var agentForbidden = []request{
	// Nodes: only their status, and others only by name.
	{"list", "nodes", ""}, {"watch", "nodes", ""}, {"create", "nodes", ""}, {"update", "nodes n1", ""}, {"patch", "nodes n1", ""},
	{"delete", "nodes n1", ""}, {"update", "nodes/status n1", ""}, {"get", "nodes/proxy n1", ""}, {"create", "nodes/proxy n1", ""},
	// Leases: no list, no deletion, no other namespace.
	{"get", leases + " autohealer-agent-n1", namespace}, {"update", leases + " autohealer-agent-n1", namespace},
	{"list", leases, namespace}, {"watch", leases, namespace}, {"delete", leases + " autohealer-agent-n1", namespace}, {"deletecollection", leases, namespace},
	{"create", leases, agent}, {"get", leases + " n1", "kube-node-lease"}, {"update", leases + " n1", "kube-node-lease"}, {"update", leases + " node-n1", nodeLocks},
	// Events: no other Events, and no replacement or deletion of existing ones.
	{"get", "events e1", "default"}, {"list", "events", "default"}, {"delete", "events e1", "default"}, {"update", "events e1", "default"},
	{"create", "events", "kube-system"}, {"create", "events", namespace}, {"create", "events.events.k8s.io", "default"},
	// The kubelet mounts these, so reading them over the API is unnecessary.
	{"get", "configmaps autohealer-agent-config", agent}, {"list", "configmaps", agent}, {"get", "secrets s1", agent}, {"get", "secrets s1", namespace}, {"get", "configmaps autohealer-ledger", namespace},
	{"get", "pods p1", agent}, {"list", "pods", ""}, {"create", "pods", agent}, {"create", "pods/exec p1", agent}, {"create", "pods/eviction p1", "default"},
	{"update", "daemonsets.apps autohealer-agent", agent}, {"get", sets + " s1", ""}, {"get", checks + " c1", ""},
	// Escalation of rights, and bypassing the admission policies.
	{"create", "serviceaccounts/token " + agent, agent}, {"delete", "validatingadmissionpolicies.admissionregistration.k8s.io autohealer-agent-nodes", ""},
	{"delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io autohealer-agent-nodes", ""},
	{"create", "clusterrolebindings.rbac.authorization.k8s.io", ""}, {"impersonate", "users admin", ""}, {"impersonate", "userextras/authentication.kubernetes.io/node-name n2", ""}, {"*", "*.*", ""},
}

// givesAgentLeastRights checks RBAC by access reviews. The guard tests send real requests.
func (c cluster) givesAgentLeastRights(t *testing.T) {
	mayExactly(t, c.agentOn(t, "node-0001"), agentAllowed, agentForbidden)
}

// sharesAPIServer checks the priority and fairness flow of an agent's requests.
func (c cluster) sharesAPIServer(t *testing.T) {
	admin := clientFor(t, c.AdminConfig())
	flow := func(name string) types.UID {
		schema := testkit.Value(admin.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})).Must(t)
		return schema.UID
	}
	level := testkit.Value(admin.FlowcontrolV1().PriorityLevelConfigurations().Get(t.Context(), "autohealer-agents", metav1.GetOptions{})).Must(t)
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), agent, agent, testbed.WithNode(mine))).Must(t)
	var answer http.Header
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil {
				answer = response.Header
			}
			return response, err
		})
	})
	client := clientFor(t, config)
	for name, test := range map[string]struct {
		do   apiCall
		flow string
	}{
		"conditions": {apply(mine, row("KernelDeadlock", "False")), "autohealer-agents"},
		"a Lease":    {renewLease(namespace, "autohealer-agent-"+mine), "autohealer-agents"},
		"an Event":   {createEvent("flow", nodeRef(mine)), "autohealer-agents-rest"},
		"a Secret": {func(ctx context.Context, client kubernetes.Interface) error {
			if _, err := client.CoreV1().Secrets("default").Get(ctx, "s", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
				return fmt.Errorf("reading a Secret: %w", err)
			}
			return nil
		}, "autohealer-agents-rest"},
	} {
		if err := test.do(t.Context(), client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := answer.Get("X-Kubernetes-Pf-Flowschema-Uid"), string(flow(test.flow)); got != want {
			t.Errorf("%s: the flow is %s, want %s of %s", name, got, want, test.flow)
		}
		if got := answer.Get("X-Kubernetes-Pf-Prioritylevel-Uid"); got != string(level.UID) {
			t.Errorf("%s: the priority level is %s, want %s", name, got, level.UID)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
