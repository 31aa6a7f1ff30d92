package subprocess_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// deaf mounts a file system that takes every question and answers none, like that of a
// server which is gone: whoever asks is in a sleep from which no signal wakes, until
// wake is called. It is the kernel's own, spoken to over /dev/fuse.
func deaf(t *testing.T) (folder string, wake func()) {
	t.Helper()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("opening /dev/fuse: %v: run this test as root, with the module fuse loaded", err)
	}
	folder = filepath.Join(t.TempDir(), "deaf")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("deaf", folder, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)); err != nil {
		t.Fatalf("mounting %s: %v: run this test as root", folder, err)
	}
	var served sync.WaitGroup
	served.Go(func() { ignore(device) })
	wake = sync.OnceFunc(func() {
		if err := unix.Unmount(folder, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting %s: %v", folder, err)
		}
		served.Wait()
		if err := unix.Close(device); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(wake)
	return folder, wake
}

// ignore greets the kernel, and then reads what it asks for until it asks no more.
func ignore(device int) {
	const greeting = 26 // FUSE_INIT
	question := make([]byte, 1<<17)
	for {
		n, err := unix.Read(device, question)
		if err == unix.EINTR {
			continue
		} else if err != nil || n < 16 {
			return
		}
		if binary.NativeEndian.Uint32(question[4:]) != greeting {
			continue
		}
		answer := make([]byte, 16+64)
		binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
		copy(answer[8:16], question[8:16])                  // which question it answers
		binary.NativeEndian.PutUint32(answer[16:], 7)       // the version of the protocol
		binary.NativeEndian.PutUint32(answer[20:], 31)      //
		binary.NativeEndian.PutUint32(answer[16+20:], 4096) // how much is written at once
		if _, err := unix.Write(device, answer); err != nil {
			return
		}
	}
}
