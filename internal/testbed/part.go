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
	// patience bounds the wait for a part that is starting. A healthy one takes
	// a few seconds even when the machine is busy; this long means that it hangs.
	patience = time.Minute

	// glance is the time between two looks at a part that is starting. Every
	// start waits half of it in vain, so it is short.
	glance = 20 * time.Millisecond
)

// Part is one process of the control plane, and the handle by which a test
// breaks it. A fault that strikes nothing, such as killing what does not run,
// is an error: a test that passes should have seen the fault.
type Part struct {
	name, path string
	args, env  []string
	folder     string // the working directory
	log        string // the file that gets its output
	leads      bool   // to the process that is meant; see Program
	ready      check
	ended      func() // called when the process has ended; may be nil

	mu      sync.Mutex
	run     *run    // the latest one
	crashes []error // ends that nobody asked for
}

// run is one life of the process.
type run struct {
	process *os.Process
	ended   chan struct{} // closed when it has ended
	err     error         // how it ended; to be read once ended is closed
	asked   bool          // the end was asked for; guarded by Part.mu
}

// String returns the name of the program.
func (p *Part) String() string {
	if p == nil {
		return "a part that Config does not ask for"
	}
	return p.name
}

// PID returns the process, or 0 when it does not run.
func (p *Part) PID() int {
	r := p.current()
	if r == nil {
		return 0
	}
	pid, err := p.meant(r)
	if err != nil {
		return 0
	}
	return pid
}

// meant returns the process that signals are for.
func (p *Part) meant(r *run) (int, error) {
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
		return 0, fmt.Errorf("process %d leads to none yet", r.process.Pid)
	}
	return pid, nil
}

// Stop asks the process to end (SIGTERM) and waits until it has. A paused one
// is woken to hear it.
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

// Pause stops the clock of the process (SIGSTOP): its connections stay open and
// nobody answers. It returns when the process stands still.
func (p *Part) Pause() error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("pausing %s: it does not run", p)
	}
	pid, err := p.meant(r)
	if err == nil {
		// Who leads to it stands still as well, and wakes it when woken.
		err = freeze(pid, r.process.Pid)
	}
	if err != nil {
		return fmt.Errorf("pausing %s: %w", p, err)
	}
	return nil
}

// Resume lets a paused process go on (SIGCONT).
func (p *Part) Resume() error {
	_, err := p.signal("resuming", syscall.SIGCONT, false)
	return err
}

// Restart starts the process on the same port and data, and waits until it is
// ready. One that still runs is stopped first.
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
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not ready after %s", patience))
	defer cancel()
	look := time.NewTicker(glance)
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
		return nil, errors.New("it runs already")
	}
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own

	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.folder, log, log
	// Nothing of the caller's environment: a control plane must not depend on
	// whose shell started it.
	cmd.Env = append([]string{"HOME=" + p.folder, "PATH=" + os.Getenv("PATH")}, p.env...)

	r := &run{ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(r.ended)
		if r.err = runTethered(cmd, func(err error) { started <- err }); r.err == nil {
			r.err = errors.New("exit status 0") // nobody here is meant to finish
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

// noteEnd keeps the end of a run that nobody asked for.
func (p *Part) noteEnd(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.process == nil || r.asked { // never started, or as it should be
		return
	}
	p.crashes = append(p.crashes, fmt.Errorf("%s ended by itself: %w\n%s", p, r.err, tail(p.log)))
}

// current returns the run that is alive, or nil.
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
		// Who leads to nobody yet leaves nobody behind.
		if pid, err := p.meant(r); err == nil && p.leads {
			send = func(os.Signal) error { return syscall.Kill(pid, sig) }
		}
	}
	if err := send(sig); err != nil {
		return nil, fmt.Errorf("%s %s: %w", action, p, err)
	}
	return r, nil
}

// crashed returns the ends of the process that nobody asked for.
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
