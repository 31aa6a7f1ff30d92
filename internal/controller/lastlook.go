package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/resourcestack/autohealer/internal/triage"
)

// question asks the loop whether a treatment that was decided may still begin.
type question struct {
	node   string
	rule   triage.RuleID
	step   int
	answer chan<- bool // has room for one
}

// mayBegin asks the loop once more, immediately before an object is made, whether the
// treatment may begin. By then the loop has taken in everything that the watches have
// brought: while the node was locked and looked at, other nodes may have become
// unhealthy and closed the gate. It is called by the goroutine that makes the object.
func (l *loop) mayBegin(ctx context.Context, e *errand) (may bool, err error) {
	if l.questions == nil { // the loop does not run
		return true, nil
	}
	answer := make(chan bool, 1)
	q := question{node: e.node.Name, rule: e.rule, step: e.step, answer: answer}
	for asks := l.questions; ; asks = nil {
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

// hear takes a question, and all that wait to be asked at the same time: one round is
// enough for them.
func (l *loop) hear(q question) {
	l.asked = append(l.asked, q)
	for {
		select {
		case q := <-l.questions:
			l.asked = append(l.asked, q)
		default:
			return
		}
	}
}

// answerQuestions says what the plans are, now that a round has taken in the newest facts.
func (l *loop) answerQuestions() {
	for _, q := range l.asked {
		plan, ok := l.core.Plan(q.node)
		t := plan.Treatment
		q.answer <- ok && t != nil && t.Rule == q.rule && t.Step == q.step
	}
	l.asked = l.asked[:0]
}
