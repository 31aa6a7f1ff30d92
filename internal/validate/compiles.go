package validate

import (
	"fmt"

	"github.com/resourcestack/autohealer/internal/taintkey"
	"github.com/resourcestack/autohealer/internal/triage"
)

const taintKeyField = "spec.taintKey"

// compiles rejects a set that does not compile to a rule.
func compiles(s *study) (problems []Problem, _ []string) {
	if s.wrong == nil || s.keyIsReserved() {
		return nil, nil
	}
	return []Problem{invalid(s.wrong)}, nil
}

func invalid(wrong *triage.FieldError) Problem {
	text := wrong.Problem
	if wrong.Value != "" {
		text = fmt.Sprintf("%q: %s", wrong.Value, text)
	}
	return Problem{wrong.Field, text, Invalid}
}

// reservedKey rejects taint keys that another component owns.
func reservedKey(s *study) (problems []Problem, _ []string) {
	if !s.keyIsReserved() {
		return nil, nil
	}
	return []Problem{{taintKeyField, fmt.Sprintf("%q: %s%s", s.wrong.Value, s.wrong.Problem, s.aside()), ReservedTaintKey}}, nil
}

// keyIsReserved reports whether the set does not compile because its taint key is reserved.
func (s *study) keyIsReserved() bool {
	_, reserved := taintkey.Owner(s.Set.Spec.TaintKey)
	return reserved && s.wrong != nil && s.wrong.Field == taintKeyField
}
