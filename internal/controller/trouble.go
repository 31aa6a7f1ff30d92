package controller

import (
	"time"

	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// tellEvery is how often those are summed up who have not been named, and
	// mostNamed how many are named until then.
	tellEvery = 10 * time.Second
	mostNamed = 10
	// complainEvery is how often a refusal is told again that is still the same.
	complainEvery = time.Hour
)

// trouble is why a write has not been made, and how often it was tried. The zero
// value is none.
type trouble struct {
	text  string // the words of the last failure
	fate  treat.Fate
	tries int
}

// meets notes one more failure, and says whether it is of another kind than the
// one before. Its words do not count: those of a broken connection name its port.
func (t *trouble) meets(fate treat.Fate, err error) (isNews bool) {
	before := *t
	*t = trouble{text: err.Error(), fate: fate, tries: before.tries + 1}
	return before.tries == 0 || before.fate != fate
}

// teller keeps the log of troubled writes short. The first who have something to
// tell are named; in an outage all of them have the same to say, so the others are
// counted.
type teller struct {
	since   time.Time // when the first of those was named
	named   int
	unnamed int
}

// names says whether the next one is to be named, and counts it if not.
func (t *teller) names(now time.Time) bool {
	if t.unnamed == 0 && now.Sub(t.since) >= tellEvery {
		t.since, t.named = now, 0
	}
	if t.named >= mostNamed {
		t.unnamed++
		return false
	}
	t.named++
	return true
}

// rest returns how many were not named, once it is time to tell of them, or when
// it will be.
func (t *teller) rest(now time.Time) (unnamed int, due time.Time) {
	if t.unnamed == 0 {
		return 0, time.Time{}
	}
	if due = t.since.Add(tellEvery); now.Before(due) {
		return 0, due
	}
	unnamed = t.unnamed
	*t = teller{since: now}
	return unnamed, time.Time{}
}

// sumUp tells of those who were not named, and returns when it will.
func (l *loop) sumUp(now time.Time) (due time.Time) {
	refused, refusedDue := l.refusals.rest(now)
	if refused > 0 {
		l.cfg.Logger.Error("more writes are refused", "writes", refused)
	}
	putOff, putOffDue := l.putOffs.rest(now)
	if putOff > 0 {
		l.tellOfPutOffs()
	}
	return earliest(refusedDue, putOffDue)
}

// tellOfPutOffs tells how many nodes are in trouble now.
func (l *loop) tellOfPutOffs() {
	troubled := map[string]string{} // what the trouble is, by node
	for name, b := range l.beds {
		for _, s := range b.setbacks {
			troubled[name] = s.text
		}
	}
	for name, p := range l.patients {
		if p.trouble.tries > 0 {
			troubled[name] = p.trouble.text
		}
	}
	for name, text := range troubled {
		l.cfg.Logger.Warn("writes are being put off", "nodes", len(troubled), "node", name, "err", text)
		return
	}
	l.cfg.Logger.Info("writes are made again")
}

// isOver notes that a node has no trouble any more.
func (l *loop) isOver(now time.Time, p *patient) {
	if p.trouble.tries > 0 && l.putOffs.names(now) {
		l.cfg.Logger.Info("trouble is over", "node", p.node.Name, "tries", p.trouble.tries)
	}
	p.trouble = trouble{}
}

// complaint is what people were told of a write that was refused.
type complaint struct {
	words string
	at    time.Time
}

// complain tells people of a write that the server does not accept, once for as
// long as it says the same.
func (l *loop) complain(now time.Time, p *patient, rule triage.RuleID, reason triage.Reason, words string) {
	if last := p.complaints[rule]; last.words == words && now.Sub(last.at) < complainEvery {
		return
	}
	if p.complaints == nil {
		p.complaints = map[triage.RuleID]complaint{}
	}
	p.complaints[rule] = complaint{words, now}
	if l.refusals.names(now) {
		l.cfg.Logger.Error("write refused", "node", p.node.Name, "rule", rule.String(), "err", words)
	}
	l.cfg.Announce(treat.Announcement{Node: p.node, Policy: treat.AboutSet(l.setOf(rule)), Reason: reason, Trouble: words})
}
