package controller

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/vet"
)

// judgeSheetsEvery is how often a version is judged again that is refused for what
// goes on around it: how many nodes are sick, which other sets there are.
const judgeSheetsEvery = 5 * time.Second

// considerSheet takes in what a ConfigMap says now.
func (l *loop) considerSheet(now time.Time, s *sheet) {
	defer func() { l.cfg.Metrics.sheet(s.Name, s.isBehind()) }()
	switch {
	case s.err != nil:
		l.refuseSheet(now, s, s.err)
	case s.good != nil && s.version.Same(s.good):
		l.acceptSheet(now, s, s.good)
	default:
		l.judgeSheet(now, s)
	}
}

// judgeSheets judges again what was refused for what goes on around it.
func (l *loop) judgeSheets(now time.Time) {
	if l.sheets.judgeAt.IsZero() || now.Before(l.sheets.judgeAt) {
		return
	}
	if !l.sheets.moved {
		l.sheets.judgeAt = now.Add(judgeSheetsEvery)
		return
	}
	l.sheets.judgeAt, l.sheets.moved = time.Time{}, false
	for _, name := range slices.Sorted(maps.Keys(l.sheets.known)) {
		if s := l.sheets.known[name]; s.refused != nil && s.version != nil {
			l.judgeSheet(now, s)
			l.cfg.Metrics.sheet(name, s.isBehind())
		}
	}
}

// judgeSheet finds out whether a version that can be read is good.
func (l *loop) judgeSheet(now time.Time, s *sheet) {
	warnings, err := l.vetSheet(s)
	if err != nil {
		l.refuseSheet(now, s, err)
		l.sheets.judgeAt = earliest(l.sheets.judgeAt, now.Add(judgeSheetsEvery))
		return
	}
	s.warnings = warnings
	l.acceptSheet(now, s, s.version)
}

// sheetWords are what advice about a set is called where it is written in a ConfigMap.
var sheetWords = strings.NewReplacer("annotate the set", "annotate the ConfigMap", "Write status:", "Write conditionStatus:")

// vetSheet returns what is to be said of a version, and everything that speaks
// against it. All of its sets are good, or none of them is followed. It is the one
// that is being written: where it says the same as another set that is followed,
// it is the one that has to change, whichever is older.
func (l *loop) vetSheet(s *sheet) (warnings []string, err error) {
	var others []*v1alpha1.ConditionSet
	for _, pol := range l.policies {
		if source := configmaps.IsWrittenIn(pol.set); pol.err == nil && (source == nil || source.UID != s.UID) {
			others = append(others, pol.set)
		}
	}
	reported := l.core.Reported()
	var problems configmaps.LineErrors
	for _, set := range s.version.Sets {
		c := vet.Case{Set: set.ConditionSet, Others: others, Reported: reported, Impact: l.core.Impact}
		if pol := l.policies[set.Name]; pol != nil {
			c.Before = pol.inForce
			if pol.stands() { // also if the reign before has kept it, and this one has not judged it yet
				c.Before = pol.set
			}
		}
		judge := vet.Judge
		if c.Before != nil && equality.Semantic.DeepEqual(c.Before.Spec, set.Spec) {
			judge = vet.Standing
		}
		verdict := judge(c)
		for _, p := range verdict.Problems {
			problems = append(problems, located(set, p.Field, p.Text))
		}
		for _, warning := range verdict.Warnings {
			field, text := fieldOf(warning)
			warnings = append(warnings, located(set, field, text).Error())
		}
		others = append(others, set.ConditionSet)
	}
	if len(problems) > 0 {
		return warnings, problems
	}
	return warnings, nil
}

// located says where in a ConfigMap something is written that there is something to
// say of.
func located(set configmaps.Set, field, text string) configmaps.LineError {
	key, line := set.Where(field)
	return configmaps.LineError{Key: key, Line: line, Text: "set " + set.Spec.Type + ": " + sheetWords.Replace(text)}
}

// fieldOf takes the field off a warning that begins with one. What is said of the
// annotations of a set is right for those of the ConfigMap as it is.
func fieldOf(warning string) (field, text string) {
	if field, text, found := strings.Cut(warning, ": "); found && strings.HasPrefix(field, "spec.") {
		return field, text
	}
	return "", warning
}

// acceptSheet has a good version kept. It is in force when it is.
func (l *loop) acceptSheet(now time.Time, s *sheet, version *configmaps.Version) {
	wasRefused := s.refused != nil
	s.good, s.refused = version, nil
	switch {
	case s.inForce == nil && !l.sheets.loaded:
		// Nothing is kept, but somebody may have lost it: taints that stand go if no
		// set asks for them now.
		l.enforce(now, s, version)
	case wasRefused && !s.isBehind(): // the last good version was brought back
		l.cfg.Announce(treat.Announcement{ConfigMap: s.ConfigMap, Word: "back to the version that is in force"})
	}
	l.sheets.shelfAt = now
}

// refuseSheet tells once for every version what is wrong with it.
func (l *loop) refuseSheet(now time.Time, s *sheet, err error) {
	before := s.refused
	s.refused = s.ConfigMap
	if before != nil && configmaps.SaysTheSame(before, s.ConfigMap) {
		return
	}
	what := "nothing of it is in force, because there is no good version yet"
	switch {
	case s.good != nil:
		what = "the last good version stays in force"
	case s.holds():
		what = "nothing of it is in force, and taints that its sets have placed stay until there is a good version, because " + s.kept.Err.Error()
	}
	l.cfg.Logger.Warn("configmap not accepted", "configMap", s.Name, "resourceVersion", s.ResourceVersion, "err", err)
	l.cfg.Announce(treat.Announcement{ConfigMap: s.ConfigMap, Trouble: "not accepted, " + what + ": " + err.Error()})
	l.lookAtStatuses(now)
}
