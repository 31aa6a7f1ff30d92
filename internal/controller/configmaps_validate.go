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
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/validate"
)

// validateConfigMapsEvery is how often to validate a version again that was rejected
// because of nodes or other sets.
const validateConfigMapsEvery = 5 * time.Second

// editConfigMapAgain is the advice for a version that matches too many nodes, like
// [editAgain].
const editConfigMapAgain = ". This version is not judged again when fewer do: change the ConfigMap or that annotation"

// updateConfigMap takes in the current content of a ConfigMap.
func (l *loop) updateConfigMap(now time.Time, s *configMapSet) {
	defer l.updateSetMetrics(s)
	switch {
	case s.refused != nil && !s.mayBecomeValid && configmaps.SameContent(s.refused, s.ConfigMap): // unchanged, so still invalid
	case s.err != nil:
		l.rejectConfigMap(now, s, s.err)
	case s.lastGood != nil && s.version.Same(s.lastGood):
		l.acceptConfigMap(now, s, s.lastGood)
	default:
		if s.lastGood != nil {
			if strayed := s.lastGood.Unrecognized(s.ConfigMap); len(strayed) > 0 {
				l.rejectConfigMap(now, s, strayed)
				return
			}
		}
		l.validateConfigMap(now, s)
	}
}

// validateConfigMaps validates versions again that were rejected because of nodes or
// other sets.
func (l *loop) validateConfigMaps(now time.Time) {
	if l.configMaps.validateAt.IsZero() || now.Before(l.configMaps.validateAt) {
		return
	}
	if !l.configMaps.changed {
		l.configMaps.validateAt = now.Add(validateConfigMapsEvery)
		return
	}
	l.configMaps.validateAt, l.configMaps.changed = time.Time{}, false
	for _, name := range slices.Sorted(maps.Keys(l.configMaps.known)) {
		if s := l.configMaps.known[name]; s.mayBecomeValid {
			l.validateConfigMap(now, s)
			l.updateSetMetrics(s)
		}
	}
}

// validateConfigMap decides whether a parsed version is valid.
func (l *loop) validateConfigMap(now time.Time, s *configMapSet) {
	warnings, problems, hurts := l.validateSets(s)
	if len(problems) > 0 {
		l.rejectConfigMap(now, s, problems)
		if s.mayBecomeValid = !hurts; s.mayBecomeValid {
			l.configMaps.validateAt = times.Earliest(l.configMaps.validateAt, now.Add(validateConfigMapsEvery))
		}
		return
	}
	s.warnings = warnings
	l.acceptConfigMap(now, s, s.version)
}

// configMapMessage adapts advice about a set to ConfigMaps.
var configMapMessage = strings.NewReplacer("annotate the set", "annotate the ConfigMap", "Write status:", "Write conditionStatus:")

// validateSets returns warnings about a version, all problems, and whether it matches too
// many nodes. Either all sets of a version are valid or none is followed. If a set
// duplicates another followed set, this version has to change even if it is older,
// because the user is editing it.
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
			if pol.isOrWasFollowed() { // also if an earlier term stored it and this one has not validated it yet
				c.Before = pol.set
			}
		}
		if !l.configMaps.loaded {
			c.Placed = l.placed
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
		for _, warning := range verdict.Warnings {
			field, text := fieldOf(warning)
			warnings = append(warnings, lineError(set, field, text).Error())
		}
		others = append(others, set.ConditionSet)
	}
	return warnings, problems, hurts
}

// lineError returns a message with the key and line in the ConfigMap.
func lineError(set configmaps.Set, field, text string) configmaps.LineError {
	key, line := set.Where(field)
	return configmaps.LineError{Key: key, Line: line, Text: "set " + set.Spec.Type + ": " + configMapMessage.Replace(text)}
}

// fieldOf splits a warning into its field and text. Warnings about annotations have no
// field; they fit the ConfigMap's annotations as they are.
func fieldOf(warning string) (field, text string) {
	if field, text, found := strings.Cut(warning, ": "); found && strings.HasPrefix(field, "spec.") {
		return field, text
	}
	return "", warning
}

// acceptConfigMap requests a revision of a valid version, which takes effect afterwards.
func (l *loop) acceptConfigMap(now time.Time, s *configMapSet, version *configmaps.Version) {
	wasRefused := s.refused != nil
	s.lastGood, s.refused, s.problem, s.mayBecomeValid = version, nil, nil, false
	switch {
	case s.inForce == nil && !l.configMaps.loaded:
		// No revision exists; it may have been lost. Enforce the version now, because
		// otherwise existing taints would be removed.
		l.enforce(now, s, version)
	case wasRefused && !s.isBehind(): // the last valid version was restored
		l.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), EventReason: treat.Accepted, Message: "back to the version that is in force"})
	}
	l.configMaps.writeAt = now
}

// rejectConfigMap records the problems of a version. It reports the same content again
// only after a while.
func (l *loop) rejectConfigMap(now time.Time, s *configMapSet, err error) {
	isSame := s.refused != nil && configmaps.SameContent(s.refused, s.ConfigMap)
	s.refused, s.problem, s.mayBecomeValid = s.ConfigMap, err, false
	if isSame {
		return
	}
	l.cfg.Logger.Warn("configmap not accepted", "configMap", s.Name, "resourceVersion", s.ResourceVersion, "err", err)
	l.reportConfigMap(now, s)
	l.statuses.Schedule(now)
}

// reportConfigMap publishes an Event with the problems of the current content.
func (l *loop) reportConfigMap(now time.Time, s *configMapSet) {
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
	l.cfg.Event(treat.Event{Policy: treat.AboutConfigMap(s.ConfigMap), Failure: what + message + more})
}
