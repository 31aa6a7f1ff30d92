package triage

import (
	"slices"
	"strings"
)

// Selector selects nodes by their labels. The zero value selects every node.
type Selector struct {
	requirements []Requirement
}

// Requirement is a requirement for the labels of a node.
type Requirement struct {
	Key    string
	Op     Operator
	Values []string // for In and NotIn
}

// Operator relates a label to the values of a requirement.
type Operator uint8

// The operators of a Kubernetes label selector. A node without the label meets NotIn and
// Absent.
const (
	_ Operator = iota
	In
	NotIn
	Exists
	Absent
)

// NewSelector selects the nodes that meet all requirements.
func NewSelector(requirements ...Requirement) (Selector, error) {
	var s Selector
	for _, r := range requirements {
		if err := r.validate(); err != nil {
			return Selector{}, err
		}
		r.Values = slices.Clone(r.Values)
		slices.Sort(r.Values)
		r.Values = slices.Compact(r.Values)
		s.requirements = append(s.requirements, r)
	}
	return s, nil
}

// ParseSelector parses the syntax of kubectl: "pool=gpu,tier!=spot,zone in (a,b),arch notin
// (arm64),ready,!draining".
func ParseSelector(s string) (Selector, error) {
	var requirements []Requirement
	for rest := strings.TrimSpace(s); rest != ""; {
		term, after, more := cutTerm(rest)
		r, ok := parseRequirement(strings.TrimSpace(term))
		if !ok {
			return Selector{}, &FieldError{Value: s, Problem: "cannot read " + quote(term) + "; want terms like pool=gpu, tier!=spot, zone in (a,b), ready or !draining"}
		}
		requirements = append(requirements, r)
		rest = strings.TrimSpace(after)
		if more && rest == "" {
			return Selector{}, &FieldError{Value: s, Problem: "ends with a comma"}
		}
	}
	selector, err := NewSelector(requirements...)
	if err != nil {
		return Selector{}, &FieldError{Value: s, Problem: err.Error()}
	}
	return selector, nil
}

// cutTerm cuts at the first comma outside of parentheses.
func cutTerm(s string) (term, rest string, found bool) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return s, "", false
}

func parseRequirement(term string) (Requirement, bool) {
	if inside, ok := strings.CutSuffix(term, ")"); ok {
		head, list, ok := strings.Cut(inside, "(")
		words := strings.Fields(head)
		if !ok || len(words) != 2 {
			return Requirement{}, false
		}
		r := Requirement{Key: words[0]}
		switch words[1] {
		case "in":
			r.Op = In
		case "notin":
			r.Op = NotIn
		default:
			return Requirement{}, false
		}
		for _, value := range strings.Split(list, ",") {
			r.Values = append(r.Values, strings.TrimSpace(value))
		}
		return r, true
	}
	for _, sign := range []struct {
		text string
		op   Operator
	}{{"!=", NotIn}, {"==", In}, {"=", In}} {
		if key, value, ok := strings.Cut(term, sign.text); ok {
			return Requirement{Key: strings.TrimSpace(key), Op: sign.op, Values: []string{strings.TrimSpace(value)}}, true
		}
	}
	if key, ok := strings.CutPrefix(term, "!"); ok {
		return Requirement{Key: strings.TrimSpace(key), Op: Absent}, true
	}
	return Requirement{Key: term, Op: Exists}, true
}

// Everything says whether the selector selects every node.
func (s Selector) Everything() bool { return len(s.requirements) == 0 }

func (s Selector) String() string {
	terms := make([]string, len(s.requirements))
	for i, r := range s.requirements {
		terms[i] = r.String()
	}
	return strings.Join(terms, ",")
}

func (r Requirement) String() string {
	values := strings.Join(r.Values, ",")
	switch {
	case r.Op == Exists:
		return r.Key
	case r.Op == Absent:
		return "!" + r.Key
	case r.Op == In && len(r.Values) == 1:
		return r.Key + "=" + values
	case r.Op == In:
		return r.Key + " in (" + values + ")"
	case len(r.Values) == 1:
		return r.Key + "!=" + values
	default:
		return r.Key + " notin (" + values + ")"
	}
}

func (r Requirement) validate() error {
	if !isLabel(r.Key, "._-/") || r.Key == "" {
		return &FieldError{Field: "key", Value: r.Key, Problem: "not a label key"}
	}
	switch r.Op {
	case In, NotIn:
		if len(r.Values) == 0 {
			return &FieldError{Field: "values", Value: r.Key, Problem: "want at least one value"}
		}
		for _, value := range r.Values {
			if !isLabel(value, "._-") {
				return &FieldError{Field: "values", Value: value, Problem: "not a label value"}
			}
		}
	case Exists, Absent:
		if len(r.Values) > 0 {
			return &FieldError{Field: "values", Value: strings.Join(r.Values, ","), Problem: "takes no values"}
		}
	default:
		return &FieldError{Field: "operator", Value: r.Key, Problem: "not an operator"}
	}
	return nil
}

// isLabel says whether s has only letters, digits and the given marks.
func isLabel(s, marks string) bool {
	for i := range len(s) {
		b := s[i]
		letter := 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
		digit := '0' <= b && b <= '9'
		if !letter && !digit && strings.IndexByte(marks, b) < 0 {
			return false
		}
	}
	return true
}

func quote(s string) string { return `"` + s + `"` }

// Requirements returns the requirements of the selector.
func (s Selector) Requirements() []Requirement { return slices.Clone(s.requirements) }
