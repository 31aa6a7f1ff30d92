package repairblock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/watch"
)

const (
	// requestTimeout is the timeout of one request. shortestWatch is the shortest duration
	// of a watch; the longest is twice that, so that not all watches end at once.
	requestTimeout = 10 * time.Second
	shortestWatch  = 5 * time.Minute
	// longRun is how long a watch must last for its end to be no failure.
	longRun = 10 * time.Second
)

// lister lists and watches objects of a kind. It lists again whenever the watch ends, because
// a resumed watch does not report changes that only come from another schema.
type lister[T client.Object] struct {
	client   client.WithWatch
	list     func() client.ObjectList
	restrict []client.ListOption

	// onList receives the complete list and when the list request started; one receives a
	// change since then; failed receives why nothing can be read.
	onList   func(begun time.Time, objects map[string]T)
	onChange func(object T, isGone bool)
	onError  func(error)
}

// run works until ctx ends. After each of the pauses, counted from the start, it lists the
// objects once more, regardless of the watch.
func (f *lister[T]) run(ctx context.Context, pauses ...time.Duration) {
	waits, start := watch.Backoff(), time.Now()
	for ctx.Err() == nil {
		begun := time.Now()
		until := begun.Add(shortestWatch + rand.N(shortestWatch))
		for _, pause := range pauses {
			if again := start.Add(pause); again.After(begun) && again.Before(until) {
				until = again
			}
		}
		err := f.listAndWatch(ctx, begun, until)
		if err != nil && ctx.Err() == nil {
			f.onError(err)
		}
		switch now := time.Now(); {
		case err == nil && !now.Before(until): // the watch ended as planned
			waits = watch.Backoff()
			continue
		case now.Sub(begun) > longRun:
			waits = watch.Backoff()
		}
		select {
		case <-time.After(waits.Step()):
		case <-ctx.Done():
		}
	}
}

// listAndWatch lists once and then watches, until the watch ends or until has passed.
func (f *lister[T]) listAndWatch(ctx context.Context, begun, until time.Time) error {
	version, err := f.listOnce(ctx, begun)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	options := client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}}
	w, err := f.client.Watch(ctx, f.list(), options.ApplyOptions(f.restrict))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-w.ResultChan():
			if !open {
				return nil
			}
			if err := f.handle(event); err != nil {
				return err
			}
		}
	}
}

// listOnce lists once.
func (f *lister[T]) listOnce(ctx context.Context, begun time.Time) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list := f.list()
	if err := f.client.List(ctx, list, f.restrict...); err != nil {
		return "", err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return "", err
	}
	objects := make(map[string]T, len(items))
	for _, item := range items {
		object, ok := item.(T)
		if !ok {
			return "", fmt.Errorf("the list has a %T", item)
		}
		objects[object.GetName()] = object
	}
	f.onList(begun, objects)
	return list.GetResourceVersion(), nil
}

func (f *lister[T]) handle(event apiwatch.Event) error {
	if event.Type == apiwatch.Error {
		return apierrors.FromObject(event.Object)
	}
	object, ok := event.Object.(T)
	if !ok {
		return fmt.Errorf("the watch sent a %T", event.Object)
	}
	f.onChange(object, event.Type == apiwatch.Deleted)
	return nil
}
