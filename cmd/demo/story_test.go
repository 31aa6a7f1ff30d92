package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
)

// The story is what a newcomer sees first, so it is played whole.
func TestTheStoryIsToldToItsEnd(t *testing.T) {
	var out transcript
	d := demo{once: true, story: (*stage).story}
	if err := d.run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	read(t, out.String(),
		"24 pods run after", "conditionset-2   KernelDeadlock", "taint node.stakater.com/KernelDeadlock:NoExecute is gone",
		"left worker-0009", "FellBack:", "at most 4 of 10 selected nodes may have it", "control-plane nodes are not included", "NoExecute, was NoSchedule",
		"1 of 2 conditions stand", "hands-off:NoSchedule", "killed, with", "OutOfDisk=False is what a healthy node reports", "10 of 10 selected nodes", "never more than 4 nodes",
		"silent-kubelet 10 10 0 Enabled no node needs a remediation",
		"worker-0003 Ready=Unknown", "Pending: NodeHealthCheck/silent-kubelet", "RemediationCreated: made ExampleRemediation",
		"silent-kubelet 10 9 1 Remediating in treatment: 1", "strategy: reboot", "remediator starts worker-0003 anew",
		"ExampleRemediation worker-0003 is gone", "Normal RemediationRemoved NodeHealthCheck/silent-kubelet worker-0003: deleted",
		"silent-kubelet 10 5 0 Enabled waiting: 5 GateClosed", "waits: 5 of 10 selected nodes are sick, at most 2 may be",
		"remediator starts worker-0004 anew", "remediator starts worker-0005 anew", "16 scenes in",
		"worker-0007 has an agent, which reads", "0 ms kern.log task docker:4711 blocked for more than 120 seconds.",
		"worker-0007 KernelDeadlock=True", "worker-0007 DockerHung: Node condition KernelDeadlock is now: True", "left worker-0007",
		"0 ms kern.log task docker:4711 goes on.", "worker-0007 KernelDeadlock=False",
		"hears disk-watch", "0 ms sda.badblocks 2048 128", "worker-0007 DiskBadBlock=True", "BadBlockFound:", "0 ms disk-watch kill -9",
		"worker-0007 DiskBadBlock=Unknown", "SourceSilent: Node condition DiskBadBlock is now: Unknown", "disk-watch started again",
		"0 ms sda.badblocks empty: the disk was repaired", "worker-0007 DiskBadBlock=False", "NoBadBlocks: Node condition",
	)
}

// read looks for words in a story, however its lines are broken, and for lines that are
// too long.
func read(t *testing.T, story string, wants ...string) {
	t.Helper()
	words := strings.Join(strings.Fields(story), " ")
	for _, want := range wants {
		if !strings.Contains(words, strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the story does not say %q:\n%s", want, story)
		}
	}
	for i, line := range strings.Split(story, "\n") {
		if len(line) > width {
			t.Errorf("line %d has %d characters, want at most %d: %s", i+1, len(line), width, line)
		}
	}
}

func TestWhatOthersDoIsToldUntilTheEndAndNothingIsLeftBehind(t *testing.T) {
	folder := tempFolder(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var (
		out   transcript
		s     *stage
		ended = make(chan error, 1)
	)
	// No scenes: it is the audience's turn at once.
	d := demo{kmsg: true, story: func(built *stage) []scene { s = built; return nil }}
	go func() {
		err := d.run(ctx, &out)
		cancel(errors.New("the demo has ended"))
		ended <- err
	}()
	out.await(ctx, t, "stays until Ctrl-C")

	if err := s.SetCondition(ctx, lone, deadlocked()); err != nil {
		t.Fatal(err)
	}
	out.await(ctx, t, "KernelDeadlock=True", "taint "+kernelKey+":NoExecute", "Tainted: ConditionSet/conditionset-2", "left "+lone)
	if err := s.SetCondition(ctx, lone, corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse}); err != nil {
		t.Fatal(err)
	}
	out.await(ctx, t, "KernelDeadlock=False", "is gone")

	if err := s.Silence(ctx, lone); err != nil {
		t.Fatal(err)
	}
	out.await(ctx, t, "Ready=Unknown", "RemediationCreated: made", "starts "+lone+" anew", "Ready=True", "RemediationRemoved: deleted", "ExampleRemediation "+lone+" is gone")

	// What is printed to be pasted is pasted, here for the kernel's own log.
	paste := func(command string, seen ...string) {
		t.Helper()
		out.await(ctx, t, "  "+command+"\n")
		if printed, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, printed)
		}
		out.await(ctx, t, seen...)
	}
	paste(s.kernelLog.command(hung), probed+"     KernelDeadlock=True", "DockerHung: Node condition KernelDeadlock is now: True", "left "+probed)
	if err := syscall.Kill(s.agent.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out.await(ctx, t, "The agent has ended, and is started again.")
	paste(s.kernelLog.command(goesOn), probed+"     KernelDeadlock=False", "KernelHasNoDeadlock: Node condition KernelDeadlock is now: False")

	paste(s.badBlocks.found(), probed+"     DiskBadBlock=True")
	if err := syscall.Kill(s.diskWatch.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out.await(ctx, t, "The disk-watch has ended, and is started again.")
	paste(s.badBlocks.mended(), probed+"     DiskBadBlock=False")

	checkAllGone := s.running(t, folder)
	cancel(errors.New("interrupt"))
	if err := <-ended; err != nil {
		t.Errorf("the demo ended with %v; the audience has left, and that is all", err)
	}
	checkAllGone()
}

// tempFolder has everything temporary stand in a folder of the test's own.
func tempFolder(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"cmd/autohealer-controller", "cmd/autohealer-agent", "examples/" + diskWatchSource} {
		if _, err := install.Build(t.Context(), program); err != nil { // for all tests, so not there
			t.Fatal(err)
		}
	}
	folder, err := os.MkdirTemp("", "demo-") // a short path: sockets will stand there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	t.Setenv("TMPDIR", folder)
	return folder
}

// running notes which processes run, and returns what checks that they and everything in
// the folder for temporary files are gone.
func (s *stage) running(t *testing.T, folder string) (checkAllGone func()) {
	t.Helper()
	pids := map[string]int{
		"etcd": s.Etcd.PID(), "kube-apiserver": s.APIServer.PID(), "kube-controller-manager": s.ControllerManager.PID(),
		"kube-scheduler": s.Scheduler.PID(), "kwok": s.Kwok.PID(),
	}
	for _, g := range s.guests() {
		pids[g.name] = g.PID()
	}
	return func() {
		for name, pid := range pids {
			if pid == 0 {
				t.Errorf("%s did not run while the demo did", name)
			}
			if process, err := os.FindProcess(pid); err == nil && process.Signal(syscall.Signal(0)) == nil {
				t.Errorf("%s, process %d, has outlived the demo", name, pid)
			}
		}
		left, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range left {
			t.Errorf("the demo has left %s behind", entry.Name())
		}
	}
}

func TestPlay(t *testing.T) {
	fine := scene{"The first.", func(context.Context) error { return nil }}
	broken := scene{"The second.", func(context.Context) error { return errors.New("worker-0001 has no taint") }}

	t.Run("names_the_scene_that_went_wrong", func(t *testing.T) {
		var out bytes.Buffer
		err := demo{}.play(t.Context(), newTeller(&out), []scene{fine, broken, fine})
		if want := `scene 2, "The second.": worker-0001 has no taint`; err == nil || err.Error() != want {
			t.Errorf("error is %v, want %s", err, want)
		}
		if strings.Contains(out.String(), "3. ") {
			t.Errorf("the story went on:\n%s", out.String())
		}
	})

	t.Run("ends_at_an_interrupt_while_it_pauses", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := (demo{pause: time.Hour}).play(ctx, newTeller(&bytes.Buffer{}), []scene{fine}); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v, want that it was canceled", err)
		}
	})
}

// transcript is a writer that can be read while it is written to.
type transcript struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func (tr *transcript) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.changed != nil {
		close(tr.changed)
		tr.changed = nil
	}
	return tr.text.Write(p)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String()
}

// take returns what has been written, and forgets it.
func (tr *transcript) take() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	defer tr.text.Reset()
	return tr.text.String()
}

// await waits until all the words have been written.
func (tr *transcript) await(ctx context.Context, t *testing.T, words ...string) {
	t.Helper()
	for {
		tr.mu.Lock()
		text := tr.text.String()
		if tr.changed == nil {
			tr.changed = make(chan struct{})
		}
		changed := tr.changed
		tr.mu.Unlock()
		missing := ""
		for _, w := range words {
			if !strings.Contains(text, w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("waiting for %q: %v\n%s", missing, context.Cause(ctx), text)
		}
	}
}
