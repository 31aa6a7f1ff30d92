package observe

import (
	"cmp"
	"fmt"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Switches say whether a policy acts, apart from its bounds.
type Switches struct {
	// Observe lets the policy only report what it would do.
	Observe bool
	// Paused, if not empty, is why the policy starts nothing new.
	Paused string
	// Problem, if not empty, is an annotation with an invalid value. The policy starts nothing
	// new until it is corrected, because its author wanted something else than the default.
	Problem string
}

// PolicySwitches returns the switches of a policy with a mode in its spec.
func PolicySwitches(annotations map[string]string, observes bool) Switches {
	return Switches{Observe: observes, Paused: PausedBy(annotations)}
}

// AnnotatedSwitches returns the switches of a policy whose mode is an annotation.
func AnnotatedSwitches(annotations map[string]string) Switches {
	s := AnnotatedMode(annotations)
	s.Paused = PausedBy(annotations)
	return s
}

// AnnotatedMode returns the mode in an annotation. NodeHealthChecks have their own field for a pause.
func AnnotatedMode(annotations map[string]string) (s Switches) {
	switch mode := annotations[v1alpha1.ModeAnnotation]; v1alpha1.PolicyMode(mode) {
	case "", v1alpha1.PolicyEnforce:
	case v1alpha1.PolicyObserve:
		s.Observe = true
	default:
		s.Problem = fmt.Sprintf("metadata.annotations[%s]: %q: want Enforce or Observe; nothing new starts until it is corrected", v1alpha1.ModeAnnotation, text.Shorten(mode, maxValueLength, "..."))
	}
	return s
}

// PausedBy returns the reason in the annotation that pauses a policy, empty if it does not.
func PausedBy(annotations map[string]string) string {
	const paused = "paused by annotation"
	switch reason, is := annotations[v1alpha1.PausedAnnotation]; {
	case !is || reason == "false":
		return ""
	case reason == "" || reason == "true":
		return paused
	default:
		return paused + ": " + text.Shorten(reason, maxValueLength, "...")
	}
}

// Apply adds the switches to a rule. A rule that is on hold for another reason stays on hold.
func (s Switches) Apply(rule *triage.Rule) {
	rule.DryRun = rule.DryRun || s.Observe
	rule.Hold = cmp.Or(s.Problem, s.Paused, rule.Hold)
}

// Mode returns the mode for the status. A policy that observes starts nothing, paused or not.
func (s Switches) Mode() v1alpha1.Mode {
	switch {
	case s.Observe:
		return v1alpha1.Observe
	case s.Paused != "":
		return v1alpha1.Paused
	}
	return v1alpha1.Enforce
}

// ValidateMode checks the mode of a spec. The error is a *[triage.FieldError].
func ValidateMode(mode v1alpha1.PolicyMode) error {
	switch mode {
	case "", v1alpha1.PolicyEnforce, v1alpha1.PolicyObserve:
		return nil
	}
	return &triage.FieldError{Field: "spec.mode", Value: text.Shorten(string(mode), maxValueLength, "..."), Problem: "want Enforce or Observe"}
}
