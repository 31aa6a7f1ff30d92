package vet

import (
	"fmt"

	"github.com/resourcestack/autohealer/internal/dialect"
)

const taintKeyField = "spec.taintKey"

// compiles refuses what no rule can be made of.
func compiles(s *study) (problems []Problem, _ []string) {
	if s.wrong == nil || s.keyIsReserved() {
		return nil, nil
	}
	text := s.wrong.Problem
	if s.wrong.Value != "" {
		text = fmt.Sprintf("%q: %s", s.wrong.Value, text)
	}
	return []Problem{{s.wrong.Field, text, Invalid}}, nil
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
	_, reserved := dialect.TaintKeyOwner(s.Set.Spec.TaintKey)
	return reserved && s.wrong != nil && s.wrong.Field == taintKeyField
}
