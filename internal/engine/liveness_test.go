package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// newLoop returns an engine without policies, as if the API server were unreachable.
func newLoop(log *slog.Logger, announce func(treat.Event)) *Engine {
	return NewStepper(Config{Event: announce, Metrics: NewMetrics(), Logger: log, Liveness: &Liveness{}}).Engine
}

func named(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// loopFixture is a loop without policies and treatments.
type loopFixture struct {
	*Engine
	log strings.Builder
}

// open runs a test with a fixture in a synctest bubble.
func open(t *testing.T, test func(*loopFixture)) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		c := &loopFixture{}
		c.Engine = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(treat.Event) {})
		test(c)
	})
}

// fakeNodeWriter has something to write once its slot is not needed any more.
type fakeNodeWriter struct {
	noNodeWriter
	taker *fakeTaker
}

func (w *fakeNodeWriter) Due(now time.Time) (due time.Time) {
	if w.taker.proceeded {
		due = now
	}
	return due
}

// A write that waited for the ledger and needs no slot any more is sent at once.
func TestARoundIsDueWhenASlotIsNotNeededAnyMore(t *testing.T) {
	open(t, func(c *loopFixture) {
		must(t, c.nodeInbox.Replace(nil, "1"))
		c.round(t.Context())
		taker := &fakeTaker{}
		c.SetNodeWriter(&fakeNodeWriter{taker: taker})
		c.RequestSlot(taker)
		if due := c.round(t.Context()); !due.Equal(time.Now()) {
			t.Errorf("the next round is due at %v", due)
		}
	})
}

// must fails a test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pass advances the clock of the synctest bubble.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // it advances the clock of the bubble

func TestHealthy(t *testing.T) {
	// within runs a loop whose Events block until the test releases them.
	within := func(t *testing.T, test func(live *Liveness, l *Engine, let chan<- struct{})) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			live, let := &Liveness{}, make(chan struct{})
			l := newLoop(slog.New(slog.DiscardHandler), func(treat.Event) { <-let })
			l.cfg.Liveness = live
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- l.run(ctx) }()
			test(live, l, let)
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			pass(time.Hour)
			if err := live.Check(time.Now()); err != nil {
				t.Errorf("after the end: %v", err)
			}
		})
	}
	t.Run("a replica that does not lead is healthy", func(t *testing.T) {
		if err := new(Liveness).Check(time.Now()); err != nil {
			t.Error(err)
		}
	})
	t.Run("a leader that waits for the API server is healthy", func(t *testing.T) {
		within(t, func(live *Liveness, _ *Engine, _ chan<- struct{}) {
			for range 1000 {
				pass(time.Minute)
				testkit.Must(t, live.Check(time.Now()))
			}
		})
	})
	t.Run("an idle leader is healthy", func(t *testing.T) {
		within(t, func(live *Liveness, l *Engine, _ chan<- struct{}) {
			must(t, l.nodeInbox.Replace(nil, "1"))
			pass(24 * time.Hour)
			if err := live.Check(time.Now()); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			testkit.Check(t, l.loaded, "it has not even loaded")
		})
	})
	t.Run("a leader whose loop hangs is unhealthy until it continues", func(t *testing.T) {
		within(t, func(live *Liveness, l *Engine, let chan<- struct{}) {
			synctest.Wait() // it sleeps
			l.posts <- func(time.Time) { l.cfg.Event(treat.Event{}) }
			synctest.Wait()
			if err := live.Check(time.Now()); err != nil {
				t.Errorf("before anything was due: %v", err)
			}
			pass(maxSleep + maxRound + time.Second)
			testkit.Check(t, live.Check(time.Now()) != nil, "it is")
			let <- struct{}{}
			synctest.Wait()
			if err := live.Check(time.Now()); err != nil {
				t.Errorf("when it goes on: %v", err)
			}
		})
	})
}

// The loop ends although a request of a policy has not been answered yet.
func TestALostLedgerEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(slog.New(slog.DiscardHandler), func(treat.Event) {})
		l.ledger.done = make(chan error, 1)
		answer := make(chan struct{})
		l.Do(t.Context(), func(context.Context) func(time.Time) {
			<-answer
			return func(time.Time) {}
		})
		ended := make(chan error, 1)
		go func() { ended <- l.run(t.Context()) }()
		l.ledger.done <- ledger.ErrDeposed
		synctest.Wait()
		close(answer)
		if err := <-ended; !errors.Is(err, ledger.ErrDeposed) {
			t.Errorf("the loop ended with %v", err)
		}
	})
}
