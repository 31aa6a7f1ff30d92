package repair

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/times"
)

const (
	// maxLaunchFailures is how many nodes of a pool are replaced in a row because they do
	// not become Ready. After that the controller tries one node at a time with growing
	// waits, because launching a bad image again does not help.
	maxLaunchFailures = 3
	// maxLaunchWait limits those waits. The first wait is twice the ready timeout, and
	// the replacement has used up half of it when it is due. Each further wait is twice
	// the previous wait.
	maxLaunchWait = 6 * time.Hour
)

// launchFailures counts the nodes of a pool that were replaced because they did not
// become Ready, since the last node that did.
type launchFailures struct {
	failed   int
	last     time.Time
	template string // hash of the template they were made from, empty if unknown
}

// next returns when the next node may be replaced, given the ready timeout.
func (t launchFailures) next(timeout time.Duration) time.Time {
	if t.failed < maxLaunchFailures {
		return time.Time{}
	}
	return t.last.Add(max(2*timeout, times.Backoff(t.failed-maxLaunchFailures+1, 2*timeout, maxLaunchWait)))
}

// remaining returns how many more nodes may be replaced because they did not become Ready.
func (t launchFailures) remaining(now time.Time, pool string, timeout time.Duration, trying int) (places int, message string, until time.Time) {
	if t.failed < maxLaunchFailures {
		return max(0, maxLaunchFailures-t.failed-trying), fmt.Sprintf("%d nodes of NodePool %s in a row have not become ready and are being replaced; the next replacement waits for their result", maxLaunchFailures, pool), time.Time{}
	}
	next := t.next(timeout)
	message = fmt.Sprintf("NodePool %s is held: %d nodes in a row have not become ready, so replacing another node is unlikely to help; the next one is tried at %s. If you have repaired the pool, delete its NodeClaims that are not ready", pool, t.failed, next.UTC().Format(time.RFC3339))
	if now.Before(next) {
		return 0, message, next
	}
	return max(0, 1-trying), message, time.Time{}
}

// isHeld reports whether replacement in the pool is paused because its nodes do not
// become Ready.
func (c *poolCounts) isHeld() bool { return c.failures.failed >= maxLaunchFailures }

// endHold resets the launch failures of a pool. It requests a ledger snapshot, because
// the next leader would otherwise hold the pool again.
func (r *Policy) endHold(pool string, count *poolCounts, message string) {
	if count.isHeld() {
		r.reportPoolReleased(pool, message)
	}
	count.failures, count.dirty = launchFailures{}, true
	r.host.RewriteLedger()
}

// checkTemplateChange ends the hold of a pool if its template has changed since the failures.
func (r *Policy) checkTemplateChange(name string) {
	count := r.countsOf(name)
	now := r.templateOf(name)
	switch {
	case count.failures.failed == 0 || now == "" || now == count.failures.template:
	case count.failures.template == "": // the template was unknown when they failed
		count.failures.template = now
		r.host.RewriteLedger()
	default:
		r.endHold(name, count, "its template has changed")
	}
}

// usesCurrentTemplate reports whether the machine was made from the pool's current template. An
// older machine says nothing about it: its failure does not count towards the next hold,
// and its success does not end one. It is still replaced, because its replacement uses
// the new template. Karpenter makes no more machines from the old template, so this
// does not last. If a hash is unknown, the machine counts.
func (r *Policy) usesCurrentTemplate(m machine.Machine) bool {
	made, now := m.Template(), r.templateOf(m.Pool())
	return made == "" || now == "" || made == now
}

// templateOf returns a hash of the pool's template, empty if unknown.
func (r *Policy) templateOf(name string) string {
	if pool := r.pools[name]; pool != nil {
		return pool.Annotations[karpenter.HashAnnotation]
	}
	return ""
}

// A node counts as a launch failure when its machine is marked because of the ready timeout
// and was made from the pool's current template. The ledger counts a planned launch failure already,
// so the next leader knows it whether or not the mark succeeds.

// countLaunchFailure counts a node that is replaced because of the ready timeout, or
// removes it from the count.
func (r *Policy) countLaunchFailure(now time.Time, m machine.Machine, was *ownership.Mark) {
	isTimeout := func(mark *ownership.Mark) bool { return mark != nil && mark.Rule.Kind == policykind.ReadyTimeout }
	if !r.host.IsLoaded() || isTimeout(was) == isTimeout(m.Mark()) || !r.usesCurrentTemplate(m) { // restored from the ledger
		return
	}
	count := r.countsOf(m.Pool())
	count.dirty = true
	if isTimeout(was) {
		count.failures.failed = max(0, count.failures.failed-1)
		return
	}
	count.failures = launchFailures{count.failures.failed + 1, now.UTC().Truncate(time.Second), r.templateOf(m.Pool())}
	if count.isHeld() {
		r.reportPoolHeld(m.Pool(), count)
	}
}

// isPendingLaunchFailure reports whether a ledger entry names a launch failure whose machine is not
// marked yet.
func (r *Policy) isPendingLaunchFailure(e ledger.ObjectWrite) bool {
	m := r.machines.Machine(e.Object)
	return e.Rule.Kind == policykind.ReadyTimeout && m != nil && m.Mark() == nil && r.usesCurrentTemplate(m)
}

// pendingLaunchFailures counts, by pool, the entries whose machine is not marked yet.
func (r *Policy) pendingLaunchFailures(entries []ledger.Entry) map[string]int {
	before := map[string]int{}
	for _, e := range entries {
		if e, is := e.(ledger.ObjectWrite); is && r.isPendingLaunchFailure(e) {
			before[e.Rule.Name]++
		}
	}
	return before
}

// EntriesFor returns, for each entry that is a launch failure, the largest entry that counts
// it for its pool.
func (r *Policy) EntriesFor(now time.Time, added []ledger.Entry) (entries []ledger.Entry) {
	for _, e := range added {
		if e, is := e.(ledger.ObjectWrite); is && r.isPendingLaunchFailure(e) {
			entries = append(entries, ledger.LaunchFailures{Rule: e.Rule, Failed: math.MaxInt32, Last: now.UTC(), Template: r.templateOf(e.Rule.Name)})
		}
	}
	return entries
}

// RestoreEntries resumes the launch failures of all pools.
func (r *Policy) RestoreEntries(restored []ledger.Entry) {
	pending := r.pendingLaunchFailures(restored)
	for _, e := range restored {
		e, is := e.(ledger.LaunchFailures)
		if !is {
			continue
		}
		pool := e.Rule.Name
		count := r.countsOf(pool)
		count.failures, count.dirty = launchFailures{e.Failed - pending[pool], e.Last, e.Template}, true
		r.checkTemplateChange(pool) // the template may have changed
		r.recountPool(pool)         // a node may have become Ready
	}
}

// HasEnded reports whether the stored snapshot counts more launch failures than there are.
func (r *Policy) HasEnded(stored []ledger.Entry) bool {
	pending := r.pendingLaunchFailures(stored)
	return slices.ContainsFunc(stored, func(e ledger.Entry) bool {
		failures, is := e.(ledger.LaunchFailures)
		if !is {
			return false
		}
		count := r.counts[failures.Rule.Name]
		return count == nil || failures.Failed > count.failures.failed+pending[failures.Rule.Name]
	})
}

// Entries returns the ledger entries for pools with launch failures,
// including the failures that the snapshot allows to start.
func (r *Policy) Entries(now time.Time, begun []ledger.Entry) (entries []ledger.Entry) {
	before := r.pendingLaunchFailures(begun)
	for _, name := range slices.Sorted(maps.Keys(r.counts)) {
		t := r.counts[name].failures
		if before[name] > 0 {
			t = launchFailures{t.failed + before[name], now.UTC().Truncate(time.Second), r.templateOf(name)}
		}
		if t.failed > 0 {
			entries = append(entries, ledger.LaunchFailures{Rule: ownership.Rule(timeoutRule(name)), Failed: t.failed, Last: t.last, Template: t.template})
		}
	}
	return entries
}
