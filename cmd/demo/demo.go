package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// startTimeout and stepTimeout limit the start and each step.
	startTimeout = 3 * time.Minute
	stepTimeout  = 2 * time.Minute
)

// demo is the configuration of a run.
type demo struct {
	// once exits after the last step.
	once bool
	// pause is the time before each step, for reading the previous one.
	pause time.Duration
	// controller, agent and diskWatch are the paths of the programs. The demo builds those
	// that are empty.
	controller, agent, diskWatch string
	// kmsg uses the kernel log of this machine. Otherwise the agent reads a file.
	kmsg bool
	// karpenter adds a real Karpenter to the cluster.
	karpenter bool
	// steps returns the steps of the run.
	steps func(s *demoCluster) []step
}

// step is one fault or action, and the check of its effects.
type step struct {
	title string
	run   func(ctx context.Context) error
}

// run starts the cluster and runs the steps. Unless once is set, it then keeps the cluster
// until ctx ends.
func (d demo) run(ctx context.Context, out io.Writer) (err error) {
	if d.kmsg {
		if err := (kernelLog{kernelDevice}).check(); err != nil {
			return err
		}
	}
	printer := newPrinter(out)
	var s *demoCluster
	err = withTimeout(ctx, startTimeout, func(ctx context.Context) (err error) {
		s, err = build(ctx, printer, d)
		return err
	})
	defer func() { err = errors.Join(err, s.shutDown()) }()
	if err != nil {
		return fmt.Errorf("%w%s", err, s.lastLogs(ctx))
	}
	began := time.Now()
	steps := d.steps(s)
	if err := d.runSteps(ctx, printer, steps); err != nil {
		return fmt.Errorf("%w%s", err, s.lastLogs(ctx))
	}
	printer.print("")
	printer.say("%d steps in %s, all as expected; %s", len(steps), formatDuration(time.Since(began)), s.summary())
	if !d.once {
		s.interact(ctx)
	}
	return nil
}

// summary returns the result of the whole run.
func (s *demoCluster) summary() string {
	if s.karpenter != nil {
		return "all terminated nodes were replaced"
	}
	return fmt.Sprintf("never more than %d nodes were emptied at once", ask(s.watcher, func(s *state) int { return s.maxTainted[kernelSet] }))
}

// runSteps runs the steps. The error names the failed step.
func (d demo) runSteps(ctx context.Context, printer *printer, steps []step) error {
	for i, step := range steps {
		select {
		case <-time.After(d.pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		printer.startStep(fmt.Sprintf("%d. %s", i+1, step.title))
		if err := withTimeout(ctx, stepTimeout, step.run); err != nil {
			return fmt.Errorf("step %d, %q: %w", i+1, step.title, err)
		}
	}
	return nil
}

// withTimeout runs do with a time limit.
func withTimeout(ctx context.Context, limit time.Duration, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	return do(ctx)
}
