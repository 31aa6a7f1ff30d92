package check

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/resourcestack/autohealer/internal/probe/checkresult"
)

// Reasons of an Unknown.
const (
	notAllowed = "CheckNotAllowed" // the agent lacks rights
	notFound   = "CheckNotPossible"
	stopped    = "CheckStopped"
	startingUp = "StartingUp"
)

func well(format string, args ...any) checkresult.Result {
	return checkresult.Result{Verdict: checkresult.Well, Message: fmt.Sprintf(format, args...)}
}

func sick(format string, args ...any) checkresult.Result {
	return checkresult.Result{Verdict: checkresult.Sick, Message: fmt.Sprintf(format, args...)}
}

func unknown(reason, format string, args ...any) checkresult.Result {
	return checkresult.Result{Verdict: checkresult.Unknown, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// most is the part of the time of an examination within which an answer must come. The
// rest is for saying that it did not, and for asking systemd about it.
const most = 0.8

// patience returns the time within which whoever is asked must answer.
func patience(ctx context.Context) (asking context.Context, cancel context.CancelFunc, limit time.Duration) {
	limit = 10 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Duration(float64(time.Until(deadline)) * most)
	}
	asking, cancel = context.WithTimeout(ctx, limit)
	return asking, cancel, limit
}

// spell writes how long somebody was waited for, as it was meant: what was lost on the
// way would make another message of it each time.
func spell(limit time.Duration) string {
	if limit >= time.Second {
		return limit.Round(100 * time.Millisecond).String()
	}
	return limit.Round(10 * time.Millisecond).String()
}

// late says whether the one who was asked has taken too long. It is not if it is we who
// are being stopped.
func late(asking context.Context) bool {
	return errors.Is(asking.Err(), context.DeadlineExceeded)
}

// briefly is the first line of a text, cut to what fits into a message.
func briefly(text string) string {
	const limit = 100
	text, _, _ = strings.Cut(strings.TrimSpace(strings.ToValidUTF8(text, "?")), "\n")
	if len(text) <= limit {
		return text
	}
	end := limit
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// withoutSource takes out of an error from which port of ours somebody was asked: it is
// another each time.
func withoutSource(text string) string { return source.ReplaceAllString(text, "") }

var source = regexp.MustCompile(`\S+:\d+->`)
