package controller

import (
	"time"

	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// logEvery is how often those are summed up who have not been named, and
	// mostNamed how many are named until then.
	logEvery  = 10 * time.Second
	maxLogged = 10
	// reportRefusalEvery is how often a refusal is told again that is still the same.
	reportRefusalEvery = time.Hour
)

// writeFailure is why a write has not been made, and how often it was tried. The zero
// value is none.
type writeFailure struct {
	text  string // the words of the last failure
	fate  treat.Result
	tries int
}

// add notes one more failure, and says whether it is of another kind than the
// one before. Its words do not count: those of a broken connection name its port.
func (t *writeFailure) add(fate treat.Result, err error) (isNews bool) {
	before := *t
	*t = writeFailure{text: err.Error(), fate: fate, tries: before.tries + 1}
	return before.tries == 0 || before.fate != fate
}

// logLimiter keeps the log of troubled writes short. The first who have something to
// tell are named; in an outage all of them have the same to say, so the others are
// counted.
type logLimiter struct {
	since   time.Time // when the first of those was named
	named   int
	unnamed int
}

// allows says whether the next one is to be named, and counts it if not.
func (t *logLimiter) allows(now time.Time) bool {
	if t.unnamed == 0 && now.Sub(t.since) >= logEvery {
		t.since, t.named = now, 0
	}
	if t.named >= maxLogged {
		t.unnamed++
		return false
	}
	t.named++
	return true
}

// suppressed returns how many were not named, once it is time to tell of them, or when
// it will be.
func (t *logLimiter) suppressed(now time.Time) (unnamed int, due time.Time) {
	if t.unnamed == 0 {
		return 0, time.Time{}
	}
	if due = t.since.Add(logEvery); now.Before(due) {
		return 0, due
	}
	unnamed = t.unnamed
	*t = logLimiter{since: now}
	return unnamed, time.Time{}
}

// logSuppressed tells of those who were not named, and returns when it will.
func (l *loop) logSuppressed(now time.Time) (due time.Time) {
	refused, refusedDue := l.refusalLog.suppressed(now)
	if refused > 0 {
		l.cfg.Logger.Error("more writes are refused", "writes", refused)
	}
	putOff, putOffDue := l.retryLog.suppressed(now)
	if putOff > 0 {
		l.logRetries()
	}
	return earliest(refusedDue, putOffDue)
}

// logRetries tells how many nodes are in trouble now.
func (l *loop) logRetries() {
	troubled := map[string]string{} // what the trouble is, by node
	for name, b := range l.treatments {
		for _, s := range b.failures {
			troubled[name] = s.text
		}
	}
	for name, p := range l.nodeStates {
		if p.failure.tries > 0 {
			troubled[name] = p.failure.text
		}
	}
	for name, text := range troubled {
		l.cfg.Logger.Warn("writes are being put off", "nodes", len(troubled), "node", name, "err", text)
		return
	}
	l.cfg.Logger.Info("writes are made again")
}

// clearFailure notes that a node has no trouble any more.
func (l *loop) clearFailure(now time.Time, p *nodeState) {
	if p.failure.tries > 0 && l.retryLog.allows(now) {
		l.cfg.Logger.Info("trouble is over", "node", p.node.Name, "tries", p.failure.tries)
	}
	p.failure = writeFailure{}
}

// reportedRefusal is what people were told of a write that was refused.
type reportedRefusal struct {
	words string
	at    time.Time
}

// reportRefusal tells people of a write that the server does not accept, once for as
// long as it says the same.
func (l *loop) reportRefusal(now time.Time, p *nodeState, rule triage.RuleID, reason triage.Reason, words string) {
	if last := p.refusalsReported[rule]; last.words == words && now.Sub(last.at) < reportRefusalEvery {
		return
	}
	if p.refusalsReported == nil {
		p.refusalsReported = map[triage.RuleID]reportedRefusal{}
	}
	p.refusalsReported[rule] = reportedRefusal{words, now}
	if l.refusalLog.allows(now) {
		l.cfg.Logger.Error("write refused", "node", p.node.Name, "rule", rule.String(), "err", words)
	}
	l.cfg.Event(treat.Event{Node: p.node, Policy: treat.AboutSet(l.setOf(rule)), Reason: reason, Failure: words})
}
