package statefile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The root directory of a container is an overlay. The root directory of the host may be
// one as well, for example if the host is a container.
func TestDirectoryInsideTheContainerIsLoggedOnce(t *testing.T) {
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil { // the kernel does not mount an overlay on an overlay
		t.Fatalf("%v: run this test as root", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	at := map[string]string{}
	for _, name := range []string{"lower", "upper", "work", "root"} {
		at[name] = filepath.Join(base, name)
		testkit.Must(t, os.Mkdir(at[name], 0o700))
	}
	if err := unix.Mount("overlay", at["root"], "overlay", 0, "lowerdir="+at["lower"]+",upperdir="+at["upper"]+",workdir="+at["work"]); err != nil {
		t.Fatalf("mounting an overlay: %v: run this test as root, with a kernel that has overlays", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at["root"], unix.MNT_DETACH) })
	layer := filepath.Join(at["root"], "state")
	for name, of := range map[string]struct {
		path, root string
		lasts      bool
	}{
		"in the container":                   {layer, at["root"], false},
		"on a host whose root is an overlay": {layer, base, true},
		"on the host":                        {filepath.Join(base, "state"), at["root"], true},
		"without a container":                {filepath.Join(base, "state"), base, true},
	} {
		t.Run(name, func(t *testing.T) {
			log, logged := logger()
			m, err := open(&directory{path: of.path, root: of.root}, "", log)
			testkit.Must(t, err)
			for i := range 3 {
				m.Keep("x", entry(i), true)
				if err := m.Flush(); err != nil {
					t.Error(err)
				}
			}
			if lasts := m.Err() == nil; lasts != of.lasts {
				t.Errorf("Err says that it is persistent: %t: %v", lasts, m.Err())
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			want := 1
			if of.lasts {
				want = 0
			}
			if strings.Count(logged.String(), "\n") != want || strings.Count(logged.String(), of.path) != want {
				t.Errorf("the log is %q", logged)
			}
		})
	}
	if err := (&directory{path: filepath.Join(base, "nowhere"), root: "/"}).CheckPersistent(); err != nil {
		t.Errorf("a missing directory gives %v", err)
	}
}
