package controller

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// validateAgain is how long a set that is refused for a name that no node reports waits
// until it is judged again, times the number of such sets: a judgement looks at every
// node.
const validateAgain = 2 * time.Second

// editAgain is said of a stored set that too many nodes match. It must not get in by
// itself: a mistake that all healthy nodes match would, as soon as some of them are
// gone for a while or others come.
const editAgain = ". This version is not judged again when fewer do: change the set or that annotation, or delete it and create it anew"

// setValidation is what there is to do about verdicts.
type setValidation struct {
	due     bool      // a set has come, changed or gone, and may have been in another's way
	changed bool      // nodes have changed since sets that wait for that were judged
	again   time.Time // when they are judged next, if nodes have; zero if there is none

	toProve bool      // nodes have changed since unproven sets were judged
	proveAt time.Time // when they may be judged next
}

// validateSetsDue judges every set again, once some set has changed. A webhook has done so
// before, if there was one. Before the nodes are known, only those are looked at
// that an earlier reign has accepted: what they do to nodes is no news.
func (l *loop) validateSetsDue(now time.Time, knowsNodes bool) {
	if !l.validation.due {
		return
	}
	// One that is refused is no longer in the way of those that were looked at
	// before it, so they are looked at again.
	names := slices.Sorted(maps.Keys(l.sets))
	for passes, hasChanged := 0, true; hasChanged && passes <= len(names); passes++ {
		hasChanged = false
		for _, name := range names {
			pol := l.sets[name]
			stood, wasRefused := pol.isStanding(), pol.isRefused()
			l.queueSet(now, pol, knowsNodes)
			hasChanged = hasChanged || pol.isStanding() != stood || pol.isRefused() != wasRefused
		}
	}
	if knowsNodes {
		if !l.loaded {
			for _, name := range names {
				l.beginProof(now, l.sets[name])
			}
		}
		l.validation.due = false
		l.expectNodes(now)
	}
}

// queueSet holds a set against the others first, which is cheap, and against the
// nodes only if nobody has done that for this version yet, or if something else was
// in its way then.
func (l *loop) queueSet(now time.Time, pol *conditionSet, knowsNodes bool) {
	if !pol.unjudged && pol.isRefusedFor(validate.Impact) {
		return // until somebody changes it
	}
	c := l.caseOf(pol)
	standing := validate.Standing(c)
	switch isGood := len(standing.Problems) == 0; {
	case isGood && pol.isStanding():
		l.accept(now, pol)
	case isGood && pol.unjudged && pol.inherited && wasRefusedForImpact(pol.set, pol.status):
		l.refuse(now, pol, []validate.Problem{believed(pol.status)})
	case !knowsNodes:
	case isGood && (pol.unjudged || pol.isRefusedFor(validate.Duplicate)):
		l.validateSet(now, pol)
	case !isGood && pol.isNews(standing.Problems):
		c.Impact = l.core.Impact // so that the words tell what it would have done
		l.refuse(now, pol, validate.Standing(c).Problems)
		pol.awaitsNodes = false
	}
}

// validateWaiting judges the sets that are refused for a name that no node reports, if
// nodes have changed, and returns when it will. Of two that cannot stand together the
// first has its turn first.
func (l *loop) validateWaiting(now time.Time) (due time.Time) {
	switch {
	case l.validation.again.IsZero() || !l.validation.changed:
		return time.Time{}
	case now.Before(l.validation.again):
		return l.validation.again
	}
	l.validation.changed = false
	var waiting []*conditionSet
	for _, pol := range l.sets {
		if pol.awaitsNodes {
			waiting = append(waiting, pol)
		}
	}
	slices.SortFunc(waiting, func(a, b *conditionSet) int {
		if validate.Before(a.set, b.set) {
			return -1
		}
		return 1
	})
	for _, pol := range waiting {
		l.validateSet(now, pol)
	}
	l.expectNodes(now)
	return time.Time{}
}

// expectNodes says when the sets that wait for nodes are judged next, if any node
// changes.
func (l *loop) expectNodes(now time.Time) {
	waiting := 0
	for _, pol := range l.sets {
		if pol.awaitsNodes {
			waiting++
		}
	}
	l.validation.again = time.Time{}
	if waiting > 0 {
		l.validation.again = now.Add(time.Duration(waiting) * validateAgain)
	}
}

// validateSet holds a set against everything, nodes too.
func (l *loop) validateSet(now time.Time, pol *conditionSet) {
	c := l.caseOf(pol)
	c.Reported, c.Impact = l.core.Reported(), l.core.Impact
	if pol.inherited {
		c.Placed = l.placed
	}
	verdict := validate.Judge(c)
	if len(verdict.Problems) == 0 {
		l.accept(now, pol)
		return
	}
	for i := range verdict.Problems {
		if p := &verdict.Problems[i]; p.Reason == validate.Impact {
			p.Text += editAgain
		}
	}
	l.refuse(now, pol, verdict.Problems)
	pol.awaitsNodes = !slices.ContainsFunc(verdict.Problems, func(p validate.Problem) bool { return p.Reason != validate.NearMiss })
}

// placed counts the nodes that a rule matches and that have its taint already, and
// those of them that have its NoExecute. Where NoExecute is bounded, NoSchedule is
// what the rule places.
func (l *loop) placed(rule triage.Rule) (tainted, emptied int) {
	matching, err := l.core.Matching(rule)
	if err != nil { // a compiled rule is valid
		return 0, 0
	}
	wanted := rule.Response.Taint
	for name := range matching {
		var has triage.Effect
		for _, t := range l.nodeStates[name].ours {
			if t.Rule == rule.ID && t.Key == wanted.Key {
				has = max(has, t.Effect)
			}
		}
		if has >= min(wanted.Effect, triage.NoSchedule) {
			tainted++
		}
		if has == triage.NoExecute {
			emptied++
		}
	}
	return tainted, emptied
}

// caseOf returns a case without what nodes report. The others are those that go
// before the set if the two cannot stand together.
func (l *loop) caseOf(pol *conditionSet) validate.Case {
	c := validate.Case{Set: pol.set, Before: pol.inForce}
	if pol.withholds() { // what it would do is not done
		c.Before = nil
	}
	for _, other := range l.sets {
		if other != pol && other.goesBefore(pol) {
			c.Others = append(c.Others, other.set)
		}
	}
	return c
}

// goesBefore says whether this set stays if the two cannot stand together: one that
// is followed rather than one that is not, and otherwise the older one. One that is
// refused is in nobody's way.
func (p *conditionSet) goesBefore(other *conditionSet) bool {
	if p.isRefused() {
		return false
	}
	if mine, its := p.isStanding(), other.isStanding(); mine != its {
		return mine
	}
	return validate.Before(p.set, other.set)
}

func (p *conditionSet) isRefused() bool { return p.err != nil && !p.unjudged }

// isRefusedFor says whether that is among what the last verdict has against the set.
func (p *conditionSet) isRefusedFor(reason validate.Reason) bool {
	return slices.ContainsFunc(p.problems, func(problem validate.Problem) bool { return problem.Reason == reason })
}

// isStanding says whether this version of the set is followed, by this reign or by the
// one before.
func (p *conditionSet) isStanding() bool {
	return p.isInForce() || p.unjudged && wasAccepted(p.set, p.status)
}

// accept has a set followed, if it is not yet.
func (l *loop) accept(now time.Time, pol *conditionSet) {
	if pol.isInForce() && pol.err == nil {
		if pol.unjudged {
			l.confirmProof(now, pol)
		}
		pol.unjudged = false
		return
	}
	rule, err := observe.ConditionSet(pol.set)
	lacks := proof{}
	if err == nil {
		if lacks = pol.resumedProof(); len(lacks.types) == 0 && l.loaded { // else when the nodes are known
			lacks = l.lacking(pol)
		}
		rule.Hold = lacks.hold()
		err = l.core.SetRule(now, rule)
	}
	if err != nil { // which vet has not seen coming
		l.refuse(now, pol, []validate.Problem{{Field: "spec", Text: err.Error(), Reason: validate.Invalid}})
		return
	}
	pol.rule, pol.inForce, pol.proof = rule, pol.set, lacks
	l.validation.toProve = l.validation.toProve || len(lacks.types) > 0
	pol.problems, pol.err, pol.unjudged, pol.awaitsNodes, pol.stale = nil, nil, false, false, true
	l.lookAtStatuses(now)
	l.unowned.stale = true
	l.updateSetMetricsOf(pol)
	l.cfg.Logger.Info("set accepted", "conditionSet", pol.set.Name, "generation", pol.set.Generation)
}

// refuse has a set not followed, or no longer, and says why.
func (l *loop) refuse(now time.Time, pol *conditionSet, problems []validate.Problem) {
	isNews := pol.isNews(problems)
	if !isNews && slices.Equal(pol.problems, problems) {
		return
	}
	pol.rule, pol.inForce = triage.Rule{}, nil
	pol.problems, pol.err, pol.unjudged, pol.stale = problems, validate.Verdict{Problems: problems}.Err(), false, true
	l.lookAtStatuses(now)
	l.unowned.stale = true
	l.updateSetMetricsOf(pol)
	if !isNews {
		return
	}
	l.core.RemoveRule(now, setRule(pol.set.Name))
	l.cfg.Event(treat.Event{Policy: treat.AboutSet(pol.set), Failure: "not accepted: " + pol.err.Error()})
	l.cfg.Logger.Warn("set not accepted", "conditionSet", pol.set.Name, "generation", pol.set.Generation, "err", pol.err)
}

// updateSetMetricsOf does so for the ConfigMap that a set is written in, if it is.
func (l *loop) updateSetMetricsOf(pol *conditionSet) {
	if source := configmaps.ConfigMapOf(pol.set); source != nil && l.configMaps.known[source.Name] != nil {
		l.updateSetMetrics(l.configMaps.known[source.Name])
	}
}

// isNews says whether problems are others than were told. Numbers are not.
func (p *conditionSet) isNews(problems []validate.Problem) bool {
	return p.unjudged || !slices.EqualFunc(p.problems, problems, func(a, b validate.Problem) bool { return a.Reason == b.Reason && a.Field == b.Field })
}

// isInForce says whether this version of the set is the one that is followed.
func (p *conditionSet) isInForce() bool {
	return p.inForce != nil && p.inForce.UID == p.set.UID && p.inForce.Generation == p.set.Generation
}

// wasAccepted says whether a status tells that this version of a set is followed, if
// only on hold.
// Whoever takes over then goes on with it, however many nodes match by now: to drop
// a policy in the middle of a storm would hurt more than to keep it.
func wasAccepted(set *v1alpha1.ConditionSet, status v1alpha1.ConditionSetStatus) bool {
	accepted := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted)
	return accepted != nil && accepted.ObservedGeneration == set.Generation &&
		(accepted.Status == "True" || accepted.Reason == reasonHeld || accepted.Reason == reasonAwaitingReports)
}

// wasRefusedForImpact says whether a status tells that this version of a set is not
// followed because too many nodes match. Whoever takes over goes on with that, too,
// however few do by now, unless somebody has said since that it is meant.
func wasRefusedForImpact(set *v1alpha1.ConditionSet, status v1alpha1.ConditionSetStatus) bool {
	accepted := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted)
	return accepted != nil && accepted.Status == "False" && accepted.Reason == string(validate.Impact) && accepted.ObservedGeneration == set.Generation &&
		set.Annotations[v1alpha1.AcceptImpactAnnotation] != "true"
}

// believed returns the problem of which such a status tells, in its words.
func believed(status v1alpha1.ConditionSetStatus) validate.Problem {
	field, text, _ := strings.Cut(meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted).Message, ": ")
	return validate.Problem{Field: field, Text: text, Reason: validate.Impact}
}
