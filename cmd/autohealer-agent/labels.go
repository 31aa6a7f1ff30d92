package main

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"
)

const (
	// pollInterval is the least time between two reads of the labels. A random part of up
	// to half is added, so that the agents of a starting cluster do not read at once.
	pollInterval = 5 * time.Minute
	// Backoff while the API server does not answer.
	minBackoff, maxBackoff = time.Second, 5 * time.Minute
)

// labels reads the labels of the node while a file needs them.
type labels struct {
	get         func(context.Context) (map[string]string, error)
	start       <-chan struct{} // receives when labels become needed
	stillNeeded func() bool
	onChange    func(context.Context, map[string]string)
	log         *slog.Logger
}

// run reads labels until ctx ends. It reads only while a file needs them, because each read
// is a request per node of the cluster.
func (l labels) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.start:
			l.poll(ctx)
		}
	}
}

func (l labels) poll(ctx context.Context) {
	var last map[string]string
	failing := false
	wait := minBackoff
	for l.stillNeeded() {
		known, err := l.get(ctx)
		next := pollInterval + rand.N(pollInterval/2)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing {
				l.log.Warn("reading the labels of the node failed, retrying", "err", err)
			}
			failing = true
			next = wait + rand.N(wait/2)
			wait = min(2*wait, maxBackoff)
		default:
			if failing {
				l.log.Info("reading the labels of the node works again")
			}
			failing, wait = false, minBackoff
			if last == nil || !maps.Equal(last, known) {
				l.onChange(ctx, known)
			}
			last = known
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}
