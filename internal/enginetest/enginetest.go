// Package enginetest runs an engine with policies and treatments step by step. Tests of
// policies and treatments add their parts to a [Fixture], deliver objects and finish tasks.
// The clock is that of a synctest bubble. A fixture sends nothing,
// unless the test configures a client and runs a task or writes a snapshot.
package enginetest

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/watch"
)

// ErrBroken is an error of a network.
var ErrBroken = errors.New("connection refused")

// Fixture is an engine that a test runs step by step.
type Fixture struct {
	*engine.Stepper
	T       *testing.T
	Metrics *engine.Metrics
	Log     strings.Builder
	Events  []treat.Event
}

// New returns a fixture without policies, treatments and nodes.
func New(t *testing.T, changes ...func(*engine.Config)) *Fixture {
	t.Helper()
	f := &Fixture{T: t, Metrics: engine.NewMetrics()}
	cfg := engine.Config{
		Event: func(event treat.Event) { f.Events = append(f.Events, event) }, Metrics: f.Metrics, Logger: slog.New(slog.NewTextHandler(&f.Log, nil)),
	}
	for _, change := range changes {
		change(&cfg)
	}
	f.Stepper = engine.NewStepper(cfg)
	testkit.Must(t, f.NodeInbox().Replace(nil, "1"))
	return f
}

// Run runs a test with a fixture in a synctest bubble.
func Run(t *testing.T, test func(*Fixture), changes ...func(*engine.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(New(t, changes...)) })
}

// Pass advances the clock of the synctest bubble.
func Pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // it advances the clock of the bubble

// CountEvents counts the Events of a reason.
func (f *Fixture) CountEvents(what treat.EventReason) (n int) {
	for _, event := range f.Events {
		if event.EventReason == what {
			n++
		}
	}
	return n
}

// Lines counts the log lines with a message.
func (f *Fixture) Lines(message string) int {
	return strings.Count(f.Log.String(), fmt.Sprintf("msg=%q", message))
}

// WantTask checks the kind of the node's next task and returns the task.
func (f *Fixture) WantTask(node, want string) *engine.Task {
	f.T.Helper()
	t, due := f.next(node)
	if t == nil {
		f.T.Fatalf("nothing is to be done about %s before %v, want %s; the log:\n%s", node, due, want, &f.Log)
	}
	if t.Kind != want {
		f.T.Fatalf("%s is to be done about %s, want %s", t.Kind, node, want)
	}
	return t
}

// WantNoTask checks that the node has no task, and returns when to check again.
func (f *Fixture) WantNoTask(node string) (due time.Time) {
	f.T.Helper()
	t, due := f.next(node)
	if t != nil {
		f.T.Fatalf("%s is to be done about %s, want nothing", t.Kind, node)
	}
	return due
}

// next returns the next task of a node, and checks that the engine has queued it.
func (f *Fixture) next(node string) (*engine.Task, time.Time) {
	f.T.Helper()
	t, due := f.Next(node)
	if (t != nil) != (f.IsQueued(node) || f.AwaitsLedger(node)) {
		f.T.Errorf("%s is queued: %t, and its next task is %+v", node, f.IsQueued(node), t)
	}
	return t, due
}

// Named returns a node with a version.
func Named(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// Empty returns an inbox for a kind without objects.
func Empty[T client.Object](t *testing.T, sample T) *watch.Optional[T] {
	t.Helper()
	box := watch.NewOptional(nil, sample, nil)
	box.SetAvailability(nil)
	testkit.Must(t, box.Replace(nil, "1"))
	return box
}

// EntriesOf returns the entries of one kind.
func EntriesOf[T ledger.Entry](all []ledger.Entry) (of []T) {
	for _, e := range all {
		if e, is := e.(T); is {
			of = append(of, e)
		}
	}
	return of
}

// Value returns the sum of a metric over all series with this label value.
func Value(t *testing.T, from prometheus.Collector, name, label string) (sum float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(from)
	families, err := registry.Gather()
	testkit.Must(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				if family.GetName() == name && pair.GetValue() == label {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return sum
}
