package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLabelsAreReadRarelyAndOnlyWhileNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var reads, changes atomic.Int64
		var needed, away atomic.Bool
		var text strings.Builder
		need := make(chan struct{}, 1)
		go labels{
			get: func(context.Context) (map[string]string, error) {
				reads.Add(1)
				if away.Load() {
					return nil, errors.New("away")
				}
				return map[string]string{"gpu": "true"}, nil
			},
			start: need, stillNeeded: needed.Load,
			onChange: func(context.Context, map[string]string) { changes.Add(1) },
			log:      slog.New(slog.NewTextHandler(&text, nil)),
		}.run(ctx)
		expect := func(what string, least, most int64) {
			t.Helper()
			synctest.Wait()
			if n := reads.Swap(0); n < least || n > most {
				t.Errorf("%s: %d reads, want %d to %d", what, n, least, most)
			}
		}
		pass := func(d time.Duration) { <-time.After(d) }

		pass(time.Hour)
		expect("while no file needs them", 0, 0)
		needed.Store(true)
		need <- struct{}{}
		expect("when they are needed", 1, 1)
		pass(time.Hour)
		expect("in an hour", 8, 12)
		if changes.Load() != 1 {
			t.Errorf("unchanged labels are passed on %d times", changes.Load())
		}
		away.Store(true)
		pass(10 * time.Hour)
		expect("in ten hours of an API server that is away", 80, 140)
		away.Store(false)
		pass(10 * time.Minute)
		expect("when it is back", 1, 3)
		if n := strings.Count(text.String(), "reading the labels of the node failed"); n != 1 {
			t.Errorf("the failure is logged %d times", n)
		}
		needed.Store(false)
		pass(time.Hour)
		expect("when no file needs them any more", 0, 1)
		pass(time.Hour)
		expect("then", 0, 0)
	})
}
