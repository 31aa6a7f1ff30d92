package attempts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func attempt(ago time.Duration, node string) attempts.Attempt {
	return attempts.Attempt{Policy: ownership.Rule{Kind: policykind.Repair, Name: "default"}, Began: noon.Add(-ago), Node: node}
}

func TestAReadRecordIsTheWrittenOne(t *testing.T) {
	record := attempts.Record{Replaces: "uid-1", Attempts: []attempts.Attempt{attempt(time.Hour, "old"), attempt(time.Nanosecond, "")}}
	value := record.Encode()
	testkit.Same(t, value, `{"replaces":"uid-1","attempts":[{"policy":"Repair/default","began":"2026-03-01T11:00:00Z","node":"old"},`+
		`{"policy":"Repair/default","began":"2026-03-01T11:59:59.999999999Z"}]}`, "the annotation")
	got := testkit.Value(attempts.Read(map[string]string{attempts.Annotation: value})).Must(t)
	testkit.Same(t, got.Encode(), value, "the annotation as it is read")
	none := testkit.Value(attempts.Read(map[string]string{"other": "{}"})).Must(t)
	testkit.Same(t, len(none.Attempts), 0, "attempts of a node without the annotation")
	// A newer version may know more kinds of policies and more fields.
	newer := testkit.Value(attempts.Parse(`{"attempts": [{"policy": "Later/x", "began": "2026-03-01T13:00:00+01:00", "more": 1}], "later": {}}`)).Must(t)
	testkit.Check(t, newer.Attempts[0].Began.Equal(noon) && newer.Attempts[0].Policy.Name == "Later/x", "an attempt of a later kind is read as %+v", newer)
}

func TestABadValueNamesTheFix(t *testing.T) {
	for _, value := range []string{
		"", "3", "null", "[]", "{}", `{"attempts": 3}`, `{"attempts": [{}]}`, `{"attempts": [{"policy": "Repair/default"}]}`, `{"attempts": [{"began": "2026-03-01T12:00:00Z"}]}`,
		`{"attempts": [{"policy": "Repair/default", "began": "today"}]}`, `{"attempts": [{"policy": "Repair/default", "began": "0001-01-01T00:00:00Z"}]}`,
		`{"attempts": [{"policy": "Repair/default", "began": "9999-12-31T23:59:59-01:00"}]}`,
		strings.Repeat("[", 100_000),
	} {
		got, err := attempts.Read(map[string]string{attempts.Annotation: value})
		testkit.Check(t, err != nil && len(got.Attempts) == 0, "%.30q is read as %+v", value, got)
		if err != nil {
			for _, want := range []string{attempts.Annotation, "want {", "correct or remove"} {
				testkit.Check(t, strings.Contains(err.Error(), want) && len(err.Error()) < 512, "the problem with %.30q is %q, want %q in it", value, err, want)
			}
		}
	}
}

func TestWithin(t *testing.T) {
	record := attempts.Record{Replaces: "uid", Attempts: []attempts.Attempt{attempt(time.Minute, ""), attempt(3*time.Hour, "a"), attempt(2*time.Hour, "b"), attempt(24*time.Hour, "c")}}
	testkit.Same(t, record.Within(noon, 24*time.Hour, 3).Encode(), attempts.Record{Replaces: "uid", Attempts: []attempts.Attempt{
		attempt(3*time.Hour, "a"), attempt(2*time.Hour, "b"), attempt(time.Minute, ""),
	}}.Encode(), "the attempts of a day")
	testkit.Same(t, len(record.Within(noon, 24*time.Hour, 1).Attempts), 1, "the newest attempt")
	testkit.Same(t, len(record.Within(noon.Add(24*time.Hour), 24*time.Hour, 3).Attempts), 0, "attempts a day later")
	left := record.LeftBy("z")
	testkit.Check(t, left[0].Node == "z" && left[1].Node == "a" && record.Attempts[0].Node == "", "the node leaves %+v", left)
}

func FuzzParse(f *testing.F) {
	f.Add(attempts.Record{Replaces: "uid", Attempts: []attempts.Attempt{attempt(time.Hour, "a"), attempt(0, "")}}.Encode())
	f.Fuzz(func(t *testing.T, value string) {
		r, err := attempts.Parse(value)
		if err != nil {
			return
		}
		again, err := attempts.Parse(r.Encode())
		if err != nil || again.Encode() != r.Encode() {
			t.Errorf("%q is read as %+v, and then as %+v (%v)", value, r, again, err)
		}
	})
}
