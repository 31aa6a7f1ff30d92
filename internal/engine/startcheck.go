package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// StartChecks are the checks before a treatment begins. [Engine] implements them; a test may replace one.
type StartChecks interface {
	// IsProtected reports whether a pod protects the node from the first step of a treatment.
	IsProtected(ctx context.Context, r *TaskResult) (bool, error)
	// IsUnchanged reports whether the node is unchanged in everything that matters.
	IsUnchanged(ctx context.Context, r *TaskResult) (bool, error)
	// MayStillStart reports whether the treatment is still planned, after the loop has taken in everything
	// that has happened meanwhile.
	MayStillStart(ctx context.Context, r *TaskResult) (bool, error)
	// RecordAttempt records on the node that the treatment begins, and reports whether it still may.
	RecordAttempt(ctx context.Context, r *TaskResult) (may bool, err error)
}

// run does the work of a task. If the task begins a treatment, all checks come first: Work cannot leave
// one out.
func (tr *taskRunner) run(ctx context.Context, r *TaskResult) error {
	if r.Task.Begins {
		may, err := tr.mayBegin(ctx, r)
		if err != nil {
			return err
		}
		if !may {
			if r.Outcome == treat.Made { // nothing is made
				r.Outcome = treat.Stale
			}
			return nil
		}
	}
	return r.Task.Work.Run(ctx, r)
}

// mayBegin makes the checks. Each may be slow, so those that see the most changes come last.
func (tr *taskRunner) mayBegin(ctx context.Context, r *TaskResult) (may bool, err error) {
	t, checks := r.Task, tr.checks
	if !t.HasBegun {
		if isProtected, err := checks.IsProtected(ctx, r); err != nil || isProtected {
			return false, err
		}
	}
	if p, is := t.Work.(Preparer); is {
		if may, err := p.Prepare(ctx, r); err != nil || !may {
			return false, err
		}
	}
	if isStill, err := checks.IsUnchanged(ctx, r); err != nil || !isStill {
		return false, err
	}
	if may, err := checks.MayStillStart(ctx, r); err != nil || !may || t.HasBegun {
		return may, err
	}
	return checks.RecordAttempt(ctx, r)
}

// startRequest asks the loop whether a planned treatment may still start.
type startRequest struct {
	node   string
	rule   triage.RuleID
	step   int
	answer chan<- bool // has capacity one
}

// MayStillStart asks the loop, immediately before the first write of a treatment, whether the
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
