package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxWait bounds the wait for a starting part. A healthy part takes a few seconds, and
	// more than a minute beside thirty busy processes; this long means that it hangs.
	maxWait = 3 * time.Minute

	// pollInterval is the time between two checks of a starting part. Every start wastes
	// half of it, so it is short.
	pollInterval = 20 * time.Millisecond
)

// Part is a process of the control plane. A test breaks it by its methods. A fault without
// effect, for example killing a process that does not run, is an error: a passing test
// should have seen the fault.
type Part struct {
	name, path string
	args, env  []string
	folder     string // the working directory
	log        string // the file for its output
	leads      bool   // it wraps the actual process; see Program
	ready      check
	ended      func() // called when the process has ended; may be nil

	mu      sync.Mutex
	run     *run    // the latest run
	crashes []error // unexpected exits
}

// run is one run of the process.
type run struct {
	process *os.Process
	ended   chan struct{} // closed when it has ended
	err     error         // the result; read it after ended is closed
	asked   bool          // the test asked for the end; guarded by Part.mu
}

// String returns the name of the program.
func (p *Part) String() string {
	if p == nil {
		return "a part that Config does not ask for"
	}
	return p.name
}

// PID returns the process ID, or 0 if it does not run.
func (p *Part) PID() int {
	r := p.current()
	if r == nil {
		return 0
	}
	pid, err := p.target(r)
	if err != nil {
		return 0
	}
	return pid
}

// target returns the process that gets the signals.
func (p *Part) target(r *run) (int, error) {
	if !p.leads {
		return r.process.Pid, nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", r.process.Pid))
	if err != nil {
		return 0, err
	}
	child, _, _ := strings.Cut(string(text), " ")
	pid, err := strconv.Atoi(child)
	if err != nil {
		return 0, fmt.Errorf("process %d has not started its child yet", r.process.Pid)
	}
	return pid, nil
}

// Stop asks the process to exit (SIGTERM) and waits for it. A paused process is resumed
// first.
func (p *Part) Stop(ctx context.Context) error {
	r, err := p.signal("stopping", syscall.SIGTERM, true)
	if err != nil {
		return err
	}
	_ = r.process.Signal(syscall.SIGCONT)
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stopping %s: %w\n%s", p, context.Cause(ctx), tail(p.log))
	}
}

// Kill ends the process without warning (SIGKILL).
func (p *Part) Kill() error {
	r, err := p.signal("killing", syscall.SIGKILL, true)
	if err != nil {
		return err
	}
	<-r.ended
	return nil
}

// Pause stops the process (SIGSTOP): its connections stay open without responses. It
// returns when the process has stopped.
func (p *Part) Pause() error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("pausing %s: it does not run", p)
	}
	pid, err := p.target(r)
	if err == nil {
		// The wrapping process stops as well, and resumes its child when it is resumed.
		err = freeze(pid, r.process.Pid)
	}
	if err != nil {
		return fmt.Errorf("pausing %s: %w", p, err)
	}
	return nil
}

// Resume continues a paused process (SIGCONT).
func (p *Part) Resume() error {
	_, err := p.signal("resuming", syscall.SIGCONT, false)
	return err
}

// Restart starts the process on the same port and data, and waits until it is ready. A
// running process is stopped first.
func (p *Part) Restart(ctx context.Context) error {
	if p.current() != nil {
		if err := p.Stop(ctx); err != nil {
			return err
		}
	}
	return p.start(ctx)
}

func (p *Part) start(ctx context.Context) error {
	if p == nil {
		return fmt.Errorf("starting %s: there is none", p)
	}
	r, err := p.launch()
	if err != nil {
		return fmt.Errorf("starting %s: %w", p, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, fmt.Errorf("not ready after %s", maxWait))
	defer cancel()
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	for {
		notReady := p.ready(ctx)
		if notReady == nil {
			return nil
		}
		select {
		case <-r.ended:
			return fmt.Errorf("starting %s: it ended early: %w\n%s", p, r.err, tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("starting %s: %w (%w)\n%s", p, context.Cause(ctx), notReady, tail(p.log))
		case <-look.C:
		}
	}
}

// launch starts the process and does not wait until it is ready.
func (p *Part) launch() (*run, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil && !p.run.hasEnded() {
		return nil, errors.New("it is already running")
	}
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own

	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.folder, log, log
	// Nothing of the caller's environment: a control plane must not depend on the shell
	// that started it.
	cmd.Env = append([]string{"HOME=" + p.folder, "PATH=" + os.Getenv("PATH")}, p.env...)

	r := &run{ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(r.ended)
		if r.err = runTethered(cmd, func(err error) { started <- err }); r.err == nil {
			r.err = errors.New("exit status 0") // no part is expected to finish
		}
		if p.ended != nil {
			p.ended()
		}
		p.noteEnd(r)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	r.process = cmd.Process
	p.run = r
	return r, nil
}

// noteEnd stores an unexpected exit.
func (p *Part) noteEnd(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.process == nil || r.asked { // never started, or expected
		return
	}
	p.crashes = append(p.crashes, fmt.Errorf("%s ended by itself: %w\n%s", p, r.err, tail(p.log)))
}

// current returns the running run, or nil.
func (p *Part) current() *run {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil || p.run.hasEnded() {
		return nil
	}
	return p.run
}

func (p *Part) signal(action string, sig syscall.Signal, ends bool) (*run, error) {
	r := p.current()
	if r == nil {
		return nil, fmt.Errorf("%s %s: it does not run", action, p)
	}
	send := r.process.Signal
	if ends {
		p.mu.Lock()
		r.asked = true
		p.mu.Unlock()
		// A wrapper without a child leaves no process behind.
		if pid, err := p.target(r); err == nil && p.leads {
			send = func(os.Signal) error { return syscall.Kill(pid, sig) }
		}
	}
	if err := send(sig); err != nil {
		return nil, fmt.Errorf("%s %s: %w", action, p, err)
	}
	return r, nil
}

// crashed returns the unexpected exits of the process.
func (p *Part) crashed() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.crashes...)
}

func (r *run) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// tail returns the last lines of a log, for the error of a process that failed.
func tail(path string) string {
	const lines, window = 12, 16 << 10
	f, err := os.Open(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > window {
		_, _ = f.Seek(-window, io.SeekEnd)
	}
	buf := make([]byte, window)
	n, _ := f.Read(buf)
	all := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	return "\t" + strings.Join(all[max(0, len(all)-lines):], "\n\t")
}
