package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/resourcestack/autohealer/internal/triage"
)

// startRequest asks the loop whether a planned treatment may still start.
type startRequest struct {
	node   string
	rule   triage.RuleID
	step   int
	answer chan<- bool // has capacity one
}

// maySendStart asks the loop, immediately before an object is created, whether the
// treatment may still start. The loop first takes in everything that the watches have
// delivered: while the task took the Lease and read the node, other nodes may have become
// unhealthy and closed the gate. The goroutine of the task calls it.
func (l *loop) maySendStart(ctx context.Context, e *task) (may bool, err error) {
	if l.startRequests == nil { // the loop is not running
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

// queueStartRequest queues a request and all others that wait: one round answers them
// all.
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

// answerStartRequests answers from the plans after the round.
func (l *loop) answerStartRequests() {
	for _, q := range l.answered {
		plan, ok := l.core.Plan(q.node)
		t := plan.Treatment
		q.answer <- ok && t != nil && t.Rule == q.rule && t.Step == q.step
	}
	l.answered = l.answered[:0]
}
