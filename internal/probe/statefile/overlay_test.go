package statefile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A container's root is an overlay, and so may be the host's, or a host that is a
// container itself.
func TestAFolderOfTheContainerItselfIsToldOfOnce(t *testing.T) {
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil { // on an overlay there can be no other
		t.Fatalf("%v: run this test as root", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	at := map[string]string{}
	for _, name := range []string{"lower", "upper", "work", "root"} {
		at[name] = filepath.Join(base, name)
		if err := os.Mkdir(at[name], 0o700); err != nil {
			t.Fatal(err)
		}
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
		"of the container":                   {layer, at["root"], false},
		"of a host whose root is an overlay": {layer, base, true},
		"of the host":                        {filepath.Join(base, "state"), at["root"], true},
		"of a machine":                       {filepath.Join(base, "state"), base, true},
	} {
		t.Run(name, func(t *testing.T) {
			log, said := logger()
			m, err := open(&directory{path: of.path, root: of.root}, "", log)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				m.Keep("x", entry(i), true)
				if err := m.Flush(); err != nil {
					t.Error(err)
				}
			}
			if lasts := m.Err() == nil; lasts != of.lasts {
				t.Errorf("that it is kept is %t: %v", lasts, m.Err())
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			want := 1
			if of.lasts {
				want = 0
			}
			if strings.Count(said.String(), "\n") != want || strings.Count(said.String(), of.path) != want {
				t.Errorf("said %q", said)
			}
		})
	}
	if err := (&directory{path: filepath.Join(base, "nowhere"), root: "/"}).Lasts(); err != nil {
		t.Errorf("a folder that is not there is %v", err)
	}
}
