package chaos

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// killsPerRound is how many kills a cluster gets. A round has its own cluster and its own
	// seed: a recording fits into memory, and one round can be run again.
	killsPerRound = 200
	// progressEvery is how often the test prints what it has done so far.
	progressEvery = 5 * time.Second

	// lag is the longest time for which a write can be under way: a replica is paused for a
	// few seconds, or a proxy holds its request. The skew of clocks adds to it.
	lag = 12 * time.Second
	// delay is the longest time from the decision of a treatment to its write: leaders are
	// killed in between, and requests fail and are sent again after a pause.
	delay = 40 * time.Second
)

// options are the size of the test.
type options struct {
	seed               uint64
	kills, nodes, each int
	clocks             bool // the clocks of replicas are wrong
	small              bool // it skips what takes long, and does not wait for the end of all treatments
	// other is the program of another version, which the second replica runs, and from the commit of
	// that version. With it each change of the leader is an upgrade or a rollback.
	other, from string
}

// command is how to run the test again.
func (o options) command() string {
	if o.other != "" {
		return fmt.Sprintf("make test-upgrade FROM=%s SEED=%d KILLS=%d NODES=%d", o.from, o.seed, o.kills, o.nodes)
	}
	return fmt.Sprintf("make chaos SEED=%d KILLS=%d NODES=%d", o.seed, o.kills, o.nodes)
}

// readOptions reads the environment. Without it the test is small, and always has the same
// seed.
func readOptions(t *testing.T) options {
	t.Helper()
	number := func(name string, byDefault int) int {
		text := cmp.Or(os.Getenv(name), strconv.Itoa(byDefault))
		n, err := strconv.Atoi(text)
		testkit.Require(t, err == nil && n > 0, "%s=%s: want a positive number", name, text)
		return n
	}
	o := options{seed: 1, kills: number("CHAOS_KILLS", 8), nodes: number("CHAOS_NODES", 60), each: number("CHAOS_KILLS_PER_CLUSTER", killsPerRound), clocks: os.Getenv("CHAOS_CLOCKS") != "",
		other: os.Getenv("CHAOS_OTHER"), from: os.Getenv("CHAOS_FROM")}
	switch text := os.Getenv("CHAOS_SEED"); text {
	case "":
		o.small = true
	case "random":
		o.seed = uint64(time.Now().UnixMilli()) % 1e9
	default:
		seed, err := strconv.ParseUint(text, 10, 64)
		testkit.Require(t, err == nil, "CHAOS_SEED=%s: want a number, or random", text)
		o.seed = seed
	}
	return o
}

// TestChaos expects no violation.
func TestChaos(t *testing.T) {
	o := readOptions(t)
	programs := [2]string{"", o.other}
	if o.clocks { // otherwise most of the time would be compiling
		program := buildController(t)
		programs = [2]string{program, program}
	}
	total := &totals{began: time.Now(), peak: map[string]int{}, injected: map[string]int{}}
	for round := o; total.kills < o.kills && !t.Failed(); round.seed++ {
		round.kills = min(o.each, o.kills-total.kills)
		t.Run(fmt.Sprintf("seed=%d", round.seed), func(t *testing.T) { runRound(t, round, programs, total) })
	}
	t.Logf("in all: %s", total)
}

// runRound runs one cluster, and judges it.
func runRound(t *testing.T, o options, programs [2]string, total *totals) {
	t.Helper()
	t.Logf("seed %d: %d kills, %d nodes. To run it again: %s", o.seed, o.kills, o.nodes, o.command())
	w := newCluster(t, o)
	defer func() {
		if t.Failed() {
			t.Logf("a promise is broken, or the test. To run it again: %s\n%s", o.command(), w.LogTail())
		}
	}()
	w.startReplicas(programs)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.sim.run(ctx)
	}()
	go w.printProgress(ctx, total)
	w.warmUp()
	w.inject(o.kills)
	if !o.small {
		w.settle()
	}
	cancel()
	<-ended
	testkit.Must(t, w.sim.failure())
	w.judgeLogs(total)
	for _, lost := range w.Lost() {
		w.judge(lost, total, history.Config{Unfinished: true})
	}
	recording := testkit.Value(w.Recording(t.Context())).Must(t)
	report := w.judge(recording, total, history.Config{EndAt: time.Now(), Unfinished: o.small})
	w.wasUseful(report)
	total.add(w)
	t.Logf("%s", report)
}

// judge fails the test if a recording has a violation.
func (w *cluster) judge(recording testbed.Recording, total *totals, cfg history.Config) history.Report {
	w.t.Helper()
	cfg.Us, cfg.FieldManager = history.User(install.User), "autohealer-controller"
	cfg.Ledger = types.NamespacedName{Namespace: install.Namespace, Name: "autohealer-ledger"}
	cfg.Remediation, cfg.DefaultMode = remediations, v1alpha1.Enforce
	cfg.Repairs = history.Repairs{ReadyTimeout: readyTimeout}
	cfg.Lag, cfg.Delay, cfg.AnyTurn = lag, delay, true
	report := history.Require(w.t, recording, cfg, history.Counts{})
	total.judged(report)
	return report
}

// judgeLogs looks for crashes in the logs of the replicas, and counts how often each became leader.
// A replica that never led would leave its program untested.
func (w *cluster) judgeLogs(total *totals) {
	w.t.Helper()
	for i, r := range w.replicas {
		log := testkit.Value(r.Log()).Must(w.t)
		terms := strings.Count(log, "msg=leading identity=")
		testkit.Check(w.t, terms > 0, "%s never became leader", r)
		total.terms[i] += terms
		for _, sign := range []string{"panic:", "fatal error:", "WARNING: DATA RACE"} {
			if at := strings.Index(log, sign); at >= 0 {
				w.t.Errorf("%s crashed: %s", r, log[at:min(len(log), at+4000)])
			}
		}
	}
}

// wasUseful fails the test if nothing happened that could be judged.
func (w *cluster) wasUseful(report history.Report) {
	w.t.Helper()
	for what, count := range map[string]int{
		"NoExecute taints": report.Evictions, "removed taints": report.Removals, "remediations": report.Remediations,
		"marked claims": report.Marks, "steps under Guardrails": report.Railed,
	} {
		testkit.Check(w.t, count > 0, "there were no %s", what)
	}
}

// totals are the numbers of all rounds.
type totals struct {
	began      time.Time
	kills      int
	terms      [2]int // of leaders, by replica
	failures   int
	injected   map[string]int // by fault
	counts     history.Counts
	peak       map[string]int
	violations int
}

func (s *totals) add(w *cluster) {
	s.kills += w.kills
	s.failures += int(w.sim.failed.Load())
	for name, count := range w.injected {
		s.injected[name] += count
	}
}

func (s *totals) judged(r history.Report) {
	s.counts.Changes += r.Changes
	s.counts.Writes += r.Writes
	s.counts.Placements += r.Placements
	s.counts.Evictions += r.Evictions
	s.counts.Removals += r.Removals
	s.counts.Remediations += r.Remediations
	s.counts.Escalations += r.Escalations
	s.counts.Marks += r.Marks
	s.counts.Terminations += r.Terminations
	s.counts.Railed += r.Railed
	s.violations += len(r.Violations)
	for name, count := range r.Peak {
		s.peak[name] = max(s.peak[name], count)
	}
}

func (s *totals) String() string {
	took := time.Since(s.began)
	return fmt.Sprintf("%d kills in %s (%.1f per minute), %d and %d terms of the replicas as leader, faults %v, %d failures of nodes, %d changes, %d taints placed (%d NoExecute), %d removed, %d remediations (%d of later steps), %d terminations, %d steps under Guardrails, %d violations; maxima %v",
		s.kills, took.Round(time.Second), float64(s.kills)/took.Minutes(), s.terms[0], s.terms[1], s.injected, s.failures, s.counts.Changes, s.counts.Placements, s.counts.Evictions, s.counts.Removals,
		s.counts.Remediations, s.counts.Escalations, s.counts.Terminations, s.counts.Railed, s.violations, s.peak)
}

// printProgress prints a line from time to time.
func (w *cluster) printProgress(ctx context.Context, total *totals) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.t.Logf("%s: %d kills (%d in all), %s; %s; %d violations in earlier clusters",
			time.Since(total.began).Round(time.Second), w.killed.Load(), total.kills+int(w.killed.Load()), w.fault.Load(), w.sim, total.violations)
	}
}

// newRandom returns the choices of a seed. The simulator and the faults have their own, because
// they run at the same time.
func newRandom(seed, of uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, of)) }
