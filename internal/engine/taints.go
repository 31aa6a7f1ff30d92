package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// taintWriter writes the taints that plans ask for to nodes.
type taintWriter struct {
	engine  *Engine
	queue   queue[*Node] // nodes with a pending write
	delayed []*Node      // nodes whose pending write waits for a retry
	running int
	results chan writeResult
}

// grantedSlot is the right, stored in the ledger, to take slots with one write.
type grantedSlot struct {
	version string // of the node
	rules   []triage.RuleID
	unknown format.Unknown // fields that a newer version of the controller stored
}

func (g grantedSlot) covers(version string, rules []triage.RuleID) bool {
	if g.version != version {
		return false
	}
	for _, r := range rules {
		if !slices.Contains(g.rules, r) {
			return false
		}
	}
	return true
}

// freeSlots frees the slots of rules that have no taint on the node and no write in
// flight.
func (w *taintWriter) freeSlots(now time.Time, state *Node, rules []triage.RuleID) {
	for _, rule := range rules {
		w.engine.core.Abandon(now, state.Object.Name, rule, 0)
	}
}

// nextChange returns the change that a plan asks for. Without a change it returns the rules
// whose slot is free at once, because they have no taint on the node or in flight.
func (w *taintWriter) nextChange(state *Node, plan triage.Plan, now time.Time) (change *treat.Change, releases []triage.RuleID) {
	if change = treat.Prepare(state.Object, plan, now); change != nil {
		return change, nil
	}
	if state.sentFor != "" { // the node matches its plan, so the write in flight is not wanted any more
		return w.fence(state), nil
	}
	for _, reason := range plan.Release {
		if reason.Taint { // treatments release their slots themselves
			releases = append(releases, reason.Rule)
		}
	}
	return nil, releases
}

// fence gives the node a new version. Its token differs every time, because the same
// token twice would change nothing.
func (w *taintWriter) fence(state *Node) *treat.Change {
	return treat.Fence(state.Object, w.engine.cfg.Identity+"/"+state.Object.ResourceVersion)
}

// start starts queued writes, up to the limit of concurrent writes.
func (w *taintWriter) start(ctx context.Context, now time.Time) {
	for tries := w.queue.len(); tries > 0 && w.running < maxConcurrentWrites; tries-- {
		state := w.queue.pop()
		state.stage = idle
		switch {
		case state.gone:
		case now.Before(state.notBefore):
			w.delayed = append(w.delayed, state)
			state.stage = queued
		case state.needsRead:
			w.writeNode(ctx, state, nil)
		default:
			w.startWrite(ctx, state, now)
		}
	}
	w.engine.cfg.Metrics.waiting.Set(float64(w.queue.len() + len(w.delayed) + len(w.engine.ledger.queued) + len(w.engine.ledger.writing)))
}

// startWrite checks the plan again and sends its change, after the ledger has stored the
// slots that the change takes.
func (w *taintWriter) startWrite(ctx context.Context, state *Node, now time.Time) {
	plan, ok := w.engine.planOf(state)
	if !ok {
		return
	}
	w.engine.noteFindings(now, state, plan.Findings)
	change, releases := w.nextChange(state, plan, now)
	if change != nil && w.cancelOverBound(now, change.Takes) {
		if state.sentFor == "" {
			w.engine.Reconcile(now, state) // the plan has changed
			return
		}
		change = w.fence(state) // it may exceed the bound and must not arrive
	}
	switch {
	case change == nil:
		w.freeSlots(now, state, releases)
	case len(change.Takes) > 0 && !state.granted.covers(state.Object.ResourceVersion, change.Takes):
		state.stage = awaitingLedger
		w.engine.ledger.queued = append(w.engine.ledger.queued, state)
	case !state.mayWrite(now):
		state.stage = queued
		w.delayed = append(w.delayed, state)
	default:
		if len(change.Takes) > 0 {
			state.sentFor = state.Object.ResourceVersion
		}
		w.writeNode(ctx, state, change)
	}
}

// cancelOverBound checks, before a slot is taken for good, whether a rule has more slots taken
// than its bound allows now. The bound may have been lowered, or nodes may have gone. If
// so, cancelOverBound cancels the surplus among the writes that have not been sent. The node
// that has waited longest is cancelled last.
func (w *taintWriter) cancelOverBound(now time.Time, takes []triage.RuleID) (over bool) {
	for _, rule := range takes {
		if !w.engine.IsOverBound(rule) {
			continue
		}
		over = true
		for _, state := range w.unsent(rule) {
			w.engine.core.Abandon(now, state.Object.Name, rule, 0)
			if !w.engine.IsOverBound(rule) {
				break
			}
		}
	}
	return over
}

// unsent returns the nodes with a finding of the rule for which no write has been sent.
// The node that has waited longest is last.
func (w *taintWriter) unsent(rule triage.RuleID) []*Node {
	since := map[*Node]time.Time{}
	for _, state := range w.engine.nodeStates {
		for _, finding := range state.findings {
			if finding.Rule == rule && state.stage != running && state.sentFor == "" {
				since[state] = finding.Since
			}
		}
	}
	return slices.SortedFunc(maps.Keys(since), func(a, b *Node) int {
		return cmp.Or(since[b].Compare(since[a]), strings.Compare(b.Object.Name, a.Object.Name))
	})
}

// requeueDelayed queues delayed writes that are due, and returns when the next is due.
func (w *taintWriter) requeueDelayed(now time.Time) (due time.Time) {
	w.delayed = slices.DeleteFunc(w.delayed, func(state *Node) bool {
		if state.gone {
			return true
		}
		if now.Before(state.notBefore) {
			due = times.Earliest(due, state.notBefore)
			return false
		}
		w.queue.push(state)
		return true
	})
	return due
}

// writeResult is the result of a write.
type writeResult struct {
	state   *Node
	uid     types.UID     // of the intended node
	change  *treat.Change // nil if the node was only read
	version string
	result  treat.Result
	err     error
	fresh   *corev1.Node // the current node, if it was read
	missing bool         // the node does not exist
}

// deniedAsStale reports whether the API server answered with a conflict although the node
// is unchanged. Some admission webhooks deny requests with a conflict.
func (result writeResult) deniedAsStale() bool {
	return result.change != nil && result.err != nil && result.fresh != nil && result.fresh.UID == result.uid && result.fresh.ResourceVersion == result.change.Node.ResourceVersion
}

// writeNode applies a change. A nil change reads the node.
func (w *taintWriter) writeNode(ctx context.Context, state *Node, change *treat.Change) {
	state.stage = running
	w.running++
	name, uid := state.Object.Name, state.Object.UID
	w.engine.requests.Go(func() {
		result := writeResult{state: state, uid: uid, change: change, result: treat.Stale}
		ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
		defer cancel()
		if change != nil {
			result.version, result.err = w.engine.write.Apply(ctx, change)
			result.result = treat.Classify(result.err)
		}
		if result.result == treat.Stale {
			var err error
			result.fresh, err = w.engine.write.Fetch(ctx, name)
			if result.missing = apierrors.IsNotFound(err); err != nil && !result.missing {
				result.result, result.err = treat.Unknown, err
			}
		}
		w.results <- result
	})
}

// handleResult takes in the result of a write.
func (w *taintWriter) handleResult(result writeResult) {
	now := time.Now()
	state := result.state
	w.running--
	state.stage = idle
	w.engine.cfg.Metrics.CountWrite("nodes", result.result)
	if state.gone {
		return
	}
	switch result.result {
	case treat.Made:
		w.writeDone(now, state, result)
	case treat.Stale:
		state.needsRead = false
		if result.deniedAsStale() {
			state.noteNotWritten()
			w.writeRefused(now, state, result)
			break
		}
		w.nodeRefreshed(now, state, result)
	case treat.Busy:
		state.noteNotWritten()
		w.delayWrite(now, state, result)
	case treat.Refused:
		state.noteNotWritten()
		w.writeRefused(now, state, result)
	case treat.Unknown:
		state.needsRead, state.unansweredFor = true, state.sentFor
		w.delayWrite(now, state, result)
	}
	if !state.gone {
		w.engine.Reconcile(now, state)
		w.engine.markStatusesStale(now, state)
	}
}

// writeDone stores the new node state without waiting for the watch.
func (w *taintWriter) writeDone(now time.Time, state *Node, result writeResult) {
	state.notBefore, state.needsRead = time.Time{}, false
	w.engine.clearFailure(now, state)
	after := result.change.Made(result.version)
	w.engine.NodeRead(now, after)
	w.reportChange(now, state, result.change)
}

// nodeRefreshed stores a node that was read directly.
func (w *taintWriter) nodeRefreshed(now time.Time, state *Node, result writeResult) {
	switch {
	case result.missing && state.Object.UID == result.uid: // otherwise the node has been created again
		w.engine.removeNode(now, state)
	case !result.missing:
		w.engine.NodeRead(now, nodewatch.Trim(result.fresh))
	}
}

// delayWrite delays the next write of a node, longer with every failure.
func (w *taintWriter) delayWrite(now time.Time, state *Node, result writeResult) {
	isNews := state.failure.Add(result.result, result.err)
	wait := RetryDelay(state.failure.Tries)
	state.notBefore = now.Add(wait)
	if isNews && w.engine.retryLog.allows(now) {
		w.engine.cfg.Logger.Warn("write delayed", "node", state.Object.Name, "retryIn", wait.String(), "err", result.err)
	}
}

// writeRefused frees the slots of a change that the API server rejected, and reports the
// rejection.
func (w *taintWriter) writeRefused(now time.Time, state *Node, result writeResult) {
	if now.Sub(state.refusedAt) > refusalHeld {
		state.refusals = 0
	}
	state.refusals++
	state.refusedAt = now
	wait := RefusalDelay(state.refusals)
	isNews := state.failure.Add(result.result, result.err)
	if isNews && len(result.change.Placed)+len(result.change.Removed) == 0 && w.engine.refusalLog.allows(now) { // no set to report it on
		w.engine.cfg.Logger.Error("write refused", "node", state.Object.Name, "err", result.err)
	}
	if len(result.change.Takes) == 0 || state.sentFor != "" {
		state.notBefore = now.Add(wait)
	} else { // NoSchedule instead of NoExecute is another write, which may be accepted
		for _, rule := range result.change.Takes {
			w.engine.core.Abandon(now, state.Object.Name, rule, wait)
		}
		state.failure = Failure{}
	}
	for _, placed := range result.change.Placed {
		w.reportRefusal(now, state, placed.Rule, placed.Reason, "could not be placed: "+result.err.Error())
	}
	for _, removed := range result.change.Removed {
		if !slices.ContainsFunc(result.change.Placed, func(placed triage.PlannedTaint) bool { return placed.Rule == removed.Rule }) {
			w.reportRefusal(now, state, removed.Rule, removed.Reason, removed.Key+":"+removed.Effect.String()+" could not be removed: "+result.err.Error())
		}
	}
}

// reportChange publishes Events, logs and metrics for a change.
func (w *taintWriter) reportChange(now time.Time, state *Node, change *treat.Change) {
	reported := map[triage.RuleID]bool{}
	for _, placed := range change.Placed {
		reported[placed.Rule] = true
		if placed.Reason.Code != triage.FellBack { // the refused taint may have been the stronger one
			delete(state.refusalsReported, placed.Rule)
		}
		w.engine.cfg.Metrics.placed.WithLabelValues(placed.Rule.Name, placed.Effect.String()).Inc()
		w.engine.cfg.Logger.Info("taint placed", "node", state.Object.Name, "key", placed.Key, "effect", placed.Effect.String(), "reason", placed.Reason.String())
		w.engine.cfg.Event(treat.Event{Node: state.Object, Policy: w.engine.about(placed.Rule, state.Object).Policy, Reason: placed.Reason})
	}
	if len(change.Placed) > 0 && !state.dueSince.IsZero() {
		w.engine.cfg.Metrics.latency.Observe(now.Sub(state.dueSince).Seconds())
	}
	state.dueSince = time.Time{}
	for _, removed := range change.Removed {
		if !reported[removed.Rule] {
			delete(state.refusalsReported, removed.Rule)
		}
		w.engine.cfg.Metrics.removed.WithLabelValues(removed.Rule.Name, removed.Effect.String()).Inc()
		about := w.engine.about(removed.Rule, state.Object)
		if about.Policy == nil {
			w.engine.Retire(now, removed.Rule)
		}
		w.engine.cfg.Logger.Info("taint removed", "node", state.Object.Name, "key", removed.Key, "effect", removed.Effect.String(), "reason", removed.Reason.String())
		if reported[removed.Rule] {
			continue // replaced by another taint, reported above
		}
		event := treat.Event{Node: state.Object, Policy: about.Policy, Reason: removed.Reason}
		if about.Problem != "" {
			event.Failure = "its taint is removed, because " + about.Problem
		}
		w.engine.cfg.Event(event)
	}
}
