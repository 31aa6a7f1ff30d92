package check

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// The reasons for an Unknown result.
const (
	notAllowed = "CheckNotAllowed" // the agent lacks rights
	notFound   = "CheckNotPossible"
	stopped    = "CheckStopped"
	startingUp = "StartingUp"
)

func healthy(format string, args ...any) periodic.Result {
	return periodic.Result{Verdict: periodic.Healthy, Message: fmt.Sprintf(format, args...)}
}

func unhealthy(format string, args ...any) periodic.Result {
	return periodic.Result{Verdict: periodic.Unhealthy, Message: fmt.Sprintf(format, args...)}
}

func unknown(reason, format string, args ...any) periodic.Result {
	return periodic.Result{Verdict: periodic.Unknown, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// answerShare is the share of a check's time in which the component must answer. The rest is for
// reporting that it did not, and for asking systemd about it.
const answerShare = 0.8

// answerContext returns a context that limits how long the component may take to answer.
func answerContext(ctx context.Context) (asking context.Context, cancel context.CancelFunc, limit time.Duration) {
	limit = 10 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Duration(float64(time.Until(deadline)) * answerShare)
	}
	asking, cancel = context.WithTimeout(ctx, limit)
	return asking, cancel, limit
}

// formatLimit rounds a time limit. The exact remaining time would make a different message each
// time.
func formatLimit(limit time.Duration) string {
	if limit >= time.Second {
		return limit.Round(100 * time.Millisecond).String()
	}
	return limit.Round(10 * time.Millisecond).String()
}

// late returns whether the component took too long. It returns false if the check itself was
// cancelled.
func late(asking context.Context) bool {
	return errors.Is(asking.Err(), context.DeadlineExceeded)
}

// firstLine returns the first line of a text, cut to the length that fits into a message.
func firstLine(text string) string {
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

// withoutSource removes the local port from an error. It differs each time.
func withoutSource(text string) string { return source.ReplaceAllString(text, "") }

var source = regexp.MustCompile(`\S+:\d+->`)
