package nodepause_test

import (
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/nodepause"
)

func TestRead(t *testing.T) {
	until := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const with = " with the annotation autohealer.resourcestack.com/pause"
	for value, want := range map[string]nodepause.Pause{
		"until=2026-03-01T12:00:00Z":                              {Until: until, Message: "paused" + with},
		"until=2026-03-01T13:00:00+01:00 by=anna":                 {Until: until, Message: "paused by anna" + with},
		"until=2026-03-01T12:00:00Z by=anna reason=new disk, #42": {Until: until, Message: "paused by anna" + with + ": new disk, #42"},
		" reason=a=b  c by=Anna Berg until=2026-03-01T12:00:00Z ": {Until: until, Message: "paused by Anna Berg" + with + ": a=b c"},
		"until=2026-03-01T12:00:00Z by= reason=":                  {Until: until, Message: "paused" + with},
	} {
		got, isPaused := nodepause.Read(map[string]string{nodepause.Annotation: value})
		if !isPaused || !got.Until.Equal(want.Until) || got.Message != want.Message || got.Problem != "" {
			t.Errorf("%q is read as %+v, want %+v", value, got, want)
		}
	}
	if got, isPaused := nodepause.Read(map[string]string{"other": "until=2026-03-01T12:00:00Z"}); isPaused {
		t.Errorf("a node without the annotation is paused: %+v", got)
	}
}

// A value that cannot be read pauses the node without an end, and says how to correct it.
func TestReadOfABadValue(t *testing.T) {
	for _, value := range []string{
		"", "true", "2026-03-01T12:00:00Z", "until=", "until=tomorrow", "until=2026-03-01", "until=2026-03-01 12:00:00", "by=anna reason=new disk",
		"until=2026-03-01T12:00:00Z until=2026-03-02T12:00:00Z", "until=0001-01-01T00:00:00Z", "now until=2026-03-01T12:00:00Z",
		"until=" + strings.Repeat("9", 100_000),
	} {
		annotations := map[string]string{nodepause.Annotation: value}
		got, isPaused := nodepause.Read(annotations)
		if !isPaused || !got.Until.IsZero() || got.Problem == "" || got.Message != got.Problem {
			t.Errorf("%q is read as %+v, want a pause without an end and a problem", value, got)
		}
		for _, want := range []string{nodepause.Annotation, "want until=", "correct or remove"} {
			if !strings.Contains(got.Problem, want) || len(got.Problem) > 512 {
				t.Errorf("the problem with %.30q is %q, want %q in it", value, got.Problem, want)
			}
		}
		if nodepause.HasExpired(annotations, time.Now().AddDate(100, 0, 0)) {
			t.Errorf("%q expires", value)
		}
	}
}

func TestHasExpired(t *testing.T) {
	until := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	annotations := map[string]string{nodepause.Annotation: "until=2026-03-01T12:00:00Z by=anna"}
	for now, want := range map[time.Time]bool{until.Add(-1): false, until: true, until.Add(1): true} {
		if got := nodepause.HasExpired(annotations, now); got != want {
			t.Errorf("at %s the pause has expired: %t, want %t", now, got, want)
		}
	}
	if nodepause.HasExpired(nil, until) {
		t.Error("a node without the annotation has a pause that has expired")
	}
}
