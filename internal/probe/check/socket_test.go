package check

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The image of the agent has a folder /run. It contains the node's sockets only if it is mounted.
func TestAFolderOfTheImageIsNotOfTheNode(t *testing.T) {
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil { // on an overlay there can be no other
		t.Fatalf("%v: run this test as root", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	for _, name := range []string{"lower", "upper", "work", "root", "lower/run", "lower/mounted"} {
		testkit.Must(t, os.Mkdir(filepath.Join(base, name), 0o700))
	}
	root := filepath.Join(base, "root")
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+base+"/lower,upperdir="+base+"/upper,workdir="+base+"/work"); err != nil {
		t.Fatalf("mounting an overlay: %v: run this test as root, with a kernel that has overlays", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	testkit.Must(t, unix.Mount("tmpfs", root+"/mounted", "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(root+"/mounted", unix.MNT_DETACH) })
	for _, test := range []struct {
		name, folder, root string
		want               bool
	}{
		{"of the image", root + "/run", root, false},
		{"mounted into the container", root + "/mounted", root, true},
		{"of a machine", base + "/lower/run", base, true},
		{"nowhere", root + "/nowhere", root, false},
	} {
		if got := isOfTheNode(test.folder, test.root); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
