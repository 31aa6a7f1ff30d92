package realnode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func archives(t *testing.T) []string {
	t.Helper()
	return testkit.Value(install.Images(t.Context(), t.TempDir(), "pause")).Must(t)
}

// runPod runs a waiting pod on a node, and returns when it runs.
func runPod(ctx context.Context, c *testbed.Cluster, node string) error {
	if _, err := c.KubectlApply(ctx, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-%[1]s", "namespace": "default"},
		"spec": {"nodeName": %[1]q, "terminationGracePeriodSeconds": 1, "containers": [{"name": "wait", "image": "localhost/pause:1"}]}}`, node)); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=60s", "pod/on-"+node)
	return err
}

// machineNow returns the settings of the machine that a node must not change.
func machineNow(t *testing.T) map[string]string {
	t.Helper()
	now := map[string]string{}
	for _, setting := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
		"kernel/hostname", "net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding",
	} {
		value, err := os.ReadFile(filepath.Join("/proc/sys", setting))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		testkit.Must(t, err)
		now[setting] = strings.TrimSpace(string(value))
	}
	for _, place := range []string{"/var/lib/kubelet", "/var/lib/containerd", "/run/containerd", "/run/netns"} {
		_, err := os.Stat(place)
		now[place] = strconv.FormatBool(err == nil)
	}
	return now
}

// remains returns what is left of nodes outside of their folders.
func remains(t *testing.T, links, groups []string) error {
	t.Helper()
	var left []error
	for _, link := range links {
		if _, err := net.InterfaceByName(link); err == nil {
			left = append(left, fmt.Errorf("link %s exists", link))
		}
	}
	roots := testkit.Value(hierarchies()).Must(t)
	for _, root := range roots {
		for _, group := range groups {
			if _, err := os.Stat(filepath.Join(root, group)); err == nil {
				left = append(left, fmt.Errorf("control group %s exists", filepath.Join(root, group)))
			}
		}
	}
	mounts := testkit.Value(os.ReadFile("/proc/self/mounts")).Must(t)
	if strings.Contains(string(mounts), "autohealer-testbed-") {
		left = append(left, errors.New("something is mounted for a testbed"))
	}
	return errors.Join(left...)
}

// inhabitants returns the processes in a namespace.
func inhabitants(namespace string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, path := range all {
		if of, err := os.Readlink(path); err == nil && of == namespace {
			pids = append(pids, path)
		}
	}
	return pids
}

func TestNodes(t *testing.T) {
	Wanted(t)
	images := archives(t)
	before := machineNow(t)
	c := testbed.New(t, testbed.Config{ControllerManager: true, Scheduler: true})
	api := testkit.Value(kubernetes.NewForConfig(c.AdminConfig())).Must(t)
	began := time.Now()
	nodes := New(t, c, Config{Names: []string{"one", "two"}, Images: images})
	t.Logf("two nodes are Ready after %s", time.Since(began).Round(time.Millisecond))
	one, two := nodes[0], nodes[1]
	podOf := func(node *Node) *corev1.Pod {
		return testkit.Value(api.CoreV1().Pods("default").Get(t.Context(), "on-"+node.Name, metav1.GetOptions{})).Must(t)
	}

	t.Run("each has a machine to itself", func(t *testing.T) {
		var ids []string
		for _, n := range nodes {
			node := testkit.Value(api.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})).Must(t)
			ids = append(ids, node.Status.NodeInfo.MachineID)
			if at := node.Status.Addresses[0].Address; at != n.Address.String() {
				t.Errorf("%s is at %s, want %s", n.Name, at, n.Address)
			}
			testkit.Must(t, runPod(t.Context(), c, n.Name))
			if ip := podOf(n).Status.PodIP; !strings.HasPrefix(ip, strings.TrimSuffix(n.network.pods.Addr().String(), "0")) {
				t.Errorf("the pod on %s is at %s, want it in %s", n.Name, ip, n.network.pods)
			}
		}
		testkit.Check(t, ids[0] != ids[1] && ids[0] != "", "the machines are %q", ids)
	})
	t.Run("processes of its pods can be found", func(t *testing.T) {
		for _, n := range nodes {
			pids := testkit.Value(n.Processes("pause")).Must(t) // the sandbox of the pod, and its container
			others := testkit.Value(n.Processes("containerd")).Must(t)
			testkit.Check(t, len(pids) == 2 && len(others) == 0, "%s has %v, and %v of containerd", n.Name, pids, others)
		}
	})
	t.Run("the logs of a pod can be read", func(t *testing.T) {
		if said, err := c.Kubectl(t.Context(), "logs", "on-two"); err != nil || said != "waiting\n" {
			t.Errorf("it said %q (%v)", said, err)
		}
	})
	t.Run("pods survive restarts of kubelet and containerd", func(t *testing.T) {
		was := podOf(one).Status.ContainerStatuses[0]
		testkit.Must(t, one.Kubelet.Kill())
		testkit.Check(t, one.kubeletAnswers(t.Context()) != nil, "a kubelet that was killed answers")
		testkit.Must(t, two.kubeletAnswers(t.Context()))
		testkit.Must(t, one.Containerd.Stop(t.Context()))
		testkit.Check(t, one.runtimeAnswers(t.Context()) != nil, "a containerd that was stopped answers")
		testkit.Must(t, one.Containerd.Restart(t.Context()))
		testkit.Must(t, one.Kubelet.Restart(t.Context()))
		testkit.Must(t, one.awaitReady(t.Context(), c))
		if is := podOf(one).Status.ContainerStatuses[0]; is.ContainerID != was.ContainerID || is.RestartCount != 0 {
			t.Errorf("the pod was %+v and is %+v", was, is)
		}
	})
	t.Run("a kubelet can be paused", func(t *testing.T) {
		state := func() string {
			text := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", one.Kubelet.PID()))).Must(t)
			_, after, _ := strings.Cut(string(text), ") ")
			return after[:1]
		}
		testkit.Must(t, one.Kubelet.Pause())
		if state() != "T" {
			t.Errorf("it is in state %s", state())
		}
		testkit.Must(t, one.Kubelet.Resume())
		testkit.Eventually(t, "an answer", func() error { return one.kubeletAnswers(t.Context()) })
	})
	t.Run("the settings of the machine are unchanged", func(t *testing.T) {
		for what, is := range machineNow(t) {
			if before[what] != is {
				t.Errorf("%s was %s and is %s", what, before[what], is)
			}
		}
		// Otherwise the test proves nothing.
		if value, err := os.ReadFile(one.at("sysctl/vm/overcommit_memory")); err != nil || strings.TrimSpace(string(value)) != "1" {
			t.Errorf("the kubelet has set overcommit_memory to %q (%v)", value, err)
		}
	})
	t.Run("nothing remains of the nodes", func(t *testing.T) {
		var links, groups, namespaces []string
		for _, n := range nodes {
			links, groups = append(links, n.network.link), append(groups, n.group)
			namespace := testkit.Value(os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.machine.PID()))).Must(t)
			namespaces = append(namespaces, namespace)
			if len(inhabitants(namespace)) < 3 {
				t.Errorf("only %q are in %s: the test proves nothing", inhabitants(namespace), n.Name)
			}
		}
		// An open socket keeps the network of a node, for example while it waits for a
		// response.
		held := testkit.Value(inside(one.machine.PID(), func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })).Must(t)
		defer held.Close()
		testkit.Must(t, Stop(nodes))
		for _, namespace := range namespaces {
			if left := inhabitants(namespace); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
		}
		testkit.Eventually(t, "the end of links", func() error { return remains(t, links, groups) })
	})
}

func TestOrphans(t *testing.T) {
	Wanted(t)
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), playParent+"="+strings.Join(archives(t), ","))
	parent.Stderr = os.Stderr
	output, err := parent.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, parent.Start())
	t.Cleanup(func() { _, _ = parent.Process.Kill(), parent.Wait() })
	line, err := bufio.NewReader(output).ReadString('\n')
	words := strings.Fields(line)
	testkit.Require(t, err == nil && len(words) == 4 && words[0] == "started", "the parent prints %q (%v)", line, err)
	pid, link, group := words[1], words[2], words[3]
	namespace := testkit.Value(os.Readlink("/proc/" + pid + "/ns/pid")).Must(t)
	if there := inhabitants(namespace); len(there) < 4 {
		t.Fatalf("only %q are in the node: the test proves nothing", there)
	}
	if remains(t, []string{link}, []string{group}) == nil {
		t.Fatal("no link and no control group: the test proves nothing")
	}
	testkit.Must(t, parent.Process.Kill())
	_ = parent.Wait()
	testkit.Eventually(t, "the end of a node whose parent was killed", func() error {
		if left := inhabitants(namespace); len(left) > 0 {
			return fmt.Errorf("%q are left", left)
		}
		return remains(t, []string{link}, nil)
	})
	if remains(t, nil, []string{group}) == nil {
		t.Error("the killed process left no control group: nothing to sweep")
	}
	alive := groupPrefix + strconv.Itoa(os.Getpid()) + "-test"
	testkit.Must(t, makeGroup(alive))
	testkit.Must(t, sweep())
	testkit.Must(t, remains(t, nil, []string{group}))
	if remains(t, nil, []string{alive}) == nil {
		t.Error("the control group of a running process was removed")
	}
	testkit.Must(t, removeGroup(alive))
}

func TestConfigIsChecked(t *testing.T) {
	for _, test := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no node", Config{}, "Names is empty"},
		{"an invalid name", Config{Names: []string{"a", "Node/1"}}, `Names[1]: "Node/1" is not a valid node name`},
		{"a name that is too long", Config{Names: []string{strings.Repeat("a", 33)}}, "up to 32"},
		{"two equal names", Config{Names: []string{"a", "a"}}, `Names[1]: "a" is a duplicate`},
		{"an image that is missing", Config{Names: []string{"a"}, Images: []string{"/nowhere.tar"}}, "Images[0]: stat /nowhere.tar"},
	} {
		if err := test.cfg.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want it to say %q", test.name, err, test.want)
		}
	}
	if err := (Config{Names: []string{"node-1"}}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestNodesHaveNetworksOfTheirOwn(t *testing.T) {
	for a := byte(1); a < 255; a++ {
		n, next := networkOf(a), networkOf(a+1)
		if !n.gateway.Contains(n.node.Addr()) || n.gateway.Overlaps(next.gateway) || n.pods.Overlaps(next.pods) || n.pods.Overlaps(n.node) || len(n.link) > 15 {
			t.Fatalf("networks %d and %d are %+v and %+v", a, a+1, n, next)
		}
	}
}
