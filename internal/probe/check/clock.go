package check

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/exam"
)

// Clock examines whether somebody keeps the kernel's clock right, whichever program it
// is. A clock that nobody corrects has an error that may grow by half a millisecond each
// second; limit is how large it may become, and zero means as large as the kernel itself
// allows (16 s, after nine hours).
func Clock(limit time.Duration) exam.Exam {
	return func(context.Context) exam.Answer {
		var told unix.Timex // without modes it is only read
		state, err := unix.Adjtimex(&told)
		if err != nil {
			return unknown(notAllowed, "asking the kernel for its clock: %v", err)
		}
		return judgeClock(state, told, limit)
	}
}

const (
	timeError = 5    // TIME_ERROR
	staUnsync = 0x40 // STA_UNSYNC
	staNano   = 0x2000
)

func judgeClock(state int, told unix.Timex, limit time.Duration) exam.Answer {
	worst := time.Duration(told.Maxerror) * time.Microsecond
	switch {
	case told.Status&staUnsync != 0:
		return sick("nobody keeps the clock right: it is not synchronised")
	case limit > 0 && worst > limit:
		return sick("the clock may be wrong by %s, which is more than %s: nobody has corrected it for a while", worst, limit)
	case state == timeError:
		return sick("the clock is in error (status %#x)", told.Status&^staNano)
	}
	return well("the clock is synchronised")
}
