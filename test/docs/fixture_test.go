package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// blockTime limits a block. It is far longer than a block takes.
const blockTime = 3 * time.Minute

// fixture is a cluster with the chart installed. The blocks run in a folder that looks like the
// root of the repository, so they cannot change the repository.
type fixture struct {
	*testbed.Cluster
	folder   string
	env      []string
	api      kubernetes.Interface
	baseline *baseline
	broken   bool // the baseline cannot be restored
}

// newFixture starts a cluster and installs Autohealer like a user.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Cluster: testbed.New(t, testbed.Config{
		ControllerManager: true,
		Flags: testbed.Flags{
			APIServer: []string{"--shutdown-watch-termination-grace-period=1s"},
			// The test writes the Endpoints of a Service, and no kubelet sends heartbeats.
			ControllerManager: []string{"--controllers=*,-endpoints-controller", "--node-monitor-grace-period=1h", "--node-startup-grace-period=1h"},
		},
	})}
	f.api = testkit.Value(kubernetes.NewForConfig(f.AdminConfig())).Must(t)
	f.makesFolder(t)
	f.createsNodes(t)
	f.runsPods(t)
	f.mustRun(t, "kubectl apply --server-side -f test/docs/testdata/cluster.yaml -f "+karpenterCRD(t, "nodepools")+" -f "+karpenterCRD(t, "nodeclaims")+`
kubectl wait --for=condition=Established --timeout=1m crd --all >/dev/null
helm install autohealer deploy/chart --namespace autohealer-system --create-namespace
sed '/^  repair:/,$d' examples/nodepool.yaml | kubectl apply -f -`)
	f.awaitsWebhook(t)
	f.mustRun(t, "kubectl apply -f deploy/defaults -f examples/condition-set.yaml -f examples/node-health-check.yaml -f examples/repair-policy.yaml")
	return f
}

// karpenterCRD returns the path of a CRD as Karpenter publishes it.
func karpenterCRD(t *testing.T, plural string) string {
	t.Helper()
	for _, folder := range []string{os.Getenv("KUBEBUILDER_ASSETS"), filepath.Join(root, "bin/testbed")} {
		found, _ := filepath.Glob(filepath.Join(folder, ".sources/karpenter-*/pkg/apis/crds/karpenter.sh_"+plural+".yaml"))
		if folder != "" && len(found) == 1 {
			return testkit.Value(filepath.Abs(found[0])).Must(t)
		}
	}
	t.Fatal("Karpenter's CRDs are not in bin/testbed/.sources, run make testbed-karpenter")
	return ""
}

// makesFolder makes the folder in which the blocks run: links to all entries of the repository, and
// bin with the programs.
func (f *fixture) makesFolder(t *testing.T) {
	t.Helper()
	f.folder = t.TempDir()
	repository := testkit.Value(filepath.Abs(root)).Must(t)
	for _, entry := range testkit.Value(os.ReadDir(repository)).Must(t) {
		if name := entry.Name(); name != "bin" && name != ".git" {
			testkit.Must(t, os.Symlink(filepath.Join(repository, name), filepath.Join(f.folder, name)))
		}
	}
	bin := filepath.Join(f.folder, "bin")
	testkit.Must(t, os.Mkdir(bin, 0o755))
	for _, program := range []string{"autohealer-agent", "autohealer-controller"} {
		path := testkit.Value(install.Build(t.Context(), "cmd/"+program)).Must(t)
		testkit.Must(t, os.Symlink(path, filepath.Join(bin, program)))
	}
	testkit.Must(t, os.Symlink(f.Kubeconfig(), filepath.Join(f.folder, "kubeconfig.yaml")))
	helm := t.TempDir()
	f.env = append(os.Environ(),
		"PATH="+strings.Join([]string{filepath.Join(repository, "test/docs/testdata/shim"), bin, os.Getenv("PATH")}, ":"),
		"HELM="+filepath.Join(repository, "bin/tools/helm"), "KUBECTL="+testkit.Value(f.Program("kubectl")).Must(t),
		"KUBECONFIG="+f.Kubeconfig(), "KUBECACHEDIR="+t.TempDir(), "MAKEFLAGS=",
		"HELM_CACHE_HOME="+filepath.Join(helm, "cache"), "HELM_CONFIG_HOME="+filepath.Join(helm, "config"), "HELM_DATA_HOME="+filepath.Join(helm, "data"),
		"GOGC=off", // kubectl and helm need a quarter less CPU
	)
}

// run runs commands like a user who pastes them, and returns what they print.
func (f *fixture) run(ctx context.Context, script string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, blockTime, fmt.Errorf("it takes longer than %s", blockTime))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = f.folder, f.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return string(out), err
}

// awaitsWebhook waits until a controller serves the webhook.
func (f *fixture) awaitsWebhook(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the webhook to answer", func() error {
		_, err := f.Kubectl(t.Context(), "apply", "--dry-run=server", "-f", root+"/examples/condition-set.yaml")
		return err
	})
}

func (f *fixture) mustRun(t *testing.T, script string) {
	t.Helper()
	out, err := f.run(t.Context(), script)
	testkit.Require(t, err == nil, "%v:\n%s\n%s", err, script, out)
}

// createsNodes creates the nodes of the pages, in three zones.
func (f *fixture) createsNodes(t *testing.T) {
	t.Helper()
	model := testkit.Value(f.CreateNodes(t.Context(), testbed.Nodes{Count: 1})).Must(t)[0]
	nodes := f.api.CoreV1().Nodes()
	testkit.Must(t, nodes.Delete(t.Context(), model.Name, metav1.DeleteOptions{}))
	for i, name := range []string{"worker-1", "worker-2", "worker-3", "worker-4", "worker-5", "cp-1"} {
		node := model.DeepCopy()
		node.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: node.Labels}
		node.Labels[corev1.LabelHostname] = name
		node.Labels[corev1.LabelTopologyZone] = []string{"zone-a", "zone-b", "zone-c"}[i%3]
		node.Spec.ProviderID += name
		if name == "cp-1" {
			delete(node.Labels, testbed.PoolLabel)
			node.Labels["node-role.kubernetes.io/control-plane"] = ""
		}
		testkit.Value(nodes.Create(t.Context(), node, metav1.CreateOptions{})).Must(t)
	}
}

// runsPods does the work of scheduler and kubelets: it assigns pods to nodes, reports that they
// run and are ready, that those of Jobs have succeeded, and removes deleted ones. While pods of
// the controller exist, it runs one controller.
func (f *fixture) runsPods(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	// A resync repeats what has failed.
	factory := informers.NewSharedInformerFactory(f.api, time.Second)
	pods := factory.Core().V1().Pods()
	changed := make(chan struct{}, 1)
	step := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return
		}
		if err := f.advances(ctx, pod); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			t.Logf("pod %s: %v", pod.Name, err)
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	testkit.Value(pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: step, UpdateFunc: func(_, pod any) { step(pod) },
		DeleteFunc: func(any) { step((*corev1.Pod)(nil)) },
	})).Must(t)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.runsController(ctx, pods.Lister(), changed); err != nil && ctx.Err() == nil {
			t.Errorf("running the controller: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); factory.Shutdown(); wg.Wait() })
}

// advances makes the next change of a pod.
func (f *fixture) advances(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil {
		return nil
	}
	pods := f.api.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	case pod.Spec.NodeName == "":
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeFor(pod)},
		}, metav1.CreateOptions{})
	case pod.Status.Phase == corev1.PodPending:
		phase := corev1.PodRunning
		if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" {
			phase = corev1.PodSucceeded
		}
		_, err := pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, fmt.Appendf(nil, `{"status":{"phase":%q,"conditions":[{"type":"Ready","status":"True"}]}}`, phase), metav1.PatchOptions{}, "status")
		return err
	}
	return nil
}

// nodeFor returns the node that a DaemonSet wants for its pod, and worker-2 for other pods.
func nodeFor(pod *corev1.Pod) string {
	if affinity := pod.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil && affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				if field.Key == metav1.ObjectNameField {
					return field.Values[0]
				}
			}
		}
	}
	return "worker-2"
}

// runsController runs a controller with the token and the arguments of the Deployment while the
// Deployment has pods. It keeps its arguments when the Deployment gets others.
func (f *fixture) runsController(ctx context.Context, pods listers.PodLister, changed <-chan struct{}) error {
	var controller *install.Controller
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		live, err := pods.Pods(install.Namespace).List(labels.SelectorFromSet(labels.Set{"app.kubernetes.io/name": install.Account}))
		switch {
		case err != nil:
			return err
		case len(live) == 0 && controller != nil:
			if err := controller.Stop(ctx); err != nil {
				return err
			}
			controller = nil
		case len(live) > 0 && controller == nil:
			if controller, _, err = install.StartDeployed(ctx, f.Cluster, install.Options{Name: fmt.Sprintf("controller-%d", n), Args: live[0].Spec.Containers[0].Args}); err != nil {
				return err
			}
			n++
		}
	}
}
