package subprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killTimeout is how long a killed process may take to end.
	killTimeout = 750 * time.Millisecond
	// outputGrace is how long Run waits for output after the program has ended, before it
	// kills the rest of the group: a tee may still have to write.
	outputGrace = 200 * time.Millisecond
	// Intervals between two checks of a killed group. They grow until the program counts as
	// abandoned.
	firstWait, longestWait = time.Millisecond, 500 * time.Millisecond
)

// Children runs programs and reaps them. A process has one Children, because its child
// processes belong to the whole process. Its methods are safe for concurrent use.
type Children struct {
	// Programs start under a read lock, so that reapOrphans knows all processes that are not
	// orphans.
	starting sync.RWMutex
	reaped   chan struct{} // signals that a program started here was reaped

	mu        sync.Mutex     // guards the fields below
	own       map[int]bool   // IDs of processes that another goroutine waits for
	abandoned map[string]int // number of abandoned programs by name
}

// New returns a Children without programs.
func New() *Children {
	return &Children{reaped: make(chan struct{}, 1), own: map[int]bool{}, abandoned: map[string]int{}}
}

// Abandoned returns the number of programs that could not be killed, or that left a
// process behind that could not be killed.
func (c *Children) Abandoned() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0
	for _, n := range c.abandoned {
		sum += n
	}
	return sum
}

func (c *Children) isAbandoned(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandoned[name] > 0
}

// abandon adds delta to the number of abandoned programs of a name.
func (c *Children) abandon(name string, delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned[name] += delta; c.abandoned[name] == 0 {
		delete(c.abandoned, name)
	}
}

// Run runs a program. It returns when the program has ended, or within a second after its
// timeout.
func (c *Children) Run(ctx context.Context, s Spec) Result {
	if s.MaxOutput <= 0 {
		s.MaxOutput = MaxOutput
	}
	if s.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Timeout)
		defer cancel()
	}
	if c.isAbandoned(s.name()) {
		return failed(Hangs, "running %s: not started, because an earlier run was killed and has not ended: %s", s.Path, stuck)
	}
	started := time.Now()
	interpreter, fault := c.checkFile(ctx, s)
	if fault != nil {
		return *fault
	}
	p, err := c.start(s, interpreter)
	if err != nil {
		return failed(NotStarted, "running %s: cannot start a process: %w; the agent retries", s.Path, err)
	}
	select {
	case <-p.ended:
		return c.finish(p, time.Now().Add(outputGrace))
	case <-ctx.Done():
	}
	p.kill()
	after := time.Since(started).Round(time.Millisecond)
	killed := failed(Timeout, "running %s: it was killed as it had not ended after %s; give it more time, or look at what it waits for", s.Path, after)
	if fault := whyDone(ctx); fault != Timeout {
		killed = failed(fault, "running %s: it was killed after %s because the agent cancelled it", s.Path, after)
	}
	if p.endsWithin(killTimeout) {
		r := c.finish(p, time.Now().Add(outputGrace))
		killed.Output, killed.Complaint = r.Output, r.Complaint
	} else {
		c.leave(p)
		killed.Err = fmt.Errorf("%w; it has not ended after SIGKILL and is abandoned: %s", killed.Err, stuck)
		killed.Output, killed.Complaint = p.stdout.end(time.Now()), p.stderr.end(time.Now())
		p.execErrno.end(time.Now())
	}
	return killed
}

// stuck is the next step for the user if SIGKILL does not end a program.
const stuck = "check what it waits for in the kernel, for example a disk or a network file system"

// whyDone returns the fault that the end of a context means.
func whyDone(ctx context.Context) Fault {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return Timeout
	}
	return Cancelled
}

// finish returns the result of a program that has ended. It waits for output until the
// given time.
func (c *Children) finish(p *process, deadline time.Time) Result {
	stdout, stderr, why := p.stdout.end(deadline), p.stderr.end(deadline), execError(p.execErrno.end(deadline))
	close(p.killable)
	<-p.reaped
	r := p.result(p.status)
	switch {
	case why != nil:
		return *startError(p.Path, p.interpreter, why)
	case p.err != nil:
		r = failed(NotStarted, "waiting for %s: %w", p.Path, p.err)
	}
	r.Output, r.Complaint = stdout, stderr
	return r
}

// checkFile runs checkFile on a goroutine, and abandons it if the file system does not
// respond before ctx ends.
func (c *Children) checkFile(ctx context.Context, s Spec) (interpreter string, fault *Result) {
	type seen struct {
		interpreter string
		fault       *Result
	}
	looked, late := make(chan seen, 1), make(chan bool, 1)
	go func() {
		var l seen
		l.interpreter, l.fault = checkFile(s.Path)
		looked <- l
		if <-late {
			c.abandon(s.name(), -1)
		}
	}()
	select {
	case l := <-looked:
		late <- false
		return l.interpreter, l.fault
	case <-ctx.Done():
		// The check may have returned just now. Then its goroutine reverts this at once.
		c.abandon(s.name(), 1)
		late <- true
		fault := whyDone(ctx)
		if fault == Timeout {
			fault = NotStarted
		}
		return "", ptr(failed(fault, "running %s: its file could not be opened in time; check its file system", s.Path))
	}
}

// process is a running program.
type process struct {
	Spec
	interpreter string // from the first line of a script
	*os.Process
	stdout, stderr *output
	execErrno      *output // the errno if exec failed

	ended    chan struct{} // closed when the program has ended; it is not reaped yet
	killable chan struct{} // closed when the rest of the group may be killed
	reaped   chan struct{}
	// Set before reaped is closed.
	status syscall.WaitStatus
	err    error
}

// start starts a copy of this process, which then executes the program.
func (c *Children) start(s Spec, interpreter string) (_ *process, err error) {
	p := &process{
		Spec: s, interpreter: interpreter,
		ended: make(chan struct{}), killable: make(chan struct{}), reaped: make(chan struct{}),
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	files := []*os.File{null}
	defer func() {
		for _, file := range files {
			file.Close()
		}
	}()
	for _, of := range []struct {
		output **output
		most   int
	}{{&p.stdout, s.MaxOutput}, {&p.stderr, s.MaxOutput}, {&p.execErrno, maxErrnoDigits}} {
		out, end, err := newOutput(of.most)
		if err != nil {
			p.closeOutputs()
			return nil, err
		}
		*of.output, files = out, append(files, end)
	}
	c.starting.RLock()
	p.Process, err = os.StartProcess(self, slices.Concat([]string{childName, s.Path}, s.Args), &os.ProcAttr{
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err == nil {
		c.setOwn(p.Pid, true)
	}
	c.starting.RUnlock()
	if err != nil {
		p.closeOutputs()
		return nil, err
	}
	for _, o := range p.outputs() {
		go o.read()
	}
	go c.follow(p)
	return p, nil
}

// outputs returns the open outputs.
func (p *process) outputs() []*output {
	return slices.DeleteFunc([]*output{p.stdout, p.stderr, p.execErrno}, func(o *output) bool { return o == nil })
}

// closeOutputs closes the outputs of a program that could not be started.
func (p *process) closeOutputs() {
	for _, o := range p.outputs() {
		o.pipe.Close()
	}
}

// setOwn records whether another goroutine waits for a process.
func (c *Children) setOwn(pid int, own bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own {
		c.own[pid] = true
	} else {
		delete(c.own, pid)
	}
}

// follow waits for the end of a program and of its process group.
func (c *Children) follow(p *process) {
	awaitEnd(p.Pid)
	close(p.ended)
	<-p.killable
	p.kill() // the ID still belongs to the group, because the program is not reaped
	state, err := p.Wait()
	if err == nil {
		p.status, _ = state.Sys().(syscall.WaitStatus)
	}
	p.err = err
	c.setOwn(p.Pid, false)
	close(p.reaped)
	c.awaitGroup(p)
	select {
	case c.reaped <- struct{}{}:
	default: // a signal is pending already
	}
}

// awaitGroup waits until the process group of a program is empty.
func (c *Children) awaitGroup(p *process) {
	wait := firstWait
	for since := time.Now(); time.Since(since) < killTimeout; wait *= 2 {
		if groupIsGone(p.Pid) {
			return
		}
		<-time.After(wait)
	}
	// Killed processes cannot fork, so no others will follow.
	left := living(p.Pid)
	if len(left) == 0 {
		return // the rest are zombies that another process has to reap
	}
	c.abandon(p.name(), 1)
	for len(left) > 0 && !groupIsGone(p.Pid) {
		<-time.After(longestWait)
		left = slices.DeleteFunc(left, func(pid int) bool { return !lives(pid, p.Pid) })
	}
	c.abandon(p.name(), -1)
}

// leave abandons a program that cannot be killed.
func (c *Children) leave(p *process) {
	c.abandon(p.name(), 1)
	go func() {
		<-p.ended
		close(p.killable)
		<-p.reaped
		c.abandon(p.name(), -1)
	}()
}

// kill kills the whole group. It must not be reaped yet. Whether anything is left is
// seen afterwards.
func (p *process) kill() { _ = unix.Kill(-p.Pid, unix.SIGKILL) }

func (p *process) endsWithin(d time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(d):
		return false
	}
}
