package status

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/treat"
)

// fixture is a writer whose writes end with err.
type fixture struct {
	*Writer
	t       *testing.T
	log     bytes.Buffer
	sent    int
	results []treat.Outcome
	err     error
}

// open runs a test in a synctest bubble.
func open(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t}
		f.Writer = NewWriter(time.Second, func(_ string, result treat.Outcome) { f.results = append(f.results, result) }, slog.New(slog.NewTextHandler(&f.log, nil)))
		test(f)
	})
}

// updates updates a status and takes in the result. It reports whether a write was sent.
func (f *fixture) updates(s *Status[int], status int, write Write[int]) (isSent bool) {
	f.t.Helper()
	before := f.sent
	write.Kind, write.Name, write.Status = "kind", "object", func() int { return status }
	write.Send = func(context.Context, string, int) (string, error) {
		f.sent++
		return "5", f.err
	}
	s.Update(f.t.Context(), time.Now(), f.Writer, write)
	if f.Wait(); f.sent > before {
		(<-f.Results())()
	}
	return f.sent > before
}

func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the clock is the bubble's

func TestWritesAreSpacedAndRepeated(t *testing.T) {
	open(t, func(f *fixture) {
		s := &Status[int]{}
		f.Schedule(time.Now())
		for i, step := range []struct {
			after         time.Duration
			status        int
			write         Write[int]
			err           error
			isSent, stale bool
			logged        int           // lines so far
			due           time.Duration // until the next check
		}{
			{0, 1, Write[int]{}, errors.New("connection 1 broken"), true, true, 1, CheckEvery},
			{retry - 1, 1, Write[int]{}, nil, false, true, 1, 1},
			{1, 1, Write[int]{}, errors.New("connection 2 broken"), true, true, 1, CheckEvery}, // a failure of the same kind
			{retry, 1, Write[int]{}, apierrors.NewTooManyRequestsError("busy"), true, true, 2, CheckEvery},
			{retry, 1, Write[int]{}, apierrors.NewNotFound(schema.GroupResource{}, "object"), true, false, 2, CheckEvery}, // the watch reports it
			{every, 1, Write[int]{Pause: time.Minute}, nil, true, false, 2, CheckEvery},
			{time.Minute - 1, 2, Write[int]{}, nil, false, false, 2, 1},
			{1, 2, Write[int]{}, nil, true, false, 2, CheckEvery},
			{every, 3, Write[int]{Delay: 1}, nil, false, false, 2, 1},
			{1, 3, Write[int]{Delay: 1}, nil, true, false, 2, CheckEvery},
			{every, 3, Write[int]{}, nil, false, false, 2, 0}, // unchanged
		} {
			pass(step.after)
			f.err = step.err
			var isSent bool
			var wait time.Duration
			if due := f.Check(time.Now(), func() { isSent = f.updates(s, step.status, step.write) }); !due.IsZero() {
				wait = time.Until(due)
			}
			if isSent != step.isSent || s.Stale != step.stale || wait != step.due || strings.Count(f.log.String(), "status not written") != step.logged {
				t.Errorf("step %d: sent %t, stale %t, the next check in %v; the log:\n%s", i, isSent, s.Stale, wait, &f.log)
			}
		}
		if want := []treat.Outcome{treat.Unknown, treat.Unknown, treat.Busy, treat.Stale, treat.Made, treat.Made, treat.Made}; !slices.Equal(f.results, want) {
			t.Errorf("counted %v, want %v", f.results, want)
		}
	})
}

func TestWritesAreLimited(t *testing.T) {
	open(t, func(f *fixture) {
		release := make(chan struct{})
		begin := func(s *Status[int], wantSent int) {
			s.Update(f.t.Context(), time.Now(), f.Writer, Write[int]{Status: func() int { f.sent++; return 1 }, Send: func(context.Context, string, int) (string, error) {
				<-release
				return "5", nil
			}})
			if f.sent != wantSent {
				t.Errorf("sent %d writes, want %d", f.sent, wantSent)
			}
		}
		var first, second, third Status[int]
		begin(&first, 1)
		pass(every)
		begin(&first, 1) // its write is running
		begin(&second, 2)
		begin(&third, maxConcurrent)
		close(release)
		(<-f.Results())()
		begin(&third, 3)
		f.Wait()
	})
}

// A CRD may drop a field of the status.
func TestObserveAcceptsADroppedField(t *testing.T) {
	open(t, func(f *fixture) {
		s := &Status[int]{}
		observe := func(uid, version string, status int) int {
			s.Observe(&metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}, status)
			return s.Stored
		}
		observe("first", "4", 4)
		f.updates(s, 5, Write[int]{})
		for _, brought := range []struct {
			uid, version string
			is, becomes  int
		}{{"first", "4", 4, 5}, {"first", "5", 0, 5}, {"first", "6", 6, 6}, {"second", "4", 8, 8}} {
			if got := observe(brought.uid, brought.version, brought.is); got != brought.becomes {
				t.Errorf("after version %s of the %s object status %d is known, want %d", brought.version, brought.uid, got, brought.becomes)
			}
		}
	})
}
