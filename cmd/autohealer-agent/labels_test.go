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

func TestLabelsAreAskedForOnlyWhileTheyAreNeededAndRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var asked, told atomic.Int64
		var needed, away atomic.Bool
		var text strings.Builder
		need := make(chan struct{}, 1)
		go labels{
			ask: func(context.Context) (map[string]string, error) {
				asked.Add(1)
				if away.Load() {
					return nil, errors.New("away")
				}
				return map[string]string{"gpu": "true"}, nil
			},
			needed: need, still: needed.Load,
			told: func(context.Context, map[string]string) { told.Add(1) },
			log:  slog.New(slog.NewTextHandler(&text, nil)),
		}.follow(ctx)
		expect := func(what string, least, most int64) {
			t.Helper()
			synctest.Wait()
			if n := asked.Swap(0); n < least || n > most {
				t.Errorf("%s it asks %d times, want %d to %d", what, n, least, most)
			}
		}
		pass := func(d time.Duration) { <-time.After(d) }

		pass(time.Hour)
		expect("while nobody needs them", 0, 0)
		needed.Store(true)
		need <- struct{}{}
		expect("when they are needed", 1, 1)
		pass(time.Hour)
		expect("in an hour", 8, 12)
		if told.Load() != 1 {
			t.Errorf("labels that do not change are told %d times", told.Load())
		}
		away.Store(true)
		pass(10 * time.Hour)
		expect("in ten hours of an API server that is away", 80, 140)
		away.Store(false)
		pass(10 * time.Minute)
		expect("when it is back", 1, 3)
		if n := strings.Count(text.String(), "not known anew"); n != 1 {
			t.Errorf("that it is away is logged %d times", n)
		}
		needed.Store(false)
		pass(time.Hour)
		expect("when nobody needs them any more", 0, 1)
		pass(time.Hour)
		expect("then", 0, 0)
	})
}
