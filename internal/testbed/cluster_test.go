package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestCluster uses one cluster with all parts. Its controller manager detects a missing
// heartbeat sooner than in production.
func TestCluster(t *testing.T) {
	c := New(t, Config{
		ControllerManager: true, Scheduler: true, Kwok: true,
		Record: []schema.GroupVersionResource{NodesResource, PodsResource},
		Flags: Flags{
			ControllerManager: []string{"--node-monitor-grace-period=5s", "--node-monitor-period=500ms"},
			Kwok:              []string{"--node-lease-duration-seconds=4"},
		},
	})

	t.Run("listens on loopback only", func(t *testing.T) {
		for _, part := range []*Part{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler, c.Kwok} {
			addresses := listening(t, part.PID())
			testkit.Check(t, part == c.Etcd || len(addresses) != 0, "%s has no listening socket; the test proves nothing", part)
			for _, address := range addresses {
				if !strings.HasPrefix(address, "0100007F:") { // 127.0.0.1 as the kernel prints it
					t.Errorf("%s listens on %s", part, address)
				}
			}
		}
	})

	t.Run("gives a service account the rights that RBAC gives it", func(t *testing.T) {
		config := testkit.Value(c.ServiceAccountConfig(t.Context(), "default", "reader")).Must(t)
		reader := clientFor(t, config)
		if _, err := reader.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Fatalf("without rights: %v", err)
		}
		for _, args := range [][]string{
			{"create", "clusterrole", "reader", "--verb=list", "--resource=nodes"},
			{"create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:reader"},
		} {
			testkit.Value(c.Kubectl(t.Context(), args...)).Must(t)
		}
		testkit.Eventually(t, "listing nodes with rights", func() error {
			_, err := reader.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			return err
		})
	})

	t.Run("puts the node's name into a token bound to it", func(t *testing.T) {
		node := createNode(t, c, "bound")
		config := testkit.Value(c.ServiceAccountConfig(t.Context(), "kube-system", "agent", WithNode(node.Name))).Must(t)
		review, err := clientFor(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		testkit.Must(t, err)
		user := review.Status.UserInfo
		testkit.Check(t, user.Username == "system:serviceaccount:kube-system:agent", "user %q", user.Username)
		if got := user.Extra["authentication.kubernetes.io/node-name"]; !slices.Equal(got, authenticationv1.ExtraValue{node.Name}) {
			t.Errorf("node name %q, not %q", got, node.Name)
		}
		if got := user.Extra["authentication.kubernetes.io/node-uid"]; !slices.Equal(got, authenticationv1.ExtraValue{string(node.UID)}) {
			t.Errorf("node uid %q, not %q", got, node.UID)
		}
		testkit.Value(c.ServiceAccountConfig(t.Context(), "kube-system", "agent", WithNode("missing"))).Fails(t, "kube-system/agent") // a token for a missing node
	})

	t.Run("runs kubectl as the admin", func(t *testing.T) {
		out := testkit.Value(c.Kubectl(t.Context(), "auth", "whoami", "-o", "json")).Must(t)
		var review authenticationv1.SelfSubjectReview
		if err := json.Unmarshal([]byte(out), &review); err != nil || review.Status.UserInfo.Username != adminUser {
			t.Errorf("%v: %s", err, out)
		}
		short, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("long enough"))
		defer cancel()
		if _, err := c.Kubectl(short, "get", "nodes", "--watch"); !errors.Is(err, context.Cause(short)) {
			t.Errorf("a cancelled kubectl returns %v", err)
		}
		testkit.Value(c.Kubectl(t.Context(), "get", "node", "missing")).Fails(t, `kubectl get node missing: exit status 1: Error from server (NotFound): nodes "missing" not found`)
	})

	t.Run("turns a silent node Unknown and a woken one Ready", func(t *testing.T) {
		nodes := testkit.Value(c.CreateNodes(t.Context(), Nodes{Count: 2, Prefix: "silent"})).Must(t)
		silent, other := nodes[0].Name, nodes[1].Name
		testkit.Eventually(t, "the other node's lease", hasLease(t, c, other))
		testkit.Must(t, c.Silence(t.Context(), silent))
		testkit.Eventually(t, "silence noticed", hasCondition(t, c, silent, corev1.NodeReady, corev1.ConditionUnknown))
		if err := hasCondition(t, c, other, corev1.NodeReady, corev1.ConditionTrue)(); err != nil {
			t.Error(err)
		}
		testkit.Must(t, c.Wake(t.Context(), silent))
		testkit.Eventually(t, "return noticed", hasCondition(t, c, silent, corev1.NodeReady, corev1.ConditionTrue))
	})

	t.Run("does not change conditions that a test sets", func(t *testing.T) {
		node := createNode(t, c, "unready")
		testkit.Eventually(t, "the node's lease", hasLease(t, c, node.Name))
		for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, "KernelDeadlock"} {
			testkit.Must(t, c.SetCondition(t.Context(), node.Name, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse}))
		}
		// The lease is renewed once more, so kwok had its chance.
		renewed := leaseTime(t, c, node.Name)
		testkit.Until(t, "the next heartbeat", func() bool { return leaseTime(t, c, node.Name).After(renewed) })
		for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, "KernelDeadlock"} {
			if err := hasCondition(t, c, node.Name, kind, corev1.ConditionFalse)(); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("makes a bare node ready", func(t *testing.T) {
		bare := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare", Labels: map[string]string{corev1.LabelHostname: "bare"}, Annotations: map[string]string{FakeNodeAnnotation: FakeNodeValue}}}
		testkit.Value(c.client.CoreV1().Nodes().Create(t.Context(), bare, metav1.CreateOptions{})).Must(t)
		testkit.Eventually(t, "a bare node", hasCondition(t, c, bare.Name, corev1.NodeReady, corev1.ConditionTrue))
		node := testkit.Value(c.client.CoreV1().Nodes().Get(t.Context(), bare.Name, metav1.GetOptions{})).Must(t)
		testkit.Check(t, !node.Status.Allocatable.Cpu().IsZero(), "no capacity: %v", node.Status)
	})

	t.Run("runs pods and respects their grace period", func(t *testing.T) {
		node := createNode(t, c, "worker")
		pod := startPod(t, c, "waiting", node)
		began := time.Now()
		testkit.Must(t, c.client.CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(2))}))
		testkit.Eventually(t, "the end of the pod", podIsGone(t, c, pod.Name))
		// The server has whole seconds, so two may be little more than one.
		if took := time.Since(began); took < time.Second {
			t.Errorf("a grace period of 2 s was over after %s", took)
		}
	})

	t.Run("completes the pods of a job", func(t *testing.T) {
		createNode(t, c, "jobs")
		testkit.Value(c.Kubectl(t.Context(), "create", "job", "short", "--image=example.com/short")).Must(t)
		if _, err := c.Kubectl(within(t, limit), "wait", "--for=condition=Complete", "--timeout=30s", "job/short"); err != nil {
			t.Error(err)
		}
	})

	t.Run("keeps the pods of a silent node", func(t *testing.T) {
		node := createNode(t, c, "quiet")
		pod := startPod(t, c, "stuck", node)
		testkit.Must(t, c.Silence(t.Context(), node.Name))
		testkit.Eventually(t, "silence noticed", hasCondition(t, c, node.Name, corev1.NodeReady, corev1.ConditionUnknown))
		testkit.Must(t, c.client.CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
		// A pod that is deleted now on a node that is not silent is gone first.
		witness := startPod(t, c, "witness", createNode(t, c, "listening"))
		testkit.Must(t, c.client.CoreV1().Pods("default").Delete(t.Context(), witness.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(2))}))
		testkit.Eventually(t, "the end of the witness", podIsGone(t, c, witness.Name))
		if err := podIsGone(t, c, pod.Name)(); err == nil {
			t.Error("the pod was removed by a kubelet that is silent")
		}
	})

	t.Run("has kubelets that report periodically", func(t *testing.T) {
		// Kubelets report every five minutes. In the test it is every second, because
		// timestamps have whole seconds.
		shortTimes := strings.NewReplacer("300000", "1100", "310000", "1200").Replace(string(kwokStages))
		testkit.Must(t, os.WriteFile(c.conf("stages.yaml"), []byte(shortTimes), 0o600))
		testkit.Must(t, c.Kwok.Restart(within(t, limit)))
		// A new node: the old kwok holds the leases of the others for a while.
		node := createNode(t, c, "reports")
		testkit.Must(t, c.SetCondition(t.Context(), node.Name, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "Full"}))
		testkit.Eventually(t, "a report", func() error {
			now := testkit.Value(c.client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})).Must(t)
			was, is := condition(node, corev1.NodeReady), condition(now, corev1.NodeReady)
			if !is.LastHeartbeatTime.After(was.LastHeartbeatTime.Time) {
				return fmt.Errorf("the last was at %s", is.LastHeartbeatTime)
			}
			testkit.Check(t, is.Status == was.Status && is.LastTransitionTime.Equal(&was.LastTransitionTime), "a report changes %v into %v", was, is)
			if disk := condition(now, corev1.NodeDiskPressure); disk.Status != corev1.ConditionTrue || disk.Reason != "Full" {
				t.Errorf("a report changes what a test has set: %v", disk)
			}
			return nil
		})
	})

	t.Run("gives every component its own user", func(t *testing.T) {
		pod := startPod(t, c, "tolerant", createNode(t, c, "works"))
		testkit.Must(t, c.client.CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
		testkit.Eventually(t, "the end of the pod", podIsGone(t, c, pod.Name))
		recording := testkit.Value(c.Recording(within(t, limit))).Must(t)
		users := make(map[string]string) // users by action
		for _, change := range recording {
			if !change.Author.Known() { // correct, but worth a look
				t.Logf("%s %s %s: %s", change.Type, change.GVR.Resource, change.Name, change.Author)
			}
			what := fmt.Sprintf("%s %s %s", change.Author.Verb, change.GVR.Resource, change.Author.Subresource)
			if change.Type == watch.Deleted {
				what = "removal of " + change.GVR.Resource
			}
			users[what+" by "+change.Author.User] = change.Author.UserAgent
		}
		for _, want := range []string{
			"create nodes  by admin",
			"patch pods status by " + kwokUser,
			"removal of pods by " + kwokUser,
			"create pods binding by " + schedulerUser,
			"patch nodes  by system:serviceaccount:kube-system:node-controller",
		} {
			if _, ok := users[want]; !ok {
				t.Errorf("no %q among\n%s", want, strings.Join(sortedKeys(users), "\n"))
			}
		}
	})
}

func TestStart(t *testing.T) {
	t.Run("starts several clusters side by side", func(t *testing.T) {
		const many = 3
		var wg sync.WaitGroup
		clusters, errs, took := make([]*Cluster, many), make([]error, many), make([]time.Duration, many)
		for i := range many {
			wg.Go(func() {
				began := time.Now()
				clusters[i], errs[i] = Start(t.Context(), Config{})
				took[i] = time.Since(began).Round(time.Millisecond)
			})
		}
		wg.Wait()
		testkit.Must(t, errors.Join(errs...))
		t.Logf("ready after %v", took)
		for i, c := range clusters {
			t.Cleanup(func() { _ = c.Stop() })
			createNode(t, c, fmt.Sprintf("cluster-%d", i))
		}
		for i, c := range clusters {
			nodes := testkit.Value(c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})).Must(t)
			if want := fmt.Sprintf("cluster-%d-0001", i); len(nodes.Items) != 1 || nodes.Items[0].Name != want {
				t.Errorf("cluster %d has other nodes than %s: %v", i, want, nodes.Items)
			}
		}
		foreign := clusters[0].AdminConfig()
		foreign.Host = clusters[1].AdminConfig().Host
		if _, err := clientFor(t, foreign).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
			t.Errorf("one cluster's client at another: %v", err)
		}
	})
	t.Run("leaves nothing behind when it is cancelled", func(t *testing.T) {
		folder, err := os.MkdirTemp("", "off")
		testkit.Must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Start(ctx, Config{Dir: folder}); !errors.Is(err, context.Canceled) {
			t.Fatalf("a cancelled start returns %v", err)
		}
		left, err := os.ReadDir(folder)
		testkit.Check(t, err == nil && len(left) == 0, "left behind: %v, %v", left, err)
	})
}

func TestStop(t *testing.T) {
	before := runtime.NumGoroutine()
	c := testkit.Value(Start(t.Context(), Config{Record: []schema.GroupVersionResource{NodesResource}})).Must(t)
	node := createNode(t, c, "last")
	p := testkit.Value(c.Proxy()).Must(t)
	client := clientFor(t, p.Config(c.AdminConfig()))
	// Work of all kinds is running: a watch, a held request, a paused part.
	w := testkit.Value(client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})).Must(t)
	held := p.Inject(On("delete", "nodes"), Hold(), 0)
	answer := make(chan error, 1)
	go func() { answer <- client.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}) }()
	testkit.Must(t, errors.Join(held.Wait(within(t, limit), 1), c.APIServer.Pause()))
	testkit.Must(t, c.Stop())
	if stacks := allStacks(); strings.Contains(stacks, "testbed.(*Proxy)") || strings.Contains(stacks, "testbed.(*recorder)") {
		t.Errorf("Stop has returned before its goroutines:\n%s", stacks)
	}

	t.Run("ends running requests", func(t *testing.T) {
		if err := <-answer; err == nil {
			t.Error("a response to the held request")
		}
		for range w.ResultChan() { // until it is closed
		}
		if _, err := c.Proxy(); err == nil {
			t.Error("a proxy of a cluster that is stopped")
		}
		if p.Inject(On("*", "*"), Hold(), 0).hits(Request{}) {
			t.Error("a rule affects requests in a closed proxy")
		}
	})

	t.Run("leaves no process and no goroutine", func(t *testing.T) {
		if err := noProcessOf(c.folder.path); err != nil {
			t.Error(err)
		}
		const mine = 1 // a subtest has its own goroutine
		testkit.Eventually(t, "the end of all goroutines", func() error {
			if now := runtime.NumGoroutine() - mine; now > before {
				return fmt.Errorf("%d goroutines, there were %d:\n%s", now, before, allStacks())
			}
			return nil
		})
	})
}

func allStacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

func TestNew(t *testing.T) {
	parent := testkit.Value(os.MkdirTemp("", "new-")).Must(t)
	defer os.RemoveAll(parent)
	cfg := Config{Dir: parent, Record: []schema.GroupVersionResource{NodesResource}}

	t.Run("leaves nothing behind when the test passes", func(t *testing.T) {
		fake := &fakeTest{TB: t}
		New(fake, cfg)
		fake.end()
		if left, _ := os.ReadDir(parent); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
		if err := noProcessOf(parent); err != nil {
			t.Error(err)
		}
	})

	t.Run("keeps the logs and says where when the test fails", func(t *testing.T) {
		fake := &fakeTest{TB: t, failed: true}
		createNode(t, New(fake, cfg), "one")
		fake.end()
		if err := noProcessOf(parent); err != nil {
			t.Error(err)
		}
		_, logs, _ := strings.Cut(fake.log.String(), "the cluster's logs are in ")
		for _, name := range []string{"etcd.log", "kube-apiserver.log", "audit.log"} {
			if info, err := os.Stat(filepath.Join(strings.TrimSpace(logs), name)); err != nil || info.Size() == 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
		testkit.Value(newFolder(parent)).Must(t).remove() // a later start sweeps
		if _, err := os.Stat(strings.TrimSpace(logs)); err != nil {
			t.Errorf("kept logs were removed: %v", err)
		}
	})
}

// fakeTest is a test that passes or fails as configured.
type fakeTest struct {
	testing.TB
	failed   bool
	log      strings.Builder
	cleanups []func()
}

func (f *fakeTest) Cleanup(fn func())               { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTest) Failed() bool                    { return f.failed }
func (f *fakeTest) Logf(format string, args ...any) { fmt.Fprintf(&f.log, format+"\n", args...) }
func (f *fakeTest) end() {
	for _, fn := range slices.Backward(f.cleanups) {
		fn()
	}
}

// startPod runs a pod on a node through the scheduler.
func startPod(t *testing.T, c *Cluster, name string, node *corev1.Node) *corev1.Pod {
	t.Helper()
	pods := c.client.CoreV1().Pods("default")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node.Name},
			Containers:   []corev1.Container{{Name: "main", Image: "example.com/main"}},
		},
	}
	testkit.Value(pods.Create(t.Context(), pod, metav1.CreateOptions{})).Must(t)
	testkit.Eventually(t, "pod "+name+" running", func() error {
		got, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %s: %v", got.Status.Phase, got.Status.Conditions)
		}
		pod = got
		return err
	})
	return pod
}

func podIsGone(t *testing.T, c *Cluster, name string) func() error {
	t.Helper()
	return func() error {
		_, err := c.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return fmt.Errorf("pod %s is still there", name)
		}
		return err
	}
}

func leaseTime(t *testing.T, c *Cluster, node string) time.Time {
	t.Helper()
	lease := testkit.Value(c.client.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), node, metav1.GetOptions{})).Must(t)
	return lease.Spec.RenewTime.Time
}

func hasLease(t *testing.T, c *Cluster, node string) func() error {
	t.Helper()
	return func() error {
		_, err := c.client.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), node, metav1.GetOptions{})
		return err
	}
}

// listening returns the local addresses of a process's listening TCP sockets, in the
// kernel's notation.
func listening(t *testing.T, pid int) []string {
	t.Helper()
	mine := make(map[string]bool)
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil {
			mine[target] = true
		}
	}
	var addresses []string
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // a machine without IPv6
		}
		for line := range strings.Lines(string(content)) {
			const listen = "0A"
			if f := strings.Fields(line); len(f) > 9 && f[3] == listen && mine["socket:["+f[9]+"]"] {
				addresses = append(addresses, f[1])
			}
		}
	}
	return addresses
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
