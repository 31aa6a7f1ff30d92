package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// userCluster is a cluster of a user, into which the demo installs Autohealer with a real Helm. There
// is no kubelet: the test runs what pods would run.
type userCluster struct {
	*testbed.Cluster
	api kubernetes.Interface
}

func TestInClusterInstallsReportsAndRemovesWhatItInstalled(t *testing.T) {
	t.Parallel()
	u := newUserCluster(t)
	testkit.Value(u.CreateNodes(t.Context(), testbed.Nodes{Count: 3})).Must(t)
	broken := deadlocked()
	broken.LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
	testkit.Must(t, u.SetCondition(t.Context(), "node-0002", broken))
	before := u.objects(t)
	testkit.Value(u.KubectlApply(t.Context(), `{apiVersion: v1, kind: Event, metadata: {name: old, namespace: default}, type: Warning, reason: FailedCreate, message: of an earlier installation,
		involvedObject: {apiVersion: apps/v1, kind: DaemonSet, namespace: default, name: autohealer-agent}}`)).Must(t)

	t.Run("explains an image that cannot be pulled, and cleans up", func(t *testing.T) { u.explainsImages(t, before) })
	install.RunJobs(t, u.Cluster)
	u.runsPods(t)
	t.Run("reports once and removes the release", func(t *testing.T) { u.reportsOnce(t, before) })
	t.Run("reports changes, beside another run that changes nothing", func(t *testing.T) { u.reportsChanges(t, before) })
}

func newUserCluster(t *testing.T) userCluster {
	t.Helper()
	c := testbed.New(t, testbed.Config{
		ControllerManager: true,
		Flags: testbed.Flags{
			APIServer: []string{"--enable-aggregator-routing=true"},
			// The test writes the status of the Deployment and runs an agent, and no kubelet sends heartbeats.
			ControllerManager: []string{"--controllers=*,-deployment-controller,-daemonset-controller,-endpoints-controller", "--node-monitor-grace-period=1h", "--node-startup-grace-period=1h"},
		},
	})
	return userCluster{c, testkit.Value(kubernetes.NewForConfig(c.AdminConfig())).Must(t)}
}

func inTest(change func(r *inCluster)) *inCluster {
	r := &inCluster{root: filepath.Join("..", ".."), once: true, patience: time.Minute}
	change(r)
	return r
}

// demo returns a demo in this cluster.
func (u userCluster) demo(change func(r *inCluster)) *inCluster {
	return inTest(func(r *inCluster) {
		r.kubeconfig = u.Kubeconfig()
		change(r)
	})
}

// runsPods runs a controller and an agent while the release is installed, like kubelets, until the
// end of the test.
func (u userCluster) runsPods(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := u.runRelease(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
}

// runRelease waits for the Deployment, runs a controller and an agent, and stops them when the
// Deployment is deleted.
func (u userCluster) runRelease(ctx context.Context) error {
	deployments := u.api.AppsV1().Deployments(install.Namespace)
	exists := func() bool {
		_, err := deployments.Get(ctx, install.Account, metav1.GetOptions{})
		return !apierrors.IsNotFound(err)
	}
	pause := func() bool {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		return ctx.Err() == nil
	}
	for !exists() && pause() {
	}
	controller, leave, err := install.StartDeployed(ctx, u.Cluster, install.Options{})
	if err != nil {
		return err
	}
	for testkit.Answers(ctx, "http://"+controller.Probes+"/readyz") != nil && pause() {
	}
	folder, err := u.Folder("node-0001")
	if err != nil {
		return err
	}
	log := kernelLog{filepath.Join(folder, "kern.log")}
	monitor, err := log.monitor()
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "kernel-monitor.json")
	if err := errors.Join(os.WriteFile(log.path, nil, 0o600), os.WriteFile(file, monitor, 0o600)); err != nil {
		return err
	}
	agent, err := install.StartAgent(ctx, u.Cluster, install.AgentOptions{Node: "node-0001", Args: []string{"--config.system-log-monitor=" + file}})
	if err != nil {
		return err
	}
	const ready = `{"status": {"replicas": 2, "readyReplicas": 1}}`
	if _, err := u.Kubectl(ctx, "patch", "deployment", install.Account, "-n", install.Namespace, "--subresource=status", "--type=merge", "-p", ready); err != nil {
		return err
	}
	for exists() && pause() {
	}
	return errors.Join(controller.Stop(ctx), agent.Stop(ctx), u.api.CoreV1().Pods(install.AgentAccount).Delete(ctx, agent.Pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}), leave(ctx))
}

func (u userCluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return testkit.Value(u.Kubectl(t.Context(), args...)).Must(t)
}

// objects returns all objects but Events and those that Kubernetes creates in namespaces.
func (u userCluster) objects(t *testing.T) (all []string) {
	t.Helper()
	kinds := strings.Fields(u.kubectl(t, "api-resources", "--verbs=list", "-o", "name"))
	kinds = slices.DeleteFunc(kinds, func(kind string) bool {
		return strings.HasPrefix(kind, "events") || kind == "apiservices.apiregistration.k8s.io" || kind == "leases.coordination.k8s.io"
	})
	out := u.kubectl(t, "get", strings.Join(kinds, ","), "-A", "--ignore-not-found", "-o", `jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	return strings.Split(strings.TrimSpace(out), "\n")
}

// checkClean runs the command that the demo printed, and compares all objects.
func (u userCluster) checkClean(t *testing.T, printed string, before []string) {
	t.Helper()
	testkit.Same(t, testkit.Value(u.Kubectl(t.Context(), "get", "secrets", "-A", "-l", "owner=helm", "-o", "name")).Must(t), "", "releases of Helm")
	_, command, _ := strings.Cut(printed, "\n  kubectl delete ")
	command, _, found := strings.Cut(command, "\n\n")
	testkit.Require(t, found, "the demo printed no command to remove what stays:\n%s", printed)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "kubectl delete "+command)
	program := testkit.Value(u.Program("kubectl")).Must(t)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+u.Kubeconfig(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	testkit.Require(t, err == nil, "%s: %v\n%s", command, err, out)
	testkit.Eventually(t, "Kubernetes to delete the namespaces", func() error {
		left := slices.DeleteFunc(u.objects(t), func(object string) bool { return slices.Contains(before, object) })
		if len(left) > 0 {
			return fmt.Errorf("left are %v", left)
		}
		return nil
	})
	for _, node := range testkit.Value(u.api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})).Must(t).Items {
		if node.Name == "node-0001" {
			testkit.Same(t, statusOf(&node, "KernelDeadlock"), "", "the status of the condition that the agent has written")
			testkit.Same(t, statusOf(&node, corev1.NodeReady), corev1.ConditionTrue, "the status of the kubelet's condition")
		}
		testkit.Same(t, len(node.Spec.Taints), 0, "taints of %s", node.Name)
	}
}

func (u userCluster) explainsImages(t *testing.T, before []string) {
	t.Helper()
	go func() { // like a kubelet
		ctx := t.Context()
		for ctx.Err() == nil {
			pods, err := u.api.CoreV1().Pods(install.Namespace).List(ctx, metav1.ListOptions{})
			if err == nil && len(pods.Items) > 0 {
				pod := &pods.Items[0]
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image,
					State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}},
				}}
				if _, err := u.api.CoreV1().Pods(install.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err == nil {
					return
				}
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	const stored = "jsonpath={.items[*].metadata.uid} {.items[*].metadata.resourceVersion}"
	releases := func() string { return u.kubectl(t, "get", "secrets", "-A", "-l", "owner=helm", "-o", stored) }
	var out transcript
	kept := u.demo(func(r *inCluster) { r.registry, r.tag, r.keep = "registry.example.com/team/", "v9", true })
	testkit.Fails(t, kept.start(t.Context(), &out, currentCluster),
		"cannot pull the image registry.example.com/team/autohealer-controller:v9: ImagePullBackOff: not found. Push the images with make images")
	checkOutput(t, out.String(), "the release that failed stays", "helm uninstall autohealer --namespace autohealer-system --no-hooks")

	// Another run fails, and does not touch the release of this one.
	first := releases()
	testkit.Check(t, len(first) > 1, "KEEP=1 has not kept the release")
	err := u.demo(func(*inCluster) {}).start(t.Context(), io.Discard, currentCluster)
	testkit.Check(t, err != nil, "a second release has been installed")
	testkit.Same(t, releases(), first, "the release of the first run")

	kept.keep = false
	testkit.Must(t, kept.finish(t.Context()))
	u.checkClean(t, out.String(), before)
}

func (u userCluster) reportsOnce(t *testing.T, before []string) {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.yaml") // the demo never acts
	testkit.Must(t, os.WriteFile(values, []byte("enforce: [Taint]\nguardrails: {create: false}\n"), 0o600))
	var out transcript
	err := u.demo(func(r *inCluster) { r.defaults, r.preset, r.values = true, "eks", values }).start(t.Context(), &out, currentCluster)
	testkit.Require(t, err == nil, "%v\n%s", err, out.String())
	checkOutput(t, out.String(),
		"with 3 nodes", "as release autohealer in namespace autohealer-system, in mode Observe", "the demo removes it after the first report",
		"1 of 2 controllers ready", "sets of deploy/defaults are applied", "what Autohealer sees:",
		"nodes 3, 1 with an unhealthy condition", "node-0002 KernelDeadlock=True", "agents 1 of 1 report",
		"guardrails Observe: mode Observe: nothing new starts", "ConditionSet: 1 node due: nothing new starts: Guardrails cluster has mode Observe",
		"node-0002 OnHold: ConditionSet/default-kernel-deadlock:", "removing release autohealer", "these objects stay",
	)
	testkit.Check(t, !strings.Contains(out.String(), "of an earlier installation"), "the demo prints an old Event:\n%s", out.String())
	u.checkClean(t, out.String(), before)
}

func (u userCluster) reportsChanges(t *testing.T, before []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, other transcript
	ended := make(chan error, 1)
	go func() {
		ended <- u.demo(func(r *inCluster) { r.once = false }).start(ctx, &out, currentCluster)
	}()
	out.await(t.Context(), t, "changes follow until Ctrl-C", "kubectl apply -f deploy/defaults")

	role := u.kubectl(t, "get", "clusterrole", install.Account, "-o", "jsonpath={.metadata.uid} {.metadata.resourceVersion}")
	err := u.demo(func(r *inCluster) { r.defaults = true }).start(t.Context(), &other, currentCluster)
	testkit.Require(t, err == nil, "%v\n%s", err, other.String())
	checkOutput(t, other.String(), "already installed, as release autohealer in namespace autohealer-system", "DEFAULTS=1 has no effect", "node-0002 KernelDeadlock=True")
	testkit.Same(t, u.kubectl(t, "get", "clusterrole", install.Account, "-o", "jsonpath={.metadata.uid} {.metadata.resourceVersion}"), role, "the ClusterRole of the installation")
	testkit.Same(t, u.kubectl(t, "get", "secrets", "-A", "-l", "owner=helm", "-o", "jsonpath={.items[*].metadata.name}"), "sh.helm.release.v1.autohealer.v1", "the release")
	testkit.Same(t, u.kubectl(t, "get", "conditionsets", "-o", "name"), "", "sets")

	testkit.Must(t, u.SetCondition(t.Context(), "node-0003", deadlocked()))
	out.await(t.Context(), t, "3, 2 with an unhealthy condition", "node-0003       KernelDeadlock=True (DockerHung)")
	u.kubectl(t, "apply", "-f", "../../examples/tutorial.yaml")
	out.await(t.Context(), t, "tutorial        ConditionSet: ")
	u.kubectl(t, "delete", "-f", "../../examples/tutorial.yaml")
	out.await(t.Context(), t, "the ConditionSet is gone")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the demo ended with %v, want no error after an interrupt", err)
	}
	u.checkClean(t, out.String(), before)
}

func TestInClusterShowsWhatHelmRefuses(t *testing.T) {
	t.Parallel()
	u := newUserCluster(t)
	before := u.objects(t)
	const operator = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: node-healthcheck-controller-manager, namespace: default},
		spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a}]}}}}`
	testkit.Value(u.KubectlApply(t.Context(), operator)).Must(t)
	u.kubectl(t, "patch", "deployment", "node-healthcheck-controller-manager", "--subresource=status", "--type=merge", "-p", `{"status": {"replicas": 1, "readyReplicas": 1}}`)
	var out transcript
	err := u.demo(func(r *inCluster) { r.keep = true }).start(t.Context(), &out, currentCluster)
	testkit.Check(t, !strings.Contains(out.String(), "helm uninstall"), "the demo claims that there is a release:\n%s", out.String())
	testkit.Fails(t, err, "medik8s' node-healthcheck-operator runs: Deployment default/node-healthcheck-controller-manager has ready replicas. Scale it to 0", "VALUES=file")
	u.kubectl(t, "delete", "deployment", "node-healthcheck-controller-manager")
	u.checkClean(t, out.String(), before)
}

func TestInClusterExplainsBadInput(t *testing.T) {
	start := func(cluster string) error { return inTest(func(*inCluster) {}).start(t.Context(), io.Discard, cluster) }
	testkit.Fails(t, start("kind"), "CLUSTER=kind: want current")

	missing := filepath.Join(t.TempDir(), "missing")
	t.Setenv("KUBECONFIG", missing)
	testkit.Fails(t, start(currentCluster), "the kubeconfig ("+missing+") has no current context \"\": set KUBECONFIG")

	dead := filepath.Join(t.TempDir(), "dead")
	const text = `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]}`
	testkit.Must(t, os.WriteFile(dead, []byte(text), 0o600))
	t.Setenv("KUBECONFIG", dead)
	testkit.Fails(t, start(currentCluster), "the API server https://127.0.0.1:1 of context a does not answer")
}

func TestInClusterNeedsRights(t *testing.T) {
	t.Parallel()
	c := testbed.New(t, testbed.Config{ControllerManager: true})
	_, err := c.KubectlApply(t.Context(), `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, rules: [{apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: reader}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}, subjects: [{kind: ServiceAccount, namespace: default, name: reader}]}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader, namespace: default}}
`)
	testkit.Must(t, err)
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), "default", "reader")).Must(t)
	reader := testkit.Value(c.WriteKubeconfig("reader", config)).Must(t)
	testkit.Fails(t, inTest(func(r *inCluster) { r.kubeconfig = reader }).start(t.Context(), io.Discard, currentCluster), "may not create customresourcedefinitions: use a context with the ClusterRole cluster-admin")
}

func TestUnhealthyConditionsKnowsHealthyStatuses(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: "Ready", Status: "True"}, {Type: "KernelDeadlock", Status: "False"}, {Type: "SomethingReady", Status: "True"}, {Type: "Something", Status: "False"},
	}}}
	testkit.Same(t, unhealthyConditions(node), "", "conditions that are not healthy")
	for i := range node.Status.Conditions {
		node.Status.Conditions[i].Status, node.Status.Conditions[i].Reason = corev1.ConditionUnknown, "Silent"
	}
	testkit.Same(t, unhealthyConditions(node), "Ready=Unknown (Silent), KernelDeadlock=Unknown (Silent), SomethingReady=Unknown (Silent), Something=Unknown (Silent)", "conditions that are not healthy")
}
