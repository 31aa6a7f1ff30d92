package conditionset

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// validateWaitingEvery is how long a set waits that was rejected because no node reports its
// condition, times the number of these sets, because each validation looks at every node.
const validateWaitingEvery = 2 * time.Second

// editAgain is the advice for a stored set that matches too many nodes. The controller
// does not accept it later by itself: a mistaken set that matches all healthy nodes would
// get in as soon as some nodes are gone or others join.
const editAgain = ". The controller does not check this version again when fewer nodes match: change the set or that annotation, or delete the set and create it again"

// setValidation holds pending validations of sets.
type setValidation struct {
	due       bool      // a set was added, changed or deleted, which may unblock another
	changed   bool      // nodes have changed since waiting sets were validated
	waitingAt time.Time // next validation of waiting sets if nodes change; zero for none

	toProve bool      // nodes have changed since unproven sets were judged
	proveAt time.Time // earliest next judgement
}

// validateDue validates every set again after a set has changed. Before the nodes are
// known, it looks only at sets that an earlier term accepted, because their impact is not
// new.
func (p *Policy) validateDue(now time.Time, knowsNodes bool) {
	if !p.validation.due {
		return
	}
	// A rejected set does not block the sets before it any more, so repeat until nothing
	// changes.
	names := slices.Sorted(maps.Keys(p.known))
	for passes, hasChanged := 0, true; hasChanged && passes <= len(names); passes++ {
		hasChanged = false
		for _, name := range names {
			pol := p.known[name]
			stood, wasRefused := pol.isOrWasFollowed(), pol.isRefused()
			p.revalidate(now, pol, knowsNodes)
			hasChanged = hasChanged || pol.isOrWasFollowed() != stood || pol.isRefused() != wasRefused
		}
	}
	if knowsNodes {
		if !p.host.IsLoaded() {
			for _, name := range names {
				p.startProof(now, p.known[name])
			}
		}
		p.validation.due = false
		p.scheduleWaiting(now)
	}
}

// revalidate compares a set with the other sets first, which is cheap. It compares the set
// with nodes only if this version was not validated yet or another set blocked it.
func (p *Policy) revalidate(now time.Time, pol *conditionSet, knowsNodes bool) {
	if !pol.needsValidation && pol.isRefusedFor(validate.Impact) {
		return // until the user changes it
	}
	c := p.validationCase(pol)
	standing := validate.StoredConditionSet(c)
	switch isGood := len(standing.Problems) == 0; {
	case isGood && pol.isOrWasFollowed():
		p.accept(now, pol)
	case isGood && pol.needsValidation && pol.restored && wasRefusedForImpact(pol.set, pol.status.Stored):
		p.reject(now, pol, []validate.Problem{problemFromStatus(pol.status.Stored)})
	case !knowsNodes:
	case isGood && (pol.needsValidation || pol.isRefusedFor(validate.Duplicate)):
		p.validate(now, pol)
	case !isGood && (pol.hasNewProblems(standing.Problems) || !slices.Equal(pol.standing, standing.Problems)): // or another set is the cause now
		pol.standing = standing.Problems
		c.Impact = p.host.Core().Impact // the message then includes the impact
		p.reject(now, pol, validate.StoredConditionSet(c).Problems)
		pol.awaitsNodes = false
	}
}

// validateWaiting validates sets again that were rejected because no node reports their
// condition, if nodes have changed. It returns when the next validation is due. Of two
// conflicting sets, the set with precedence is validated first.
func (p *Policy) validateWaiting(now time.Time) (due time.Time) {
	switch {
	case p.validation.waitingAt.IsZero() || !p.validation.changed:
		return time.Time{}
	case now.Before(p.validation.waitingAt):
		return p.validation.waitingAt
	}
	p.validation.changed = false
	var waiting []*conditionSet
	for _, pol := range p.known {
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
		p.validate(now, pol)
		p.validation.due = p.validation.due || pol.err == nil // another set may have waited for its previous version
	}
	p.scheduleWaiting(now)
	if p.validation.due {
		return now
	}
	return time.Time{}
}

// scheduleWaiting schedules the next validation of waiting sets, in case nodes change.
func (p *Policy) scheduleWaiting(now time.Time) {
	waiting := 0
	for _, pol := range p.known {
		if pol.awaitsNodes {
			waiting++
		}
	}
	p.validation.waitingAt = time.Time{}
	if waiting > 0 {
		p.validation.waitingAt = now.Add(time.Duration(waiting) * validateWaitingEvery)
	}
}

// validate compares a set with other sets and with nodes.
func (p *Policy) validate(now time.Time, pol *conditionSet) {
	c := p.validationCase(pol)
	c.Reported, c.Impact = p.host.Core().Reported(), p.host.Core().Impact
	if pol.restored {
		c.Placed = p.placed
	}
	verdict := validate.ConditionSet(c)
	if len(verdict.Problems) == 0 {
		p.accept(now, pol)
		return
	}
	for i := range verdict.Problems {
		if p := &verdict.Problems[i]; p.Reason == validate.Impact {
			p.Text += editAgain
		}
	}
	p.reject(now, pol, verdict.Problems)
	pol.awaitsNodes = !slices.ContainsFunc(verdict.Problems, func(p validate.Problem) bool { return p.Reason != validate.NearMiss })
}

// placed counts the nodes that match a rule and have its taint, and those among them with
// NoExecute. NoSchedule counts as its taint, because the rule places it beyond the bound.
func (p *Policy) placed(rule triage.Rule) (tainted, emptied int) {
	matching, err := p.host.Core().Matching(rule)
	if err != nil { // a compiled rule is valid
		return 0, 0
	}
	wanted := rule.Response.Taint
	for name := range matching {
		var has triage.Effect
		for _, t := range p.host.Node(name).Taints {
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

// validationCase returns the validation case of a set without node reports. Its others are the
// sets with precedence over this set.
func (p *Policy) validationCase(pol *conditionSet) validate.Case {
	c := validate.Case{Set: pol.set, Before: pol.inForce}
	if pol.withholdsTaints() { // its impact is not in effect
		c.Before = nil
	} else if of := p.copyInForce(pol); c.Before == nil && of != nil { // it takes over, so its impact is not new
		c.Before = of.inForce
	}
	for _, other := range p.known {
		if other != pol && other.hasPrecedenceOver(pol) {
			c.Others = append(c.Others, other.version())
		}
	}
	return c
}

// copyInForce returns the set of the other form, in the API or in a ConfigMap, that is the same and
// in force, nil for none.
func (p *Policy) copyInForce(pol *conditionSet) *conditionSet {
	for _, other := range p.known {
		if other.isInForce() && !other.withholdsTaints() && validate.IsCopy(other.set, pol.set) {
			return other
		}
	}
	return nil
}

// handOver has the copy of a set take over before the set is removed, so that taints stay.
func (p *Policy) handOver(now time.Time, from *conditionSet) {
	if !from.isInForce() || from.withholdsTaints() {
		return
	}
	var successor *conditionSet // the oldest, which also has precedence after a restart
	for _, other := range p.known {
		if other.isRefusedFor(validate.Duplicate) && len(other.problems) == 1 && validate.IsCopy(other.set, from.set) && (successor == nil || validate.Before(other.set, successor.set)) {
			successor = other
		}
	}
	if successor != nil {
		p.accept(now, successor)
	}
}

// hasPrecedenceOver reports whether this set has precedence over the newest version of another
// set if the two conflict: a followed set over a version that is not, otherwise the older set. Of a
// set and its copy, the ConditionSet has precedence as soon as it is followed.
// A set without a version in force or to validate blocks no other.
func (pol *conditionSet) hasPrecedenceOver(other *conditionSet) bool {
	if pol.version() == nil {
		return false
	}
	mine, its := pol.isOrWasFollowed() || pol.inForce != nil, other.isOrWasFollowed()
	if validate.IsCopy(pol.version(), other.set) {
		return pol.isInAPI() && mine
	}
	if mine != its {
		return mine
	}
	return validate.Before(pol.set, other.set)
}

// version returns the version that conflicts with other sets: the version in force if the
// newest is rejected, otherwise the newest; nil for none.
func (pol *conditionSet) version() *v1alpha1.ConditionSet {
	if pol.isRefused() {
		return pol.inForce
	}
	return pol.set
}

// keepsPrevious reports whether the newest version is rejected and an earlier one is in force.
func (pol *conditionSet) keepsPrevious() bool { return pol.isRefused() && pol.inForce != nil }

func (pol *conditionSet) isRefused() bool { return pol.err != nil && !pol.needsValidation }

// isRefusedFor reports whether the last validation found this kind of problem.
func (pol *conditionSet) isRefusedFor(reason validate.Reason) bool {
	return slices.ContainsFunc(pol.problems, func(problem validate.Problem) bool { return problem.Reason == reason })
}

// isOrWasFollowed reports whether this version is followed by this term or was by an earlier
// one.
func (pol *conditionSet) isOrWasFollowed() bool {
	return pol.isInForce() || pol.needsValidation && wasAccepted(pol.set, pol.status.Stored)
}

// accept follows a set, if it does not yet.
func (p *Policy) accept(now time.Time, pol *conditionSet) {
	if pol.isInForce() && pol.err == nil {
		if pol.needsValidation {
			p.confirmProof(now, pol)
		}
		pol.needsValidation = false
		return
	}
	rule, err := observe.ConditionSet(pol.set)
	lacks := proof{}
	if err == nil {
		of := p.copyInForce(pol)
		switch lacks = pol.restoredProof(); {
		case of != nil:
			lacks = of.proof
		case len(lacks.types) == 0 && p.host.IsLoaded(): // otherwise after the nodes are known
			lacks = p.missingProof(pol)
		}
		rule.Hold = pol.hold(&lacks)
		err = p.host.Core().SetRule(now, rule)
	}
	if err != nil { // validate did not detect it
		p.reject(now, pol, []validate.Problem{{Field: "spec", Text: err.Error(), Reason: validate.Invalid}})
		return
	}
	pol.rule, pol.inForce, pol.proof = rule, pol.set, lacks
	p.validation.toProve = p.validation.toProve || len(lacks.types) > 0
	pol.problems, pol.err, pol.needsValidation, pol.awaitsNodes, pol.status.Stale = nil, nil, false, false, true
	p.host.Statuses().Schedule(now)
	p.unowned.stale = true
	p.updateSetMetricsOf(pol)
	p.cfg.Logger.Info("set accepted", "conditionSet", pol.set.Name, "generation", pol.set.Generation)
}

// reject does not follow the newest version of a set, and reports why. The last accepted
// version of a ConditionSet stays in force. The versions of a ConfigMap's sets are in force
// together, so none of them stays alone.
func (p *Policy) reject(now time.Time, pol *conditionSet, problems []validate.Problem) {
	isNews := pol.hasNewProblems(problems)
	if !isNews && slices.Equal(pol.problems, problems) {
		return
	}
	if keeps := pol.isInAPI() && pol.inForce != nil && !pol.isInForce(); !keeps {
		pol.rule, pol.inForce = triage.Rule{}, nil
		p.host.Core().RemoveRule(now, setRule(pol.set.Name))
	} else {
		pol.proof.released = false // an unproven version is not judged while a newer one is rejected
		p.applyHold(now, pol)
		p.applyDryRun(now, pol)
	}
	pol.problems, pol.err, pol.needsValidation, pol.status.Stale = problems, validate.Verdict{Problems: problems}.Err(), false, true
	p.host.Statuses().Schedule(now)
	p.unowned.stale = true
	p.updateSetMetricsOf(pol)
	if !isNews {
		return
	}
	p.cfg.Event(treat.Event{Policy: treat.AboutSet(pol.set), EventReason: treat.NotAccepted, Failure: "not accepted: " + pol.problemMessage()})
	p.cfg.Logger.Warn("set not accepted", "conditionSet", pol.set.Name, "generation", pol.set.Generation, "keepsPrevious", pol.keepsPrevious(), "err", pol.err)
}

// problemMessage says why the newest version is not followed, and what is in force.
func (pol *conditionSet) problemMessage() string {
	if pol.keepsPrevious() {
		return pol.err.Error() + status.KeepsAccepted
	}
	return pol.err.Error()
}

// applyDryRun switches the version in force off if the newest version has mode Observe, even if that
// version is rejected.
func (p *Policy) applyDryRun(now time.Time, pol *conditionSet) {
	is := pol.switches().Observe
	if pol.rule.DryRun == is {
		return
	}
	pol.rule.DryRun = is
	if err := p.host.Core().SetRule(now, pol.rule); err != nil { // a followed rule is valid
		p.cfg.Logger.Error("rule not changed", "conditionSet", pol.set.Name, "err", err)
	}
}

// restoreAccepted puts the version in force that an earlier term accepted, if the newest is not
// that version. A version that was not proven is held: its taints stay, and it places no more.
func (p *Policy) restoreAccepted(now time.Time, pol *conditionSet) {
	accepted := pol.status.Stored.AcceptedSpec
	if !pol.isInAPI() || accepted == "" || wasAccepted(pol.set, pol.status.Stored) {
		return
	}
	spec, err := format.DecodeSpec[v1alpha1.ConditionSetSpec](accepted)
	version := pol.set.DeepCopy()
	version.Spec, version.Generation = spec, 0 // of an unknown generation
	if err == nil {
		err = validate.StoredConditionSet(validate.Case{Set: version}).Err()
	}
	var rule triage.Rule
	if err == nil {
		rule, err = observe.ConditionSet(version)
	}
	lacks := proof{types: validate.Unproven(version, nil)}
	if err == nil {
		rule.Hold, rule.DryRun = pol.hold(&lacks), rule.DryRun || pol.set.Spec.Observes()
		err = p.host.Core().SetRule(now, rule)
	}
	if err != nil {
		p.cfg.Logger.Warn("accepted version unreadable", "conditionSet", pol.set.Name, "err", err)
		return
	}
	pol.rule, pol.inForce, pol.proof, p.unowned.stale = rule, version, lacks, true
}

// updateSetMetricsOf updates the metric of the ConfigMap that contains a set, if any.
func (p *Policy) updateSetMetricsOf(pol *conditionSet) {
	if source := configmaps.ConfigMapOf(pol.set); source != nil && p.configMaps.known[source.Name] != nil {
		p.updateSetMetrics(p.configMaps.known[source.Name])
	}
}

// hasNewProblems reports whether problems differ from the reported ones in more than numbers.
func (pol *conditionSet) hasNewProblems(problems []validate.Problem) bool {
	return pol.needsValidation || !slices.EqualFunc(pol.problems, problems, func(a, b validate.Problem) bool { return a.Reason == b.Reason && a.Field == b.Field })
}

// isInForce reports whether the current version of the set is in force.
func (pol *conditionSet) isInForce() bool {
	return pol.inForce != nil && pol.inForce.UID == pol.set.UID && pol.inForce.Generation == pol.set.Generation
}

// wasAccepted reports whether a status says that this version of a set is followed, even
// if held. A new leader continues with it however many nodes match now: dropping a policy
// in the middle of a storm does more harm than keeping it.
func wasAccepted(set *v1alpha1.ConditionSet, status v1alpha1.ConditionSetStatus) bool {
	accepted := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted)
	return accepted != nil && accepted.ObservedGeneration == set.Generation &&
		(accepted.Status == "True" || accepted.Reason == reasonHeld || accepted.Reason == reasonAwaitingReports)
}

// wasRefusedForImpact reports whether a status says that this version was rejected
// because too many nodes match. A new leader keeps that decision however few match now,
// unless the user has accepted the impact since.
func wasRefusedForImpact(set *v1alpha1.ConditionSet, status v1alpha1.ConditionSetStatus) bool {
	accepted := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted)
	return accepted != nil && accepted.Status == "False" && accepted.Reason == string(validate.Impact) && accepted.ObservedGeneration == set.Generation &&
		set.Annotations[v1alpha1.AcceptImpactAnnotation] != "true"
}

// problemFromStatus returns the problem of a rejecting status, with its message as it is.
func problemFromStatus(stored v1alpha1.ConditionSetStatus) validate.Problem {
	message := meta.FindStatusCondition(stored.Conditions, v1alpha1.Accepted).Message
	return validate.Problem{Text: strings.TrimSuffix(message, status.KeepsAccepted), Reason: validate.Impact}
}
