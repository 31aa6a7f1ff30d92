package realnode

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// settings are the kernel settings that a kubelet writes.
var settings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// fill creates the files of the node that do not depend on its network.
func (n *Node) fill(ctx context.Context, c *testbed.Cluster) error {
	for _, folder := range []string{"bin", "etc", "run", "sysctl", "var/lib"} {
		if err := os.MkdirAll(n.at(folder), 0o755); err != nil {
			return err
		}
	}
	// The logs of a node are kept with the logs of the cluster.
	logs, err := c.Folder(filepath.Join("logs", n.Name))
	if err != nil {
		return err
	}
	if err := os.Symlink(logs, n.at("var/log")); err != nil {
		return err
	}
	for _, setting := range settings {
		value, err := os.ReadFile(filepath.Join("/proc/sys", setting))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = n.write(filepath.Join("sysctl", setting), string(value))
		}
		if err != nil {
			return err
		}
	}
	// A kubelet also creates mount points of pods there.
	if err := command(ctx, n.tools.paths["cp"], "-a", "/etc/.", n.at("etc")); err != nil {
		return err
	}
	for _, ofTheMachine := range []string{"cni", "containerd", "kubernetes", "machine-id", "hostname", "resolv.conf"} {
		if err := os.RemoveAll(n.at("etc", ofTheMachine)); err != nil {
			return err
		}
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	for name, content := range map[string]string{
		"machine-id":             hex.EncodeToString(id) + "\n",
		"hostname":               n.Name + "\n",
		"resolv.conf":            "# no name server\n",
		"containerd/config.toml": containerdConfig(n.tools.plugins),
	} {
		if err := n.write(filepath.Join("etc", name), content); err != nil {
			return err
		}
	}
	return nil
}

// settle creates the files that depend on the network, and the access to the API server.
func (n *Node) settle(c *testbed.Cluster) error {
	if err := n.write("etc/cni/net.d/10-testbed.conflist", networkConfig(n.network)); err != nil {
		return err
	}
	if err := n.write("etc/kubernetes/kubelet.yaml", kubeletConfig(n.group)); err != nil {
		return err
	}
	return c.WriteNodeAccess(n.at("etc/kubernetes"), n.Name)
}

// at returns a path in the folder of the node.
func (n *Node) at(elements ...string) string {
	return filepath.Join(append([]string{n.folder}, elements...)...)
}

func (n *Node) write(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(n.at(name)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(n.at(name), []byte(content), 0o644)
}

func networkConfig(n network) string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "testbed", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`, n.pods)
}

// containerdConfig has only the differences to containerd's defaults. It leaves OOM scores
// alone, because root may not lower them in many containers: each pod would fail there.
func containerdConfig(plugins string) string {
	return strings.ReplaceAll(`version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "PLUGINS"
    conf_dir = "/etc/cni/net.d"
`, "PLUGINS", plugins)
}

// kubeletConfig returns the configuration of a kubelet that reports often, and accepts the
// machine as it is.
func kubeletConfig(group string) string {
	return strings.ReplaceAll(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /GROUP
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
resolvConf: /etc/resolv.conf
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 10
syncFrequency: 10s # or an edited ConfigMap takes a minute
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: false}
  x509: {clientCAFile: /etc/kubernetes/ca.crt}
authorization: {mode: Webhook}
imageGCHighThresholdPercent: 100
imageMinimumGCAge: 24h
evictionHard: {memory.available: 1%, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
`, "GROUP", group)
}
