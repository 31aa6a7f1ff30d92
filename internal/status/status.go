// Package status writes the statuses of objects whenever their content has changed. It
// limits how many writes run at once and how often one status changes, and it repeats a
// failed write. It guarantees that one goroutine owns all bookkeeping: only the request
// itself leaves that goroutine. The package does not know what a status says; the kind of
// the object does.
package status

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	// CheckEvery is the minimum interval between two checks for stale statuses.
	CheckEvery = 200 * time.Millisecond
	// every limits how often a status changes, so that users can read it.
	every = time.Second
	// retry is the delay after a failed write.
	retry = 5 * time.Second
	// maxConcurrent limits concurrent writes, so that they do not delay taints.
	maxConcurrent = 2
)

// Writer writes the statuses of all kinds. The goroutine that owns it calls all methods and
// owns every Status. The zero value writes nothing.
type Writer struct {
	timeout time.Duration // of a write, including its answer
	count   func(resource string, result treat.Outcome)
	logger  *slog.Logger

	limit    int // of concurrent writes
	running  int
	requests sync.WaitGroup
	results  chan func()

	next, last time.Time // checks; next is zero for never
}

// NewWriter returns a writer that passes the result of every write to count.
func NewWriter(timeout time.Duration, count func(resource string, result treat.Outcome), logger *slog.Logger) *Writer {
	return &Writer{timeout: timeout, count: count, logger: logger, limit: maxConcurrent, results: make(chan func(), maxConcurrent)}
}

// Schedule schedules a check of the statuses as soon as CheckEvery allows.
func (w *Writer) Schedule(now time.Time) {
	at := w.last.Add(CheckEvery)
	if at.Before(now) {
		at = now
	}
	w.ScheduleAt(at)
}

// ScheduleAt schedules a check. A later scheduled check may be for another object, so the
// earlier time wins.
func (w *Writer) ScheduleAt(at time.Time) {
	w.next = times.Earliest(w.next, at)
}

// Check calls check if it is due, and returns when the next check is due, zero for never.
func (w *Writer) Check(now time.Time, check func()) (due time.Time) {
	if !w.next.IsZero() && !now.Before(w.next) {
		w.next, w.last = time.Time{}, now
		check()
	}
	return w.next
}

// Results delivers a function for every answered write. The owner calls it to take in the
// result.
func (w *Writer) Results() <-chan func() { return w.results }

// Wait waits until no write is running.
func (w *Writer) Wait() { w.requests.Wait() }

// Status is the status of one object.
type Status[S any] struct {
	Stored    S         // as the API server stores it, as far as known
	Stale     bool      // Stored may be outdated
	NotBefore time.Time // earliest next write

	uid     types.UID
	version string // of the object after the last write
	writing bool
	failure treat.Outcome // of the last write; Made for none
}

// Observe stores the status that a watch delivered, unless it is as old as the last write or
// older. The answer to that write is the better source: a CRD may drop some fields, and
// writing them again would not help.
func (s *Status[S]) Observe(object metav1.Object, status S) {
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), s.version)
	if object.GetUID() != s.uid || err != nil || order > 0 {
		s.Stored = status
	}
	s.uid = object.GetUID()
}

// Write describes how to write the status of one object.
type Write[S any] struct {
	Resource   string                                                                       // as metrics name it
	Kind, Name string                                                                       // as log lines name the object
	Status     func() S                                                                     // the content; called only if a write is possible
	Send       func(ctx context.Context, name string, status S) (version string, err error) // runs in another goroutine
	Delay      time.Duration                                                                // added to the usual interval before this write
	Pause      time.Duration                                                                // after this write, instead of the usual interval
}

// Update writes the status unless it is unchanged. If a write is not possible yet, another
// check follows.
func (s *Status[S]) Update(ctx context.Context, now time.Time, w *Writer, write Write[S]) {
	if s.writing || w.running >= w.limit { // the next result triggers another check
		return
	}
	if at := s.NotBefore.Add(write.Delay); now.Before(at) {
		w.ScheduleAt(at)
		return
	}
	s.Stale, s.NotBefore = false, now.Add(every)
	status := write.Status()
	if equality.Semantic.DeepEqual(status, s.Stored) {
		return
	}
	if write.Pause > 0 {
		s.NotBefore = now.Add(write.Pause)
	}
	s.writing = true
	w.running++
	w.requests.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, w.timeout)
		defer cancel()
		version, err := write.Send(ctx, write.Name, status)
		w.results <- func() { s.handle(w, write, status, version, err) }
	})
}

// handle takes in the result of a write.
func (s *Status[S]) handle(w *Writer, write Write[S], status S, version string, err error) {
	now, result := time.Now(), treat.Classify(err)
	w.running--
	s.writing = false
	w.Schedule(now)
	w.count(write.Resource, result)
	switch {
	case err == nil:
		s.Stored, s.version, s.failure = status, version, treat.Made
	case apierrors.IsNotFound(err): // the watch will report the deletion
	default:
		s.Stale, s.NotBefore = true, now.Add(retry)
		if result != s.failure { // texts of broken connections differ by port numbers, so only the kind counts
			w.logger.Warn("status not written", write.Kind, write.Name, "retryIn", retry.String(), "err", err)
		}
		s.failure = result
	}
}

// Count converts a count to the type of counts in statuses.
func Count(n int) int32 { return int32(min(n, 1<<31-1)) } //nolint:gosec // bounded in the same line

// KeepsAccepted follows the problem of a version that is not in force.
const KeepsAccepted = "; the last accepted version stays in force"
