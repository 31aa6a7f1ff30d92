package configmaps_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// gate is a client that counts requests and can block or reject them.
type gate struct {
	held                    chan struct{} // watches deliver nothing until it is closed; nil blocks nothing
	lists, watches          atomic.Int64
	listClosed, watchClosed atomic.Bool
}

func (g *gate) before(c client.WithWatch) client.WithWatch {
	pass := func(count *atomic.Int64, closed *atomic.Bool, verb string) error {
		count.Add(1)
		if closed.Load() {
			return apierrors.NewForbidden(appsv1.Resource("controllerrevisions"), "", fmt.Errorf("no right to %s", verb))
		}
		return nil
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := pass(&g.lists, &g.listClosed, "list"); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			if err := pass(&g.watches, &g.watchClosed, "watch"); err != nil {
				return nil, err
			}
			w, err := c.Watch(ctx, list, options...)
			if err != nil || g.held == nil {
				return w, err
			}
			events := make(chan watch.Event)
			late := watch.NewProxyWatcher(events)
			go func() {
				defer w.Stop()
				select {
				case <-g.held:
				case <-late.StopChan():
					return
				}
				for event := range w.ResultChan() {
					select {
					case events <- event:
					case <-late.StopChan():
						return
					}
				}
			}()
			return late, nil
		},
	})
}

// missing returns how the types of sets differ from the wanted ones.
func missing(sets []*v1alpha1.ConditionSet, want ...string) error {
	var got []string
	for _, set := range sets {
		got = append(got, set.Spec.Type)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		return fmt.Errorf("in force are %v, want %v", got, want)
	}
	return nil
}

func TestRevisionWatcher(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	direct := testkit.Value(client.NewWithWatch(cluster.AdminConfig(), client.Options{})).Must(t)
	// fixture is a namespace with a store, and a watcher behind a gate.
	type fixture struct {
		gate    gate
		log     testkit.Log
		store   *configmaps.RevisionStore
		watcher *configmaps.RevisionWatcher
		space   string
	}
	newFixture := func(t *testing.T) *fixture {
		t.Helper()
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "watcher-"}}
		testkit.Must(t, direct.Create(t.Context(), ns))
		w := &fixture{space: ns.Name, store: configmaps.NewRevisionStore(direct, ns.Name)}
		w.watcher = configmaps.NewRevisionWatcher(w.gate.before(direct), ns.Name, slog.New(slog.NewTextHandler(&w.log, nil)))
		return w
	}
	start := func(t *testing.T, w *fixture) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.watcher.Start(ctx); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(running.Wait)
		t.Cleanup(cancel)
	}
	keep := func(t *testing.T, w *fixture, name, kind string, before configmaps.Stored) (*corev1.ConfigMap, configmaps.Stored) {
		t.Helper()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.space, Name: name}}
		if err := direct.Get(t.Context(), client.ObjectKeyFromObject(m), m); apierrors.IsNotFound(err) {
			err = direct.Create(t.Context(), m)
			testkit.Must(t, err)
		} else if err != nil {
			t.Fatal(err)
		}
		m.Data = map[string]string{"sets.yaml": file(kind)}
		version := testkit.Value(configmaps.Read(m)).Must(t)
		kept := testkit.Value(w.store.Store(t.Context(), before, version)).Must(t)
		return m, kept
	}
	sees := func(t *testing.T, w *fixture, want ...string) {
		t.Helper()
		testkit.Eventually(t, "the watcher", func() error {
			sets, err := w.watcher.InForce(t.Context())
			if err != nil {
				return err
			}
			return missing(sets, want...)
		})
	}
	// asks returns how many requests a call costs.
	asks := func(t *testing.T, w *fixture) int64 {
		t.Helper()
		before := w.gate.lists.Load()
		testkit.Value(w.watcher.InForce(t.Context())).Must(t)
		return w.gate.lists.Load() - before
	}
	watches := func(t *testing.T, w *fixture) {
		t.Helper()
		testkit.Eventually(t, "the watch", func() error {
			if got := asks(t, w); got > 0 {
				return fmt.Errorf("a question costs %d lists", got)
			}
			return nil
		})
	}

	t.Run("sees_changes_without_requests", func(t *testing.T) {
		w := newFixture(t)
		_, one := keep(t, w, "one", "A", configmaps.Stored{})
		if got := asks(t, w); got != 1 {
			t.Errorf("a question before the start costs %d lists, want 1", got)
		}
		sees(t, w, "A")
		start(t, w)
		watches(t, w)
		before := w.gate.lists.Load()
		sees(t, w, "A")
		keep(t, w, "one", "B", one)
		sees(t, w, "B")
		other, _ := keep(t, w, "two", "C", configmaps.Stored{})
		sees(t, w, "B", "C")
		testkit.Must(t, w.store.Delete(t.Context(), other.UID))
		sees(t, w, "B")
		if got := w.gate.lists.Load(); got != before {
			t.Errorf("the API server was asked %d times", got-before)
		}
		if sets, err := w.watcher.Fresh(t.Context()); err != nil || missing(sets, "B") != nil || w.gate.lists.Load() != before+1 {
			t.Errorf("a fresh look brings %v, %v after %d lists", sets, err, w.gate.lists.Load()-before)
		}
		if w.log.Count("level=WARN") > 0 {
			t.Errorf("it complains: %s", w.log.String())
		}
	})

	t.Run("reads_without_watch_permission_and_logs_it_once", func(t *testing.T) {
		w := newFixture(t)
		w.gate.watchClosed.Store(true)
		_, one := keep(t, w, "one", "A", configmaps.Stored{})
		start(t, w)
		testkit.Eventually(t, "several tries", func() error {
			if got := w.gate.watches.Load(); got < 5 {
				return fmt.Errorf("%d so far", got)
			}
			return nil
		})
		// The result must be correct at once: no event would follow.
		for _, kind := range []string{"B", "A", "C"} {
			_, one = keep(t, w, "one", kind, one)
			sets, err := w.watcher.InForce(t.Context())
			if err == nil {
				err = missing(sets, kind)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if got := w.log.Count("not watched"); got != 1 {
			t.Errorf("it says so %d times: %s", got, w.log.String())
		}
		w.gate.watchClosed.Store(false)
		watches(t, w)
		keep(t, w, "one", "D", one)
		sees(t, w, "D")
	})

	t.Run("reads_while_the_watch_has_not_delivered", func(t *testing.T) {
		w := newFixture(t)
		w.gate.held = make(chan struct{})
		keep(t, w, "one", "A", configmaps.Stored{})
		start(t, w)
		testkit.Until(t, "the watch", func() bool { return w.gate.watches.Load() != 0 })
		for range 20 {
			if sets, err := w.watcher.InForce(t.Context()); err != nil || missing(sets, "A") != nil {
				t.Fatalf("it finds %v, %v", sets, err)
			}
		}
		close(w.gate.held)
		watches(t, w)
		sees(t, w, "A")
	})

	t.Run("returns_no_sets_without_list_permission", func(t *testing.T) {
		w := newFixture(t)
		w.gate.watchClosed.Store(true)
		w.gate.listClosed.Store(true)
		keep(t, w, "one", "A", configmaps.Stored{})
		for range 3 {
			if sets, err := w.watcher.InForce(t.Context()); err != nil || len(sets) > 0 {
				t.Errorf("it finds %v, %v", sets, err)
			}
		}
		if got := w.log.Count("without the sets in ConfigMaps"); got != 1 {
			t.Errorf("it says so %d times: %s", got, w.log.String())
		}
		w.gate.listClosed.Store(false)
		sees(t, w, "A")
	})
}
