package engine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// scriptedChecks notes the checks and the work of a task in their order, and lets one of them fail.
type scriptedChecks struct {
	made  []string
	fails string
}

func (c *scriptedChecks) pass(check string) (bool, error) {
	c.made = append(c.made, check)
	return check != c.fails, nil
}

func (c *scriptedChecks) IsProtected(context.Context, *TaskResult) (bool, error) {
	passes, err := c.pass("pods")
	return !passes, err
}
func (c *scriptedChecks) IsUnchanged(context.Context, *TaskResult) (bool, error) {
	return c.pass("node")
}
func (c *scriptedChecks) MayStillStart(context.Context, *TaskResult) (bool, error) {
	return c.pass("plan")
}
func (c *scriptedChecks) RecordAttempt(context.Context, *TaskResult) (bool, error) {
	return c.pass("attempt")
}
func (c *scriptedChecks) Prepare(context.Context, *TaskResult) (bool, error) {
	return c.pass("Prepare")
}

func (c *scriptedChecks) Run(context.Context, *TaskResult) error {
	_, err := c.pass("Run")
	return err
}
func (*scriptedChecks) Done(time.Time, *TaskResult)   {}
func (*scriptedChecks) Report(time.Time, *TaskResult) {}
func (*scriptedChecks) HasArrived(time.Time) bool     { return false }

// The work of a task that begins a treatment runs only after all checks, and counts as done only then.
func TestATreatmentBeginsAfterAllChecks(t *testing.T) {
	for _, test := range []struct {
		name  string
		task  Task
		fails string
		want  string
	}{
		{"all checks pass", Task{Begins: true}, "", "pods Prepare node plan attempt Run"},
		{"a pod protects the node", Task{Begins: true}, "pods", "pods"},
		{"the work is not prepared", Task{Begins: true}, "Prepare", "pods Prepare"},
		{"the node has changed", Task{Begins: true}, "node", "pods Prepare node"},
		{"the plan has changed", Task{Begins: true}, "plan", "pods Prepare node plan"},
		{"the attempt is not recorded", Task{Begins: true}, "attempt", "pods Prepare node plan attempt"},
		{"the treatment has begun", Task{Begins: true, HasBegun: true}, "", "Prepare node plan Run"},
		{"the treatment has begun and the plan has changed", Task{Begins: true, HasBegun: true}, "plan", "Prepare node plan"},
		{"the task begins no treatment", Task{}, "", "Run"},
	} {
		t.Run(test.name, func(t *testing.T) {
			checks := &scriptedChecks{fails: test.fails}
			test.task.Work = checks
			r := &TaskResult{Task: &test.task}
			testkit.Must(t, (&taskRunner{checks: checks}).run(t.Context(), r))
			testkit.Same(t, strings.Join(checks.made, " "), test.want, "the checks")
			testkit.Same(t, r.Outcome == treat.Made, strings.HasSuffix(test.want, "Run"), "the work is done")
		})
	}
}
