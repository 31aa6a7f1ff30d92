package validate

import (
	"fmt"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// manyNames is how many names are told of a list: as many as are told of nodes.
	manyNames = triage.MostNamed
	// longName is how much of a name is told: a status has its bounds, and 32
	// condition types of 316 letters would leave no room for the words.
	longName = 100
)

// field is the path of a condition of a set, or of something in it.
func field(conditionType, part string) string {
	return "spec.conditions[" + brief(conditionType) + "]" + part
}

func brief(name string) string {
	if runes := []rune(name); len(runes) > longName {
		return string(runes[:longName]) + "..."
	}
	return name
}

// few tells the first of some names.
func few(names []string) string { return firstOf(names, len(names)) }

// firstOf tells the first of so many names, of which at least those that are told
// are given.
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

// hits tells how many nodes match, and which.
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

// selected tells of how many nodes the matching ones are, and their share.
func (r *reach) selected() string {
	return fmt.Sprintf("%s (%d%%)", nodes(r.Selected), 100*r.Matching/max(1, r.Selected))
}

func nodes(n int) string {
	if n == 1 {
		return "1 selected node"
	}
	return fmt.Sprintf("%d selected nodes", n)
}

// deeds tells what would be done to the matching nodes.
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

// span writes a duration as people do: 5m and not 5m0s.
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

// allowed tells how many the bound allows.
func (r *reach) allowed() string {
	if strings.HasSuffix(r.bound, "%") {
		return fmt.Sprintf("%d (%s)", r.limit, r.bound)
	}
	return r.bound
}
