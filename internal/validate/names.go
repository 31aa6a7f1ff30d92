package validate

import (
	"fmt"
	"slices"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/spelling"
)

// nearMiss rejects a condition type that looks misspelled. It only warns if the set in
// force already has that type: a node may have started to report the similar type since.
func nearMiss(s *analysis) (problems, warnings []Problem) {
	for _, name := range s.types() {
		right, slip := s.correction(name)
		if !slip {
			continue
		}
		if s.wasNamed(name) {
			warnings = append(warnings, warning(field(name, ""), "no node reports %s; did you mean %s?", truncate(name), truncate(right)))
			continue
		}
		// The text repeats the name: for a ConfigMap the line replaces the field path.
		unknown := "no node reports " + truncate(name)
		if s.Reported == nil {
			unknown = "no condition " + truncate(name) + " is known"
		}
		problems = append(problems, Problem{field(name, ""), fmt.Sprintf(
			"%s; did you mean %s? As it is, the set would match no node. If the name is right, start first what reports it: a name that a node reports is taken as it is",
			unknown, truncate(right)), NearMiss})
	}
	return problems, warnings
}

// correction returns the condition type that the user probably meant.
func (s *analysis) correction(name string) (right string, slip bool) {
	if _, isEvent := catalog.LookupEvent(name); isEvent {
		return "", false // notReported warns of Events
	}
	return spelling.NearestCondition(name, s.Reported...)
}

// wasNamed reports whether the set in force already names the condition type.
func (s *analysis) wasNamed(name string) bool {
	if s.Before == nil {
		return false
	}
	_, stood := s.Before.Spec.Conditions[name]
	return stood
}

// notReported warns of names that no node reports: reasons of Events, which are never
// conditions, and unknown types. Unknown types are not rejected, because a policy may be
// created before the agent that reports them.
func notReported(s *analysis) (_, warnings []Problem) {
	var unknown []string
	for _, name := range s.types() {
		if slices.Contains(s.Reported, name) {
			continue
		}
		if event, ok := catalog.LookupEvent(name); ok {
			warnings = append(warnings, warning(field(name, ""), "%s is the reason of an Event of %s, not a condition: a node never has it, and the set never matches", name, event.Sources[0]))
			continue
		}
		_, inCatalogue := catalog.Lookup(name)
		if _, slip := s.correction(name); !slip && !inCatalogue && s.Reported != nil && name != "" {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		then := ""
		if len(Unproven(s.Set, s.Reported)) > 0 {
			then = ", and the controller checks the set again then"
		}
		warnings = append(warnings, warning(field(unknown[0], ""), "no node reports %s, and the catalogue does not know it; the set matches nothing until an agent reports it%s", shortList(unknown), then))
	}
	return nil, warnings
}
