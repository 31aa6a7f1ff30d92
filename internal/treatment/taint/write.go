package taint

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// writesAtOnce and writesPerSecond bound the writes to one flapping node.
	writesAtOnce    = 10
	writesPerSecond = 1
	// maxUnanswered bounds the changes that are kept to report them.
	maxUnanswered = 10
	// refusalHeld is how long a refusal counts towards the backoff of the next refusal.
	refusalHeld = 2 * engine.LastRefusedRetry
)

// nodeWrite is the progress of the writes to one node.
type nodeWrite struct {
	writer   *Writer
	node     *engine.Node
	gone     bool // the node is gone
	progress engine.Progress
	// granted are the slots that the ledger names for the node; requested are the slots
	// requested in its next snapshot.
	granted, requested slotSet
	// sentFor is the node version that an unfinished write names, empty for none.
	// unansweredFor is the same for a write whose answer never came.
	sentFor, unansweredFor string
	// unanswered are the last changes whose answers never came and that are not reported. They name the
	// same version of the node, so at most one of them can succeed.
	unanswered []*treat.Change

	dueSince  time.Time     // since when a taint is missing
	notBefore time.Time     // earliest time of the next write
	rate      *rate.Limiter // limits writes; nil before the first
	needsRead bool          // the node must be read before any write

	failure          engine.Failure // of the last write
	recentRefusals   int            // rejections by the API server
	refusedAt        time.Time
	reportedRefusals map[triage.RuleID]engine.ReportedRefusal
}

// nodeChanged takes in a newer version of the node. A write that names an older version has
// either succeeded already or never will.
func (wr *nodeWrite) nodeChanged(before *corev1.Node) {
	after := wr.node.Object
	if before != nil && before.UID != after.UID {
		wr.granted, wr.failure, wr.notBefore, wr.needsRead, wr.dueSince = slotSet{}, engine.Failure{}, time.Time{}, false, time.Time{}
		wr.recentRefusals, wr.reportedRefusals, wr.unanswered = 0, nil, nil
	}
	if wr.sentFor != after.ResourceVersion {
		wr.sentFor, wr.unansweredFor = "", ""
	}
	if wr.granted.version != after.ResourceVersion {
		wr.granted = slotSet{}
	}
}

// nextChange returns the change that a plan asks for. Without a change the node has no taint
// that the plan does not want, and none is in flight.
func (wr *nodeWrite) nextChange(now time.Time, plan triage.Plan) *treat.Change {
	change := treat.Prepare(wr.node.Object, plan, now)
	switch {
	case change != nil && !wr.writer.host.Core().LimitsClosing():
		change.Closes = triage.RuleID{}
	case change == nil && wr.sentFor != "": // the node matches its plan, so the write in flight is not wanted any more
		change = wr.writer.fence(wr.node)
	}
	return change
}

// freeSlots frees the slots of rules that have no taint on the node and no write in
// flight. Treatments free their slots themselves.
func (wr *nodeWrite) freeSlots(now time.Time, plan triage.Plan) {
	core := wr.writer.host.Core()
	for _, reason := range plan.Release {
		if reason.Taint {
			core.Abandon(now, wr.node.Object.Name, reason.Rule, 0)
		}
	}
	if plan.Reopen {
		core.Reopen(now, wr.node.Object.Name, 0)
	}
}

// start checks the plan again and sends its change, after the ledger has stored the slots
// that the change takes.
func (wr *nodeWrite) start(ctx context.Context, now time.Time) {
	plan, ok := wr.writer.host.Plan(wr.node)
	if !ok {
		return
	}
	change := wr.nextChange(now, plan)
	if change != nil && wr.writer.cancelOverBound(now, wr, change) {
		if wr.sentFor == "" {
			wr.freeSlots(now, plan)                // a decision that is called off may keep the node closed
			wr.writer.host.Reconcile(now, wr.node) // the plan has changed
			return
		}
		change = wr.writer.fence(wr.node) // the write in flight may exceed the bound and must not arrive
	}
	switch {
	case change == nil:
		wr.freeSlots(now, plan)
	case takesSlots(change) && !wr.granted.covers(change):
		wr.progress = engine.AwaitingLedger
		wr.writer.host.RequestSlot(wr)
	case !wr.mayWrite(now):
		wr.delay()
	default:
		if takesSlots(change) {
			wr.sentFor = wr.node.Object.ResourceVersion
		}
		wr.send(ctx, change)
	}
}

// delay waits until notBefore.
func (wr *nodeWrite) delay() {
	wr.progress = engine.Queued
	wr.writer.delayed = append(wr.writer.delayed, wr)
}

// mayWrite reports whether the rate limit of the node allows a write, and delays it if
// not.
func (wr *nodeWrite) mayWrite(now time.Time) bool {
	if wr.rate == nil {
		wr.rate = rate.NewLimiter(writesPerSecond, writesAtOnce)
	}
	if wr.rate.AllowN(now, 1) {
		return true
	}
	wr.notBefore = now.Add(time.Second / writesPerSecond)
	return false
}

// writeResult is the result of a write.
type writeResult struct {
	write   *nodeWrite
	uid     types.UID     // of the intended node
	change  *treat.Change // nil if the node was only read
	version string
	result  treat.Outcome
	err     error
	fresh   *corev1.Node // the current node, if it was read
	missing bool         // the node does not exist
	// mayArrive says that the change got no answer, and may have been made or may still be.
	mayArrive bool
}

// deniedAsStale reports whether the API server answered with a conflict although the node
// is unchanged. Some admission webhooks deny requests with a conflict.
func (r writeResult) deniedAsStale() bool {
	return r.change != nil && r.err != nil && r.fresh != nil && r.fresh.UID == r.uid && r.fresh.ResourceVersion == r.change.Node.ResourceVersion
}

// send applies a change. A nil change reads the node.
func (wr *nodeWrite) send(ctx context.Context, change *treat.Change) {
	wr.progress = engine.Running
	w := wr.writer
	w.running++
	name, uid := wr.node.Object.Name, wr.node.Object.UID
	w.host.Do(ctx, func(ctx context.Context) func(time.Time) {
		result := writeResult{write: wr, uid: uid, change: change, result: treat.Stale}
		if change != nil {
			result.version, result.err = w.host.Writer().Apply(ctx, change)
			result.result = treat.Classify(result.err)
			result.mayArrive = result.result == treat.Unknown
		}
		if result.result == treat.Stale {
			var err error
			result.fresh, err = w.host.Writer().Fetch(ctx, name)
			if result.missing = apierrors.IsNotFound(err); err != nil && !result.missing {
				result.result, result.err = treat.Unknown, err
			}
		}
		return func(now time.Time) { w.handleResult(now, result) }
	})
}

// handleResult takes in the result of a write.
func (w *Writer) handleResult(now time.Time, result writeResult) {
	wr := result.write
	w.running--
	wr.progress = engine.Idle
	w.host.CountWrite("nodes", result.result)
	if wr.gone {
		return
	}
	switch result.result {
	case treat.Made:
		wr.done(now, result)
	case treat.Stale:
		wr.needsRead = false
		if result.deniedAsStale() {
			wr.noteNotWritten()
			wr.refuse(now, result)
			break
		}
		wr.refreshed(now, result)
	case treat.Busy:
		wr.noteNotWritten()
		wr.retryLater(now, result)
	case treat.Refused:
		wr.noteNotWritten()
		wr.refuse(now, result)
	case treat.Unknown:
		wr.needsRead, wr.unansweredFor = true, wr.sentFor
		if result.mayArrive {
			wr.reportArrived(now) // changes that name an older version
			wr.unanswered = append(wr.unanswered[max(0, len(wr.unanswered)-maxUnanswered+1):], result.change)
		}
		wr.retryLater(now, result)
	}
	if !wr.gone {
		w.host.Reconcile(now, wr.node)
		w.host.MarkStatusesStale(now, wr.node)
	}
}

// noteNotWritten records that the last write failed for certain. An earlier write with the
// same version may still succeed if its answer was lost.
func (wr *nodeWrite) noteNotWritten() { wr.sentFor = wr.unansweredFor }

// done stores the new version of the node without waiting for the watch.
func (wr *nodeWrite) done(now time.Time, result writeResult) {
	wr.notBefore, wr.needsRead, wr.unanswered = time.Time{}, false, nil
	wr.clearFailure(now)
	wr.writer.host.NodeRead(now, result.change.Made(result.version))
	wr.reportChange(now, result.change)
}

// refreshed stores a node that was read directly.
func (wr *nodeWrite) refreshed(now time.Time, result writeResult) {
	switch {
	case result.missing && wr.node.Object.UID == result.uid: // otherwise the node has been created again
		wr.writer.host.RemoveNode(now, wr.node)
	case !result.missing:
		wr.writer.host.NodeRead(now, nodewatch.Trim(result.fresh))
	}
}

// retryLater delays the next write, longer with every failure.
func (wr *nodeWrite) retryLater(now time.Time, result writeResult) {
	isNews := wr.failure.Add(result.result, result.err)
	wait := wr.writer.host.RetryDelay(wr.failure.Tries)
	wr.notBefore = now.Add(wait)
	if isNews && wr.writer.host.LogsRetry(now) {
		wr.writer.host.Logger().Warn("write delayed", "node", wr.node.Object.Name, "retryIn", wait.String(), "err", result.err)
	}
}

// clearFailure records that the node has no failing write any more.
func (wr *nodeWrite) clearFailure(now time.Time) {
	if wr.failure.Tries > 0 && wr.writer.host.LogsRetry(now) {
		wr.writer.host.Logger().Info("no write to the node fails any more", "node", wr.node.Object.Name, "tries", wr.failure.Tries)
	}
	wr.failure = engine.Failure{}
}

// refuse frees the slots of a change that the API server rejected, and reports the
// rejection.
func (wr *nodeWrite) refuse(now time.Time, result writeResult) {
	if now.Sub(wr.refusedAt) > refusalHeld {
		wr.recentRefusals = 0
	}
	wr.recentRefusals++
	wr.refusedAt = now
	host, change := wr.writer.host, result.change
	wait := host.RefusalDelay(wr.recentRefusals)
	isNews := wr.failure.Add(result.result, result.err)
	if isNews && len(change.Placed)+len(change.Removed) == 0 && host.LogsRefusal(now) { // no policy to report it on
		host.Logger().Error("write refused", "node", wr.node.Object.Name, "err", result.err)
	}
	if !takesSlots(change) || wr.sentFor != "" {
		wr.notBefore = now.Add(wait)
	} else { // NoSchedule instead of NoExecute is another write, which may be accepted; other nodes may be closed meanwhile
		for _, rule := range change.Takes {
			host.Core().Abandon(now, wr.node.Object.Name, rule, wait)
		}
		if (change.Closes != triage.RuleID{}) {
			host.Core().Reopen(now, wr.node.Object.Name, wait)
		}
		wr.failure = engine.Failure{}
	}
	for _, placed := range change.Placed {
		wr.reportRefusal(now, placed.Reason, placed.Rule, "could not be placed: "+result.err.Error())
	}
	for _, removed := range change.Removed {
		if !slices.ContainsFunc(change.Placed, func(placed triage.PlannedTaint) bool { return placed.Rule == removed.Rule }) {
			wr.reportRefusal(now, removed.Reason, removed.Rule, removed.Key+":"+removed.Effect.String()+" could not be removed: "+result.err.Error())
		}
	}
}
