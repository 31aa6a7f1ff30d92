package conditionset

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

const (
	// proveEvery is how often to judge a set while nodes start to report its conditions,
	// times the number of these sets, because each judgement looks at every node.
	proveEvery = time.Second
	// reportsSettle is how long no further node may start to report a condition before
	// the reporting nodes count as all of them. It is longer than the pause between two
	// nodes of a rollout.
	reportsSettle = 5 * time.Minute

	// The reasons of the condition Accepted while a set is unproven, and while it is held
	// because admission would reject it. A new leader reads them.
	reasonAwaitingReports = "AwaitingReports"
	reasonHeld            = "Held"
)

// proof is what is missing until a set is known not to match healthy nodes. When the set
// was accepted, too few nodes reported its conditions to tell its impact.
type proof struct {
	types    []string  // condition types to prove; empty for none
	reports  int       // nodes that reported them at the last check
	matching int       // nodes that matched at the last judgement
	settled  time.Time // when the reports have settled, unless more arrive
	released bool      // the reports have settled; the set is in force until many more nodes start to report
	before   int       // nodes that reported the types when the set was released
	limit    int       // nodes that maxUnhealthy allowed at the last judgement
	refused  bool      // admission would reject the set now; only the user can change that
	reported bool      // an Event has reported that the set is held
	text     string    // the result of the last judgement
}

// withholdsTaints reports whether the set is prevented from placing a taint.
func (pol *conditionSet) withholdsTaints() bool {
	return pol.proof.refused || pol.proof.hold() != "" && pol.proof.matching > 0
}

// switches returns whether the set acts. Its newest version counts, even if that is rejected: a user
// can always switch a set off.
func (pol *conditionSet) switches() observe.Switches {
	return observe.PolicySwitches(pol.set.Annotations, pol.set.Spec.Observes() || pol.inForce != nil && pol.inForce.Spec.Observes())
}

// hold returns why the rule of the set places no taint; empty if it may.
func (pol *conditionSet) hold(lacks *proof) string {
	return cmp.Or(pol.switches().Paused, lacks.hold())
}

// hold returns why the rule of a set places no taint; empty if it may.
func (p *proof) hold() string {
	switch {
	case p.refused:
		return "the set would not be accepted now, as its status says"
	case len(p.types) > 0 && !p.released:
		return "too few nodes report " + strings.Join(p.types, ", ") + " to tell whether the set matches healthy nodes"
	}
	return ""
}

// restoredProof returns the missing proof that an earlier leader stored in the status.
func (pol *conditionSet) restoredProof() proof {
	accepted := meta.FindStatusCondition(pol.status.Stored.Conditions, v1alpha1.Accepted)
	if !pol.needsValidation || !pol.restored || accepted == nil || accepted.ObservedGeneration != pol.set.Generation {
		return proof{}
	}
	types := validate.Unproven(pol.set, nil)
	switch {
	case len(types) == 0: // the user has confirmed the set
	case accepted.Reason == reasonHeld:
		return proof{types: types, refused: true, reported: true, text: accepted.Message}
	case accepted.Reason == reasonAwaitingReports:
		return proof{types: types}
	}
	return proof{}
}

// missingProof returns the missing proof of a set, judged as if it were written now. A version
// that only narrows a proven or released version needs no proof.
func (p *Policy) missingProof(pol *conditionSet) proof {
	types := validate.Unproven(pol.set, nil)
	if len(types) == 0 {
		return proof{}
	}
	c := p.proofCase(pol)
	if (len(pol.proof.types) == 0 || pol.proof.released) && !pol.isInForce() {
		c.Before = pol.inForce
	}
	judged := validate.Prove(c, types)
	if judged.Proven {
		return proof{}
	}
	return proof{types: types, matching: judged.Matching, limit: judged.Limit, text: judged.Text}
}

// reportsOf returns how many reports of the types there are.
func (p *Policy) reportsOf(types []string) (reports int) {
	for _, name := range types {
		reports += p.host.Core().Reports(name)
	}
	return reports
}

// releaseUnproven lets the controller follow a set that is not proven. Nodes that become
// unhealthy later are no reason to hold it, and neither are a few nodes that start to
// report: maxUnhealthy bounds them. When more nodes than that start to report, the
// controller judges the set again.
func (p *Policy) releaseUnproven(pol *conditionSet) {
	pol.proof.released, pol.proof.before = true, p.reportsOf(pol.proof.types)
}

// startProof starts the proof of a set that a new leader finds. A set whose status says
// that it is followed was proven, unless no node reports its conditions. The status of
// a set from a ConfigMap is not read; the set is released if it has placed taints.
func (p *Policy) startProof(now time.Time, pol *conditionSet) {
	if len(pol.proof.types) > 0 || !pol.isInForce() {
		return
	}
	if pol.isInAPI() && wasAccepted(pol.set, pol.status.Stored) {
		pol.proof = proof{types: validate.Unproven(pol.set, p.host.Core().Reported())}
	} else if pol.proof = p.missingProof(pol); len(pol.proof.types) > 0 && !pol.isInAPI() && p.hasPlaced(pol.rule.ID) {
		p.releaseUnproven(pol)
		pol.proof.reports = pol.proof.before
	}
	p.validation.toProve = p.validation.toProve || len(pol.proof.types) > 0
	p.applyHold(now, pol)
}

// hasPlaced reports whether any node has a taint of the rule.
func (p *Policy) hasPlaced(rule triage.RuleID) bool {
	for _, state := range p.host.Nodes() {
		if state.TaintEffect(rule) > 0 {
			return true
		}
	}
	return false
}

// confirmProof handles a changed annotation on a followed set. If the user accepts the
// impact, the set needs no proof. Any other value makes a held set judged again.
func (p *Policy) confirmProof(now time.Time, pol *conditionSet) {
	missing := &pol.proof
	switch {
	case len(missing.types) == 0:
	case len(validate.Unproven(pol.set, nil)) == 0:
		p.endProof(now, pol, "the user has accepted the impact of the set")
	case missing.refused:
		*missing = proof{types: missing.types}
		p.validation.toProve = true
		p.applyHold(now, pol)
	}
}

// proveSets judges unproven sets again after nodes have started to report their
// conditions, and returns when the next judgement is due. A set is held from the first
// report on, and again whenever another node starts to report. Until the judgement, the
// new node may be among many healthy nodes that match.
func (p *Policy) proveSets(now time.Time) (due time.Time) {
	isTime := p.validation.toProve && !now.Before(p.validation.proveAt)
	waiting := 0
	for _, pol := range p.known {
		missing := &pol.proof
		if len(missing.types) == 0 || missing.refused || pol.err != nil {
			continue
		}
		reports := p.reportsOf(missing.types)
		missing.before = min(missing.before, reports) // the replacement of a deleted node is no further report
		if reports > missing.reports && (!missing.released || reports-missing.before > missing.limit) {
			missing.settled, missing.released, missing.reported = now.Add(reportsSettle), false, missing.reported && !missing.released
			p.applyHold(now, pol)
		}
		missing.reports = reports
		if reports == 0 {
			continue
		}
		waiting++
		hasSettled := !now.Before(missing.settled)
		if !missing.released && (isTime || hasSettled) {
			p.prove(now, pol, hasSettled)
		}
		if !missing.released && !missing.refused && len(missing.types) > 0 {
			due = times.Earliest(due, missing.settled)
		}
	}
	if isTime && waiting > 0 {
		p.validation.toProve, p.validation.proveAt = false, now.Add(time.Duration(waiting)*proveEvery)
	}
	if waiting > 0 && p.validation.toProve {
		due = times.Earliest(due, p.validation.proveAt)
	}
	return due
}

// proofCase returns the validation case of a set as if it were written now.
func (p *Policy) proofCase(pol *conditionSet) validate.Case {
	c := p.validationCase(pol)
	c.Before, c.Reported, c.Impact = nil, p.host.Core().Reported(), p.host.Core().Impact
	if pol.restored {
		c.Placed = p.placed
	}
	return c
}

func (p *Policy) prove(now time.Time, pol *conditionSet, hasSettled bool) {
	missing := &pol.proof
	judged := validate.Prove(p.proofCase(pol), missing.types)
	missing.matching, missing.limit, missing.text, pol.status.Stale = judged.Matching, judged.Limit, judged.Text, true
	p.host.Statuses().Schedule(now)
	switch {
	case len(judged.Problems) > 0:
		p.holdRefused(now, pol, judged.Problems)
	case judged.Proven:
		p.endProof(now, pol, "enough nodes report "+strings.Join(missing.types, ", "))
	case hasSettled:
		p.releaseUnproven(pol)
		p.applyHold(now, pol)
	case missing.matching > 0 && !missing.reported:
		missing.reported = true
		p.reportHeld(pol)
	}
	p.updateSetMetricsOf(pol)
}

// holdRefused holds a set that admission would reject now.
func (p *Policy) holdRefused(now time.Time, pol *conditionSet, problems []validate.Problem) {
	missing := &pol.proof
	for i := range problems {
		if problems[i].Reason == validate.Impact {
			problems[i].Text += editAgain
		}
	}
	missing.refused, missing.reported = true, true
	missing.text = fmt.Sprintf("held: too few nodes reported %s when the set was accepted, and now that more do, it would be refused. It places no new taint, and its taints on nodes stay. %s",
		strings.Join(missing.types, ", "), validate.Verdict{Problems: problems}.Err())
	p.applyHold(now, pol)
	p.reportHeld(pol)
	p.updateSetMetricsOf(pol)
}

// endProof ends the proof and the hold of a set.
func (p *Policy) endProof(now time.Time, pol *conditionSet, why string) {
	if pol.proof.reported {
		p.cfg.Event(treat.Event{Policy: treat.AboutSet(pol.set), EventReason: treat.Accepted, Message: p.withSetName(pol, "no longer held: "+why)})
	}
	pol.proof = proof{}
	p.applyHold(now, pol)
	p.updateSetMetricsOf(pol)
	p.cfg.Logger.Info("set proven", "conditionSet", pol.set.Name, "generation", pol.set.Generation, "why", why)
}

// reportHeld reports why a set is held.
func (p *Policy) reportHeld(pol *conditionSet) {
	message := p.withSetName(pol, pol.proof.message())
	p.cfg.Event(treat.Event{Policy: treat.AboutSet(pol.set), EventReason: treat.Held, Failure: message})
	p.cfg.Logger.Warn("set held", "conditionSet", pol.set.Name, "generation", pol.set.Generation, "why", message)
}

// withSetName prefixes a message with the set's type if the set is in a ConfigMap.
func (p *Policy) withSetName(pol *conditionSet, message string) string {
	if configmaps.ConfigMapOf(pol.set) == nil {
		return message
	}
	return "set " + pol.set.Spec.Type + ": " + message
}

// message returns the status message about the proof.
func (p *proof) message() string {
	names := strings.Join(p.types, ", ")
	switch {
	case p.refused:
		return p.text
	case p.reports == 0:
		return fmt.Sprintf("the set is in force; no node reports %s yet, and the controller checks the set again when nodes do", names)
	case p.released:
		return fmt.Sprintf("the set is in force; the controller holds it and checks it again when more than %d further nodes begin to report %s", p.limit, names)
	case p.matching == 0:
		return fmt.Sprintf("the set is in force; it places no taint until enough nodes report %s to tell that it does not match healthy nodes", names)
	}
	return fmt.Sprintf("held until enough nodes report %s to tell that the set does not match healthy nodes, or until no further node has begun to for %s: %s", names, reportsSettle, p.text)
}

// applyHold prevents new taints of a set while it is paused or its proof is missing.
func (p *Policy) applyHold(now time.Time, pol *conditionSet) {
	hold := pol.hold(&pol.proof)
	if pol.rule.Hold == hold {
		return
	}
	pol.rule.Hold = hold
	if err := p.host.Core().SetRule(now, pol.rule); err != nil { // a followed rule is valid
		p.cfg.Logger.Error("rule not changed", "conditionSet", pol.set.Name, "err", err)
	}
	pol.status.Stale = true
	p.host.Statuses().Schedule(now)
}
