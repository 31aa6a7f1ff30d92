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

	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestNodeIsReadRarelyAndOnlyWhileNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var reads, interval atomic.Int64
		var away atomic.Bool
		var text strings.Builder
		need := make(chan struct{}, 1)
		go nodeReader{
			get: func(context.Context) (kubeapi.Metadata, error) {
				reads.Add(1)
				if away.Load() {
					return kubeapi.Metadata{}, errors.New("away")
				}
				return kubeapi.Metadata{}, nil
			},
			wake: need, interval: func() time.Duration { return time.Duration(interval.Load()) },
			handle: func(context.Context, kubeapi.Metadata) {},
			log:    slog.New(slog.NewTextHandler(&text, nil)),
		}.run(ctx)
		expect := func(what string, least, most int64) {
			t.Helper()
			synctest.Wait()
			testkit.Between(t, reads.Swap(0), least, most, "%s: reads", what)
		}
		pass := func(d time.Duration) { <-time.After(d) }

		pass(time.Hour)
		expect("while it is not needed", 0, 0)
		interval.Store(int64(labelInterval))
		need <- struct{}{}
		expect("when it is needed", 1, 1)
		pass(time.Hour)
		expect("in an hour", 8, 12)
		interval.Store(int64(clearInterval))
		for range 1000 {
			select {
			case need <- struct{}{}:
			default:
			}
			pass(3600 * time.Millisecond)
		}
		expect("in an hour with a condition that may be cleared, and many reports", 40, 60)
		interval.Store(int64(labelInterval))
		away.Store(true)
		pass(10 * time.Hour)
		expect("in ten hours of an API server that is away", 80, 140)
		away.Store(false)
		pass(10 * time.Minute)
		expect("when it is back", 1, 3)
		testkit.Same(t, strings.Count(text.String(), "reading the metadata of the node failed"), 1, "log lines of the failure")
		interval.Store(0)
		pass(time.Hour)
		expect("when it is not needed any more", 0, 1)
		pass(time.Hour)
		expect("then", 0, 0)
	})
}
