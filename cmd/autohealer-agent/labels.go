package main

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"
)

const (
	// askAgain is how often the labels of the node are asked for, and half as long
	// again: the agents of a cluster that starts as a whole must not ask together.
	askAgain = 5 * time.Minute
	// The waits while the API server does not answer.
	firstAsk, longestAsk = time.Second, 5 * time.Minute
)

// labels asks for the labels of the node, as long as somebody needs them.
type labels struct {
	ask    func(context.Context) (map[string]string, error)
	needed <-chan struct{} // has one for each time that they are newly needed
	still  func() bool     // whether they are needed still
	told   func(context.Context, map[string]string)
	log    *slog.Logger
}

// follow asks until ctx ends. What is needed by nobody is not asked for: it would cost
// the API server as many requests as there are nodes.
func (l labels) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.needed:
			l.while(ctx)
		}
	}
}

func (l labels) while(ctx context.Context) {
	var last map[string]string
	failing := false
	wait := firstAsk
	for l.still() {
		known, err := l.ask(ctx)
		next := askAgain + rand.N(askAgain/2)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing {
				l.log.Warn("the labels of the node are not known anew", "err", err)
			}
			failing = true
			next = wait + rand.N(wait/2)
			wait = min(2*wait, longestAsk)
		default:
			if failing {
				l.log.Info("the labels of the node are known again")
			}
			failing, wait = false, firstAsk
			if last == nil || !maps.Equal(last, known) {
				l.told(ctx, known)
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
