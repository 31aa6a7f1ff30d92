package testbed

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestOrphans(t *testing.T) {
	t.Run("die with a parent that is killed", func(t *testing.T) {
		folder, parent, output := startParent(t)
		line, err := bufio.NewReader(output).ReadString('\n')
		testkit.Require(t, err == nil && strings.TrimSpace(line) == "started: <nil>", "the parent prints %q (%v)", line, err)
		if running := processesOf(folder); len(running) != 5 {
			t.Fatalf("5 processes expected, found %q", running)
		}
		kill(t, parent)
		testkit.Eventually(t, "all children gone", func() error { return noProcessOf(folder) })
	})

	t.Run("die with a parent that is killed while it starts them", func(t *testing.T) {
		folder, parent, _ := startParent(t)
		testkit.Until(t, "a first child", func() bool { return len(processesOf(folder)) != 0 })
		kill(t, parent)
		testkit.Eventually(t, "all children gone", func() error { return noProcessOf(folder) })

		t.Run("and the next start removes their files", func(t *testing.T) {
			if left, _ := filepath.Glob(filepath.Join(folder, folderPrefix+"*")); len(left) != 1 {
				t.Fatalf("one folder expected, found %q", left)
			}
			next := testkit.Value(newFolder(folder)).Must(t)
			defer next.remove()
			if left, _ := filepath.Glob(filepath.Join(folder, folderPrefix+"*")); len(left) != 1 || left[0] != next.path {
				t.Errorf("only %s expected, found %q", next.path, left)
			}
		})
	})

	// The kernel sends the death signal when the thread that forked ends, and a thread ends
	// with the goroutine that was locked to it.
	t.Run("do not die with the thread that called Start", func(t *testing.T) {
		var c *Cluster
		thread := onThreadThatEnds(func() { c = etcdAlone(t, Config{}) })
		testkit.Eventually(t, "the end of the thread", func() error {
			if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread)); err == nil {
				return fmt.Errorf("thread %d is still there", thread)
			}
			return nil
		})
		if err := c.Etcd.ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// onThreadThatEnds runs f and returns its thread, which ends afterwards.
func onThreadThatEnds(f func()) int {
	for {
		thread := make(chan int)
		go func() {
			runtime.LockOSThread() // never unlocked
			defer func() { thread <- unix.Gettid() }()
			if unix.Gettid() != os.Getpid() {
				f()
			}
		}()
		// The main thread does not end, but no other goroutine runs on it.
		if id := <-thread; id != os.Getpid() {
			return id
		}
	}
}

// startParent runs this test binary as a process that starts a cluster.
func startParent(t *testing.T) (folder string, parent *exec.Cmd, output *bufio.Reader) {
	t.Helper()
	folder = testkit.Value(os.MkdirTemp("", "orphans-")).Must(t) // t.TempDir is too long for a socket in it
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	parent = exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), playParent+"="+folder)
	parent.Stderr = os.Stderr
	pipe := testkit.Value(parent.StdoutPipe()).Must(t)
	testkit.Must(t, parent.Start())
	t.Cleanup(func() { _, _ = parent.Process.Kill(), parent.Wait() })
	return folder, parent, bufio.NewReader(pipe)
}

func kill(t *testing.T, parent *exec.Cmd) {
	t.Helper()
	testkit.Must(t, parent.Process.Kill())
	_ = parent.Wait()
}
