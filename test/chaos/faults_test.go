package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/faultproxy"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// fault breaks something, and repairs it again.
type fault struct {
	name   string
	weight int
	do     func(*cluster)
	slow   bool // the small test does without it
}

// faults are drawn by weight, after each of them was injected once. Those that kill a replica
// are the most frequent.
var faults = []fault{
	{"kill the leader", 24, func(w *cluster) { w.kill(w.leader()) }, false},
	{"kill the leader during a write", 24, (*cluster).killDuringWrite, false},
	{"kill each new leader", 8, (*cluster).killEachLeader, true},
	{"kill the other replica", 8, func(w *cluster) { w.kill(w.other(w.leader())) }, false},
	{"kill both replicas", 8, (*cluster).killBoth, false},
	{"pause the leader past its lease", 4, (*cluster).pauseLeader, false},
	{"cut the leader off", 2, (*cluster).partition, true},
	{"drop all watches", 6, (*cluster).dropWatches, false},
	{"fail requests", 4, (*cluster).failRequests, false},
	{"slow answers", 4, (*cluster).slowAnswers, false},
	{"kill the API server", 1, func(w *cluster) { w.outage(w.APIServer.Kill, w.APIServer) }, false},
	{"stop the API server", 1, func(w *cluster) {
		w.outage(func() error { return w.APIServer.Stop(w.t.Context()) }, w.APIServer)
	}, true},
	{"kill etcd", 1, func(w *cluster) { w.outage(w.Etcd.Kill, w.Etcd) }, false},
	{"pause everything in Guardrails", 2, (*cluster).pauseRails, true},
	{"edit the limits", 3, (*cluster).editLimits, false},
	{"make a zone fail", 3, func(w *cluster) { testkit.Must(w.t, w.sim.failZone(w.t.Context())) }, false},
	{"back etcd up, and restore it later", 1, (*cluster).backUp, true},
}

// inject injects faults until this number of replicas was killed.
func (w *cluster) inject(kills int) {
	w.t.Helper()
	faults := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.slow && w.small })
	order := w.random.Perm(len(faults))
	for w.kills < kills || len(order) > 0 {
		var f fault
		if len(order) > 0 {
			f, order = faults[order[0]], order[1:]
		} else {
			f = draw(w.random, faults)
		}
		w.fault.Store(f.name)
		w.injected[f.name]++
		f.do(w)
		w.restoreIfDue(kills)
		w.pass(100, 900)
		testkit.Must(w.t, w.sim.failure())
	}
	if w.restore != nil {
		w.restoreBackup()
	}
	w.fault.Store("no more faults")
}

// warmUp waits until the replicas treat nodes of every kind, so that there is something to break.
func (w *cluster) warmUp() {
	w.t.Helper()
	w.Eventually(w.t, "a taint, a remediation and a termination", func() error {
		if err := w.sim.failure(); err != nil {
			return err
		}
		for _, r := range w.replicas {
			w.revive(r)
		}
		var nodes corev1.NodeList
		if err := w.API.List(w.t.Context(), &nodes); err != nil {
			return err
		}
		isEvicting := func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
		isTainted := func(n corev1.Node) bool { return slices.ContainsFunc(n.Spec.Taints, isEvicting) }
		if !slices.ContainsFunc(nodes.Items, isTainted) || w.sim.remediations.Load() == 0 || w.sim.claims.Load() == 0 {
			return fmt.Errorf("there is not each of them: %s", w.sim)
		}
		return nil
	})
}

// draw returns a random fault.
func draw(random *rand.Rand, faults []fault) fault {
	all := 0
	for _, f := range faults {
		all += f.weight
	}
	n := random.IntN(all)
	for _, f := range faults {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("the weights do not add up")
}

// pass waits for a random time in milliseconds.
func (w *cluster) pass(least, most int) {
	select {
	case <-w.t.Context().Done():
	case <-time.After(time.Duration(least+w.random.IntN(most-least)) * time.Millisecond):
	}
}

func (w *cluster) other(r *replica) *replica {
	return w.replicas[(slices.Index(w.replicas, r)+1)%len(w.replicas)]
}

// end kills a replica without starting it again.
func (w *cluster) end(r *replica) {
	w.t.Helper()
	if r.PID() == 0 {
		return // it has lost its lease
	}
	testkit.Must(w.t, r.Kill())
	w.kills++
	w.killed.Add(1)
}

// kill kills a replica, and starts it again. The other one need not wait for its lease.
func (w *cluster) kill(r *replica) {
	w.t.Helper()
	w.end(r)
	w.expireLease()
	w.pass(1, 400)
	w.revive(r)
}

// killEachLeader kills replicas as soon as they lead.
func (w *cluster) killEachLeader() {
	for range 3 {
		w.kill(w.leader())
	}
}

func (w *cluster) killBoth() {
	for _, r := range w.replicas {
		w.end(r)
	}
	w.expireLease()
	for _, r := range w.replicas {
		w.revive(r)
	}
}

func (w *cluster) expireLease() {
	w.t.Helper()
	testkit.Must(w.t, install.ExpireLease(w.t.Context(), w.Cluster))
}

// writes are the writes during which a leader is killed.
var writes = []func(*faultproxy.Request) bool{
	on(http.MethodPatch, "/nodes/"), on(http.MethodPut, "/configmaps/autohealer-ledger"), on(http.MethodPost, "/exampleremediations"),
	on(http.MethodDelete, "/exampleremediations/"), on(http.MethodPatch, "/nodeclaims/"), on(http.MethodDelete, "/nodeclaims/"), on(http.MethodPost, "/leases"),
}

func on(method, path string) func(*faultproxy.Request) bool {
	return func(r *faultproxy.Request) bool { return r.Method == method && strings.Contains(r.Path, path) }
}

// killDuringWrite kills the leader while it waits for the answer to a write. The write arrives
// before, or after the next leader has taken over, or never.
func (w *cluster) killDuringWrite() {
	w.t.Helper()
	leader := w.leader()
	held := leader.late.Hold(writes[w.random.IntN(len(writes))], 1+w.random.IntN(3))
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Second)
	defer cancel()
	requests, _ := held.Await(ctx, 1) // none if the leader does not write now
	switch w.random.IntN(3) {
	case 0: // never
		w.end(leader)
	case 1:
		w.deliver(requests)
		w.end(leader)
	default:
		w.end(leader)
		w.expireLease()
		w.pass(1, 4000)
		w.deliver(requests)
	}
	held.Close()
	w.expireLease()
	w.revive(leader)
}

// deliver delivers held requests. Their answers do not matter.
func (w *cluster) deliver(requests []*faultproxy.Request) {
	w.t.Helper()
	for _, request := range requests {
		if _, err := request.Deliver(w.t.Context()); err != nil {
			w.t.Logf("%v", err)
		}
	}
}

// pauseLeader pauses the leader until the other replica leads, and a bit longer. Then the old
// leader continues with what it was about to send.
func (w *cluster) pauseLeader() {
	w.t.Helper()
	leader := w.leader()
	if leader.Pause() != nil {
		return // it has just lost its lease
	}
	if w.small || w.random.IntN(2) == 0 {
		w.expireLease() // otherwise the lease ends by itself
	}
	next := w.other(leader)
	w.revive(next)
	w.awaitUpTo(7*time.Second, func() bool { return w.leads(next) })
	w.pass(1, 1500)
	testkit.Must(w.t, leader.Resume())
	w.pass(1, 1000)
}

// awaitUpTo waits for a state that need not come.
func (w *cluster) awaitUpTo(limit time.Duration, is func() bool) {
	for range (testkit.Wait{Limit: limit, First: 50 * time.Millisecond, Longest: 200 * time.Millisecond}).Looks(w.t.Context()) {
		if is() {
			return
		}
	}
}

// partition cuts the leader off from the API server for longer than its lease lasts.
func (w *cluster) partition() {
	leader := w.leader()
	leader.proxy.Partition()
	w.pass(5500, 6500)
	leader.proxy.Heal()
}

func (w *cluster) dropWatches() {
	for _, r := range w.replicas {
		r.proxy.DropWatches()
	}
}

// failRequests makes some requests of both replicas fail for a few seconds.
func (w *cluster) failRequests() {
	kinds := []testbed.Fault{testbed.TooManyRequests(time.Second), testbed.TooManyRequests(0), testbed.InternalError(), testbed.Conflict(), testbed.CutRequest(), testbed.CutResponse()}
	var rules []*testbed.Rule
	for _, r := range w.replicas {
		for _, kind := range kinds {
			rules = append(rules, r.proxy.Inject(sometimes(w.random.Uint64(), 24, isWrite), kind, 0))
		}
		rules = append(rules, r.proxy.Inject(sometimes(w.random.Uint64(), 6, isRead), testbed.InternalError(), 0))
	}
	w.passStorm()
	lift(rules)
}

// slowAnswers delays some requests.
func (w *cluster) slowAnswers() {
	var rules []*testbed.Rule
	for _, r := range w.replicas {
		for _, long := range []time.Duration{200 * time.Millisecond, time.Second, 2500 * time.Millisecond} {
			rules = append(rules, r.proxy.Inject(sometimes(w.random.Uint64(), 6, func(r testbed.Request) bool { return r.Verb != "watch" }), testbed.Delay(long), 0))
		}
	}
	w.passStorm()
	lift(rules)
}

// passStorm waits while requests fail.
func (w *cluster) passStorm() {
	if w.small {
		w.pass(500, 1500)
	} else {
		w.pass(1500, 4000)
	}
}

func lift(rules []*testbed.Rule) {
	for _, rule := range rules {
		rule.Lift()
	}
}

func isWrite(r testbed.Request) bool { return !isRead(r) && r.Verb != "watch" }

func isRead(r testbed.Request) bool { return r.Verb == "get" || r.Verb == "list" }

// sometimes matches one of n matching requests at random.
func sometimes(seed uint64, n int, match func(testbed.Request) bool) func(testbed.Request) bool {
	var mu sync.Mutex
	random := newRandom(seed, 0)
	return func(r testbed.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		return match(r) && random.IntN(n) == 0
	}
}

// outage ends a part of the control plane, and starts it again after a while.
func (w *cluster) outage(end func() error, part *testbed.Part) {
	w.t.Helper()
	testkit.Must(w.t, w.sim.during(func() error {
		if err := end(); err != nil {
			return err
		}
		w.pass(1, 3000)
		if err := part.Restart(w.t.Context()); err != nil {
			return err
		}
		return w.answers()
	}))
}

// answers waits until the API server answers again, also after etcd was away.
func (w *cluster) answers() (err error) {
	for range wait.Looks(w.t.Context()) {
		if _, err = w.Kubectl(w.t.Context(), "get", "--raw=/readyz"); err == nil {
			return nil
		}
	}
	return err
}

// pauseRails sets the mode Paused for longer than the judge's lag. Other faults go on.
func (w *cluster) pauseRails() {
	w.patchRails(`{"spec":{"mode":"Paused"}}`)
	resume := time.Now().Add(lag + 3*time.Second)
	for time.Now().Before(resume) {
		w.kill(w.leader())
		w.pass(500, 2000)
	}
	w.patchRails(`{"spec":{"mode":"Enforce"}}`)
}

// editLimits changes limits of Guardrails and of a ConditionSet.
func (w *cluster) editLimits() {
	w.t.Helper()
	w.patchRails(fmt.Sprintf(`{"spec":{"maxInTreatment":"%d%%","maxUnschedulable":"%d%%","pace":{"max":"%d%%"}}}`, 6+w.random.IntN(7), 20+w.random.IntN(12), 5+w.random.IntN(10)))
	testkit.Value(w.Kubectl(w.t.Context(), "patch", "conditionset", "kernel", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"maxUnhealthy":"%d%%"}}`, 10+w.random.IntN(15)))).Must(w.t)
}

func (w *cluster) patchRails(patch string) {
	w.t.Helper()
	testkit.Value(w.Kubectl(w.t.Context(), "patch", "guardrails", "cluster", "--type=merge", "-p", patch)).Must(w.t)
}

// backUp copies etcd, unless there is a copy.
func (w *cluster) backUp() {
	w.t.Helper()
	if w.restore != nil {
		return
	}
	var restore func(context.Context) error
	testkit.Must(w.t, w.sim.during(func() (err error) {
		restore, err = w.Backup(w.t.Context())
		return err
	}))
	w.restoreAt = w.kills + 3 + w.random.IntN(6)
	w.restore = func() error {
		return w.sim.during(func() error {
			if err := restore(w.t.Context()); err != nil {
				return err
			}
			return w.sim.reload(w.t.Context())
		})
	}
}

// restoreIfDue restores the copy some kills after it was made.
func (w *cluster) restoreIfDue(kills int) {
	if w.restore != nil && w.kills >= min(w.restoreAt, kills) {
		w.restoreBackup()
	}
}

// restoreBackup restores the copy of etcd. A replica that notices it exits.
func (w *cluster) restoreBackup() {
	w.t.Helper()
	w.fault.Store("restore etcd")
	w.injected["restore etcd"]++
	restore := w.restore
	w.restore = nil
	testkit.Must(w.t, restore())
	w.patchRails(`{"spec":{"mode":"Enforce"}}`)
}

// settle lets everything recover, and waits until the replicas have removed everything that they
// made.
func (w *cluster) settle() {
	w.t.Helper()
	w.fault.Store("waiting until everything has recovered")
	testkit.Must(w.t, w.sim.during(func() error {
		w.sim.calm = true
		return nil
	}))
	w.Eventually(w.t, "a cluster as if nothing had failed", func() error {
		w.leader()
		if err := w.sim.failure(); err != nil {
			return err
		}
		return w.sim.isClean(w.t.Context())
	})
	w.Eventually(w.t, "the last writes of the replicas", func() error {
		recording, err := w.RecordingOf(w.t.Context(), func(c testbed.Change) bool { return c.Author.User == install.User && c.Name != "autohealer-ledger" })
		if err != nil || len(recording) == 0 {
			return fmt.Errorf("there are no writes: %w", err)
		}
		if last := recording[len(recording)-1]; time.Since(last.Time) < 3*time.Second {
			return fmt.Errorf("%s %s was written at %s", last.GVR.Resource, last.Name, last.Time.Format(time.TimeOnly))
		}
		return nil
	})
}
