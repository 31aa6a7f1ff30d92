package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// startRequest asks the loop whether a planned treatment may still start.
type startRequest struct {
	node   string
	rule   triage.RuleID
	step   int
	answer chan<- bool // has capacity one
}

// MayStillStart asks the loop, immediately before an object is created, whether the
// treatment may still start. The loop first takes in everything that the watches have
// delivered: while the task took the Lease and read the node, other nodes may have become
// unhealthy and closed the gate. The goroutine of the task calls it.
//
// If the treatment may not start, the loop decides again after the task.
func (l *Engine) MayStillStart(ctx context.Context, r *TaskResult) (may bool, err error) {
	switch may, err = l.askToStart(ctx, r.Task); {
	case err != nil:
		return false, r.NotWritten(err)
	case !may:
		r.Learned, r.Outcome = true, treat.Stale
	}
	return may, err
}

func (l *Engine) askToStart(ctx context.Context, t *Task) (may bool, err error) {
	tr := &l.tasks
	if tr.startRequests == nil { // the loop is not running
		return true, nil
	}
	answer := make(chan bool, 1)
	request := startRequest{node: t.Node.Name, rule: t.Rule, step: t.Step, answer: answer}
	for asks := tr.startRequests; ; asks = nil {
		select {
		case asks <- request:
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
func (tr *taskRunner) queueStartRequest(request startRequest) {
	tr.openStartRequests = append(tr.openStartRequests, request)
	for {
		select {
		case request := <-tr.startRequests:
			tr.openStartRequests = append(tr.openStartRequests, request)
		default:
			return
		}
	}
}

// answerStartRequests answers from the plans after the round, and from the limits on all policies
// together: nodes may have failed, or a limit may be lower, since the treatment was decided.
func (tr *taskRunner) answerStartRequests() {
	for _, request := range tr.openStartRequests {
		plan, ok := tr.engine.core.Plan(request.node)
		planned := plan.Treatment
		isPlanned := ok && planned != nil && planned.Rule == request.rule && planned.Step == request.step
		request.answer <- isPlanned && !tr.engine.core.ExceedsRails(request.node)
	}
	tr.openStartRequests = tr.openStartRequests[:0]
}
