package controller

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

const (
	// proveEvery is how often a set is judged while nodes begin to report what it names,
	// times the number of such sets: a judgement looks at every node.
	proveEvery = time.Second
	// reportsSettle is how long no further node must have begun to report a condition
	// before the nodes that do are taken for all that will. It is longer than the pause
	// between two nodes of a rollout.
	reportsSettle = 5 * time.Minute

	// The reasons of the condition Accepted while a set is unproven, and while it is held
	// because admission would refuse it. A controller that takes over goes by them.
	reasonAwaitingReports = "AwaitingReports"
	reasonHeld            = "Held"
)

// proof is what is missing until a set is known not to match healthy nodes. The set was
// accepted when too few nodes reported what it names to tell its impact.
type proof struct {
	types    []string  // condition types that are to be proven; none if nothing is
	reports  int       // how many nodes reported them at the last look
	matching int       // how many nodes matched at the last judgement
	settled  time.Time // when the reports have settled, unless there are more by then
	released bool      // they have, and the set is followed until another node begins to report
	refused  bool      // admission would refuse the set now; only the user ends that
	told     bool      // an Event has told that the set is held
	text     string    // what the last judgement said
}

// withholds says whether the set is kept from placing a taint that it would place.
func (p *conditionSet) withholds() bool {
	return p.proof.refused || p.rule.Hold != "" && p.proof.matching > 0
}

// hold is why the rule of a set places nothing; empty if it may.
func (p *proof) hold() string {
	switch {
	case p.refused:
		return "the set would not be accepted now, as its status says"
	case len(p.types) > 0 && !p.released:
		return "too few nodes report " + strings.Join(p.types, ", ") + " to tell whether the set matches healthy nodes"
	}
	return ""
}

// resumedProof returns what an earlier leader said in the status that a set lacks.
func (p *conditionSet) resumedProof() proof {
	accepted := meta.FindStatusCondition(p.status.Conditions, v1alpha1.Accepted)
	if !p.unjudged || !p.inherited || accepted == nil || accepted.ObservedGeneration != p.set.Generation {
		return proof{}
	}
	types := validate.Unproven(p.set, nil)
	switch {
	case len(types) == 0: // the user has confirmed the set
	case accepted.Reason == reasonHeld:
		return proof{types: types, refused: true, told: true, text: accepted.Message}
	case accepted.Reason == reasonAwaitingReports:
		return proof{types: types}
	}
	return proof{}
}

// lacking returns what the nodes leave open of a set, judged as if it was written now. A
// version that only narrows one that was proven needs no proof.
func (l *loop) lacking(pol *conditionSet) proof {
	types := validate.Unproven(pol.set, nil)
	if len(types) == 0 {
		return proof{}
	}
	c := l.proofCase(pol)
	if len(pol.proof.types) == 0 && !pol.isInForce() {
		c.Before = pol.inForce
	}
	judged := validate.Prove(c, types)
	if judged.Proven {
		return proof{}
	}
	return proof{types: types, matching: judged.Matching}
}

// beginProof has a set proven that a controller finds when it takes over. A set whose
// status says that it is followed was proven, unless no node reports what it names. Of a
// set in a ConfigMap no status tells: one that has placed taints goes on.
func (l *loop) beginProof(now time.Time, pol *conditionSet) {
	if len(pol.proof.types) > 0 || !pol.isInForce() {
		return
	}
	wasFollowed := wasAccepted(pol.set, pol.status)
	if !pol.isInAPI() {
		wasFollowed = l.hasPlaced(pol.rule.ID)
	}
	if wasFollowed {
		pol.proof = proof{types: validate.Unproven(pol.set, l.core.Reported())}
	} else {
		pol.proof = l.lacking(pol)
	}
	l.validation.toProve = l.validation.toProve || len(pol.proof.types) > 0
	l.applyHold(now, pol)
}

// hasPlaced says whether any node has a taint of a rule.
func (l *loop) hasPlaced(rule triage.RuleID) bool {
	for _, p := range l.nodeStates {
		if p.hasTaint(rule) > 0 {
			return true
		}
	}
	return false
}

// confirmProof takes in that the user has changed the annotation of a set that is
// followed: a set whose impact is accepted needs no proof, and any other value has a
// held set judged again.
func (l *loop) confirmProof(now time.Time, pol *conditionSet) {
	p := &pol.proof
	switch {
	case len(p.types) == 0:
	case len(validate.Unproven(pol.set, nil)) == 0:
		l.endProof(now, pol, "the user has accepted the impact of the set")
	case p.refused:
		*p = proof{types: p.types}
		l.validation.toProve = true
		l.applyHold(now, pol)
	}
}

// proveSets judges the sets again whose conditions nodes have begun to report, and
// returns when it will. A set is held from the first report on, and again whenever
// another node begins to report: until the judgement nothing says that the node is not
// one of many healthy ones.
func (l *loop) proveSets(now time.Time) (due time.Time) {
	isTime := l.validation.toProve && !now.Before(l.validation.proveAt)
	waiting := 0
	for _, pol := range l.sets {
		p := &pol.proof
		if len(p.types) == 0 || p.refused || pol.err != nil {
			continue
		}
		reports := 0
		for _, name := range p.types {
			reports += l.core.Reports(name)
		}
		if reports > p.reports {
			p.settled, p.released, p.told = now.Add(reportsSettle), false, p.told && !p.released
			l.applyHold(now, pol)
		}
		p.reports = reports
		if reports == 0 {
			continue
		}
		waiting++
		hasSettled := !now.Before(p.settled)
		if isTime || hasSettled && !p.released {
			l.prove(now, pol, hasSettled)
		}
		if !p.released && !p.refused && len(p.types) > 0 {
			due = earliest(due, p.settled)
		}
	}
	if isTime && waiting > 0 {
		l.validation.toProve, l.validation.proveAt = false, now.Add(time.Duration(waiting)*proveEvery)
	}
	if waiting > 0 && l.validation.toProve {
		due = earliest(due, l.validation.proveAt)
	}
	return due
}

// proofCase is the case of a set that is judged as if it was written now.
func (l *loop) proofCase(pol *conditionSet) validate.Case {
	c := l.caseOf(pol)
	c.Before, c.Reported, c.Impact = nil, l.core.Reported(), l.core.Impact
	if pol.inherited {
		c.Placed = l.placed
	}
	return c
}

func (l *loop) prove(now time.Time, pol *conditionSet, hasSettled bool) {
	p := &pol.proof
	judged := validate.Prove(l.proofCase(pol), p.types)
	p.matching, p.text, pol.stale = judged.Matching, judged.Text, true
	l.lookAtStatuses(now)
	switch {
	case len(judged.Problems) > 0:
		l.holdRefused(now, pol, judged.Problems)
	case judged.Proven:
		l.endProof(now, pol, "enough nodes report "+strings.Join(p.types, ", "))
	case hasSettled:
		p.released = true
		l.applyHold(now, pol)
	case p.matching > 0 && !p.told:
		p.told = true
		l.reportHeld(pol)
	}
	l.updateSetMetricsOf(pol)
}

// holdRefused holds a set that admission would refuse now.
func (l *loop) holdRefused(now time.Time, pol *conditionSet, problems []validate.Problem) {
	p := &pol.proof
	for i := range problems {
		if problems[i].Reason == validate.Impact {
			problems[i].Text += editAgain
		}
	}
	p.refused, p.told = true, true
	p.text = fmt.Sprintf("held: too few nodes reported %s when the set was accepted, and now that more do, it would be refused. It places no new taint, and its taints on nodes stay. %s",
		strings.Join(p.types, ", "), validate.Verdict{Problems: problems}.Err())
	l.applyHold(now, pol)
	l.reportHeld(pol)
	l.updateSetMetricsOf(pol)
}

// endProof has a set followed as any other.
func (l *loop) endProof(now time.Time, pol *conditionSet, why string) {
	if pol.proof.told {
		l.cfg.Event(treat.Event{Policy: treat.AboutSet(pol.set), EventReason: treat.Accepted, Message: l.about(pol, "no longer held: "+why)})
	}
	pol.proof = proof{}
	l.applyHold(now, pol)
	l.updateSetMetricsOf(pol)
	l.cfg.Logger.Info("set proven", "conditionSet", pol.set.Name, "generation", pol.set.Generation, "why", why)
}

// reportHeld tells why a set is held.
func (l *loop) reportHeld(pol *conditionSet) {
	words := l.about(pol, pol.proof.words())
	l.cfg.Event(treat.Event{Policy: treat.AboutSet(pol.set), Failure: words})
	l.cfg.Logger.Warn("set held", "conditionSet", pol.set.Name, "generation", pol.set.Generation, "why", words)
}

// about names the set where it is one of several in a ConfigMap.
func (l *loop) about(pol *conditionSet, words string) string {
	if configmaps.ConfigMapOf(pol.set) == nil {
		return words
	}
	return "set " + pol.set.Spec.Type + ": " + configMapMessage.Replace(words)
}

// words say what the status of the set says of its proof.
func (p *proof) words() string {
	names := strings.Join(p.types, ", ")
	switch {
	case p.refused:
		return p.text
	case p.reports == 0:
		return fmt.Sprintf("the set is followed; no node reports %s yet, and the set is judged again when nodes do", names)
	case p.released:
		return fmt.Sprintf("the set is followed, and is held and judged again when further nodes begin to report %s", names)
	case p.matching == 0:
		return fmt.Sprintf("the set is followed; it places no taint until enough nodes report %s to tell that it does not match healthy nodes", names)
	}
	return fmt.Sprintf("held until enough nodes report %s to tell that the set does not match healthy nodes, or until no further node has begun to for %s: %s", names, reportsSettle, p.text)
}

// applyHold has the rule of a set place nothing new while the set lacks a proof.
func (l *loop) applyHold(now time.Time, pol *conditionSet) {
	hold := pol.proof.hold()
	if pol.rule.Hold == hold {
		return
	}
	pol.rule.Hold = hold
	if err := l.core.SetRule(now, pol.rule); err != nil { // a rule that was followed is valid
		l.cfg.Logger.Error("rule not changed", "conditionSet", pol.set.Name, "err", err)
	}
	pol.stale = true
	l.lookAtStatuses(now)
}
