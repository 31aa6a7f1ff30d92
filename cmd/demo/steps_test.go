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
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The demo is the first thing that a new user sees, so the test runs all of it.
func TestDemoRunsAllSteps(t *testing.T) {
	t.Parallel()
	var out transcript
	d := demo{once: true, steps: (*demoCluster).steps}
	if err := d.run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	checkOutput(t, out.String(),
		"24 pods run after", "conditionset-2   NoExecute", "taint node.stakater.com/KernelDeadlock:NoExecute is gone",
		"left worker-0009", "FellBack:", "at most 4 of 10 selected nodes may have it", "control-plane nodes are not included", "NoExecute, was NoSchedule",
		"1 of 2 conditions are met", "hands-off:NoSchedule", "killed, with", "OutOfDisk=False is what a healthy node reports", "10 of 10 selected nodes", "never more than 4 nodes",
		"silent-kubelet Enforce 10 10 0 Enabled 10 nodes, all healthy",
		"worker-0003 Ready=Unknown", "Pending: NodeHealthCheck/silent-kubelet", "RemediationCreated: made ExampleRemediation",
		"silent-kubelet Enforce 10 9 1 Remediating 1 node in treatment", "strategy: reboot", "remediator restarts worker-0003",
		"ExampleRemediation worker-0003 is gone", "Normal RemediationRemoved NodeHealthCheck/silent-kubelet worker-0003: deleted",
		"silent-kubelet Enforce 10 5 0 Enabled 5 of 10 nodes unhealthy, at most 2 allowed: no new remediation starts", "waits: 5 of 10 selected nodes are unhealthy, at most 2 may be",
		"remediator restarts worker-0004", "remediator restarts worker-0005", "19 steps in",
		"held by correlatedFailure of Guardrails: 3 of 3 nodes with topology.kubernetes.io/zone=zone-b became unhealthy within 5m", "maxUnschedulable (4 of 4) holds 5",
		"Paused: mode Paused: nothing new starts",
		"worker-0007 has an agent, which reads", "0 ms kern.log task docker:4711 blocked for more than 120 seconds.",
		"worker-0007 KernelDeadlock=True", "worker-0007 DockerHung: Node condition KernelDeadlock is now: True", "left worker-0007",
		"0 ms kern.log task docker:4711 goes on.", "worker-0007 KernelDeadlock=False",
		"hears disk-watch", "0 ms sda.badblocks 2048 128", "worker-0007 DiskBadBlock=True", "BadBlockFound:", "0 ms disk-watch kill -9",
		"worker-0007 DiskBadBlock=Unknown", "SourceSilent: Node condition DiskBadBlock is now: Unknown", "disk-watch started again",
		"0 ms sda.badblocks empty: the disk was repaired", "worker-0007 DiskBadBlock=False", "NoBadBlocks: Node condition",
	)
}

// checkOutput looks for texts in the output, ignoring line breaks, and for lines that are
// too long.
func checkOutput(t *testing.T, output string, wants ...string) {
	t.Helper()
	words := strings.Join(strings.Fields(output), " ")
	for _, want := range wants {
		testkit.Check(t, strings.Contains(words, strings.Join(strings.Fields(want), " ")), "%s\nthe output does not contain %q", output, want)
	}
	for i, line := range strings.Split(output, "\n") {
		testkit.Check(t, len(line) <= width, "line %d has %d characters, want at most %d: %s", i+1, len(line), width, line)
	}
}

// startDemo runs a demo until interrupt, which checks that it ends without an error. The context
// also ends when the demo does.
func startDemo(t *testing.T, d demo) (ctx context.Context, out *transcript, interrupt func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	out = &transcript{}
	ended := make(chan error, 1)
	go func() {
		err := d.run(ctx, out)
		cancel(errors.Join(errors.New("the demo has ended"), err))
		ended <- err
	}()
	return ctx, out, func() {
		t.Helper()
		cancel(errors.New("interrupt"))
		if err := <-ended; err != nil {
			t.Errorf("the demo ended with %v, want no error after an interrupt", err)
		}
	}
}

func TestInteractiveModePrintsChangesAndLeavesNothingBehind(t *testing.T) {
	folder := tempFolder(t)
	var s *demoCluster
	// Without steps the interactive mode starts at once.
	ctx, out, interrupt := startDemo(t, demo{kmsg: true, steps: func(built *demoCluster) []step { s = built; return nil }})
	out.await(ctx, t, "stays until Ctrl-C")

	testkit.Must(t, s.SetCondition(ctx, firstNode, deadlocked()))
	out.await(ctx, t, "KernelDeadlock=True", "taint "+kernelKey+":NoExecute", "Tainted: ConditionSet/conditionset-2", "left "+firstNode)
	testkit.Must(t, s.SetCondition(ctx, firstNode, corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionFalse}))
	out.await(ctx, t, "KernelDeadlock=False", "is gone")

	testkit.Must(t, s.Silence(ctx, firstNode))
	out.await(ctx, t, "Ready=Unknown", "RemediationCreated: made", "restarts "+firstNode, "Ready=True", "RemediationRemoved: deleted", "ExampleRemediation "+firstNode+" is gone")

	// Run the printed commands, here with the kernel log of this machine.
	paste := func(command string, seen ...string) {
		t.Helper()
		out.await(ctx, t, "  "+command+"\n")
		if printed, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, printed)
		}
		out.await(ctx, t, seen...)
	}
	paste(s.kernelLog.command(hangLine), agentNode+"     KernelDeadlock=True", "DockerHung: Node condition KernelDeadlock is now: True", "left "+agentNode)
	testkit.Must(t, syscall.Kill(s.agent.PID(), syscall.SIGKILL))
	out.await(ctx, t, "The agent exited and is restarted.")
	paste(s.kernelLog.command(resumeLine), agentNode+"     KernelDeadlock=False", "KernelHasNoDeadlock: Node condition KernelDeadlock is now: False")

	paste(s.badBlocks.addCommand(), agentNode+"     DiskBadBlock=True")
	testkit.Must(t, syscall.Kill(s.diskWatch.PID(), syscall.SIGKILL))
	out.await(ctx, t, "The disk-watch exited and is restarted.")
	paste(s.badBlocks.clearCommand(), agentNode+"     DiskBadBlock=False")

	checkAllGone := s.recordProcesses(t, folder)
	interrupt()
	checkAllGone()
}

// tempFolder sets TMPDIR to a directory of the test.
func tempFolder(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"cmd/autohealer-controller", "cmd/autohealer-agent", "examples/" + diskWatchSource} {
		if _, err := install.Build(t.Context(), program); err != nil { // shared by all tests, so not in the directory
			t.Fatal(err)
		}
	}
	folder, err := os.MkdirTemp("", "demo-") // the path of a socket must be short
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	t.Setenv("TMPDIR", folder)
	return folder
}

// recordProcesses records the running processes, after those that exited were restarted. The
// returned function checks that they and all temporary files are gone.
func (s *demoCluster) recordProcesses(t *testing.T, folder string) (checkAllGone func()) {
	t.Helper()
	for _, p := range s.programs() {
		testkit.Until(t, p.name+" runs", func() bool { return p.PID() != 0 })
	}
	pids := map[string]int{
		"etcd": s.Etcd.PID(), "kube-apiserver": s.APIServer.PID(), "kube-controller-manager": s.ControllerManager.PID(),
		"kube-scheduler": s.Scheduler.PID(), "kwok": s.Kwok.PID(),
	}
	for _, p := range s.programs() {
		pids[p.name] = p.PID()
	}
	return func() {
		for name, pid := range pids {
			testkit.Check(t, pid != 0, "%s did not run", name)
			if process, err := os.FindProcess(pid); err == nil && process.Signal(syscall.Signal(0)) == nil {
				t.Errorf("%s, process %d, still runs after the demo", name, pid)
			}
		}
		left, err := os.ReadDir(folder)
		testkit.Must(t, err)
		for _, entry := range left {
			t.Errorf("the demo left %s behind", entry.Name())
		}
	}
}

func TestRunSteps(t *testing.T) {
	fine := step{"The first.", func(context.Context) error { return nil }}
	broken := step{"The second.", func(context.Context) error { return errors.New("worker-0001 has no taint") }}

	t.Run("names_the_failed_step", func(t *testing.T) {
		var out bytes.Buffer
		err := demo{}.runSteps(t.Context(), newPrinter(&out), []step{fine, broken, fine})
		if want := `step 2, "The second.": worker-0001 has no taint`; err == nil || err.Error() != want {
			t.Errorf("error is %v, want %s", err, want)
		}
		if strings.Contains(out.String(), "3. ") {
			t.Errorf("the run continued:\n%s", out.String())
		}
	})

	t.Run("stops_at_an_interrupt_during_a_pause", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := (demo{pause: time.Hour}).runSteps(ctx, newPrinter(&bytes.Buffer{}), []step{fine}); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v, want context.Canceled", err)
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

// take returns the written text and clears it.
func (tr *transcript) take() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	defer tr.text.Reset()
	return tr.text.String()
}

// maxSilence is longer than a demo prints nothing, also on a busy machine.
const maxSilence = 3 * time.Minute

// await waits until all texts were written.
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
			t.Fatalf("%s\nwaiting for %q: %v", text, missing, context.Cause(ctx))
		case <-time.After(maxSilence):
			t.Fatalf("%s\nwaiting for %q: nothing was printed for %s", text, missing, maxSilence)
		}
	}
}
