package main

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/install/remediator"
)

// healer plays a vendor's remediator: whatever node it is asked about, it starts
// anew, which here means that the kubelet is heard again.
type healer struct {
	cancel context.CancelFunc
	loop   sync.WaitGroup
	turn   sync.Mutex // held while it heals, or may not
}

// startHealer has the remediator work until stop, whatever becomes of ctx.
func startHealer(ctx context.Context, o *onlooker, wake func(ctx context.Context, node string) error) *healer {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &healer{cancel: cancel}
	h.loop.Go(func() {
		healed := map[types.UID]bool{}
		for {
			var node string
			if err := o.await(ctx, func(s *sight) string {
				for uid, object := range s.asked {
					if !healed[uid] {
						healed[uid], node = true, nodeOf(object)
						return ""
					}
				}
				return "nothing is asked of the remediator"
			}); err != nil {
				return // it is stopped, or the story is over
			}
			h.heal(ctx, o.tell, node, wake)
		}
	})
	return h
}

func (h *healer) heal(ctx context.Context, tell *teller, node string, wake func(ctx context.Context, node string) error) {
	h.turn.Lock()
	defer h.turn.Unlock()
	tell.line("remediator", "starts %s anew, as %s %s asks", node, remediator.Kind.Kind, node)
	if err := wake(ctx, node); err != nil && ctx.Err() == nil {
		tell.line("remediator", "that did not work: %v", err)
	}
}

// hold has the remediator wait until it is told to begin.
func (h *healer) hold() (begin func()) {
	h.turn.Lock()
	return sync.OnceFunc(h.turn.Unlock)
}

// stop ends the remediator's work.
func (h *healer) stop() {
	h.cancel()
	h.loop.Wait()
}
