package controller

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/validate"
)

// validateConfigMapsEvery is how often a version is judged again that is refused for what
// goes on around it: which names nodes report, which other sets there are.
const validateConfigMapsEvery = 5 * time.Second

// editConfigMapAgain is said where too many nodes match, for the reason of [againByHand].
const editConfigMapAgain = ". This version is not judged again when fewer do: change the ConfigMap or that annotation"

// queueConfigMap takes in what a ConfigMap says now.
func (l *loop) queueConfigMap(now time.Time, s *configMapSet) {
	defer l.updateSetMetrics(s)
	switch {
	case s.refused != nil && !s.waits && configmaps.SameContent(s.refused, s.ConfigMap): // it stays so until it says something else
	case s.err != nil:
		l.refuseConfigMap(now, s, s.err)
	case s.lastGood != nil && s.version.Same(s.lastGood):
		l.acceptConfigMap(now, s, s.lastGood)
	default:
		if s.lastGood != nil {
			if strayed := s.lastGood.Unrecognized(s.ConfigMap); len(strayed) > 0 {
				l.refuseConfigMap(now, s, strayed)
				return
			}
		}
		l.validateConfigMap(now, s)
	}
}

// validateConfigMaps judges again what was refused for what goes on around it.
func (l *loop) validateConfigMaps(now time.Time) {
	if l.configMaps.judgeAt.IsZero() || now.Before(l.configMaps.judgeAt) {
		return
	}
	if !l.configMaps.changed {
		l.configMaps.judgeAt = now.Add(validateConfigMapsEvery)
		return
	}
	l.configMaps.judgeAt, l.configMaps.changed = time.Time{}, false
	for _, name := range slices.Sorted(maps.Keys(l.configMaps.known)) {
		if s := l.configMaps.known[name]; s.waits {
			l.validateConfigMap(now, s)
			l.updateSetMetrics(s)
		}
	}
}

// validateConfigMap finds out whether a version that can be read is good.
func (l *loop) validateConfigMap(now time.Time, s *configMapSet) {
	warnings, problems, hurts := l.validateSets(s)
	if len(problems) > 0 {
		l.refuseConfigMap(now, s, problems)
		if s.waits = !hurts; s.waits {
			l.configMaps.judgeAt = earliest(l.configMaps.judgeAt, now.Add(validateConfigMapsEvery))
		}
		return
	}
	s.warnings = warnings
	l.acceptConfigMap(now, s, s.version)
}

// configMapMessage are what advice about a set is called where it is written in a ConfigMap.
var configMapMessage = strings.NewReplacer("annotate the set", "annotate the ConfigMap", "Write status:", "Write conditionStatus:")

// validateSets returns what is to be said of a version, and everything that speaks
// against it, and whether it is too many nodes that do. All of its sets are good, or none of them is followed. It is the one
// that is being written: where it says the same as another set that is followed,
// it is the one that has to change, whichever is older.
func (l *loop) validateSets(s *configMapSet) (warnings []string, problems configmaps.LineErrors, hurts bool) {
	var others []*v1alpha1.ConditionSet
	for _, pol := range l.sets {
		if source := configmaps.ConfigMapOf(pol.set); pol.err == nil && (source == nil || source.UID != s.UID) {
			others = append(others, pol.set)
		}
	}
	reported := l.core.Reported()
	for _, set := range s.version.Sets {
		c := validate.Case{Set: set.ConditionSet, Others: others, Reported: reported, Impact: l.core.Impact}
		if pol := l.sets[set.Name]; pol != nil {
			c.Before = pol.inForce
			if pol.isStanding() { // also if the reign before has kept it, and this one has not judged it yet
				c.Before = pol.set
			}
		}
		if !l.configMaps.loaded {
			c.Placed = l.placed
		}
		judge := validate.Judge
		if c.Before != nil && equality.Semantic.DeepEqual(c.Before.Spec, set.Spec) {
			judge = validate.Standing // there is nothing new to say of it
		}
		verdict := judge(c)
		for _, p := range verdict.Problems {
			if p.Reason == validate.Impact {
				hurts = true
				p.Text += editConfigMapAgain
			}
			problems = append(problems, located(set, p.Field, p.Text))
		}
		for _, warning := range verdict.Warnings {
			field, text := fieldOf(warning)
			warnings = append(warnings, located(set, field, text).Error())
		}
		others = append(others, set.ConditionSet)
	}
	return warnings, problems, hurts
}

// located says where in a ConfigMap something is written that there is something to
// say of.
func located(set configmaps.Set, field, text string) configmaps.LineError {
	key, line := set.Where(field)
	return configmaps.LineError{Key: key, Line: line, Text: "set " + set.Spec.Type + ": " + configMapMessage.Replace(text)}
}

// fieldOf takes the field off a warning that begins with one. What is said of the
// annotations of a set is right for those of the ConfigMap as it is.
func fieldOf(warning string) (field, text string) {
	if field, text, found := strings.Cut(warning, ": "); found && strings.HasPrefix(field, "spec.") {
		return field, text
	}
	return "", warning
}

// acceptConfigMap has a good version kept. It is in force when it is.
func (l *loop) acceptConfigMap(now time.Time, s *configMapSet, version *configmaps.Version) {
	wasRefused := s.refused != nil
	s.lastGood, s.refused, s.fault, s.waits = version, nil, nil, false
	switch {
	case s.inForce == nil && !l.configMaps.loaded:
		// Nothing is kept, but somebody may have lost it: taints that stand go if no
		// set asks for them now.
		l.enforce(now, s, version)
	case wasRefused && !s.isBehind(): // the last good version was brought back
		l.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), EventReason: treat.Accepted, Message: "back to the version that is in force"})
	}
	l.configMaps.writeAt = now
}

// refuseConfigMap notes what is wrong with a version. What is wrong with the same one is
// told again only after a while.
func (l *loop) refuseConfigMap(now time.Time, s *configMapSet, err error) {
	isSame := s.refused != nil && configmaps.SameContent(s.refused, s.ConfigMap)
	s.refused, s.fault, s.waits = s.ConfigMap, err, false
	if isSame {
		return
	}
	l.cfg.Logger.Warn("configmap not accepted", "configMap", s.Name, "resourceVersion", s.ResourceVersion, "err", err)
	l.reportConfigMap(now, s)
	l.lookAtStatuses(now)
}

// reportConfigMap tells what is wrong with the version that is there now.
func (l *loop) reportConfigMap(now time.Time, s *configMapSet) {
	what, more := "nothing of it is in force, because there is no good version yet", ""
	switch {
	case s.lastGood != nil:
		what = "the last good version stays in force"
	case s.holds():
		what = "nothing of it is in force, and taints that its sets have placed stay until there is a good version"
		more = "; " + s.stored.Err.Error()
	}
	what = "not accepted, " + what + ": "
	words := s.fault.Error()
	if lines, isOfLines := errors.AsType[configmaps.LineErrors](s.fault); isOfLines {
		words = lines.Within(treat.MaxNote - len(what) - min(len(more), treat.MaxNote/3))
	}
	s.reportedAt = now
	l.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), Failure: what + words + more})
}
