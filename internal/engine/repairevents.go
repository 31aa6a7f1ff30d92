package engine

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// About returns the policy and the NodePool of a rule, and the claim of the node, as far
// as they exist.
func (r *repairs) About(rule triage.RuleID, node *corev1.Node) (s Subject) {
	if !isRepair(rule) {
		return s
	}
	if followed := r.followed[rule]; followed != nil {
		if followed.policy != nil {
			s.Policy = treat.AboutPolicy(followed.policy.object)
		}
		if pool := r.pools[followed.pool]; pool != nil {
			s.Related = append(s.Related, treat.AboutNodePool(pool))
		}
	}
	if node != nil {
		if c, _ := r.engine.nodeClaims.claimOf(node); c != nil {
			s.Related = append(s.Related, treat.AboutNodeClaim(c.NodeClaim))
		}
	}
	return s
}

// reportTerminated reports a deleted claim.
func (w *claimTask) reportTerminated(now time.Time, r *Result) {
	nc, t := w.claims, r.Task
	mode, pool := v1alpha1.Forceful, w.claim.Labels[karpenter.NodePoolLabel]
	if followed := nc.engine.repairs.followed[t.Rule]; followed != nil {
		mode = modeOf(followed.spec)
	}
	if nc.engine.repairs.pools[pool] == nil {
		nc.engine.Retire(now, timeoutRule(pool))
	}
	nc.engine.cfg.Metrics.countTermination(pool, t.Reason.Condition, string(mode), "terminated")
	if due := r.Lane.Begun(); !due.IsZero() {
		nc.engine.cfg.Metrics.observeStart(t.Rule, now.Sub(due))
	}
	what, message := treat.NodeRepaired, fmt.Sprintf("NodeClaim %s is being deleted %s", w.claim.Name, terminationMessage[mode])
	// An earlier deadline on the claim stays.
	if deadline := cmp.Or(w.mark.Deadline, w.claim.Annotations[karpenter.TerminationTimestampAnnotation]); deadline != "" && mode == v1alpha1.Graceful {
		message += ", and those that are left at " + deadline + " are ended by force"
	}
	if t.Rule.Kind == policykind.ReadyTimeout {
		nc.engine.cfg.Metrics.countReadyTimeout(pool, w.claim.Labels[karpenter.CapacityTypeLabel])
		what = treat.ReadyTimeoutRecovery
		message = fmt.Sprintf("Node failed to become ready within %v, triggering recovery: %s%s", nc.engine.repairs.timeoutFor(t.Rule), message, startupTaintsMessage(karpenter.StartupTaints(t.Node, w.claim)))
	}
	nc.engine.Logger().Info("node terminated", "node", r.Lane.Node, "nodeClaim", w.claim.Name, "nodePool", pool, "mode", string(mode), "reason", t.Reason.String())
	nc.engine.PublishEvent(t.Rule, t.Node, what, t.Reason, message, treat.AboutNodeClaim(w.claim))
}

// startupTaintsMessage names the startup taints that are left. Once the node is gone, users cannot
// look up which daemon did not remove its taint.
func startupTaintsMessage(taints []corev1.Taint) string {
	if len(taints) == 0 {
		return ""
	}
	var keys []string
	for _, taint := range taints {
		keys = append(keys, taint.Key)
	}
	return "; still on it: " + strings.Join(keys, ", ")
}

var terminationMessage = map[v1alpha1.Termination]string{
	v1alpha1.Forceful: "by force, without draining its pods",
	v1alpha1.Graceful: "gracefully, its pods are drained first",
}

// timeoutFor returns the ready timeout of a rule.
func (r *repairs) timeoutFor(rule triage.RuleID) time.Duration {
	if followed := r.followed[rule]; followed != nil && len(followed.rule.When.Signals) > 0 {
		return followed.rule.When.Signals[0].For
	}
	return 0
}

// reportCancelled reports a claim whose mark was removed.
func (w *claimTask) reportCancelled(now time.Time, r *Result) {
	nc, t := w.claims, r.Task
	pool := w.claim.Labels[karpenter.NodePoolLabel]
	mode := v1alpha1.Forceful
	if followed := nc.engine.repairs.followed[t.Rule]; followed != nil {
		mode = modeOf(followed.spec)
	}
	nc.engine.cfg.Metrics.countTermination(pool, t.Reason.Condition, string(mode), "spared")
	if nc.engine.repairs.pools[pool] == nil {
		nc.engine.Retire(now, timeoutRule(pool))
	}
	nc.engine.Logger().Info("termination cancelled", "node", r.Lane.Node, "nodeClaim", w.claim.Name, "reason", t.Reason.String())
	nc.engine.PublishEvent(t.Rule, t.Node, treat.TerminationCancelled, t.Reason, "NodeClaim "+w.claim.Name+" is not deleted: its termination was cancelled", treat.AboutNodeClaim(w.claim))
}

// reportPoolHeld reports that replacement in a pool is paused.
func (r *repairs) reportPoolHeld(name string, count *poolCounts) {
	timeout := r.timeoutFor(timeoutRule(name))
	_, message, _ := count.failures.remaining(count.failures.last, name, timeout, 0)
	r.engine.Logger().Warn("pool held", "nodePool", name, "failed", count.failures.failed, "until", count.failures.next(timeout).UTC().Format(time.RFC3339))
	if pool := r.pools[name]; pool != nil {
		r.engine.cfg.Event(treat.Event{Related: []*corev1.ObjectReference{treat.AboutNodePool(pool)}, EventReason: treat.PoolHeld, Message: message})
	}
}

// reportPoolReleased reports that replacement in a pool has resumed.
func (r *repairs) reportPoolReleased(name, message string) {
	r.engine.Logger().Info("pool released", "nodePool", name, "reason", message)
	if pool := r.pools[name]; pool != nil {
		r.engine.cfg.Event(treat.Event{Related: []*corev1.ObjectReference{treat.AboutNodePool(pool)}, EventReason: treat.PoolReleased, Message: "NodePool " + name + " is held no more: " + message})
	}
}

// reportPolicy reports that a repair policy is invalid, or valid again.
func (r *repairs) reportPolicy(pol *repairPolicy) {
	event := treat.Event{Policy: treat.AboutPolicy(pol.object), EventReason: treat.Disabled, Message: pol.problemMessage()}
	if pol.problem == "" {
		event.EventReason, event.Message = treat.Enabled, "nothing is wrong with it any more, the policy is followed"
		r.engine.Logger().Info("repair policy followed", "repairPolicy", pol.object.Name)
	} else {
		r.engine.Logger().Warn("repair policy not followed", "repairPolicy", pol.object.Name, "err", pol.problem)
	}
	r.engine.cfg.Event(event)
}

// withoutNumbers drops digits, so that texts that differ only in numbers and times are
// equal.
func withoutNumbers(message string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, message)
}

// reportWait reports that a node is unhealthy and when it becomes eligible for
// repair. If the repair does not start then, it reports why. Each is reported once.
func (r *repairs) reportWait(state *Node, is triage.Reason) {
	last := state.Reported[is.Rule]
	was := last.Code
	waits := isWait(is.Code)
	message := ""
	if waits {
		message = withoutNumbers(is.Other)
	}
	switch {
	case is.Code == was && message == last.Message:
		return
	case !waits && is.Code != triage.Pending && is.Code != triage.Treating:
		if was != 0 && is.Code != triage.Recovering && is.Code != triage.Unclear {
			delete(state.Reported, is.Rule)
		}
		return
	case is.Code == triage.Pending && (is.Rule.Kind == policykind.ReadyTimeout || is.Condition == triage.Ready && !r.hasStarted(state)): // every node starts like that
		return
	}
	state.NoteReported(is.Rule, Report{is.Code, message})
	switch {
	case is.Code == triage.Retrying: // the refusal has been reported
	case waits:
		r.engine.PublishEvent(is.Rule, state.Object, treat.RepairBlocked, is, "")
	case is.Code == triage.Pending && was == 0:
		r.engine.PublishEvent(is.Rule, state.Object, treat.RepairPending, is, "")
	}
}
