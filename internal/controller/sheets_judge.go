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
	"github.com/resourcestack/autohealer/internal/vet"
)

// judgeSheetsEvery is how often a version is judged again that is refused for what
// goes on around it: which names nodes report, which other sets there are.
const judgeSheetsEvery = 5 * time.Second

// sheetAgainByHand is said where too many nodes match, for the reason of [againByHand].
const sheetAgainByHand = ". This version is not judged again when fewer do: change the ConfigMap or that annotation"

// considerSheet takes in what a ConfigMap says now.
func (l *loop) considerSheet(now time.Time, s *sheet) {
	defer l.showSheet(s)
	switch {
	case s.refused != nil && !s.waits && configmaps.SaysTheSame(s.refused, s.ConfigMap): // it stays so until it says something else
	case s.err != nil:
		l.refuseSheet(now, s, s.err)
	case s.good != nil && s.version.Same(s.good):
		l.acceptSheet(now, s, s.good)
	default:
		if s.good != nil {
			if strayed := s.good.Strayed(s.ConfigMap); len(strayed) > 0 {
				l.refuseSheet(now, s, strayed)
				return
			}
		}
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
		if s := l.sheets.known[name]; s.waits {
			l.judgeSheet(now, s)
			l.showSheet(s)
		}
	}
}

// judgeSheet finds out whether a version that can be read is good.
func (l *loop) judgeSheet(now time.Time, s *sheet) {
	warnings, problems, hurts := l.vetSheet(s)
	if len(problems) > 0 {
		l.refuseSheet(now, s, problems)
		if s.waits = !hurts; s.waits {
			l.sheets.judgeAt = earliest(l.sheets.judgeAt, now.Add(judgeSheetsEvery))
		}
		return
	}
	s.warnings = warnings
	l.acceptSheet(now, s, s.version)
}

// sheetWords are what advice about a set is called where it is written in a ConfigMap.
var sheetWords = strings.NewReplacer("annotate the set", "annotate the ConfigMap", "Write status:", "Write conditionStatus:")

// vetSheet returns what is to be said of a version, and everything that speaks
// against it, and whether it is too many nodes that do. All of its sets are good, or none of them is followed. It is the one
// that is being written: where it says the same as another set that is followed,
// it is the one that has to change, whichever is older.
func (l *loop) vetSheet(s *sheet) (warnings []string, problems configmaps.LineErrors, hurts bool) {
	var others []*v1alpha1.ConditionSet
	for _, pol := range l.policies {
		if source := configmaps.IsWrittenIn(pol.set); pol.err == nil && (source == nil || source.UID != s.UID) {
			others = append(others, pol.set)
		}
	}
	reported := l.core.Reported()
	for _, set := range s.version.Sets {
		c := vet.Case{Set: set.ConditionSet, Others: others, Reported: reported, Impact: l.core.Impact}
		if pol := l.policies[set.Name]; pol != nil {
			c.Before = pol.inForce
			if pol.stands() { // also if the reign before has kept it, and this one has not judged it yet
				c.Before = pol.set
			}
		}
		if !l.sheets.loaded {
			c.Placed = l.placed
		}
		judge := vet.Judge
		if c.Before != nil && equality.Semantic.DeepEqual(c.Before.Spec, set.Spec) {
			judge = vet.Standing // there is nothing new to say of it
		}
		verdict := judge(c)
		for _, p := range verdict.Problems {
			if p.Reason == vet.Impact {
				hurts = true
				p.Text += sheetAgainByHand
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
	s.good, s.refused, s.fault, s.waits = version, nil, nil, false
	switch {
	case s.inForce == nil && !l.sheets.loaded:
		// Nothing is kept, but somebody may have lost it: taints that stand go if no
		// set asks for them now.
		l.enforce(now, s, version)
	case wasRefused && !s.isBehind(): // the last good version was brought back
		l.cfg.Announce(treat.Announcement{Policy: treat.AboutConfigMap(s.ConfigMap), What: treat.Accepted, Words: "back to the version that is in force"})
	}
	l.sheets.shelfAt = now
}

// refuseSheet notes what is wrong with a version. What is wrong with the same one is
// told again only after a while.
func (l *loop) refuseSheet(now time.Time, s *sheet, err error) {
	isSame := s.refused != nil && configmaps.SaysTheSame(s.refused, s.ConfigMap)
	s.refused, s.fault, s.waits = s.ConfigMap, err, false
	if isSame {
		return
	}
	l.cfg.Logger.Warn("configmap not accepted", "configMap", s.Name, "resourceVersion", s.ResourceVersion, "err", err)
	l.complainOf(now, s)
	l.lookAtStatuses(now)
}

// complainOf tells what is wrong with the version that is there now.
func (l *loop) complainOf(now time.Time, s *sheet) {
	what, more := "nothing of it is in force, because there is no good version yet", ""
	switch {
	case s.good != nil:
		what = "the last good version stays in force"
	case s.holds():
		what = "nothing of it is in force, and taints that its sets have placed stay until there is a good version"
		more = "; " + s.kept.Err.Error()
	}
	what = "not accepted, " + what + ": "
	words := s.fault.Error()
	if lines, isOfLines := errors.AsType[configmaps.LineErrors](s.fault); isOfLines {
		words = lines.Within(treat.MaxNote - len(what) - min(len(more), treat.MaxNote/3))
	}
	s.toldAt = now
	l.cfg.Announce(treat.Announcement{Policy: treat.AboutConfigMap(s.ConfigMap), Trouble: what + words + more})
}
