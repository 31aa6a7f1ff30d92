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

	"github.com/resourcestack/autohealer/internal/testkit"
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
			testkit.Between(t, reads.Swap(0), least, most, "%s: reads", what)
		}
		pass := func(d time.Duration) { <-time.After(d) }

		pass(time.Hour)
		expect("while no file needs them", 0, 0)
		needed.Store(true)
		need <- struct{}{}
		expect("when they are needed", 1, 1)
		pass(time.Hour)
		expect("in an hour", 8, 12)
		testkit.Same(t, changes.Load(), 1, "unchanged labels are passed on only once")
		away.Store(true)
		pass(10 * time.Hour)
		expect("in ten hours of an API server that is away", 80, 140)
		away.Store(false)
		pass(10 * time.Minute)
		expect("when it is back", 1, 3)
		testkit.Same(t, strings.Count(text.String(), "reading the labels of the node failed"), 1, "log lines of the failure")
		needed.Store(false)
		pass(time.Hour)
		expect("when no file needs them any more", 0, 1)
		pass(time.Hour)
		expect("then", 0, 0)
	})
}
