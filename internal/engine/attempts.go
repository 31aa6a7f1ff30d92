package engine

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/treat"
)

// An attempt is all steps of one treatment of a node. The engine records it in an annotation of the
// node before the first step, so that it counts whatever happens then. inheritedattempts.go passes the
// attempts of a deleted node on to the node that replaces it.

// maxRecordings is how often a task tries to record its attempt on a node that changes meanwhile.
const maxRecordings = 3

// newAttempt is the attempt that a task begins.
type newAttempt struct {
	attempts.Attempt
	record  string       // the annotation with this attempt
	version string       // the version of the node that the task has seen last
	made    *corev1.Node // the node with the annotation, once it is written
}

// isIn reports whether a record has the attempt.
func (a *newAttempt) isIn(record attempts.Record) bool {
	return slices.ContainsFunc(record.Attempts, a.is)
}

// is reports whether an attempt of a node is this one.
func (a *newAttempt) is(other attempts.Attempt) bool {
	return other.Node == "" && other.Policy == a.Policy && other.Began.Equal(a.Began)
}

// attemptOn returns the attempt that the running task begins on a node, nil for none.
func (nodeTasks *NodeTasks) attemptOn(node *corev1.Node) *newAttempt {
	if nodeTasks == nil || nodeTasks.attempt == nil || nodeTasks.running.Node.UID != node.UID {
		return nil
	}
	return nodeTasks.attempt
}

// attemptOf returns the attempt that a task begins, nil if it begins none.
func (l *Engine) attemptOf(now time.Time, t *Task) *newAttempt {
	limit := l.core.MaxAttempts()
	if limit == nil || !t.Begins || t.Step > 0 || t.Node == nil || !l.core.IsNewAttempt(t.Node.Name, t.Rule) {
		return nil
	}
	a := attempts.Attempt{Policy: ownership.Rule(t.Rule), Began: now.UTC()}
	record := l.attemptsOf(t.Node)
	record.Attempts = append(record.Attempts, a)
	return &newAttempt{Attempt: a, record: record.Within(now, limit.Window, limit.Limit).Encode(), version: t.Node.ResourceVersion}
}

// RecordAttempt records on the node that a treatment begins, immediately before its first write. It
// reports whether the treatment may begin: the node may have changed meanwhile. The write may have been
// slow, so it asks the loop again.
func (l *Engine) RecordAttempt(ctx context.Context, r *TaskResult) (may bool, err error) {
	a, node := r.attempt, r.Task.Node
	if a == nil {
		return true, nil
	}
	for tries := 1; ; tries++ {
		version, err := l.write.RecordAttempts(ctx, node, a.version, a.record)
		switch {
		case err == nil:
			a.made = withAttempts(node, version, a.record)
			return l.MayStillStart(ctx, r)
		case apierrors.IsConflict(err) && tries < maxRecordings: // a heartbeat is no reason to decide again
			if isStill, err := l.IsUnchanged(ctx, r); err != nil || !isStill {
				return false, err
			}
		default:
			return false, r.NotWritten(err)
		}
	}
}

// withAttempts returns a node with another value of the annotation.
func withAttempts(node *corev1.Node, version, record string) *corev1.Node {
	after := node.DeepCopy()
	after.ResourceVersion = version
	if after.Annotations == nil {
		after.Annotations = map[string]string{}
	}
	after.Annotations[attempts.Annotation] = record
	return after
}

// noteAttempt takes in that a task has recorded its attempt.
func (l *Engine) noteAttempt(now time.Time, r *TaskResult) {
	if r.attempt != nil && r.attempt.made != nil {
		r.NodeTasks.recorded = true
		l.takeInherited(now, r.attempt.made)
	}
}

// noteUnreadableAttempts reports attempts of a node that cannot be read, once for each problem.
func (l *Engine) noteUnreadableAttempts(state *Node, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != state.attemptsProblem {
		l.cfg.Logger.Warn("attempts unreadable", "node", state.Object.Name, "problem", problem)
		l.cfg.Event(treat.Event{Node: state.Object, EventReason: treat.AttemptsUnreadable, Message: problem})
	}
	state.attemptsProblem = problem
}
