package realnode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// Packages are the Debian packages that nodes need in addition to the programs of the
// testbed.
const Packages = "containerd runc containernetworking-plugins iproute2 iptables kmod"

// Config says which nodes to start.
type Config struct {
	// Names of the nodes.
	Names []string
	// Images are archives, as `docker save` writes them, that every node imports. One of
	// them is localhost/pause:1.
	Images []string
}

// The name becomes the name of a file and a part of the name of a control group.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// Validate returns all problems of the configuration.
func (c Config) Validate() error {
	var wrong []error
	if len(c.Names) == 0 {
		wrong = append(wrong, fmt.Errorf("%s is empty: name at least one node", "Names"))
	}
	for i, name := range c.Names {
		field := fmt.Sprintf("Names[%d]", i)
		if !nodeName.MatchString(name) {
			wrong = append(wrong, fmt.Errorf("%s: %q is not a valid node name: use up to 32 lower-case letters, digits and dashes", field, name))
		}
		if slices.Contains(c.Names[:i], name) {
			wrong = append(wrong, fmt.Errorf("%s: %q is a duplicate", field, name))
		}
	}
	for i, image := range c.Images {
		if _, err := os.Stat(image); err != nil {
			wrong = append(wrong, fmt.Errorf("%s[%d]: %w", "Images", i, err))
		}
	}
	return errors.Join(wrong...)
}

// tools are the paths of the programs that nodes need.
type tools struct {
	programs string // folder of kubelet and pause
	plugins  string // folder of the network plugins
	paths    map[string]string
}

// findTools reports all missing programs at once.
func findTools(c *testbed.Cluster) (tools, error) {
	t := tools{paths: map[string]string{}}
	var missing []string
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "ip", "unshare", "nsenter", "sh", "cp"} {
		path, err := exec.LookPath(name)
		if err != nil {
			missing = append(missing, name)
		}
		t.paths[name] = path
	}
	for _, folder := range []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} {
		if _, err := os.Stat(filepath.Join(folder, "bridge")); err == nil {
			t.plugins = folder
			break
		}
	}
	if t.plugins == "" {
		missing = append(missing, "the network plugin bridge")
	}
	var wrong []error
	if os.Geteuid() != 0 {
		wrong = append(wrong, errors.New("only root can start nodes"))
	}
	if len(missing) > 0 {
		wrong = append(wrong, fmt.Errorf("%s not found; apt-get install --no-install-recommends %s", strings.Join(missing, ", "), Packages))
	}
	for _, name := range []string{"kubelet", "pause"} {
		path, err := c.Program(name)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%w, with REAL_NODES=1", err))
		} else if t.programs == "" {
			t.programs = filepath.Dir(path)
		} else if t.programs != filepath.Dir(path) {
			wrong = append(wrong, fmt.Errorf("kubelet is in %s and pause in %s: put them together", t.programs, filepath.Dir(path)))
		}
	}
	return t, errors.Join(wrong...)
}
