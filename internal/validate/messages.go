package validate

import (
	"fmt"
	"strings"

	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// maxNames is how many names of a list a message shows, the same as for nodes.
	maxNames = triage.MostNamed
	// maxNameLength is how many letters of a name a message shows. A status has a maximum
	// length, and a set may have 32 condition types of 316 letters.
	maxNameLength = 100
)

// field returns the path of a condition of a set, or of a field in it.
func field(conditionType, part string) string {
	return "spec.conditions[" + truncate(conditionType) + "]" + part
}

func truncate(name string) string { return text.Shorten(name, maxNameLength, "...") }

// shortList lists the first names.
func shortList(names []string) string { return firstOf(names, len(names)) }

// firstOf lists the first names and the number of the others. names must contain at least
// the names that are listed.
func firstOf(names []string, all int) string {
	told := make([]string, 0, maxNames)
	for _, name := range names[:min(len(names), maxNames)] {
		told = append(told, truncate(name))
	}
	if rest := all - len(told); rest > 0 {
		return strings.Join(told, ", ") + fmt.Sprintf(" and %d more", rest)
	}
	return joinAnd(told)
}

// joinAnd joins parts of a sentence: a, b and c.
func joinAnd(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

// matches says how many nodes match, and which.
func (r *reach) matches() string {
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

// actions says what the set would do to the matching nodes.
func (r *reach) actions() string {
	var actions []string
	tell := func(n int, format string) {
		if n > 0 {
			actions = append(actions, fmt.Sprintf(format, n))
		}
	}
	switch r.effect {
	case triage.NoExecute:
		emptied := r.emptied()
		tell(emptied, "evict the pods of %d")
		tell(r.Matching-r.excluded-emptied, "keep new pods off %d beyond maxUnhealthy (NoSchedule)")
		tell(r.excluded, "keep new pods off %d of the control plane (NoSchedule)")
	case triage.NoSchedule:
		tell(r.Matching, "keep new pods off %d")
	default:
		tell(r.Matching, "have new pods avoid %d")
	}
	sentence := joinAnd(actions)
	if r.wait > 0 {
		sentence += ", when the condition has lasted for " + text.Duration(r.wait)
	}
	return sentence
}

// allowed says how many nodes the bound allows.
func (r *reach) allowed() string {
	if strings.HasSuffix(r.bound, "%") {
		return fmt.Sprintf("%d (%s)", r.limit, r.bound)
	}
	return r.bound
}
