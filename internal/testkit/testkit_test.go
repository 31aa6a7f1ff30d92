package testkit

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that records its failure.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Errorf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

func (f *failing) Fatal(args ...any) { f.text = fmt.Sprint(args...) }

func (f *failing) Fatalf(format string, args ...any) {
	f.text = strings.TrimSpace(format)
	for _, a := range args {
		if s, ok := a.(string); ok {
			f.text += "|" + s
		}
	}
}

func TestChecks(t *testing.T) {
	f := &failing{TB: t}
	if n := Value(3, error(nil)).Must(f); n != 3 || f.text != "" {
		t.Errorf("%d, and the test says %q", n, f.text)
	}
	if Value(3, errors.New("bad")).Must(f); f.text != "bad" {
		t.Errorf("for an error the test says %q", f.text)
	}
	for _, bad := range []error{nil, errors.New("one")} {
		f.text = ""
		if Value(3, bad).Fails(f, "one", "two"); f.text == "" {
			t.Errorf("%v says one and two", bad)
		}
	}
	f.text = "bad"
	if Fails(f, errors.New("one two"), "two", "one"); f.text != "bad" {
		t.Errorf("for the expected error the test says %q", f.text)
	}
	if Equal(f, "none", []int{1}, []int{1}); f.text != "bad" {
		t.Errorf("for equal values the test says %q", f.text)
	}
	if Equal(f, "numbers", []int{1}, []int{2}); !strings.HasPrefix(f.text, "numbers (-want +got):\n") {
		t.Errorf("for different values the test says %q", f.text)
	}
}

func TestEventually(t *testing.T) {
	t.Run("checks until it succeeds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			Until(t, "the third call", func() bool { calls++; return calls == 3 })
		})
	})
	t.Run("reports each change of the error once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			begin, f := time.Now(), &failing{TB: t}
			Wait{Limit: time.Second, Explain: func() string { return "a log" }}.Eventually(f, "it", func() error {
				if time.Since(begin) < 500*time.Millisecond {
					return errors.New("early")
				}
				return errors.New("late")
			})
			if took := time.Since(begin); took < time.Second || took > 2*time.Second || !strings.HasSuffix(f.text, "|it|early\n\tlate|\na log") {
				t.Errorf("after %s: %q", took, f.text)
			}
		})
	})
}

// recorder is a test that records its last failure.
type recorder struct {
	testing.TB
	text string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.text = "fails: " + fmt.Sprintf(format, args...)
}
func (r *recorder) Fatal(args ...any) { r.text = "ends: " + fmt.Sprint(args...) }

func TestClaims(t *testing.T) {
	for _, test := range []struct {
		want  string
		claim func(tb TB)
	}{
		{"", func(tb TB) { Check(tb, true, "x") }},
		{"fails: 3 writes", func(tb TB) { Check(tb, false, "%d writes", 3) }},
		{"", func(tb TB) { Require(tb, true, "x") }},
		{"ends: 3 writes", func(tb TB) { Require(tb, false, "%d writes", 3) }},
		{"", func(tb TB) { Same(tb, []string{"a"}, []string{"a"}, "x") }},
		{"fails: got 3, want 1: writes of A", func(tb TB) { Same(tb, 3, 1, "writes of %s", "A") }},
		{`fails: got ["a b"], want ["a" "b"]: the texts`, func(tb TB) { Same(tb, []string{"a b"}, []string{"a", "b"}, "the texts") }},
		{"fails: got [1], want []: the numbers", func(tb TB) { Same(tb, []float64{1}, nil, "the numbers") }},
		{"", func(tb TB) { Same(tb, t, t, "x") }},
		{"", func(tb TB) { MustBeSame(tb, 1, 1, "x") }},
		{`ends: got "%d", want "b": x`, func(tb TB) { MustBeSame(tb, "%d", "b", "x") }},
		{"", func(tb TB) { Between(tb, 2, 2, 2, "x") }},
		{"fails: got 3, want 1 to 2: x", func(tb TB) { Between(tb, 3, 1, 2, "x") }},
		{"fails: got 0, want 1 to 2: x", func(tb TB) { Between(tb, 0, 1, 2, "x") }},
		{"", func(tb TB) { Contains(tb, "abc", "bc", "x") }},
		{"fails: the page: \"d\" is missing in:\nabc", func(tb TB) { Contains(tb, "abc", "d", "the %s", "page") }},
		{"", func(tb TB) { NoDiff(tb, "", "x") }},
		{"fails: the rows (-want +got, unless it says otherwise):\n-a", func(tb TB) { NoDiff(tb, "-a", "the rows") }},
		{"", func(tb TB) { Must(tb, nil) }},
		{"ends: no", func(tb TB) { Must(tb, errors.New("no")) }},
		{"", func(tb TB) { Same(t, Value(1, nil).Must(tb), 1, "the value") }},
		{"ends: no", func(tb TB) { Value(1, errors.New("no")).Must(tb) }},
	} {
		r := &recorder{TB: t}
		if test.claim(r); r.text != test.want {
			t.Errorf("got %q, want %q", r.text, test.want)
		}
	}
}

func TestSameComparesPointersByIdentity(t *testing.T) {
	r, one, other := &recorder{TB: t}, 1, 1
	if Same(r, &one, &other, "x"); r.text == "" {
		t.Error("two variables with the same value are equal")
	}
}

func TestGetAndAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/good" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write([]byte("body"))
	}))
	defer server.Close()
	if code, body, err := Get(t.Context(), server.URL+"/bad"); code != http.StatusTeapot || body != "body" || err != nil {
		t.Errorf("%d %q %v", code, body, err)
	}
	Must(t, Answers(t.Context(), server.URL+"/good"))
	if err := Answers(t.Context(), server.URL+"/bad"); err == nil || !strings.Contains(err.Error(), "418") {
		t.Error(err)
	}
}

func TestLogCountsLines(t *testing.T) {
	var l Log
	l.Logger().Info("one", "a", 1)
	l.Logger().Warn("one", "a", 2)
	if one, warn := l.Count("one"), l.Count("one", "WARN"); one != 2 || warn != 1 {
		t.Errorf("%d and %d in %s", one, warn, l.String())
	}
}
