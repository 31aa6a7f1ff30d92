package karpenter

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// pollInterval is the time between two checks.
	pollInterval = 50 * time.Millisecond
	// maxWait bounds waits for operations that take a second or two, also on busy machines.
	maxWait = 30 * time.Second
)

// await polls until look returns no error. If ctx ends before, the error has the last
// problem.
func await(ctx context.Context, what string, look func(context.Context) error) error {
	again := time.NewTicker(pollInterval)
	defer again.Stop()
	wrong := errors.New("not checked yet")
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // else the error only says that ctx has ended
			wrong = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, context.Cause(ctx), wrong)
		case <-again.C:
		}
	}
}
