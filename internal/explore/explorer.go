package explore

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Limits bound a search.
type Limits struct {
	Deviations int // from the prompt schedule, on one path
	Runs       int // runs of the scenario; 0 for any number
	Time       time.Duration
	only       []op // kinds of deviations; nil for all
}

// Result is what a search has found.
type Result struct {
	Scenario  string
	States    int
	Runs      int
	Steps     int // actions, including those that repeat the start of a path
	Quiet     int // states in which nothing happens any more
	Longest   int // actions from the start to a state
	Diverged  int // runs that did not reach the state that they should have repeated
	Levels    []int
	Complete  bool // all paths with up to Limits.Deviations are explored
	Took      time.Duration
	CPU       time.Duration // of this process
	Violation *Violation
	Path      []string // of the violation, with the time of each action
}

// PerSecond is the number of states per second of CPU. A search uses one core.
func (r *Result) PerSecond() int { return int(float64(r.States) / max(r.CPU.Seconds(), 0.001)) }

// String is a line for a person.
func (r *Result) String() string {
	how := "all paths"
	if !r.Complete {
		how = "part of the paths"
	}
	return fmt.Sprintf("%s: %d states (%d per second of CPU), %d runs, %d steps, longest path %d, %d quiet states, %s with %d deviations, states by deviations %v, %s, CPU %s",
		r.Scenario, r.States, r.PerSecond(), r.Runs, r.Steps, r.Longest, r.Quiet, how, len(r.Levels)-1, r.Levels, r.Took.Round(time.Millisecond), r.CPU.Round(time.Millisecond))
}

// Transcript prints the path of a violation.
func (r *Result) Transcript(w io.Writer) {
	for i, line := range r.Path {
		fmt.Fprintf(w, "%3d  %s\n", i+1, line)
	}
	if r.Violation != nil {
		fmt.Fprintf(w, "     violated: %s: %s\n", r.Violation.Invariant, r.Violation.Message)
	}
}

// state is a state that the search has reached.
type state struct {
	parent int32    // index of the state before, -1 for none
	by     uint32   // index of the action
	length int32    // actions from the start
	others []uint32 // deviations that are possible
}

// search explores one scenario. It goes through all paths with one deviation, then with two,
// and so on, and through shorter paths first. The first violation is therefore one with the
// fewest deviations.
type search struct {
	t        *testing.T
	scenario *Scenario
	faults   *faults
	limits   Limits
	result   *Result
	actions  []action
	indexes  map[action]uint32
	states   []state
	hashes   []uint64
	seen     map[uint64]bool
	began    time.Time
	current  atomic.Pointer[[]action] // the path of the run
}

// Explore explores a scenario.
func Explore(t *testing.T, s *Scenario, limits Limits) *Result {
	t.Helper()
	return explore(t, s, limits, &faults{})
}

func explore(t *testing.T, s *Scenario, limits Limits, f *faults) *Result {
	t.Helper()
	if raceEnabled {
		t.Skip("the search reads the memory of replicas while all of their goroutines wait; the race detector does not know that the clock wakes them only later")
	}
	if err := s.compile(); err != nil {
		t.Fatal(err)
	}
	x := &search{
		t: t, scenario: s, faults: f, limits: limits, result: &Result{Scenario: s.Name},
		indexes: map[action]uint32{}, seen: map[uint64]bool{}, began: time.Now(),
	}
	// The goroutines of a run take turns, and to wake another processor for a turn costs more
	// than the turn.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	ended := make(chan struct{})
	defer close(ended)
	go x.watchProgress(ended)
	used := cpuTime()
	x.run()
	x.result.Took, x.result.CPU = time.Since(x.began), cpuTime()-used
	return x.result
}

// maxRun is how long a run may take. The usual run takes a millisecond.
const maxRun = 15 * time.Second

// watchProgress panics with the path of a run that does not end: its replicas never wait.
func (x *search) watchProgress(ended <-chan struct{}) {
	ticker := time.NewTicker(maxRun)
	defer ticker.Stop()
	var last *[]action
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		path := x.current.Load()
		if path != nil && path == last {
			panic(fmt.Sprintf("a promise is broken: the replicas never wait after %v", *path))
		}
		last = path
	}
}

// cpuTime returns the CPU time of this process, 0 if it is unknown.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// run goes through the levels.
func (x *search) run() {
	x.execute(-1, nil)
	from := 0
	for level := 0; ; level++ {
		to := len(x.states)
		x.result.Levels = append(x.result.Levels, to-from)
		if x.result.Violation != nil {
			return
		}
		if level == x.limits.Deviations || to == from {
			x.result.Complete = true
			return
		}
		order := make([]int, 0, to-from)
		for i := from; i < to; i++ {
			order = append(order, i)
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(x.states[a].length - x.states[b].length) })
		for _, at := range order {
			others := x.states[at].others
			x.states[at].others = nil
			for _, other := range others {
				if x.isOver() {
					x.result.Levels = append(x.result.Levels, len(x.states)-to)
					return
				}
				x.execute(at, &x.actions[other])
			}
		}
		from = to
	}
}

// isOver reports whether a limit is reached or a violation found.
func (x *search) isOver() bool {
	return x.result.Violation != nil || x.limits.Runs > 0 && x.result.Runs >= x.limits.Runs ||
		x.limits.Time > 0 && time.Since(x.began) > x.limits.Time
}

// path returns the actions to a state.
func (x *search) path(at int) (path []action) {
	for ; at >= 0; at = int(x.states[at].parent) {
		if s := x.states[at]; s.length > 0 {
			path = append(path, x.actions[s.by])
		}
	}
	slices.Reverse(path)
	return path
}

// verifyEvery is how often a run checks that it has repeated a path exactly.
const verifyEvery = 16

// execute repeats the path to a state, deviates, and follows the prompt schedule until it
// reaches a state that was seen before, or until the cluster is quiet.
func (x *search) execute(from int, deviation *action) {
	path := x.path(from)
	if deviation != nil {
		path = append(path, *deviation)
	}
	x.current.Store(&path)
	x.result.Runs++
	synctest.Test(x.t, func(t *testing.T) {
		c := newCluster(t.Context(), x.scenario, x.faults)
		defer c.end()
		for i, a := range path {
			if isLast := deviation != nil && i == len(path)-1; isLast && x.result.Runs%verifyEvery == 0 && c.fingerprint() != x.hashes[from] {
				x.result.Diverged++
				return
			}
			x.result.Steps++
			if !c.do(a) {
				x.result.Diverged++
				return
			}
		}
		x.follow(c, from, deviation)
	})
}

// follow records states along the prompt schedule.
func (x *search) follow(c *cluster, from int, by *action) {
	length := int32(0)
	if by != nil {
		length = x.states[from].length + 1
	}
	for {
		if c.found != nil {
			x.report(from, by, c.found)
			return
		}
		hash := c.fingerprint()
		if x.seen[hash] {
			return
		}
		x.seen[hash] = true
		all := c.onTheirWay()
		prompt, isPossible := c.prompt(all)
		s := state{parent: int32(from), length: length}
		if by != nil {
			s.by = x.index(*by)
		}
		for _, other := range c.deviations(all, prompt) {
			if x.limits.only == nil || slices.Contains(x.limits.only, other.op) {
				s.others = append(s.others, x.index(other))
			}
		}
		from = len(x.states)
		x.states, x.hashes = append(x.states, s), append(x.hashes, hash)
		x.result.States++
		x.result.Longest = max(x.result.Longest, int(length))
		if !isPossible {
			x.result.Quiet++
			if v := c.checkQuiet(); v != nil {
				x.report(from, nil, v)
			}
			return
		}
		by = &prompt
		length++
		x.result.Steps++
		c.do(prompt)
	}
}

// index returns the index of an action.
func (x *search) index(a action) uint32 {
	at, is := x.indexes[a]
	if !is {
		at = uint32(len(x.actions))
		x.indexes[a] = at
		x.actions = append(x.actions, a)
	}
	return at
}

// report repeats the path of a violation and describes every action.
func (x *search) report(from int, by *action, v *Violation) {
	path := x.path(from)
	if by != nil {
		path = append(path, *by)
	}
	x.result.Violation = v
	for _, a := range path {
		x.result.Path = append(x.result.Path, a.String())
	}
}

// describe renders a path for messages of tests.
func (r *Result) describe() string {
	var b strings.Builder
	r.Transcript(&b)
	return b.String()
}
