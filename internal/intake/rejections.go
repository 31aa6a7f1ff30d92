package intake

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/problem"
)

// logInterval is how often the intake logs rejections of a source, per HTTP status.
const logInterval = time.Hour

// rejections are the rejected statuses of a source since the last accepted one.
type rejections struct {
	count  int
	last   problem.RefusedError
	logged map[int]time.Time // last log time by HTTP status
}

// record adds a rejection, and reports whether it should be logged.
func (r *rejections) record(rejection *problem.RefusedError, now time.Time) (news bool) {
	r.count++
	r.last = *rejection
	if at, ok := r.logged[rejection.Code]; ok && now.Sub(at) < logInterval {
		return false
	}
	r.logged[rejection.Code] = now
	return true
}

// reset forgets the rejections after an accepted status.
func (r *rejections) reset() { r.count = 0 }

// describe explains to users why a source that sends statuses counts as silent. It is empty
// without rejections.
func (r *rejections) describe() string {
	switch r.count {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; one status was refused, with %d: %v", r.last.Code, &r.last)
	}
	return fmt.Sprintf("; %d statuses were refused, the last one with %d: %v", r.count, r.last.Code, &r.last)
}
