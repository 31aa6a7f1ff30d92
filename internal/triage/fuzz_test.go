package triage_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/resourcestack/autohealer/internal/triage"
)

// namesValue checks that an error is a field error and repeats the value.
func namesValue(t *testing.T, given string, err error) {
	t.Helper()
	var field *triage.FieldError
	if !errors.As(err, &field) {
		t.Fatalf("%q: error is %v, want a FieldError", given, err)
	}
	if field.Value != given || field.Problem == "" {
		t.Fatalf("%q: error is about the value %q and says %q", given, field.Value, field.Problem)
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, seed := range []string{"300s", "1h30m", "0", "0s", "1.5h", "-5m", "+5m", "5", "", " 5m", "1d", "µs", "1µs", "9223372036854775807ns", "9223372036854775808ns", "2562048h", "1e3s", "٣s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := triage.ParseDuration(s)
		if err != nil {
			namesValue(t, s, err)
			return
		}
		if d < 0 {
			t.Fatalf("%q is read as %s", s, d)
		}
		again, err := triage.ParseDuration(d.String())
		if err != nil || again != d {
			t.Fatalf("%q is read as %s, and that as %s (%v)", s, d, again, err)
		}
	})
}

func FuzzParseLimit(f *testing.F) {
	for _, seed := range []string{"3", "49%", "0", "0%", "100%", "101%", "%", "", "-1", "+1", "1.5", "007", "49 %", "49%%", "2147483647", "2147483648", "99999999999999999999", "٣"} {
		f.Add(seed, 10)
	}
	f.Fuzz(func(t *testing.T, s string, selected int) {
		limit, err := triage.ParseLimit(s)
		if err != nil {
			namesValue(t, s, err)
			return
		}
		again, err := triage.ParseLimit(limit.String())
		if err != nil || again != limit {
			t.Fatalf("%q is read as %+v, and %s as %+v (%v)", s, limit, limit, again, err)
		}
		if selected < 0 || selected > 1_000_000 {
			return
		}
		for _, roundUp := range []bool{false, true} {
			limit.RoundUp, limit.Healthy = roundUp, false
			unhealthy := limit.Of(selected)
			if unhealthy < 0 || limit.Percent && selected > 0 && unhealthy > selected {
				t.Fatalf("%q of %d nodes is %d", s, selected, unhealthy)
			}
			limit.Healthy = true
			if rest := limit.Of(selected); rest != max(0, selected-unhealthy) {
				t.Fatalf("%q of %d nodes is %d; as a minimum of healthy nodes it is %d", s, selected, unhealthy, rest)
			}
		}
	})
}

func FuzzParseStatus(f *testing.F) {
	for _, seed := range []string{"True", "true", "FALSE", "unknown", "Missing", "", " True", "yes", "1", "Status(7)", "ſ"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		status, err := triage.ParseStatus(s)
		if err != nil {
			namesValue(t, s, err)
			return
		}
		again, err := triage.ParseStatus(status.String())
		if err != nil || again != status {
			t.Fatalf("%q is read as %s, and that as %s (%v)", s, status, again, err)
		}
	})
}

func FuzzParseSelector(f *testing.F) {
	for _, seed := range []string{
		"", " ", "pool=gpu", "pool==gpu", "tier!=spot", "zone in (a,b)", "zone in (a)", "zone in ()", "zone in (,a)", "arch notin (arm64)",
		"ready", "!draining", "! draining", "pool=", "pool!=", "pool=gpu,tier!=spot,zone in (a,b),arch notin (arm64),ready,!draining",
		",", "a,", ",a", "a,,b", "a=b=c", "a!=b=c", "a==", "=b", "!", "!!a", "!a=b", "a in b", "a in (b", "a in b)", "a in ((b))", "a)b,c", "(a,b)",
		"in", "in in (in)", "notin notin (notin)", "a  in(b)", "a > 1", "karpenter.sh/nodepool=default", "a=b,a=b", "a=\x00", "ä=b", "zone in (b,a,b)", "a: b=c", "a:b", "autohealer: repaired by in (x)",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		selector, err := triage.ParseSelector(s)
		if err != nil {
			namesValue(t, s, err)
			return
		}
		again, err := triage.ParseSelector(selector.String())
		if err != nil || !reflect.DeepEqual(again, selector) {
			t.Fatalf("%q is read as %s, and that as %s (%v)", s, selector, again, err)
		}
		made, err := triage.NewSelector(selector.Requirements()...)
		if err != nil || !reflect.DeepEqual(made, selector) {
			t.Fatalf("%q is read as %s; made of its requirements, it is %s (%v)", s, selector, made, err)
		}
		if selector.Everything() != (len(selector.Requirements()) == 0) {
			t.Fatalf("%q: everything is %t, with requirements %v", s, selector.Everything(), selector.Requirements())
		}
	})
}
