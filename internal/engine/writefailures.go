package engine

import (
	"math/rand/v2"
	"time"

	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	// WriteTimeout limits a write, including its answer.
	WriteTimeout = 10 * time.Second
	// firstRetry is the backoff after the first failure of a write.
	firstRetry = 100 * time.Millisecond
	// LastRetry limits the backoff after a failed write.
	LastRetry = 30 * time.Second
	// FirstRefusedRetry is the longest backoff after the first rejection of a write. A user
	// has to change something before the write succeeds.
	FirstRefusedRetry = 5 * time.Second
	// LastRefusedRetry limits the backoff after rejections.
	LastRefusedRetry = 5 * time.Minute
	// LogEvery is the interval of summaries for suppressed log lines.
	LogEvery = 10 * time.Second
	// MaxLogged is how many lines are logged in each interval.
	MaxLogged = 10
	// ReportRefusalEvery is how often an unchanged refusal is reported again.
	ReportRefusalEvery = time.Hour
)

// RetryDelay returns the randomized delay before the next try of a failed write.
func RetryDelay(tries int) time.Duration {
	return growingDelay(tries, firstRetry, LastRetry, rand.N[time.Duration])
}

// growingDelay returns a randomized delay that doubles with every try, from about first up to
// last.
func growingDelay(tries int, first, last time.Duration, random func(time.Duration) time.Duration) time.Duration {
	wait := times.Backoff(tries, first, last)
	return wait/2 + random(wait/2)
}

// RetryDelay returns the randomized delay before the next try of a failed write.
func (l *Engine) RetryDelay(tries int) time.Duration {
	return growingDelay(tries, firstRetry, LastRetry, l.cfg.random())
}

// RefusalDelay returns the randomized delay after a write that the API server rejected.
func (l *Engine) RefusalDelay(refusals int) time.Duration {
	return growingDelay(refusals, FirstRefusedRetry, LastRefusedRetry, l.cfg.random())
}

// random returns the source of random durations.
func (c Config) random() func(time.Duration) time.Duration {
	if c.Random != nil {
		return c.Random
	}
	return rand.N[time.Duration]
}

// Failure is why a write has failed and how often it was tried. The zero value means
// no failure.
type Failure struct {
	Text    string // the last error
	Outcome treat.Outcome
	Tries   int
}

// Add records a failure and reports whether its kind is new. The text does not count,
// because texts of broken connections contain port numbers.
func (t *Failure) Add(outcome treat.Outcome, err error) (isNews bool) {
	before := *t
	*t = Failure{Text: err.Error(), Outcome: outcome, Tries: before.Tries + 1}
	return before.Tries == 0 || before.Outcome != outcome
}

// logLimiter limits log lines about failing writes. It logs the first ones and counts the
// others, because in an outage all of them are alike.
type logLimiter struct {
	since   time.Time // start of the interval
	named   int
	unnamed int
}

// allows reports whether to log the next line, and counts it if not.
func (t *logLimiter) allows(now time.Time) bool {
	if t.unnamed == 0 && now.Sub(t.since) >= LogEvery {
		t.since, t.named = now, 0
	}
	if t.named >= MaxLogged {
		t.unnamed++
		return false
	}
	t.named++
	return true
}

// suppressed returns the number of suppressed lines if a summary is due, or when it is.
func (t *logLimiter) suppressed(now time.Time) (unnamed int, due time.Time) {
	if t.unnamed == 0 {
		return 0, time.Time{}
	}
	if due = t.since.Add(LogEvery); now.Before(due) {
		return 0, due
	}
	unnamed = t.unnamed
	*t = logLimiter{since: now}
	return unnamed, time.Time{}
}

// logSuppressed logs the summaries that are due, and returns when the next is due.
func (l *Engine) logSuppressed(now time.Time) (due time.Time) {
	refused, refusedDue := l.failureLog.refusals.suppressed(now)
	if refused > 0 {
		l.cfg.Logger.Error("more writes are refused", "writes", refused)
	}
	putOff, putOffDue := l.failureLog.retries.suppressed(now)
	if putOff > 0 {
		l.logRetries()
	}
	return times.Earliest(refusedDue, putOffDue)
}

// logRetries logs how many nodes have failing writes now.
func (l *Engine) logRetries() {
	troubled := map[string]string{} // error by node
	for name, nodeTasks := range l.tasks.byNode {
		for _, s := range nodeTasks.failures {
			troubled[name] = s.Text
		}
	}
	for name, text := range l.nodeWriter.Failures() {
		troubled[name] = text
	}
	for name, text := range troubled {
		l.cfg.Logger.Warn("writes are delayed", "nodes", len(troubled), "node", name, "err", text)
		return
	}
	l.cfg.Logger.Info("writes succeed again")
}

// ReportedRefusal is the last reported refusal of a write.
type ReportedRefusal struct {
	Message string
	at      time.Time
}

// IsNews reports whether to report a refusal, and remembers it: once while the message is
// the same, and again every ReportRefusalEvery.
func (r *ReportedRefusal) IsNews(now time.Time, message string) bool {
	if r.Message == message && now.Sub(r.at) < ReportRefusalEvery {
		return false
	}
	*r = ReportedRefusal{message, now}
	return true
}
