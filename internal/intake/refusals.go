package intake

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/problem"
)

// reminder is how often it is logged that a source is refused, of each HTTP status.
const reminder = time.Hour

// refusals are what a source was told since something of it was taken.
type refusals struct {
	count  int
	last   problem.RefusedError
	logged map[int]time.Time // when, by the HTTP status
}

// note notes one, and says whether it is to be logged: once, and not for every status of
// a source that cannot know better.
func (r *refusals) note(refusal *problem.RefusedError, now time.Time) (news bool) {
	r.count++
	r.last = *refusal
	if at, ok := r.logged[refusal.Code]; ok && now.Sub(at) < reminder {
		return false
	}
	r.logged[refusal.Code] = now
	return true
}

// forget notes that something was taken.
func (r *refusals) forget() { r.count = 0 }

// words are for those who wonder why a source is silent that speaks. Empty if it does not.
func (r *refusals) words() string {
	switch r.count {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; one status was refused, with %d: %v", r.last.Code, &r.last)
	}
	return fmt.Sprintf("; %d statuses were refused, the last one with %d: %v", r.count, r.last.Code, &r.last)
}
