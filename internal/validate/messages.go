package validate

import (
	"fmt"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// manyNames is how many names of a list a message shows, the same as for nodes.
	manyNames = triage.MostNamed
	// longName is how many letters of a name a message shows. A status has a maximum
	// length, and a set may have 32 condition types of 316 letters.
	longName = 100
)

// field returns the path of a condition of a set, or of a field in it.
func field(conditionType, part string) string {
	return "spec.conditions[" + brief(conditionType) + "]" + part
}

func brief(name string) string {
	if runes := []rune(name); len(runes) > longName {
		return string(runes[:longName]) + "..."
	}
	return name
}

// few lists the first names.
func few(names []string) string { return firstOf(names, len(names)) }

// firstOf lists the first names and the number of the others. names must contain at least
// the names that are listed.
func firstOf(names []string, all int) string {
	told := make([]string, 0, manyNames)
	for _, name := range names[:min(len(names), manyNames)] {
		told = append(told, brief(name))
	}
	if rest := all - len(told); rest > 0 {
		return strings.Join(told, ", ") + fmt.Sprintf(" and %d more", rest)
	}
	return series(told)
}

// series joins parts of a sentence: a, b and c.
func series(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

// hits says how many nodes match, and which.
func (r *reach) hits() string {
	if r.Matching == 0 {
		return "no node matches now"
	}
	verb := "match"
	if r.Selected == 1 {
		verb = "matches"
	}
	return fmt.Sprintf("%d of %s %s now (%s)", r.Matching, r.selected(), verb, firstOf(r.First, r.Matching))
}

// selected says how many nodes are selected, and the percentage that matches.
func (r *reach) selected() string {
	return fmt.Sprintf("%s (%d%%)", nodes(r.Selected), 100*r.Matching/max(1, r.Selected))
}

func nodes(n int) string {
	if n == 1 {
		return "1 selected node"
	}
	return fmt.Sprintf("%d selected nodes", n)
}

// deeds says what the set would do to the matching nodes.
func (r *reach) deeds() string {
	var deeds []string
	tell := func(n int, format string) {
		if n > 0 {
			deeds = append(deeds, fmt.Sprintf(format, n))
		}
	}
	switch r.effect {
	case triage.NoExecute:
		emptied := r.emptied()
		tell(emptied, "evict the pods of %d")
		tell(r.Matching-r.spared-emptied, "keep new pods off %d beyond maxUnhealthy (NoSchedule)")
		tell(r.spared, "keep new pods off %d of the control plane (NoSchedule)")
	case triage.NoSchedule:
		tell(r.Matching, "keep new pods off %d")
	default:
		tell(r.Matching, "have new pods avoid %d")
	}
	sentence := series(deeds)
	if r.wait > 0 {
		sentence += ", once it has stood for " + span(r.wait)
	}
	return sentence
}

// span formats a duration without trailing zero units: 5m, not 5m0s.
func span(d time.Duration) string {
	text := d.String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}

// allowed says how many nodes the bound allows.
func (r *reach) allowed() string {
	if strings.HasSuffix(r.bound, "%") {
		return fmt.Sprintf("%d (%s)", r.limit, r.bound)
	}
	return r.bound
}
