package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	namespace = "autohealer-system"
	account   = "autohealer-controller"
	// controllerPolicies is the number of the controller's admission policies.
	controllerPolicies = 8
)

// TestDeploy installs everything into one cluster and checks it. The controller manager
// creates the pods of the Deployment.
func TestDeploy(t *testing.T) {
	t.Parallel()
	c := cluster{testbed.New(t, testbed.Config{ControllerManager: true})}
	if !t.Run("installs with one command", c.installs) {
		return // nothing to check
	}
	t.Run("has admission policies that compile", func(t *testing.T) {
		c.understandsPolicies(t, account, controllerPolicies, "['system:serviceaccount:"+namespace+":"+account+"']", "'system:nodes' in ")
	})
	t.Run("refuses only objects that the webhook has not judged", c.guardsOnlyItsOwn)
	t.Run("serves the CRDs", c.servesCRDs)
	t.Run("accepts the example sets unchanged", c.takesSeed)
	t.Run("accepts the default sets", c.takesDefaults)
	t.Run("accepts every example", c.takesExamples)
	t.Run("accepts sets of the Go type", c.takesGoType)
	t.Run("refuses invalid sets with a message", c.refusesBadSets)
	t.Run("refuses exactly the sets that do not compile", c.agreesWithCompiler)
	t.Run("keeps sets that were stored before the rules", c.keepsWhatIsStored)
	t.Run("stores nothing that makes the list of sets unreadable", c.storesOnlyReadable)
	t.Run("prints the columns of sets", c.printsColumns)
	t.Run("accepts repair policies as users write them", c.takesRepairPolicies)
	t.Run("accepts repair policies of the Go type", c.takesTypedRepairPolicy)
	t.Run("refuses invalid repair policies with a message", c.refusesBadRepairPolicies)
	t.Run("stores nothing that makes the list of repair policies unreadable", c.storesOnlyReadableRepairPolicies)
	t.Run("prints the columns of repair policies", c.printsRepairPolicyColumns)
	t.Run("accepts health checks as users write them", c.takesHealthChecks)
	t.Run("accepts health checks of the Go type", c.takesTypedHealthCheck)
	t.Run("refuses invalid health checks with a message", c.refusesBadHealthChecks)
	t.Run("refuses exactly the health checks that do not compile", c.agreesWithHealthCheckCompiler)
	t.Run("works with medik8s' own CRD", c.worksWithTheOtherCRD)
	t.Run("stores nothing that makes the list of health checks unreadable", c.storesOnlyReadableHealthChecks)
	t.Run("prints the columns of health checks", c.printsHealthCheckColumns)
	t.Run("fills in the defaults of guardrails", c.defaultsGuardrails)
	t.Run("accepts guardrails as users write them", c.takesGuardrails)
	t.Run("accepts guardrails of the Go type", c.takesTypedGuardrails)
	t.Run("refuses invalid guardrails with a message", c.refusesBadGuardrails)
	t.Run("refuses exactly the guardrails that do not compile", c.agreesWithGuardrailsCompiler)
	t.Run("stores nothing that makes the guardrails unreadable", c.storesOnlyReadableGuardrails)
	t.Run("prints the columns of guardrails", c.printsGuardrailsColumns)
	t.Run("accepts the examples of the pages of guardrails", c.takesGuardrailsPages)
	t.Run("has its pods admitted in a restricted namespace", c.admitsPods)
	t.Run("accepts the network policy", c.takesNetworkPolicy)
	t.Run("gives the controller exactly the necessary rights", c.givesLeastRights)
	t.Run("gives the Jobs of the chart exactly the necessary rights", c.givesJobsLeastRights)
	t.Run("gives it the rights to restore the schema by a separate file", c.givesRightsToRestore)
	t.Run("gives it the rights that remediators aggregate", c.gathersRights)
	t.Run("lets viewers see policies and editors change them", c.givesRightsToUsers)
	t.Run("gets a file of conditions as documented", c.takesStatements)
	t.Run("is removed as documented", c.isRemoved)
}

// cluster is the cluster with everything installed.
type cluster struct{ *testbed.Cluster }

// installs applies the folder as Kustomize and Flux do: it names install.yaml alone.
func (c cluster) installs(t *testing.T) {
	c.appliesAll(t, 38+2*controllerPolicies+2*agentPolicies, "-k", ".")
}

// appliesAll applies the manifests as documented, and once more.
func (c cluster) appliesAll(t *testing.T, objects int, files ...string) {
	t.Helper()
	created := c.kubectl(t, append([]string{"apply", "--validate=strict"}, files...)...)
	if got := strings.Count(created, " created\n"); got != objects || strings.Count(created, "\n") != objects {
		t.Errorf("%d objects were created, want %d:\n%s", got, objects, created)
	}
	for _, again := range [][]string{{"apply", "--validate=strict"}, {"apply", "--validate=strict", "--server-side"}, {"diff"}} {
		out, err := c.Kubectl(t.Context(), append(again, files...)...)
		testkit.Check(t, err == nil, "the second time: %v", err)
		testkit.Check(t, again[0] != "diff" || out == "", "the stored objects differ from the manifests:\n%s", out)
	}
}

// guardsOnlyItsOwn checks a cluster whose webhook is not running yet, and then removes the
// webhook. The following tests check the API server alone.
func (c cluster) guardsOnlyItsOwn(t *testing.T) {
	const harmless = `
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata: {name: harmless, finalizers: [example.com/wait]}
spec: {type: Harmless, effect: NoSchedule, taintKey: example.com/harmless, conditions: {Harmless: {status: true}}}
`
	set := file(t, harmless)
	testkit.Eventually(t, "the API server to call the webhook", func() error {
		_, err := c.Kubectl(t.Context(), "apply", "-f", set, "--dry-run=server")
		return testkit.Says(err, `failed calling webhook "conditionsets.autohealer.resourcestack.com"`)
	})
	admin := clientFor(t, c.AdminConfig())
	hooks := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	config := testkit.Value(hooks.Get(t.Context(), "autohealer", metav1.GetOptions{})).Must(t)
	asked := map[string]bool{}
	for _, hook := range config.Webhooks {
		for _, rule := range hook.Rules {
			switch about := fmt.Sprint(rule.Resources, rule.APIGroups); about {
			case "[conditionsets] [autohealer.resourcestack.com]", "[nodehealthchecks] [remediation.medik8s.io]", "[repairpolicies] [autohealer.resourcestack.com]":
				asked[about] = true
			case "[nodepools] [karpenter.sh]":
				asked[about] = true
				testkit.Check(t, *hook.FailurePolicy == "Ignore", "%s can block Karpenter", hook.Name)
			default:
				t.Errorf("%s is called for %s", hook.Name, about)
			}
		}
		if *hook.SideEffects != "None" || *hook.TimeoutSeconds > 5 {
			t.Errorf("%s has side effects %s, and %d seconds", hook.Name, *hook.SideEffects, *hook.TimeoutSeconds)
		}
	}
	testkit.Check(t, len(asked) == 4, "it is called only for %v", asked)
	for path, hook := range map[string]string{seedCheck: "nodehealthchecks", seedPolicy: "repairpolicies"} {
		_, err := c.Kubectl(t.Context(), "apply", "-f", path, "--dry-run=server")
		if err == nil || !strings.Contains(err.Error(), `failed calling webhook "`+hook+`.autohealer.resourcestack.com"`) {
			t.Errorf("%s, which the webhook has not judged: %v", path, err)
		}
	}
	// An existing set can be labelled and deleted.
	testkit.Must(t, hooks.Delete(t.Context(), "autohealer", metav1.DeleteOptions{}))
	testkit.Eventually(t, "the webhook to be removed", func() error {
		_, err := c.Kubectl(t.Context(), "create", "-f", set, "-f", seedCheck, "-f", seedPolicy)
		return err
	})
	c.kubectl(t, "apply", "-f", "install.yaml")
	testkit.Eventually(t, "the webhook to be installed again", func() error {
		if _, err := c.Kubectl(t.Context(), "patch", "conditionset", "harmless", "--type=merge", "-p", `{"spec": {"effect": "NoExecute"}}`, "--dry-run=server"); err == nil {
			return errors.New("a set can be changed")
		}
		return nil
	})
	c.brakes(t)
	for _, args := range [][]string{
		{"label", "conditionset", "harmless", "a=b"},
		{"delete", "conditionset", "harmless", "--wait=false"},
		{"patch", "conditionset", "harmless", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`},
		// So can a repair policy and a health check, and their statuses can be written.
		{"patch", "repairpolicy", "default", "--subresource=status", "--type=merge", "-p", `{"status": {"nodes": 3}}`},
		{"label", "repairpolicy", "default", "a=b"},
		{"delete", "repairpolicy", "default"},
		{"label", "nodehealthcheck", "nodehealthcheck-sample", "a=b"},
		{"patch", "nodehealthcheck", "nodehealthcheck-sample", "--subresource=status", "--type=merge", "-p", `{"status": {"phase": "Enabled"}}`},
		{"delete", "nodehealthcheck", "nodehealthcheck-sample"},
		// The schema alone judges guardrails, so that users can pause at any time.
		{"create", "-f", seedGuardrails},
		{"patch", "guardrails", "cluster", "--type=merge", "-p", `{"spec": {"mode": "Paused"}}`},
		{"delete", "guardrails", "cluster"},
	} {
		if _, err := c.Kubectl(t.Context(), args...); err != nil {
			t.Errorf("with the webhook down: %v", err)
		}
	}
	testkit.Must(t, hooks.Delete(t.Context(), "autohealer", metav1.DeleteOptions{}))
	testkit.Eventually(t, "the webhook to be removed", func() error {
		_, err := c.Kubectl(t.Context(), "apply", "-f", set, "--dry-run=server")
		return err
	})
	c.healthChecks().deleteAll(t)
}

// brakes pauses and disables policies of every kind while the webhook is down. Other
// changes are refused.
func (c cluster) brakes(t *testing.T) {
	t.Helper()
	for _, test := range []struct {
		object, patch string
		passes        bool
	}{
		{"conditionset/harmless", `{"spec": {"dryRun": true, "effect": "NoExecute"}}`, false},
		{"conditionset/harmless", `{"spec": {"dryRun": true, "selector": {}}}`, false},
		{"conditionset/harmless", `{"spec": {"dryRun": true, "conditions": {"Harmless": {"duration": "1s"}}}}`, false},
		{"conditionset/harmless", `{"spec": {"mode": "Observe", "effect": "NoExecute"}}`, false},
		{"conditionset/harmless", `{"spec": {"mode": "Enforce"}}`, false},
		{"conditionset/harmless", `{"spec": {"mode": "Observe"}}`, true},
		{"conditionset/harmless", `{"spec": {"mode": null, "dryRun": true}}`, true},
		{"conditionset/harmless", `{"metadata": {"annotations": {"autohealer.resourcestack.com/paused": "now"}}}`, true},
		{"repairpolicy/default", `{"metadata": {"annotations": {"autohealer.resourcestack.com/paused": "now"}}}`, true},
		{"conditionset/harmless", `{"spec": {"dryRun": false}}`, false},
		{"conditionset/harmless", `{"spec": {"dryRun": null}}`, false},
		{"nodehealthcheck/nodehealthcheck-sample", `{"spec": {"pauseRequests": ["upgrade"], "healthyDelay": "1s"}}`, false},
		{"nodehealthcheck/nodehealthcheck-sample", `{"spec": {"pauseRequests": ["upgrade"]}}`, true},
		{"nodehealthcheck/nodehealthcheck-sample", `{"spec": {"pauseRequests": ["upgrade", "too"]}}`, true},
		{"nodehealthcheck/nodehealthcheck-sample", `{"spec": {"pauseRequests": []}}`, false},
		{"nodehealthcheck/nodehealthcheck-sample", `{"spec": {"pauseRequests": null}}`, false},
		{"repairpolicy/default", `{"spec": {"repair": {"enabled": false, "maxConcurrent": 7}}}`, false},
		{"repairpolicy/default", `{"spec": {"repair": {"enabled": false, "policies": null}}}`, false},
		{"repairpolicy/default", `{"spec": {"repair": {"enabled": false}}}`, true},
		{"repairpolicy/default", `{"spec": {"repair": {"enabled": true}}}`, false},
		{"repairpolicy/default", `{"spec": {"repair": {"enabled": null}}}`, false},
	} {
		_, err := c.Kubectl(t.Context(), "patch", test.object, "--type=merge", "-p", test.patch)
		switch {
		case test.passes && err != nil:
			t.Errorf("%s: %s does not pass: %v", test.object, test.patch, err)
		case !test.passes && (err == nil || !strings.Contains(err.Error(), "failed calling webhook")):
			t.Errorf("%s: %s passes unjudged: %v", test.object, test.patch, err)
		}
	}
}

// takesNetworkPolicy applies the network policy, and compares it with the Deployment.
func (c cluster) takesNetworkPolicy(t *testing.T) {
	c.kubectl(t, "apply", "--validate=strict", "-f", "extras/network-policy.yaml")
	admin := clientFor(t, c.AdminConfig())
	policy := testkit.Value(admin.NetworkingV1().NetworkPolicies(namespace).Get(t.Context(), account, metav1.GetOptions{})).Must(t)
	deployment := testkit.Value(admin.AppsV1().Deployments(namespace).Get(t.Context(), account, metav1.GetOptions{})).Must(t)
	if policy.Spec.PodSelector.String() != deployment.Spec.Selector.String() {
		t.Errorf("it selects %s, and the pods are %s", policy.Spec.PodSelector.String(), deployment.Spec.Selector)
	}
	open := map[string]bool{}
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			open[port.Port.String()] = true
			if port.Port.String() == "webhooks" && (len(rule.From) != 1 || rule.From[0].IPBlock == nil) {
				t.Errorf("the webhooks are open to %v", rule.From)
			}
		}
	}
	for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
		testkit.Check(t, open[port.Name], "the port %s is closed for all clients", port.Name)
		delete(open, port.Name)
	}
	testkit.Check(t, len(open) == 0, "it opens ports that the Deployment does not have: %v", open)
}

// admitsPods waits for the pods of the Deployment: the API server checks the restricted
// profile only for pods.
func (c cluster) admitsPods(t *testing.T) {
	admin := clientFor(t, c.AdminConfig())
	var pods []corev1.Pod
	testkit.Eventually(t, "two pods", func() error {
		list, err := admin.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + account})
		if err != nil {
			return err
		}
		if pods = list.Items; len(pods) == 2 {
			return nil
		}
		complaints, err := c.Kubectl(t.Context(), "get", "events", "-n", namespace, "-o", "jsonpath={range .items[*]}{.message}{'\\n'}{end}")
		return errors.Join(fmt.Errorf("%d pods are there; %s", len(pods), complaints), err)
	})
	for _, pod := range pods {
		if pod.Spec.ServiceAccountName != account || pod.Spec.Priority == nil || *pod.Spec.Priority != 2000000000 {
			t.Errorf("%s runs as %s with priority %v", pod.Name, pod.Spec.ServiceAccountName, pod.Spec.Priority)
		}
		if got := tokens(pod.Spec); !slices.Equal(got, []int64{3600}) {
			t.Errorf("%s has tokens that live for %v seconds", pod.Name, got)
		}
		for _, toleration := range pod.Spec.Tolerations {
			if toleration.Effect == corev1.TaintEffectNoExecute && *toleration.TolerationSeconds != 60 {
				t.Errorf("%s: the API server added its own toleration: %+v", pod.Name, toleration)
			}
		}
	}
	budget, err := admin.PolicyV1().PodDisruptionBudgets(namespace).Get(t.Context(), account, metav1.GetOptions{})
	testkit.Must(t, err)
	testkit.Eventually(t, "the budget to count both", func() error {
		if budget, err = admin.PolicyV1().PodDisruptionBudgets(namespace).Get(t.Context(), account, metav1.GetOptions{}); err != nil {
			return err
		}
		if budget.Status.ExpectedPods != 2 || budget.Status.DesiredHealthy != 1 {
			return fmt.Errorf("it expects %d and wants %d healthy", budget.Status.ExpectedPods, budget.Status.DesiredHealthy)
		}
		return nil
	})

	// The namespace refuses pods that are not restricted, including a pod of ours without
	// one of its restrictions.
	deployment := testkit.Value(admin.AppsV1().Deployments(namespace).Get(t.Context(), account, metav1.GetOptions{})).Must(t)
	for name, loosen := range map[string]func(*corev1.PodSpec){
		"root":         func(p *corev1.PodSpec) { p.SecurityContext.RunAsNonRoot = nil },
		"seccomp":      func(p *corev1.PodSpec) { p.SecurityContext.SeccompProfile = nil },
		"escalation":   func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
		"capabilities": func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.Capabilities = nil },
		"host network": func(p *corev1.PodSpec) { p.HostNetwork = true },
	} {
		if err := createPod(t.Context(), admin, deployment, loosen); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
			t.Errorf("loosened by %s: %v", name, err)
		}
	}
	if err := createPod(t.Context(), admin, deployment, func(*corev1.PodSpec) {}); err != nil {
		t.Errorf("as it is: %v", err)
	}
	testkit.Check(t, *deployment.Spec.Template.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem, "the root filesystem can be written")
}

// tokens returns the lifetimes of the tokens that are mounted into the first container.
func tokens(pod corev1.PodSpec) (seconds []int64) {
	for _, volume := range pod.Volumes {
		isMounted := slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == volume.Name && m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount" && m.ReadOnly
		})
		if volume.Projected == nil || !isMounted {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.ServiceAccountToken != nil {
				seconds = append(seconds, *source.ServiceAccountToken.ExpirationSeconds)
			}
		}
	}
	return seconds
}

// createPod checks in dry run whether a changed pod of the Deployment is admitted.
func createPod(ctx context.Context, admin kubernetes.Interface, d *appsv1.Deployment, change func(*corev1.PodSpec)) error {
	template := d.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "trial", Labels: template.Labels}, Spec: template.Spec}
	change(&pod.Spec)
	_, err := admin.CoreV1().Pods(d.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	return testkit.Value(kubernetes.NewForConfig(config)).Must(t)
}

// kubectl runs kubectl, and ends the test if it fails.
func (c cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return testkit.Value(c.Kubectl(t.Context(), args...)).Must(t)
}

// templates writes what install.yaml has of templates of the chart, and returns the path.
func templates(t *testing.T, names ...string) string {
	t.Helper()
	var texts []string
	for _, name := range names {
		texts = append(texts, string(testkit.Value(deploy.Manifest(name+".yaml")).Must(t)))
	}
	return file(t, strings.Join(texts, "\n---\n"))
}

// file writes a manifest to a file and returns its path.
func file(t *testing.T, manifest string) string {
	t.Helper()
	// Not in t.TempDir: its name may have a comma, at which kubectl divides paths.
	folder := testkit.Value(os.MkdirTemp("", "manifest-")).Must(t)
	t.Cleanup(func() { testkit.Must(t, os.RemoveAll(folder)) })
	path := filepath.Join(folder, "manifest.yaml")
	testkit.Must(t, os.WriteFile(path, []byte(manifest), 0o600))
	return path
}

// getJSON reads the output of kubectl get.
func (c cluster) getJSON(t *testing.T, into any, args ...string) {
	t.Helper()
	out := c.kubectl(t, append([]string{"get", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
}
