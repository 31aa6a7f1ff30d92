package policykind_test

import (
	"errors"
	"testing"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// namesRule checks that the error for an invalid rule ID names it.
func namesRule(t *testing.T, given string, err error) {
	t.Helper()
	var field *triage.FieldError
	if !errors.As(err, &field) || field.Value != given || field.Problem == "" {
		t.Fatalf("%q: error is %v, want a FieldError that names it", given, err)
	}
}

func TestParseRuleID(t *testing.T) {
	for _, id := range []triage.RuleID{
		{Kind: policykind.ConditionSet, Name: "kernel-deadlock"},
		{Kind: policykind.NodeHealthCheck, Name: "workers"},
		{Kind: policykind.Repair, Name: "default"},
		{Kind: policykind.ReadyTimeout, Name: "all"},
		{Kind: policykind.Repair, Name: "a/b"},
	} {
		t.Run("reads "+id.String(), func(t *testing.T) {
			if got, err := policykind.ParseRuleID(id.String()); err != nil || got != id {
				t.Errorf("read as %+v (%v), want %+v", got, err, id)
			}
		})
	}
	for name, s := range map[string]string{
		"nothing":                      "",
		"a name without a kind":        "kernel-deadlock",
		"a kind without a name":        "ConditionSet",
		"a kind with an empty name":    "ConditionSet/",
		"an empty kind":                "/kernel-deadlock",
		"an unknown kind":              "Deployment/kernel-deadlock",
		"a kind in lower case":         "conditionset/kernel-deadlock",
		"a kind that is only a number": "Kind(1)/kernel-deadlock",
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			got, err := policykind.ParseRuleID(s)
			if err == nil || got != (triage.RuleID{}) {
				t.Fatalf("%q is read as %+v (%v)", s, got, err)
			}
			namesRule(t, s, err)
		})
	}
}

func FuzzParseRuleID(f *testing.F) {
	for _, seed := range []string{"ConditionSet/kernel-deadlock", "Repair/default", "Repair/a/b", "Repair/", "/default", "Repair", "", "/", "repair/default", "Kind(1)/a", " Repair/a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := policykind.ParseRuleID(s)
		if err != nil {
			namesRule(t, s, err)
			return
		}
		if id.String() != s || id.Name == "" {
			t.Fatalf("%q is read as %s", s, id)
		}
	})
}
