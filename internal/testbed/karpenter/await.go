package karpenter

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// glance is the time between two looks.
	glance = 50 * time.Millisecond
	// patience bounds the wait for what takes a second or two also on busy machines.
	patience = 30 * time.Second
)

// await looks at something until nothing is wrong with it any more. What was wrong at
// the end of ctx is in the error.
func await(ctx context.Context, what string, look func(context.Context) error) error {
	again := time.NewTicker(glance)
	defer again.Stop()
	wrong := errors.New("nobody has looked yet")
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // else it only says that ctx is over
			wrong = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, context.Cause(ctx), wrong)
		case <-again.C:
		}
	}
}
