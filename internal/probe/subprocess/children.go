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
	// mercy is how long something that was killed may take to die.
	mercy = 750 * time.Millisecond
	// moment is how long the output may be open after the end of a program, which is
	// when what it has left behind is killed: a tee may still have to write.
	moment = 200 * time.Millisecond
	// The waits between two looks at what has been killed, which grow until it counts as
	// abandoned.
	firstWait, longestWait = time.Millisecond, 500 * time.Millisecond
)

// Children are the programs that a process runs. A process has one, as its children are
// its own. The methods may be called by several at once.
type Children struct {
	// Started under a read lock, so that whoever reaps strangers knows all who are none.
	starting sync.RWMutex
	buried   chan struct{} // one of our own has been

	mu        sync.Mutex     // of what follows
	own       map[int]bool   // processes that somebody here waits for
	abandoned map[string]int // by name
}

// New returns children of which there are none yet.
func New() *Children {
	return &Children{buried: make(chan struct{}, 1), own: map[int]bool{}, abandoned: map[string]int{}}
}

// Abandoned returns how many programs were to end and have not, or have left something
// behind that has not.
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

// abandon notes that there is one more or less of a name.
func (c *Children) abandon(name string, more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned[name] += more; c.abandoned[name] == 0 {
		delete(c.abandoned, name)
	}
}

// Run runs a program. It returns when the program has ended, or within a second after it
// was to end.
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
		return failed(Hangs, "running %s: an earlier one was killed and does not die, so that no other is started: %s", s.Path, stuck)
	}
	began := time.Now()
	interpreter, fault := c.look(ctx, s)
	if fault != nil {
		return *fault
	}
	p, err := c.start(s, interpreter)
	if err != nil {
		return failed(NotStarted, "running %s: no process can be started for it: %w; it is tried again", s.Path, err)
	}
	select {
	case <-p.ended:
		return c.finish(p, time.Now().Add(moment))
	case <-ctx.Done():
	}
	p.kill()
	after := time.Since(began).Round(time.Millisecond)
	cut := failed(Timeout, "running %s: it was killed as it had not ended after %s; give it more time, or look at what it waits for", s.Path, after)
	if fault := whyDone(ctx); fault != Timeout {
		cut = failed(fault, "running %s: it was killed after %s as nobody waits for it any more", s.Path, after)
	}
	if p.endsWithin(mercy) {
		r := c.finish(p, time.Now().Add(moment))
		cut.Output, cut.Complaint = r.Output, r.Complaint
	} else {
		c.leave(p)
		cut.Err = fmt.Errorf("%w; it does not even die, and is left alone: %s", cut.Err, stuck)
		cut.Output, cut.Complaint = p.output.end(time.Now()), p.complaint.end(time.Now())
		p.refusal.end(time.Now())
	}
	return cut
}

// stuck is the way out if no signal reaches a program.
const stuck = "look for what it waits for in the kernel, such as a disk or a network file system"

// whyDone says why a context has ended.
func whyDone(ctx context.Context) Fault {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return Timeout
	}
	return Cancelled
}

// finish returns what became of a program that has ended. Until then its output may be
// open.
func (c *Children) finish(p *process, last time.Time) Result {
	output, complaint, why := p.output.end(last), p.complaint.end(last), refusal(p.refusal.end(last))
	close(p.heard)
	<-p.reaped
	r := p.judge(p.status)
	switch {
	case why != nil:
		return *refused(p.Path, p.interpreter, why)
	case p.err != nil:
		r = failed(NotStarted, "waiting for %s: %w", p.Path, p.err)
	}
	r.Output, r.Complaint = output, complaint
	return r
}

// look looks at the file of a program, and leaves a file system alone that does not
// answer in time.
func (c *Children) look(ctx context.Context, s Spec) (interpreter string, fault *Result) {
	type seen struct {
		interpreter string
		fault       *Result
	}
	looked, late := make(chan seen, 1), make(chan bool, 1)
	go func() {
		var l seen
		l.interpreter, l.fault = look(s.Path)
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
		// Even if it has just come back: what is noted too much is taken back at once.
		c.abandon(s.name(), 1)
		late <- true
		return "", wrong(failed(whyDone(ctx), "running %s: its file could not even be opened in time; look at the file system that it is on", s.Path))
	}
}

// process is a program that runs.
type process struct {
	Spec
	interpreter string // that its file asks for
	*os.Process
	output, complaint *output
	refusal           *output // why there is no program

	ended  chan struct{} // it has, and is not reaped
	heard  chan struct{} // nobody needs what it has left behind
	reaped chan struct{}
	// What follows is there when it is reaped.
	status syscall.WaitStatus
	err    error
}

// start starts a program: a process of our own, that becomes it.
func (c *Children) start(s Spec, interpreter string) (_ *process, err error) {
	p := &process{
		Spec: s, interpreter: interpreter,
		ended: make(chan struct{}), heard: make(chan struct{}), reaped: make(chan struct{}),
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
	}{{&p.output, s.MaxOutput}, {&p.complaint, s.MaxOutput}, {&p.refusal, mostDigits}} {
		heard, end, err := listen(of.most)
		if err != nil {
			p.deafen()
			return nil, err
		}
		*of.output, files = heard, append(files, end)
	}
	c.starting.RLock()
	p.Process, err = os.StartProcess(self, slices.Concat([]string{calling, s.Path}, s.Args), &os.ProcAttr{
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err == nil {
		c.claim(p.Pid, true)
	}
	c.starting.RUnlock()
	if err != nil {
		p.deafen()
		return nil, err
	}
	for _, o := range p.outputs() {
		go o.read()
	}
	go c.attend(p)
	return p, nil
}

// outputs returns those that are open.
func (p *process) outputs() []*output {
	return slices.DeleteFunc([]*output{p.output, p.complaint, p.refusal}, func(o *output) bool { return o == nil })
}

// deafen closes the outputs of what could not be started.
func (p *process) deafen() {
	for _, o := range p.outputs() {
		o.pipe.Close()
	}
}

// claim notes whether a process is waited for here.
func (c *Children) claim(pid int, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is {
		c.own[pid] = true
	} else {
		delete(c.own, pid)
	}
}

// attend follows a program to its end, and beyond that of all its group.
func (c *Children) attend(p *process) {
	awaitEnd(p.Pid)
	close(p.ended)
	<-p.heard
	p.kill() // the number is its own as long as it is not reaped
	state, err := p.Wait()
	if err == nil {
		p.status, _ = state.Sys().(syscall.WaitStatus)
	}
	p.err = err
	c.claim(p.Pid, false)
	close(p.reaped)
	c.mourn(p)
	select {
	case c.buried <- struct{}{}:
	default: // it is known already
	}
}

// mourn waits until nothing is left of the group of a program.
func (c *Children) mourn(p *process) {
	wait := firstWait
	for since := time.Now(); time.Since(since) < mercy; wait *= 2 {
		if groupIsGone(p.Pid) {
			return
		}
		<-time.After(wait)
	}
	// Those who are killed cannot fork: there will be no others.
	left := living(p.Pid)
	if len(left) == 0 {
		return // but for dead ones whom somebody else has to reap
	}
	c.abandon(p.name(), 1)
	for len(left) > 0 && !groupIsGone(p.Pid) {
		<-time.After(longestWait)
		left = slices.DeleteFunc(left, func(pid int) bool { return !lives(pid, p.Pid) })
	}
	c.abandon(p.name(), -1)
}

// leave abandons a program that does not die.
func (c *Children) leave(p *process) {
	c.abandon(p.name(), 1)
	go func() {
		<-p.ended
		close(p.heard)
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
