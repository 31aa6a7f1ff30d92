package check

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/checkresult"
)

// Clock examines whether somebody keeps the kernel's clock right, whichever program it
// is. Whoever corrects it tells the kernel how wrong it may be at most, and from then on
// the kernel adds half a millisecond each second; limit is how large that may become, and
// zero means as large as the kernel itself allows (16 s, after nine hours).
//
// Nothing else that the kernel tells is believed. That the clock is not synchronised
// (STA_UNSYNC, TIME_ERROR) is also said where a daemon keeps it and wants the hardware's
// clock left alone, as chrony does without rtcsync; and the estimated error is left at
// 16 s by those who estimate none, such as phc2sys.
func Clock(limit time.Duration) checkresult.Check {
	return func(context.Context) checkresult.Result {
		var told unix.Timex // without modes it is only read
		if _, err := unix.Adjtimex(&told); err != nil {
			return unknown(notAllowed, "asking the kernel for its clock: %v", err)
		}
		return judgeClock(told, limit)
	}
}

// worstError is the error at which the kernel gives up (NTP_PHASE_LIMIT): it is that of a
// clock that nobody has ever corrected, too.
const worstError = 16 * time.Second

func judgeClock(told unix.Timex, limit time.Duration) checkresult.Result {
	worst := time.Duration(told.Maxerror) * time.Microsecond
	switch {
	case worst >= worstError:
		return sick("nobody keeps the clock right: it may be wrong by 16s or more")
	case limit > 0 && worst > limit:
		return sick("the clock may be wrong by more than %s: nobody has corrected it for a while", limit)
	}
	return well("the clock is synchronised")
}
