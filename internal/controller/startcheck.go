package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/resourcestack/autohealer/internal/triage"
)

// startRequest asks the loop whether a treatment that was decided may still begin.
type startRequest struct {
	node   string
	rule   triage.RuleID
	step   int
	answer chan<- bool // has room for one
}

// maySendStart asks the loop once more, immediately before an object is made, whether the
// treatment may begin. By then the loop has taken in everything that the watches have
// brought: while the node was locked and looked at, other nodes may have become
// unhealthy and closed the gate. It is called by the goroutine that makes the object.
func (l *loop) maySendStart(ctx context.Context, e *task) (may bool, err error) {
	if l.startRequests == nil { // the loop does not run
		return true, nil
	}
	answer := make(chan bool, 1)
	q := startRequest{node: e.node.Name, rule: e.rule, step: e.step, answer: answer}
	for asks := l.startRequests; ; asks = nil {
		select {
		case asks <- q:
			continue
		case may = <-answer:
			return may, nil
		case <-l.stopped:
			return false, errors.New("the controller no longer leads")
		case <-ctx.Done():
			return false, fmt.Errorf("asking whether the treatment may begin: %w", ctx.Err())
		}
	}
}

// queueStartRequest takes a question, and all that wait to be asked at the same time: one round is
// enough for them.
func (l *loop) queueStartRequest(q startRequest) {
	l.answered = append(l.answered, q)
	for {
		select {
		case q := <-l.startRequests:
			l.answered = append(l.answered, q)
		default:
			return
		}
	}
}

// answerStartRequests says what the plans are, now that a round has taken in the newest facts.
func (l *loop) answerStartRequests() {
	for _, q := range l.answered {
		plan, ok := l.core.Plan(q.node)
		t := plan.Treatment
		q.answer <- ok && t != nil && t.Rule == q.rule && t.Step == q.step
	}
	l.answered = l.answered[:0]
}
