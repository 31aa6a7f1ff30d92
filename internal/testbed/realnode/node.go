package realnode

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
)

const (
	// maxWait bounds every wait: a node is Ready a few seconds after its start, also on
	// busy machines.
	maxWait = time.Minute
	// pollInterval is the time between two checks.
	pollInterval = 50 * time.Millisecond
)

//go:embed machine.sh
var machine string

// Node is a running node, with the parts that a test can break.
type Node struct {
	Name string
	// Address at which the machine reaches the node.
	Address netip.Addr
	// Kubelet and Containerd may be stopped, killed, paused and restarted. Pods continue to
	// run.
	Kubelet, Containerd *testbed.Part

	machine *testbed.Part // its first process
	tools   tools
	folder  string
	group   string // its control group
	network network
	relay   *relay
}

// Start starts nodes and returns when they are Ready, in the order of their names in the
// configuration. If one fails, only logs remain. Without Stop they end with this process.
func Start(ctx context.Context, c *testbed.Cluster, cfg Config) ([]*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring real nodes: %w", err)
	}
	t, err := findTools(c)
	if err != nil {
		return nil, fmt.Errorf("starting real nodes: %w", err)
	}
	if err := sweep(); err != nil {
		return nil, fmt.Errorf("removing leftovers of former nodes: %w", err)
	}
	nodes, errs := make([]*Node, len(cfg.Names)), make([]error, len(cfg.Names))
	var all sync.WaitGroup
	for i, name := range cfg.Names {
		nodes[i] = &Node{Name: name, tools: t}
		all.Go(func() {
			if err := nodes[i].start(ctx, c, cfg.Images); err != nil {
				errs[i] = fmt.Errorf("starting node %s: %w", name, err)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, Stop(nodes)) //nolint:contextcheck // cleanup must run although ctx has ended
	}
	return nodes, nil
}

// Stop ends nodes and everything in them. Their Node objects stay in the cluster.
func Stop(nodes []*Node) error {
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { errs[i] = n.stop() })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (n *Node) start(ctx context.Context, c *testbed.Cluster, images []string) (err error) {
	if n.folder, err = c.Folder(n.Name); err != nil {
		return err
	}
	n.group = fmt.Sprintf("%s%d-%s-%s", groupPrefix, os.Getpid(), filepath.Base(filepath.Dir(n.folder)), n.Name)
	if err := makeGroup(n.group); err != nil {
		return err
	}
	if err := n.fill(ctx, c); err != nil {
		return err
	}
	if n.machine, err = c.Run(ctx, testbed.Program{
		Name: n.Name + "-machine", Path: n.tools.paths["unshare"], Leads: true,
		Args: []string{
			"--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
			n.tools.paths["sh"], "-euc", machine, "machine.sh", n.folder, n.Name, testbed.ServiceAddress.Addr().String(), n.tools.programs,
		},
		Ready: func(context.Context) error { _, err := os.Stat(n.at("up")); return err },
	}); err != nil {
		return err
	}
	pid := n.machine.PID()
	if n.network, err = connect(ctx, n.tools, pid); err != nil {
		return err
	}
	n.Address = n.network.node.Addr()
	if n.relay, err = startRelay(pid, c); err != nil {
		return err
	}
	if err := n.settle(c); err != nil {
		return err
	}
	if n.Containerd, err = c.Run(ctx, n.program("containerd", n.runtimeAnswers, "containerd")); err != nil {
		return err
	}
	for _, image := range images {
		if err := n.Import(ctx, image); err != nil {
			return err
		}
	}
	if n.Kubelet, err = c.Run(ctx, n.program("kubelet", n.kubeletAnswers, n.at("bin/kubelet"),
		"--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=/etc/kubernetes/kubeconfig",
		"--hostname-override="+n.Name, "--node-ip="+n.Address.String(),
	)); err != nil {
		return err
	}
	return n.awaitReady(ctx, c)
}

// stop ends the parts of the node, last first.
func (n *Node) stop() error {
	for _, part := range []*testbed.Part{n.Kubelet, n.Containerd, n.machine} {
		_ = part.Kill() // an error means that it does not run
	}
	if n.relay != nil {
		n.relay.close()
	}
	err := n.network.disconnect(n.tools)
	if n.group != "" {
		err = errors.Join(err, removeGroup(n.group))
	}
	return err
}

// program returns a program that runs in the node.
func (n *Node) program(name string, ready func(context.Context) error, command ...string) testbed.Program {
	return testbed.Program{
		Name: n.Name + "-" + name, Path: n.tools.paths["nsenter"], Leads: true,
		Args: append(n.entrance(), command...), Ready: ready,
	}
}

// entrance returns the arguments with which nsenter enters the node.
func (n *Node) entrance() []string {
	return []string{fmt.Sprintf("--target=%d", n.machine.PID()), "--mount", "--uts", "--ipc", "--net", "--pid", "--"}
}

// Processes returns the processes of a program in pods of the node, by their IDs on the
// machine.
func (n *Node) Processes(program string) ([]int, error) {
	pids, err := members(n.group)
	return slices.DeleteFunc(pids, func(pid int) bool {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err != nil || filepath.Base(path) != program
	}), err
}

// Import imports an image from an archive into the node.
func (n *Node) Import(ctx context.Context, archive string) error {
	content, err := os.Open(archive) // opened here, because the node may not see the file
	if err != nil {
		return fmt.Errorf("importing an image: %w", err)
	}
	defer content.Close()
	importing := exec.CommandContext(ctx, n.tools.paths["nsenter"], append(n.entrance(), "ctr", "--namespace=k8s.io", "images", "import", "-")...)
	importing.Stdin = content
	if out, err := importing.CombinedOutput(); err != nil {
		return fmt.Errorf("importing %s: %w: %s", archive, err, bytes.TrimSpace(out))
	}
	return nil
}

// runtimeAnswers returns an error unless containerd answers.
func (n *Node) runtimeAnswers(ctx context.Context) error {
	// This path is short enough for a socket.
	socket := fmt.Sprintf("/proc/%d/root/run/containerd/containerd.sock", n.machine.PID())
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// kubeletAnswers returns an error unless the kubelet answers. It answers only inside its
// node.
func (n *Node) kubeletAnswers(ctx context.Context) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, protocol, address string) (net.Conn, error) {
			return inside(n.machine.PID(), func() (net.Conn, error) { return new(net.Dialer).DialContext(ctx, protocol, address) })
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10248/healthz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the kubelet's /healthz returns %s", response.Status)
	}
	return nil
}

// awaitReady waits until the node is Ready.
func (n *Node) awaitReady(ctx context.Context, c *testbed.Cluster) error {
	api, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, fmt.Errorf("not Ready after %s", maxWait))
	defer cancel()
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	for {
		notReady := isReady(ctx, api, n.Name)
		if notReady == nil {
			return nil
		}
		select {
		case <-n.Kubelet.Ended():
			return fmt.Errorf("the kubelet has ended: %w", notReady)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), notReady)
		case <-look.C:
		}
	}
}

func isReady(ctx context.Context, api kubernetes.Interface, name string) error {
	node, err := api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("it is not Ready: %s", condition.Message)
		}
	}
	return errors.New("it has no Ready condition yet")
}
