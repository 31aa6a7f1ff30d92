package silence

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// ear asks for Leases, and notes whether they can be heard. It never lists from a cache
// that may be behind. A watch that the server ends is gone on with where it was: only
// one that cannot be had is a break.
func (k *Keeper) ear() cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				options.ResourceVersion, options.ResourceVersionMatch = "", ""
			}
			list, err := k.cfg.Leases.ListWithContext(ctx, options)
			k.heed(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			stream, err := k.cfg.Leases.WatchWithContext(ctx, options)
			k.heed(ctx, err)
			return stream, err
		},
	}
}

// heed notes whether Leases could be had, and says so when that changes. That the server
// cannot stream a list, or has forgotten where a watch was, is an answer: another
// question follows.
func (k *Keeper) heed(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsInvalid(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	k.change(func(now time.Time, roll *Roll) time.Time {
		if err == nil {
			roll.Sound(now)
		} else {
			roll.Broken()
		}
		return now // whoever is due is another question now
	})
	why := ""
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		why = "forbidden"
	default:
		why = "broken"
	}
	k.mu.Lock()
	isNews := k.deaf != why
	k.deaf = why
	k.mu.Unlock()
	if !isNews {
		return
	}
	switch why {
	case "":
		k.cfg.Logger.Info("agents can be heard")
	case "forbidden":
		k.cfg.Logger.Warn("agents cannot be heard, so none is called silent: the role lacks get, list and watch of leases", "namespace", k.cfg.Namespace, "err", err)
	default:
		k.cfg.Logger.Warn("agents cannot be heard, so none is called silent until they can for as long as a lease lasts", "err", err)
	}
}

// desk is where the reflector puts what it hears.
type desk struct{ *Keeper }

func (d *desk) take(object any) error {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("the watch brought a %T", object)
	}
	d.hear(lease)
	return nil
}

// Add takes in a Lease that is new.
func (d *desk) Add(object any) error { return d.take(object) }

// Update takes in one that was written.
func (d *desk) Update(object any) error { return d.take(object) }

// Delete notes that one is gone.
func (d *desk) Delete(object any) error {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("the watch brought a %T", object)
	}
	d.change(func(_ time.Time, roll *Roll) time.Time {
		roll.Lose(lease.Name)
		return time.Time{}
	})
	return nil
}

// Replace takes in everything there is.
func (d *desk) Replace(list []any, _ string) error {
	there := make(map[string]bool, len(list))
	for _, object := range list {
		if err := d.take(object); err != nil {
			return err
		}
		there[object.(*coordinationv1.Lease).Name] = true
	}
	d.change(func(_ time.Time, roll *Roll) time.Time {
		roll.LoseOthers(there)
		return time.Time{}
	})
	return nil
}

// Resync has no meaning here: nothing that came is lost.
func (d *desk) Resync() error { return nil }
