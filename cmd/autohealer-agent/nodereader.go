package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/times"
)

const (
	// labelInterval and clearInterval are the least times between two reads of the node, for its
	// labels and for the annotation that clears conditions. A random part of up to half is added,
	// so that the agents of a cluster do not read at once.
	labelInterval = 5 * time.Minute
	clearInterval = time.Minute
	// Backoff while the API server does not answer.
	minBackoff, maxBackoff = time.Second, 5 * time.Minute
)

// nodeReader reads the metadata of the node while it is needed.
type nodeReader struct {
	get      func(context.Context) (kubeapi.Metadata, error)
	wake     <-chan struct{}      // receives when metadata may be needed
	interval func() time.Duration // 0 while it is not needed
	handle   func(context.Context, kubeapi.Metadata)
	log      *slog.Logger
}

// run reads until ctx ends. It reads only while a file needs labels or a condition can be
// cleared, because each read is a request per node of the cluster. A wake-up does not shorten the
// interval.
func (r nodeReader) run(ctx context.Context) {
	failures := 0      // in a row
	var last time.Time // of the last read
	spread := 0.0
	for {
		var next <-chan time.Time // never, while nothing is needed
		interval := r.interval()
		if failures > 0 && interval > 0 {
			interval = times.Backoff(failures, minBackoff, maxBackoff)
		}
		due := last.Add(interval + time.Duration(spread*float64(interval)))
		switch {
		case interval == 0:
		case !last.IsZero() && time.Now().Before(due):
			next = time.After(time.Until(due))
		default:
			node, err := r.get(ctx)
			last, spread = time.Now(), rand.Float64()/2
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				if failures == 0 {
					r.log.Warn("reading the metadata of the node failed, retrying", "err", err)
				}
				failures++
			default:
				if failures > 0 {
					r.log.Info("reading the metadata of the node works again")
				}
				failures = 0
				r.handle(ctx, node)
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		case <-r.wake:
		}
	}
}
