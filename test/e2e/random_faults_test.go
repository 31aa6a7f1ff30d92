package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// everyNth matches every n-th of the matching requests, beginning with the k-th.
func everyNth(k, n int64, match func(testbed.Request) bool) func(testbed.Request) bool {
	var seen atomic.Int64
	return func(r testbed.Request) bool { return match(r) && (seen.Add(1)-1)%n == k }
}

func testRandomFaults(w *scope) {
	const count = 200
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	var rules []*testbed.Rule
	for _, storm := range []struct {
		match  func(testbed.Request) bool
		faults []testbed.Fault
		among  int64
	}{
		{testbed.On("patch", "nodes"), []testbed.Fault{testbed.Conflict(), testbed.TooManyRequests(0), testbed.InternalError(), testbed.CutRequest(), testbed.CutResponse()}, 16},
		{testbed.On("update", "configmaps"), []testbed.Fault{testbed.CutResponse(), testbed.Conflict(), testbed.InternalError(), testbed.CutRequest()}, 6},
		{testbed.On("get", "nodes"), []testbed.Fault{testbed.InternalError(), testbed.CutResponse()}, 6},
		{testbed.On("patch", "conditionsets/status"), []testbed.Fault{testbed.CutResponse()}, 2},
		{testbed.On("create", "events"), []testbed.Fault{testbed.TooManyRequests(time.Second), testbed.CutResponse()}, 20},
	} {
		for i, fault := range storm.faults {
			rules = append(rules, proxy.Inject(everyNth(int64(i), storm.among, storm.match), fault, 0))
		}
	}
	nodes := w.createNodes(unhealthyFromStart(count))
	w.createSet("set", evict(almostHalf))
	w.start(install.Options{Through: proxy, Args: []string{alone}})
	for _, many := range []int{10, 40, 80} {
		w.eventually(fmt.Sprintf("NoExecute on %d nodes", many), func() error {
			if got := len(w.evicted(w.key("set"))); got < many {
				return fmt.Errorf("on %d", got)
			}
			return nil
		})
		w.dropWatches(proxy)
	}
	w.counts(w.key("set"), 98, 102)
	w.recover(nodes[:count/2])
	w.counts(w.key("set"), 98, 2)
	for i, rule := range rules {
		if rule.Hits() == 0 {
			w.t.Errorf("fault %d has hit no request", i)
		}
	}
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 98, Fallbacks: 102, Removals: 98})
}

func testOutage(w *scope) {
	const count = 200
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	w.createNodes(unhealthyFromStart(count))
	w.createSet("set", evict(almostHalf))
	w.outages(proxy, testbed.On("patch", "nodes"), 40, 10)
	w.counts(w.key("set"), 98, 102)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 98, Fallbacks: 102})
}

// outages starts a controller, and ends the API server twice while writes are held: some of
// them after the first few have passed.
func (w *scope) outages(proxy *testbed.Proxy, write func(testbed.Request) bool, few int64, some int) {
	w.t.Helper()
	var seen atomic.Int64
	hold := func() *testbed.Rule {
		return proxy.Inject(func(r testbed.Request) bool { return write(r) && seen.Add(1) > few }, testbed.Hold(), 0)
	}
	held := hold()
	controller := w.start(install.Options{Through: proxy, Args: []string{alone}})
	for _, down := range []func() error{w.APIServer.Kill, func() error { return w.APIServer.Stop(w.t.Context()) }} {
		ctx, cancel := context.WithTimeout(w.t.Context(), maxWait)
		defer cancel()
		testkit.Must(w.t, held.Wait(ctx, some))
		testkit.Must(w.t, down())
		testkit.Must(w.t, testkit.Answers(w.t.Context(), "http://"+controller.Probes+"/healthz")) // a restart would not bring the API server back
		testkit.Must(w.t, testkit.Answers(w.t.Context(), "http://"+controller.Probes+"/readyz"))
		seen.Store(0)
		next := hold()
		held.Lift()
		w.restart(w.APIServer)
		held = next
	}
	held.Lift()
}
