package validate

import (
	"fmt"

	"github.com/resourcestack/autohealer/internal/taintkey"
	"github.com/resourcestack/autohealer/internal/triage"
)

const taintKeyField = "spec.taintKey"

// compiles refuses what no rule can be made of.
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

// reservedKey refuses the keys of those who keep their taints themselves.
func reservedKey(s *study) (problems []Problem, _ []string) {
	if !s.keyIsReserved() {
		return nil, nil
	}
	return []Problem{{taintKeyField, fmt.Sprintf("%q: %s%s", s.wrong.Value, s.wrong.Problem, s.aside()), ReservedTaintKey}}, nil
}

// keyIsReserved says whether what is wrong is that the key belongs to somebody.
func (s *study) keyIsReserved() bool {
	_, reserved := taintkey.Owner(s.Set.Spec.TaintKey)
	return reserved && s.wrong != nil && s.wrong.Field == taintKeyField
}
