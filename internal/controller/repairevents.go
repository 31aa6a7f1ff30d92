package controller

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// announceOf publishes an Event about a node and the policy of a rule.
func (l *loop) announceOf(rule triage.RuleID, node *corev1.Node, what treat.EventReason, reason triage.Reason, words string) {
	if c := l.checkOf(rule); c != nil || !isRepair(rule) {
		l.announce(c, node, what, reason, words)
		return
	}
	l.announceRepair(rule, node, nil, what, reason, words)
}

// announceRepair publishes an Event about a node, its claim, its pool and its repair
// policy, as far as they exist.
func (l *loop) announceRepair(rule triage.RuleID, node *corev1.Node, claim *karpenter.NodeClaim, what treat.EventReason, reason triage.Reason, words string) {
	word := treat.Event{Node: node, EventReason: what, Reason: reason, Message: words}
	if r := l.repairs.followed[rule]; r != nil {
		if r.policy != nil {
			word.Policy = treat.AboutPolicy(r.policy.object)
		}
		if pool := l.repairs.pools[r.pool]; pool != nil {
			word.Related = append(word.Related, treat.AboutNodePool(pool))
		}
	}
	if claim == nil && node != nil {
		if c, _ := l.nodeClaims.claimOf(node); c != nil {
			claim = c.NodeClaim
		}
	}
	if claim != nil {
		word.Related = append(word.Related, treat.AboutNodeClaim(claim))
	}
	if word.Node != nil || word.Policy != nil || len(word.Related) > 0 {
		l.cfg.Event(word)
	}
}

// terminated reports a deleted claim.
func (l *loop) terminated(now time.Time, r *taskResult) {
	b, e := r.treatments, r.task
	mode, pool := v1alpha1.Forceful, e.claim.Labels[karpenter.NodePoolLabel]
	if regime := l.repairs.followed[e.rule]; regime != nil {
		mode = modeOf(regime.spec)
	}
	if l.repairs.pools[pool] == nil {
		l.retire(now, timeoutRule(pool))
	}
	b.refusalReported = reportedRefusal{}
	l.cfg.Metrics.terminated(pool, e.reason.Condition, string(mode), "terminated")
	if !b.wanted.IsZero() {
		l.cfg.Metrics.begunAfter(e.rule, now.Sub(b.wanted))
		b.wanted = time.Time{}
	}
	what, words := treat.NodeRepaired, fmt.Sprintf("NodeClaim %s is being deleted %s", e.claim.Name, modeWords[mode])
	// An earlier deadline on the claim stays.
	if deadline := cmp.Or(e.mark.Deadline, e.claim.Annotations[karpenter.TerminationTimestampAnnotation]); deadline != "" && mode == v1alpha1.Graceful {
		words += ", and those that are left at " + deadline + " are ended by force"
	}
	if e.rule.Kind == triage.ReadyTimeout {
		l.cfg.Metrics.timedOut(pool, e.claim.Labels[karpenter.CapacityTypeLabel])
		what = treat.ReadyTimeoutRecovery
		words = fmt.Sprintf("Node failed to become ready within %v, triggering recovery: %s%s", l.timeoutFor(e.rule), words, taintWords(karpenter.StartupTaints(e.node, e.claim)))
	}
	l.cfg.Logger.Info("node terminated", "node", b.node, "nodeClaim", e.claim.Name, "nodePool", pool, "mode", string(mode), "reason", e.reason.String())
	l.announceRepair(e.rule, e.node, e.claim, what, e.reason, words)
}

// taintWords names the startup taints that are left. Once the node is gone, users cannot
// look up which daemon did not remove its taint.
func taintWords(taints []corev1.Taint) string {
	if len(taints) == 0 {
		return ""
	}
	var keys []string
	for _, taint := range taints {
		keys = append(keys, taint.Key)
	}
	return "; still on it: " + strings.Join(keys, ", ")
}

var modeWords = map[v1alpha1.Termination]string{
	v1alpha1.Forceful: "by force, nobody waits for its pods",
	v1alpha1.Graceful: "gracefully, its pods are drained first",
}

// timeoutFor returns the ready timeout of a rule.
func (l *loop) timeoutFor(rule triage.RuleID) time.Duration {
	if r := l.repairs.followed[rule]; r != nil && len(r.rule.When.Signals) > 0 {
		return r.rule.When.Signals[0].For
	}
	return 0
}

// terminationCancelled reports a claim whose mark was removed.
func (l *loop) terminationCancelled(now time.Time, r *taskResult) {
	b, e := r.treatments, r.task
	pool := e.claim.Labels[karpenter.NodePoolLabel]
	mode := v1alpha1.Forceful
	if r := l.repairs.followed[e.rule]; r != nil {
		mode = modeOf(r.spec)
	}
	l.cfg.Metrics.terminated(pool, e.reason.Condition, string(mode), "spared")
	if l.repairs.pools[pool] == nil {
		l.retire(now, timeoutRule(pool))
	}
	l.cfg.Logger.Info("node spared", "node", b.node, "nodeClaim", e.claim.Name, "reason", e.reason.String())
	l.announceRepair(e.rule, e.node, e.claim, treat.TerminationCancelled, e.reason, "NodeClaim "+e.claim.Name+" is not deleted after all")
}

// reportPoolHeld reports that replacement in a pool is paused.
func (l *loop) reportPoolHeld(name string, count *poolCounts) {
	timeout := l.timeoutFor(timeoutRule(name))
	_, words, _ := count.failures.left(count.failures.last, name, timeout, 0)
	l.cfg.Logger.Warn("pool held", "nodePool", name, "failed", count.failures.failed, "until", count.failures.next(timeout).UTC().Format(time.RFC3339))
	if pool := l.repairs.pools[name]; pool != nil {
		l.cfg.Event(treat.Event{Related: []*corev1.ObjectReference{treat.AboutNodePool(pool)}, EventReason: treat.PoolHeld, Message: words})
	}
}

// reportPoolReleased reports that replacement in a pool has resumed.
func (l *loop) reportPoolReleased(name, words string) {
	l.cfg.Logger.Info("pool released", "nodePool", name, "reason", words)
	if pool := l.repairs.pools[name]; pool != nil {
		l.cfg.Event(treat.Event{Related: []*corev1.ObjectReference{treat.AboutNodePool(pool)}, EventReason: treat.PoolReleased, Message: "NodePool " + name + " is held no more: " + words})
	}
}

// reportRepairPolicy reports that a repair policy is invalid, or valid again.
func (l *loop) reportRepairPolicy(pol *repairPolicy) {
	word := treat.Event{Policy: treat.AboutPolicy(pol.object), EventReason: treat.Disabled, Message: pol.trouble()}
	if pol.problem == "" {
		word.EventReason, word.Message = treat.Enabled, "nothing is wrong with it any more, the policy is followed"
		l.cfg.Logger.Info("repair policy followed", "repairPolicy", pol.object.Name)
	} else {
		l.cfg.Logger.Warn("repair policy not followed", "repairPolicy", pol.object.Name, "err", pol.problem)
	}
	l.cfg.Event(word)
}

// withoutNumbers drops digits, so that texts that differ only in numbers and times are
// equal.
func withoutNumbers(words string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, words)
}

// reportRepairWait reports that a node is unhealthy and when it becomes eligible for
// repair. If the repair does not start then, it reports why. Each is reported once.
func (l *loop) reportRepairWait(p *nodeState, is triage.Reason) {
	was := p.reported[is.Rule]
	waits := isWait(is.Code)
	words := ""
	if waits {
		words = withoutNumbers(is.Other)
	}
	switch {
	case is.Code == was && words == p.reportedMessage[is.Rule]:
		return
	case !waits && is.Code != triage.Pending && is.Code != triage.Treating:
		if was != 0 && is.Code != triage.Recovering && is.Code != triage.Unclear {
			delete(p.reported, is.Rule)
		}
		return
	case is.Code == triage.Pending && (is.Rule.Kind == triage.ReadyTimeout || is.Condition == triage.Ready && !l.hasStarted(p)): // every node starts like that
		return
	}
	if p.reported == nil {
		p.reported = map[triage.RuleID]triage.Code{}
	}
	if p.reportedMessage == nil {
		p.reportedMessage = map[triage.RuleID]string{}
	}
	p.reported[is.Rule], p.reportedMessage[is.Rule] = is.Code, words
	switch {
	case is.Code == triage.Retrying: // the refusal has been reported
	case waits:
		l.announceRepair(is.Rule, p.node, nil, treat.RepairBlocked, is, "")
	case is.Code == triage.Pending && was == 0:
		l.announceRepair(is.Rule, p.node, nil, treat.RepairPending, is, "")
	}
}
