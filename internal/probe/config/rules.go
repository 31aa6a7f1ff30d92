package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/spelling"
)

// The types of rules.
const (
	temporary = "temporary"
	permanent = "permanent"
)

// conditions reads the conditions of a monitor, with their healthy reasons and messages.
func conditions(top *section) []Condition {
	return declarations(top, func(s *section, c *Condition) {
		c.Reason, c.Message = s.text("reason", ""), s.text("message", "")
		s.warnOfWord("reason", c.Reason)
	})
}

// declarations reads a list of condition types. more reads the other fields of each.
func declarations(top *section, more func(*section, *Condition)) []Condition {
	var kept []Condition
	for s := range top.each("conditions", "a condition") {
		c := Condition{Type: s.required("type", "the condition's name, for example KernelDeadlock")}
		more(s, &c)
		known, inCatalog := catalog.Lookup(c.Type)
		c.SurvivesReboot = s.flag("survivesReboot", known.SurvivesReboot)
		c.Meaning = s.text("meaning", known.Meaning)
		c.Healthy = s.healthyStatus(cmp.Or(known.Healthy, catalog.False))
		switch {
		case c.Type == "":
		case known.Source == catalog.Kubernetes:
			s.refuse("type", "%s is reported by Kubernetes itself, and two components that report the same condition undo each other's changes; use another name", quoteName(c.Type))
		case slices.ContainsFunc(kept, func(other Condition) bool { return other.Type == c.Type }):
			s.refuse("type", "%s is there already; leave one of them", quoteName(c.Type))
		case inCatalog && c.Healthy != known.Healthy:
			s.refuse("healthyStatus", "the catalogue says that %s is %s on a healthy node; remove the field, or use another type", c.Type, known.Healthy)
		default:
			if meant, ok := spelling.NearestCondition(c.Type); ok {
				s.warn("type", "%s is not in the catalogue; did you mean %s?", quoteName(c.Type), meant)
			}
			s.warnOfWord("type", c.Type[strings.LastIndexByte(c.Type, '/')+1:]) // a domain may be in front
			kept = append(kept, c)
		}
	}
	return kept
}

// healthyStatus reads the status that a condition has on a healthy node.
func (s *section) healthyStatus(otherwise catalog.Status) catalog.Status {
	const name, right = "healthyStatus", `"True" or "False", in quotes`
	written, ok := ask[string](s, name, right)
	switch status := catalog.Status(written); {
	case !ok:
	case status == catalog.True || status == catalog.False:
		return status
	default:
		s.refuse(name, "%s is no status of a healthy node; write %s", quote(written), right)
	}
	return otherwise
}

// camelCase matches types and reasons as Kubernetes writes them.
var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,63}$`)

// warnOfWord warns of a type or a reason that programs which read it may not accept.
func (s *section) warnOfWord(name, word string) {
	if word != "" && !camelCase.MatchString(word) {
		s.warn(name, "%s is not CamelCase with at most 64 letters and digits, as Kubernetes writes it; write it like KernelDeadlock", quote(word))
	}
}

// effect is what a rule changes.
type effect struct {
	permanent bool
	condition string
	reason    string
}

// effectOf reads what a rule changes.
func effectOf(s *section, declared []Condition) effect {
	kind := s.required("type", `"temporary" for an Event each time, or "permanent" for a condition`)
	e := effect{permanent: kind == permanent, condition: s.text("condition", ""), reason: s.text("reason", "")}
	if kind != "" && kind != temporary && kind != permanent {
		s.refuse("type", "%s is no type of rules; write %q for an Event each time, or %q for a condition", quote(kind), temporary, permanent)
		return e
	}
	if e.reason == "" && !s.refused["reason"] {
		s.warn("reason", "missing, so that what the rule finds cannot be told from others; write one in CamelCase")
	}
	s.warnOfWord("reason", e.reason)
	switch {
	case kind == temporary && e.condition != "":
		s.warn("condition", "%s is ignored, because a temporary rule changes none; remove it, or write \"type\": %q", quote(e.condition), permanent)
		e.condition = ""
	case kind == permanent:
		judgeChange(s, e, declared)
	}
	return e
}

// judgeChange refuses a permanent rule that has no effect.
func judgeChange(s *section, e effect, declared []Condition) {
	i := slices.IndexFunc(declared, func(c Condition) bool { return c.Type == e.condition })
	switch {
	case i >= 0 && e.reason != "" && e.reason == declared[i].Reason:
		s.warn("reason", "%s is also the reason of a healthy %s, so that they cannot be told apart", quote(e.reason), quoteName(e.condition))
	case i >= 0:
	case s.refused["condition"]:
	case e.condition == "" && len(declared) == 0:
		s.refuse("condition", "missing, so that the permanent rule changes nothing; declare one in the conditions of this file and write it here, or write \"type\": %q", temporary)
	case e.condition == "":
		s.refuse("condition", "missing, so that the permanent rule changes nothing; write one of the conditions of this file (%s), or \"type\": %q", types(declared), temporary)
	case len(declared) == 0:
		s.refuse("condition", "%s is not declared, so that the rule changes nothing; add it to the conditions of this file", quote(e.condition))
	default:
		s.refuse("condition", "%s is not declared, so that the rule changes nothing; add it to the conditions of this file, or write one of them: %s", quote(e.condition), types(declared))
	}
}

// types lists conditions, shortened if there are many.
func types(declared []Condition) string {
	const most = 10
	names := make([]string, 0, most+1)
	for i, c := range declared {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(declared)-most))
			break
		}
		names = append(names, quoteName(c.Type))
	}
	return list(names)
}

// warnOfIdle warns of conditions that no rule changes.
func warnOfIdle(top *section, declared []Condition, changed func(condition string) bool) {
	for i, c := range declared {
		if !changed(c.Type) {
			top.warn(fmt.Sprintf("conditions[%d]", i), "no rule changes %s, so that it is %s for ever", quoteName(c.Type), c.Healthy)
		}
	}
}

// pattern reads a regular expression.
func (s *section) pattern(name string, required bool) string {
	var text string
	if required {
		text = s.required(name, "a regular expression that matches up to the end of a line")
	} else {
		text = s.text(name, "")
	}
	if text == "" {
		return ""
	}
	if err := checkPattern(text); err != nil {
		s.refuse(name, "%s %v", quote(text), err)
		return ""
	}
	// With anchors added, a valid pattern may become too large.
	whole, err := regexp.Compile(`\A(?:` + text + `)\z`)
	if err != nil {
		s.refuse(name, "%s cannot be anchored at the end of a line: %v; write less", quote(text), err)
		return ""
	}
	if whole.MatchString("") {
		s.warn(name, "%s matches every line, because it matches nothing at its end; write more of the line", quote(text))
	}
	return text
}

// checkPattern returns an error if the text is not a regular expression.
func checkPattern(text string) error {
	_, err := regexp.Compile(text)
	if broken, ok := errors.AsType[*syntax.Error](err); ok {
		return fmt.Errorf("is no regular expression: %s: %s; write one in the syntax of https://golang.org/s/re2syntax", broken.Code, quote(broken.Expr))
	}
	return err
}
