package validate

import (
	"fmt"

	"github.com/resourcestack/autohealer/internal/taintkey"
	"github.com/resourcestack/autohealer/internal/triage"
)

const taintKeyField = "spec.taintKey"

// compiles rejects a set that does not compile to a rule.
func compiles(s *analysis) (problems, _ []Problem) {
	if s.compileErr == nil || s.keyIsReserved() {
		return nil, nil
	}
	return []Problem{invalid(s.compileErr)}, nil
}

func invalid(wrong *triage.FieldError) Problem {
	text := wrong.Problem
	if wrong.Value != "" {
		text = fmt.Sprintf("%q: %s", wrong.Value, text)
	}
	return Problem{wrong.Field, text, Invalid}
}

// reservedKey rejects taint keys that another component owns.
func reservedKey(s *analysis) (problems, _ []Problem) {
	if !s.keyIsReserved() {
		return nil, nil
	}
	return []Problem{{taintKeyField, fmt.Sprintf("%q: %s%s", s.compileErr.Value, s.compileErr.Problem, s.matchNote()), ReservedTaintKey}}, nil
}

// keyIsReserved reports whether the set does not compile because its taint key is reserved.
func (s *analysis) keyIsReserved() bool {
	_, reserved := taintkey.Owner(s.Set.Spec.TaintKey)
	return reserved && s.compileErr != nil && s.compileErr.Field == taintKeyField
}
