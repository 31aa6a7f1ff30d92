package observe_test

import (
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestAnnotationsSwitchAPolicy(t *testing.T) {
	const paused, mode = v1alpha1.PausedAnnotation, v1alpha1.ModeAnnotation
	const wrongMode = `metadata.annotations[autohealer.resourcestack.com/mode]: "observe": want Enforce or Observe; nothing new starts until it is corrected`
	for name, test := range map[string]struct {
		annotations map[string]string
		mode        v1alpha1.Mode
		rule        triage.Rule
	}{
		"without an annotation it acts":        {nil, v1alpha1.Enforce, triage.Rule{}},
		"it is paused":                         {map[string]string{paused: ""}, v1alpha1.Paused, triage.Rule{Hold: "paused by annotation"}},
		"it is paused with the word true":      {map[string]string{paused: "true"}, v1alpha1.Paused, triage.Rule{Hold: "paused by annotation"}},
		"it is not paused with the word false": {map[string]string{paused: "false"}, v1alpha1.Enforce, triage.Rule{}},
		"it is paused for a reason":            {map[string]string{paused: "Anna tests the new image"}, v1alpha1.Paused, triage.Rule{Hold: "paused by annotation: Anna tests the new image"}},
		"it is paused for a long reason":       {map[string]string{paused: strings.Repeat("x", 101)}, v1alpha1.Paused, triage.Rule{Hold: "paused by annotation: " + strings.Repeat("x", 97) + "..."}},
		"it acts explicitly":                   {map[string]string{mode: "Enforce"}, v1alpha1.Enforce, triage.Rule{}},
		"it observes":                          {map[string]string{mode: "Observe"}, v1alpha1.Observe, triage.Rule{DryRun: true}},
		"it observes and is paused":            {map[string]string{mode: "Observe", paused: ""}, v1alpha1.Observe, triage.Rule{DryRun: true, Hold: "paused by annotation"}},
		"an unknown mode starts nothing":       {map[string]string{mode: "observe"}, v1alpha1.Enforce, triage.Rule{Hold: wrongMode}},
	} {
		t.Run(name, func(t *testing.T) {
			switches := observe.AnnotatedSwitches(test.annotations)
			var rule triage.Rule
			switches.Apply(&rule)
			testkit.Equal(t, "rule", test.rule, rule, bySelectorText)
			testkit.Same(t, switches.Mode(), test.mode, "mode")
		})
	}
	t.Run("a policy with a mode in its spec ignores the annotation", func(t *testing.T) {
		testkit.Same(t, observe.PolicySwitches(map[string]string{mode: "Observe"}, false), observe.Switches{}, "switches")
	})
	t.Run("a rule on hold stays on hold", func(t *testing.T) {
		rule := triage.Rule{Hold: "repair is switched off"}
		observe.AnnotatedSwitches(nil).Apply(&rule)
		testkit.Same(t, rule.Hold, "repair is switched off", "hold")
	})
}
