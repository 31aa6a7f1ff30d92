package repair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// About returns the policy and the NodePool of a rule, and the machine of the node, as far
// as they exist.
func (r *Policy) About(rule triage.RuleID, node *corev1.Node) (s engine.Subject) {
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
		if m, _ := r.machines.MachineOf(node); m != nil {
			s.Related = append(s.Related, m.Reference())
		}
	}
	return s
}

// reportPoolHeld reports that replacement in a pool is paused.
func (r *Policy) reportPoolHeld(name string, count *poolCounts) {
	timeout := r.timeoutFor(timeoutRule(name))
	_, message, _ := count.failures.remaining(count.failures.last, name, timeout, 0)
	r.host.Logger().Warn("pool held", "nodePool", name, "failed", count.failures.failed, "until", count.failures.next(timeout).UTC().Format(time.RFC3339))
	if pool := r.pools[name]; pool != nil {
		r.host.Event(treat.Event{Related: []*corev1.ObjectReference{treat.AboutNodePool(pool)}, EventReason: treat.PoolHeld, Message: message})
	}
}

// reportPoolReleased reports that replacement in a pool has resumed.
func (r *Policy) reportPoolReleased(name, message string) {
	r.host.Logger().Info("pool released", "nodePool", name, "reason", message)
	if pool := r.pools[name]; pool != nil {
		r.host.Event(treat.Event{Related: []*corev1.ObjectReference{treat.AboutNodePool(pool)}, EventReason: treat.PoolReleased, Message: "NodePool " + name + " is released: " + message})
	}
}

// reportMode reports that the annotation for the mode of a pool is invalid, or valid again.
func (r *Policy) reportMode(before, pool *repairblock.Pool) {
	was, is := "", observe.AnnotatedSwitches(pool.Annotations).Problem
	if before != nil {
		was = observe.AnnotatedSwitches(before.Annotations).Problem
	}
	switch is {
	case was:
	case "":
		r.host.Event(treat.Event{Policy: treat.AboutNodePool(pool), EventReason: treat.Accepted, Message: "the annotation " + v1alpha1.ModeAnnotation + " is valid again"})
	default:
		r.host.Logger().Warn("mode of a pool invalid", "nodePool", pool.Name, "err", is)
		r.host.Event(treat.Event{Policy: treat.AboutNodePool(pool), EventReason: treat.NotAccepted, Failure: is})
	}
}

// reportPolicy reports that a repair policy is invalid, or valid again.
func (r *Policy) reportPolicy(pol *repairPolicy) {
	event := treat.Event{Policy: treat.AboutPolicy(pol.object), EventReason: treat.NotAccepted, Message: pol.problemMessage()}
	if pol.problem == "" {
		event.EventReason, event.Message = treat.Accepted, "the policy is valid again and in force"
		r.host.Logger().Info("repair policy followed", "repairPolicy", pol.object.Name)
	} else {
		r.host.Logger().Warn("repair policy not followed", "repairPolicy", pol.object.Name, "err", pol.problem)
	}
	r.host.Event(event)
}

// reportWait reports that a node is unhealthy and when it becomes eligible for
// repair. If the repair does not start then, it reports why. Each is reported once.
func (r *Policy) reportWait(state *engine.Node, is triage.Reason) {
	last := state.Reported[is.Rule]
	was := last.Code
	waits := is.Code.IsWait()
	message := ""
	if waits {
		message = text.WithoutDigits(is.Other)
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
	state.NoteReported(is.Rule, engine.Report{Code: is.Code, Message: message})
	switch {
	case is.Code == triage.GivenUp:
		r.host.PublishEvent(is.Rule, state.Object, treat.GivenUp, is, "")
	case is.Code == triage.Retrying: // the refusal has been reported
	case waits:
		r.host.PublishEvent(is.Rule, state.Object, treat.RepairBlocked, is, "")
	case is.Code == triage.Pending && was == 0:
		r.host.PublishEvent(is.Rule, state.Object, treat.RepairPending, is, "")
	}
}
