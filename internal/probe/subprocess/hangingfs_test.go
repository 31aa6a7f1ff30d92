package subprocess_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// hangingFS mounts a file system that answers no request, like an NFS mount whose server is
// gone. A process that accesses it sleeps uninterruptibly until wake is called. It uses
// /dev/fuse.
func hangingFS(t *testing.T) (folder string, wake func()) {
	t.Helper()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	testkit.Require(t, err == nil, "opening /dev/fuse: %v: run this test as root, with the module fuse loaded", err)
	folder = filepath.Join(t.TempDir(), "hanging")
	testkit.Must(t, os.Mkdir(folder, 0o700))
	if err := unix.Mount("hanging", folder, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)); err != nil {
		t.Fatalf("mounting %s: %v: run this test as root", folder, err)
	}
	var served sync.WaitGroup
	served.Go(func() { ignore(device) })
	wake = sync.OnceFunc(func() {
		err := unix.Unmount(folder, unix.MNT_FORCE|unix.MNT_DETACH)
		testkit.Check(t, err == nil, "unmounting %s: %v", folder, err)
		served.Wait()
		testkit.Must(t, unix.Close(device))
	})
	t.Cleanup(wake)
	return folder, wake
}

// ignore answers FUSE_INIT and then reads requests without answering them.
func ignore(device int) {
	const fuseInit = 26
	request := make([]byte, 1<<17)
	for {
		n, err := unix.Read(device, request)
		if err == unix.EINTR {
			continue
		} else if err != nil || n < 16 {
			return
		}
		if binary.NativeEndian.Uint32(request[4:]) != fuseInit {
			continue
		}
		answer := make([]byte, 16+64)
		binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
		copy(answer[8:16], request[8:16])                   // ID of the request
		binary.NativeEndian.PutUint32(answer[16:], 7)       // protocol version
		binary.NativeEndian.PutUint32(answer[20:], 31)      //
		binary.NativeEndian.PutUint32(answer[16+20:], 4096) // maximum write size
		if _, err := unix.Write(device, answer); err != nil {
			return
		}
	}
}
