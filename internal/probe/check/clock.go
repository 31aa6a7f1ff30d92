package check

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// Clock checks whether a time daemon keeps the kernel's clock synchronised. A daemon that corrects
// the clock tells the kernel the maximum error. The kernel then adds half a millisecond to it each
// second. limit is the largest allowed error. Zero means the kernel's own limit (16 s, after nine
// hours).
//
// The check ignores all other values of the kernel. The kernel reports an unsynchronised clock
// (STA_UNSYNC, TIME_ERROR) also if a daemon does not want the hardware clock updated, for example
// chrony without rtcsync. The estimated error stays at 16 s with daemons that do not estimate it,
// for example phc2sys.
func Clock(limit time.Duration) periodic.Check {
	return func(context.Context) periodic.Result {
		var told unix.Timex // without modes the call only reads
		if _, err := unix.Adjtimex(&told); err != nil {
			return unknown(notAllowed, "asking the kernel for its clock: %v", err)
		}
		return judgeClock(told, limit)
	}
}

// worstError is the error at which the kernel gives up (NTP_PHASE_LIMIT). A clock that was never
// corrected has it too.
const worstError = 16 * time.Second

func judgeClock(told unix.Timex, limit time.Duration) periodic.Result {
	worst := time.Duration(told.Maxerror) * time.Microsecond
	switch {
	case worst >= worstError:
		return unhealthy("the clock is not synchronised: it may be wrong by 16s or more")
	case limit > 0 && worst > limit:
		return unhealthy("the clock may be wrong by more than %s: no time daemon has corrected it for a while", limit)
	}
	return healthy("the clock is synchronised")
}
