package conditionset

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/validate"
)

// validateConfigMapsEvery is how often to validate a version again that was rejected
// because of nodes or other sets.
const validateConfigMapsEvery = 5 * time.Second

// editConfigMapAgain is the advice for a version that matches too many nodes, like
// [editAgain].
const editConfigMapAgain = ". The controller does not check this version again when fewer nodes match: change the ConfigMap or that annotation"

// updateConfigMap takes in the current content of a ConfigMap.
func (p *Policy) updateConfigMap(now time.Time, s *configMapSet) {
	defer p.updateSetMetrics(s)
	p.applyPause(now, s)
	switch {
	case s.refused != nil && !s.mayBecomeValid && configmaps.SameContent(s.refused, s.ConfigMap): // unchanged, so still invalid
	case s.err != nil:
		p.rejectConfigMap(now, s, s.err)
	case s.lastGood != nil && s.version.Same(s.lastGood):
		p.acceptConfigMap(now, s, s.lastGood)
	default:
		if s.lastGood != nil {
			if unrecognized := s.lastGood.Unrecognized(s.ConfigMap); len(unrecognized) > 0 {
				p.rejectConfigMap(now, s, unrecognized)
				return
			}
		}
		p.validateConfigMap(now, s)
	}
}

// validateConfigMaps validates versions again that were rejected because of nodes or
// other sets.
func (p *Policy) validateConfigMaps(now time.Time) {
	if p.configMaps.validateAt.IsZero() || now.Before(p.configMaps.validateAt) {
		return
	}
	if !p.configMaps.changed {
		p.configMaps.validateAt = now.Add(validateConfigMapsEvery)
		return
	}
	p.configMaps.validateAt, p.configMaps.changed = time.Time{}, false
	for _, name := range slices.Sorted(maps.Keys(p.configMaps.known)) {
		if s := p.configMaps.known[name]; s.mayBecomeValid {
			p.validateConfigMap(now, s)
			p.updateSetMetrics(s)
		}
	}
}

// validateConfigMap decides whether a parsed version is valid.
func (p *Policy) validateConfigMap(now time.Time, s *configMapSet) {
	warnings, problems, hurts := p.validateSets(s)
	if len(problems) > 0 {
		p.rejectConfigMap(now, s, problems)
		if s.mayBecomeValid = !hurts; s.mayBecomeValid {
			p.configMaps.validateAt = times.Earliest(p.configMaps.validateAt, now.Add(validateConfigMapsEvery))
		}
		return
	}
	s.warnings = warnings
	p.acceptConfigMap(now, s, s.version)
}

// validateSets returns warnings about a version, all problems, and whether it matches too
// many nodes. Either all sets of a version are valid or none is followed. If a set
// duplicates another followed set, this version has to change even if it is older,
// because the user is editing it.
func (p *Policy) validateSets(s *configMapSet) (warnings []string, problems configmaps.LineErrors, hurts bool) {
	var others []*v1alpha1.ConditionSet
	for _, pol := range p.known {
		if source := configmaps.ConfigMapOf(pol.set); pol.version() != nil && (source == nil || source.UID != s.UID) {
			others = append(others, pol.version())
		}
	}
	reported := p.host.Core().Reported()
	for _, set := range s.version.Sets {
		c := validate.Case{Set: set.ConditionSet, Reported: reported, Impact: p.host.Core().Impact}
		for _, other := range others {
			if !validate.IsCopy(other, set.ConditionSet) {
				c.Others = append(c.Others, other)
				continue
			}
			warnings = append(warnings, lineError(set, "spec.type", validate.WaitsFor(other)).Error())
			c.Before = other
		}
		if pol := p.known[set.Name]; pol != nil && pol.version() != nil {
			c.Before = pol.inForce
			if pol.isOrWasFollowed() { // also if an earlier term stored it and this one has not validated it yet
				c.Before = pol.set
			}
		}
		if !p.configMaps.loaded {
			c.Placed = p.placed
		}
		judge := validate.ConditionSet
		if c.Before != nil && equality.Semantic.DeepEqual(c.Before.Spec, set.Spec) {
			judge = validate.StoredConditionSet // unchanged: compare it with other sets only
		}
		verdict := judge(c)
		for _, p := range verdict.Problems {
			if p.Reason == validate.Impact {
				hurts = true
				p.Text += editConfigMapAgain
			}
			problems = append(problems, lineError(set, p.Field, p.Text))
		}
		for _, p := range verdict.Warnings {
			if !strings.HasPrefix(p.Field, "spec.") { // annotations are those of the ConfigMap
				p = validate.Problem{Text: p.String()}
			}
			warnings = append(warnings, lineError(set, p.Field, p.Text).Error())
		}
		others = append(others, set.ConditionSet)
	}
	return warnings, problems, hurts
}

// lineError returns a message with the key and line in the ConfigMap.
func lineError(set configmaps.Set, field, text string) configmaps.LineError {
	key, line := set.Where(field)
	return configmaps.LineError{Key: key, Line: line, Text: "set " + set.Spec.Type + ": " + text}
}

// acceptConfigMap requests a revision of a valid version, which takes effect afterwards.
func (p *Policy) acceptConfigMap(now time.Time, s *configMapSet, version *configmaps.Version) {
	wasRefused := s.refused != nil
	p.markMirrorsStale(now, s)
	s.lastGood, s.refused, s.problem, s.mayBecomeValid = version, nil, nil, false
	switch {
	case s.inForce == nil && !p.configMaps.loaded:
		// No revision exists; it may have been lost. Enforce the version now, because
		// otherwise existing taints would be removed.
		p.enforce(now, s, version)
	case wasRefused && !s.isBehind(): // the last valid version was restored
		p.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), EventReason: treat.Accepted, Message: "back to the version that is in force"})
	}
	p.configMaps.writeAt = now
}

// rejectConfigMap records the problems of a version. It reports the same content again
// only after a while.
func (p *Policy) rejectConfigMap(now time.Time, s *configMapSet, err error) {
	isSame := s.refused != nil && configmaps.SameContent(s.refused, s.ConfigMap)
	s.refused, s.problem, s.mayBecomeValid = s.ConfigMap, err, false
	p.markMirrorsStale(now, s)
	if isSame {
		return
	}
	p.cfg.Logger.Warn("configmap not accepted", "configMap", s.Name, "resourceVersion", s.ResourceVersion, "err", err)
	p.reportConfigMap(now, s)
}

// reportConfigMap publishes an Event with the problems of the current content.
func (p *Policy) reportConfigMap(now time.Time, s *configMapSet) {
	what, more := "nothing of it is in force, because there is no good version yet", ""
	switch {
	case s.lastGood != nil:
		what = "the last good version stays in force"
	case s.keepsTaints():
		what = "nothing of it is in force, and taints that its sets have placed stay until there is a good version"
		more = "; " + s.stored.Err.Error()
	}
	what = "not accepted, " + what + ": "
	message := s.problem.Error()
	if lines, isOfLines := errors.AsType[configmaps.LineErrors](s.problem); isOfLines {
		message = lines.Within(treat.MaxNote - len(what) - min(len(more), treat.MaxNote/3))
	}
	s.reportedAt = now
	p.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), EventReason: treat.NotAccepted, Failure: what + message + more})
}
