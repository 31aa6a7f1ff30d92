package main

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/install/remediator"
)

// fakeRemediator plays a vendor's remediator. It restarts every node with a remediation:
// the kubelet sends heartbeats again.
type fakeRemediator struct {
	cancel context.CancelFunc
	loop   sync.WaitGroup
	mu     sync.Mutex // held during a restart, or while hold blocks restarts
}

// startRemediator runs the remediator until stop, even if ctx ends.
func startRemediator(ctx context.Context, w *watcher, wake func(ctx context.Context, node string) error) *fakeRemediator {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &fakeRemediator{cancel: cancel}
	r.loop.Go(func() {
		restarted := map[types.UID]bool{}
		for {
			var node string
			if err := w.await(ctx, func(s *state) string {
				for uid, object := range s.remediations {
					if !restarted[uid] {
						restarted[uid], node = true, nodeOf(object)
						return ""
					}
				}
				return "no remediation is waiting"
			}); err != nil {
				return // stopped, or a step failed
			}
			r.restartNode(ctx, w.printer, node, wake)
		}
	})
	return r
}

func (r *fakeRemediator) restartNode(ctx context.Context, printer *printer, node string, wake func(ctx context.Context, node string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	printer.line("remediator", "restarts %s for %s %s", node, remediator.Kind.Kind, node)
	if err := wake(ctx, node); err != nil && ctx.Err() == nil {
		printer.line("remediator", "the restart failed: %v", err)
	}
}

// hold blocks the remediator until the caller calls begin.
func (r *fakeRemediator) hold() (begin func()) {
	r.mu.Lock()
	return sync.OnceFunc(r.mu.Unlock)
}

// stop ends the remediator.
func (r *fakeRemediator) stop() {
	r.cancel()
	r.loop.Wait()
}
