package validate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/spelling"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// minUnready is how long a healthy node may be not Ready, for example during a reboot.
const minUnready = time.Minute

func conditionPath(i int, part string) string {
	return fmt.Sprintf("spec.unhealthyConditions[%d].%s", i, part)
}

// userSignals returns the conditions that the user wrote. It is empty if the defaults apply,
// which need no check.
func (s *healthAnalysis) userSignals() []triage.Signal {
	if len(s.Check.Spec.UnhealthyConditions) == 0 {
		return nil
	}
	return s.rule.When.Signals
}

// remediatesHealthy rejects a condition that healthy nodes report. Each condition is
// sufficient by itself, so every healthy node would be remediated.
func remediatesHealthy(s *healthAnalysis) (problems, _ []Problem) {
	for i, signal := range s.userSignals() {
		if !catalog.Healthy(signal.Condition, signal.Status.String()) {
			continue
		}
		text := fmt.Sprintf("%s=%s is what a healthy node reports, and each sign is enough by itself, so the nodes that are well would be remediated", signal.Condition, signal.Status)
		if s.found != nil && s.found.Matching > 0 {
			text += ": " + s.matches()
		}
		is := known(signal.Condition)
		problems = append(problems, Problem{conditionPath(i, "status"), fmt.Sprintf("%s. Write status: \"%s\", which says: %s", text, is.Unhealthy(), is.Meaning), HealthyStatus})
	}
	return problems, nil
}

// conditionNames warns of condition types that no node reports. It does not reject them: a
// health check may be created before the agent, and its other conditions still work.
func conditionNames(s *healthAnalysis) (_, warnings []Problem) {
	names := nameWarnings{reported: s.Reported}
	for i, signal := range s.userSignals() {
		if path := conditionPath(i, "type"); !names.isEvent(path, signal.Condition) {
			names.check(path, signal.Condition)
		}
	}
	return nil, names.all()
}

// nameWarnings collects warnings about the names of conditions.
type nameWarnings struct {
	reported  []string // the condition types that nodes report; nil if they are unknown
	warnings  []Problem
	unknown   []string // names that no node reports and the catalogue does not know
	firstPath string   // of unknown
}

// isEvent warns of a name that is the reason of an Event, and reports whether it is.
func (w *nameWarnings) isEvent(path, name string) bool {
	event, ok := catalog.LookupEvent(name)
	if ok = ok && !slices.Contains(w.reported, name); ok {
		w.warnings = append(w.warnings, warning(path, "%s is the reason of an Event of %s, not a condition: a node never has it", name, event.Sources[0]))
	}
	return ok
}

// check warns of a name that looks misspelled, or that no node reports.
func (w *nameWarnings) check(path, name string) {
	if _, ok := catalog.Lookup(name); ok || slices.Contains(w.reported, name) {
		return
	}
	if right, slip := spelling.NearestCondition(name, w.reported...); slip {
		w.warnings = append(w.warnings, warning(path, "%s is not a condition that is known; did you mean %s?", truncate(name), truncate(right)))
	} else if w.reported != nil && !slices.Contains(w.unknown, name) {
		w.unknown, w.firstPath = append(w.unknown, name), cmp.Or(w.firstPath, path)
	}
}

// all returns the warnings, with one for all unknown names.
func (w *nameWarnings) all() []Problem {
	if len(w.unknown) > 0 {
		return append(w.warnings, warning(w.firstPath, "no node reports %s, and the catalogue does not know it; it is no sign of anything until an agent reports it", shortList(w.unknown)))
	}
	return w.warnings
}

// shortDuration warns of a duration so short that a reboot causes a remediation.
func shortDuration(s *healthAnalysis) (_, warnings []Problem) {
	for i, signal := range s.userSignals() {
		if signal.Condition == triage.Ready && signal.Status != triage.True && signal.For < minUnready {
			warnings = append(warnings, warning(conditionPath(i, "duration"), "a node that merely starts anew, or whose network is cut for a moment, has Ready=%s for longer than %s; want at least %s, for example the default of 300s", signal.Status, text.Duration(signal.For), text.Duration(minUnready)))
		}
	}
	return nil, warnings
}
