package agentlease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// fixture is a cluster of agents without an API server.
type fixture struct {
	t *testing.T

	mu      sync.Mutex
	version int
	leases  map[string]*coordinationv1.Lease
	nodes   map[string]*corev1.Node
	deaf    error                            // why Leases cannot be listed
	refuse  error                            // why a write fails
	behind  map[string]*coordinationv1.Lease // stale Leases that lists return, if set

	lists, reads, visits, writes []time.Time
	applied                      []*treat.MarkUnknown
	words                        []treat.Event
	counts                       [2]int
	fates                        []treat.Outcome
	log                          testkit.Log
}

func newMonitor(tb testing.TB, leases Leases, p *fixture) *Monitor {
	tb.Helper()
	cfg := Config{
		Leases: leases, Client: p, Namespace: "autohealer-system", Event: func(treat.Event) {},
		Wrote: func(treat.Outcome) {}, Count: func(int, int) {}, Logger: slog.New(slog.DiscardHandler),
	}
	if p != nil {
		cfg.Event = func(word treat.Event) { p.do(func() { p.words = append(p.words, word) }) }
		cfg.Wrote = func(fate treat.Outcome) { p.do(func() { p.fates = append(p.fates, fate) }) }
		cfg.Count = func(notSilent, silent int) { p.do(func() { p.counts = [2]int{notSilent, silent} }) }
		cfg.Logger = p.log.Logger()
	}
	return testkit.Value(NewMonitor(cfg)).Must(tb)
}

func (p *fixture) do(what func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what()
}

// startMonitor runs a monitor until stop is called.
func (p *fixture) startMonitor() (stop func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	var running sync.WaitGroup
	monitor := newMonitor(p.t, p, p)
	running.Go(func() { monitor.Run(ctx) })
	synctest.Wait()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); running.Wait() }) }
	p.t.Cleanup(stop)
	return stop
}

// pass advances the clock.
func (p *fixture) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // advances the clock of the synctest bubble
	synctest.Wait()
}

// List lists Leases as an API server does.
func (p *fixture) List(_ context.Context, since string, known func(name, version []byte) bool, hear func(*coordinationv1.Lease)) (string, error) {
	p.mu.Lock()
	p.lists = append(p.lists, time.Now())
	version, deaf, all := strconv.Itoa(p.version), p.deaf, p.behind
	if all == nil {
		all = p.leases
	}
	all = copied(all)
	p.mu.Unlock()
	if since != "" && deaf == nil {
		if asked, err := strconv.Atoi(since); err != nil || asked > p.version {
			return "", apierrors.NewTimeoutError("Too large resource version", 1)
		}
	}
	if deaf != nil {
		return "", deaf
	}
	for _, lease := range all {
		if !known([]byte(lease.Name), []byte(lease.ResourceVersion)) {
			hear(lease)
		}
	}
	return version, nil
}

func copied(leases map[string]*coordinationv1.Lease) map[string]*coordinationv1.Lease {
	all := map[string]*coordinationv1.Lease{}
	for name, lease := range leases {
		all[name] = lease.DeepCopy()
	}
	return all
}

// breaks makes lists fail.
func (p *fixture) breaks(why error) { p.do(func() { p.deaf = why }) }

func (p *fixture) mends() { p.breaks(nil) }

// refuses makes writes fail.
func (p *fixture) refuses(why error) { p.do(func() { p.refuse = why }) }

// has creates nodes with agents that have written two conditions.
func (p *fixture) has(names ...string) {
	p.t.Helper()
	for _, name := range names {
		p.hasOne(name)
	}
}

func (p *fixture) hasOne(name string) {
	p.do(func() {
		p.version++
		p.nodes[name] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: strconv.Itoa(p.version)},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}, {Type: "A", Status: "True", Reason: "Bad"}, {Type: "B", Status: "False", Reason: "Good"}}},
		}
	})
	p.says(name)
	p.renews(name)
}

// says makes an agent apply its conditions.
func (p *fixture) says(name string) {
	p.do(func() {
		node := p.nodes[name]
		p.version++
		node.ResourceVersion = strconv.Itoa(p.version)
		node.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "autohealer-agent", Operation: metav1.ManagedFieldsOperationApply, Subresource: "status", Time: new(metav1.Now()),
			FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{"k:{\"type\":\"A\"}":{".":{},"f:type":{},"f:status":{},"f:reason":{}},"k:{\"type\":\"B\"}":{".":{},"f:type":{},"f:status":{},"f:reason":{}}}}}`),
		}}
	})
}

// restores makes an agent write its earlier conditions again.
func (p *fixture) restores(name string) {
	p.do(func() {
		rows := p.nodes[name].Status.Conditions
		rows[1].Status, rows[1].Reason = "True", "Bad"
		rows[2].Status, rows[2].Reason = "False", "Good"
	})
	p.says(name)
}

// renews makes agents renew their Leases of six minutes.
func (p *fixture) renews(names ...string) {
	p.do(func() {
		for _, name := range names {
			lease := p.leases[namePrefix+name]
			if lease == nil {
				lease = realLease(name, time.Now())
				lease.OwnerReferences[0].UID = types.UID("uid-" + name)
				p.leases[lease.Name] = lease
			}
			p.version++
			lease.ResourceVersion = strconv.Itoa(p.version)
			lease.Spec.RenewTime = new(metav1.NowMicro())
		}
	})
	synctest.Wait()
}

// live makes agents renew for a while at their usual interval.
func (p *fixture) live(d time.Duration, names ...string) {
	const period = 2 * time.Minute
	for ; d > 0; d -= period {
		p.pass(min(d, period))
		p.renews(names...)
	}
}

// Lease reads a Lease.
func (p *fixture) Lease(_ context.Context, name string) (*coordinationv1.Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads = append(p.reads, time.Now())
	if lease := p.leases[name]; lease != nil {
		return lease.DeepCopy(), nil
	}
	return nil, nil
}

// Node reads a node.
func (p *fixture) Node(_ context.Context, name string) (*corev1.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.visits = append(p.visits, time.Now())
	if node := p.nodes[name]; node != nil {
		return node.DeepCopy(), nil
	}
	return nil, nil
}

// Apply sets conditions to Unknown.
func (p *fixture) Apply(_ context.Context, s *treat.MarkUnknown) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes = append(p.writes, time.Now())
	if p.refuse != nil {
		return p.refuse
	}
	node := p.nodes[s.Node.Name]
	if node.ResourceVersion != s.Node.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, node.Name, errors.New("changed"))
	}
	p.applied = append(p.applied, s)
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type != "Ready" {
			c.Status, c.Reason = corev1.ConditionUnknown, "AgentSilent"
		}
	}
	return nil
}

// silenced checks which agents were marked silent so far, in any order.
func (p *fixture) silenced(want ...string) {
	p.t.Helper()
	p.do(func() {
		got := map[string]bool{}
		for _, s := range p.applied {
			got[s.Node.Name] = true
		}
		if len(got) != len(want) || len(p.applied) != len(want) {
			p.t.Fatalf("%v were marked silent in %d writes, want %v\n%s", got, len(p.applied), want, p.log.String())
		}
		for _, name := range want {
			if !got[name] {
				p.t.Fatalf("%v were marked silent, want %v\n%s", got, want, p.log.String())
			}
		}
	})
}

func (p *fixture) count(notSilent, silent int) {
	p.t.Helper()
	p.do(func() {
		if p.counts != [2]int{notSilent, silent} {
			p.t.Errorf("%v are alive and silent, want %d and %d", p.counts, notSilent, silent)
		}
	})
}

func (p *fixture) logged(times int, words string) {
	p.t.Helper()
	if got := strings.Count(p.log.String(), words); got != times {
		p.t.Errorf("%q was logged %d times, want %d:\n%s", words, got, times, p.log.String())
	}
}

// said is an Event with a part of its message.
type said struct {
	reason treat.EventReason
	node   string
	part   string
}

// told checks all Events so far.
func (p *fixture) told(want ...said) {
	p.t.Helper()
	p.do(func() {
		for i, word := range p.words {
			if len(p.words) != len(want) || word.EventReason != want[i].reason || word.Node.Name != want[i].node || string(word.Node.UID) != "uid-"+want[i].node ||
				!strings.Contains(word.Message, want[i].part) {
				p.t.Errorf("the Events are %+v, want %+v", p.words, want)
				return
			}
		}
		if len(want) > len(p.words) {
			p.t.Errorf("there are %d Events, want %+v", len(p.words), want)
		}
	})
}

// look is the longest time until the next list.
const look = minInterval

// Every scenario has its own cluster of agents, and a clock of its own.
func TestMonitor(t *testing.T) {
	for name, test := range map[string]func(p *fixture){
		"stopped agent is marked silent once": func(p *fixture) {
			p.has("a", "b")
			stop := p.startMonitor()
			p.count(2, 0)
			p.live(6*time.Minute-time.Second, "b")
			p.silenced()
			p.pass(look)
			p.silenced("a")
			p.count(1, 1)
			p.live(time.Hour, "b")
			p.silenced("a")
			silent := said{treat.AgentSilent, "a", "Lease autohealer-system/autohealer-agent-a was renewed last at 2000-01-01T00:00:00Z by autohealer-agent-x7k2p. " +
				"Look for its pod (kubectl get pods -A --field-selector spec.nodeName=a)"}
			p.told(silent)
			p.do(func() {
				if got := fmt.Sprint(p.applied[0].Turned); got != "[A B]" {
					p.t.Errorf("set to Unknown are %s", got)
				}
				if len(p.reads) != 1 {
					p.t.Errorf("%d Leases were read for one silent agent", len(p.reads))
				}
			})
			p.renews("a")
			p.pass(look)
			p.count(2, 0)
			p.told(silent, said{treat.AgentHeard, "a", ""})
			stop()
			p.count(0, 0)
		},
		"clocks of nodes are ignored": func(p *fixture) {
			wrong := map[string]time.Duration{"past": -24 * time.Hour, "future": 24 * time.Hour, "lives": -time.Hour}
			p.has(slices.Collect(maps.Keys(wrong))...)
			backwards := func() {
				p.renews("past", "future", "lives")
				p.do(func() {
					for name := range wrong {
						wrong[name] -= 5 * time.Minute // the clocks run backwards
						p.leases[namePrefix+name].Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(wrong[name])))
					}
				})
			}
			p.startMonitor()
			for range 10 {
				p.pass(2 * time.Minute)
				backwards()
			}
			p.silenced()
			for range 3 {
				p.pass(2*time.Minute - 1)
				p.renews("lives")
				p.silenced()
			}
			p.pass(2 * look)
			p.silenced("past", "future")
		},
		"new leader waits for a full duration": func(p *fixture) {
			p.has("a")
			p.pass(time.Hour)
			stop := p.startMonitor()
			p.pass(6*time.Minute - time.Second)
			p.silenced()
			stop()
			stop = p.startMonitor()
			p.pass(6*time.Minute - time.Second)
			p.silenced()
			p.pass(look)
			p.silenced("a")
			// The next leader has nothing left to write.
			stop()
			p.startMonitor()
			p.pass(time.Hour)
			p.silenced("a")
			p.count(0, 1)
			p.told(said{treat.AgentSilent, "a", ""})
		},
		"outage makes no agent silent": func(p *fixture) {
			p.has("a", "b")
			p.startMonitor()
			p.live(4*time.Minute, "a", "b")
			p.breaks(errors.New("connection refused"))
			p.pass(10 * time.Minute)
			p.silenced()
			p.mends()
			p.pass(15 * time.Second) // until the next list
			p.live(5*time.Minute, "a")
			p.silenced()
			p.live(time.Minute, "a")
			p.pass(look)
			p.silenced("b")
			p.logged(1, "cannot list the Leases of agents, so no agent is considered silent until")
			p.logged(1, "can list the Leases of agents again")
		},
		"restarted controller makes no agent silent after an outage": func(p *fixture) {
			var names []string
			for i := range 100 {
				names = append(names, fmt.Sprintf("n%03d", i))
				p.has(names[i])
			}
			p.breaks(errors.New("connection refused"))
			p.pass(time.Hour)
			p.startMonitor() // it restarts before the API server returns
			p.pass(time.Hour)
			p.mends()
			p.pass(6*time.Minute - time.Second) // nearly the duration of the Leases
			p.renews(names...)
			p.pass(time.Minute)
			p.silenced()
			p.count(len(names), 0)
		},
		"single failure delays nothing": func(p *fixture) {
			p.has("a")
			p.startMonitor()
			for range 6 {
				p.pass(59 * time.Second)
				p.breaks(errors.New("connection reset"))
				p.pass(time.Second)
				p.mends()
			}
			p.pass(look)
			p.silenced("a")
			p.logged(0, "cannot list the Leases of agents")
		},
		// A process that was stopped does not notice an outage in the meantime.
		"long pause of the controller extends all leases": func(p *fixture) {
			p.has("a", "b")
			monitor, ctx := newMonitor(p.t, p, p), p.t.Context()
			for range 10 {
				p.pass(min(monitor.runOnce(ctx), look))
			}
			p.pass(time.Hour)
			monitor.runOnce(ctx)
			p.silenced()
			for range 6 * time.Minute / look {
				p.pass(look - time.Millisecond)
				p.renews("b")
				monitor.runOnce(ctx)
				p.silenced()
			}
			p.pass(look)
			monitor.runOnce(ctx)
			p.silenced("a")
		},
		"restored store is listed again": func(p *fixture) {
			p.has("a")
			p.do(func() { p.version += 1000 })
			p.startMonitor()
			p.do(func() { p.version -= 1000 }) // restored from a backup
			p.live(10*time.Minute, "a")
			p.has("b")
			p.pass(look)
			p.silenced()
			p.count(2, 0)
		},
		"missing permission makes no agent silent": func(p *fixture) {
			p.breaks(apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("no")))
			p.has("a")
			p.startMonitor()
			p.pass(24 * time.Hour)
			p.silenced()
			p.count(0, 0)
			p.logged(1, "the role lacks get and list of leases")
		},
		"refused write is logged once and retried rarely": func(p *fixture) {
			p.refuses(apierrors.NewForbidden(schema.GroupResource{Resource: "nodes/status"}, "", errors.New("no")))
			p.has("a", "b")
			p.startMonitor()
			p.pass(time.Hour + 2*look)
			p.logged(1, "cannot set conditions of silent agent to Unknown")
			p.do(func() {
				if len(p.writes) < 2*8 || len(p.writes) > 2*10 || len(p.words) != 0 {
					p.t.Errorf("%d writes, and the Events are %+v", len(p.writes), p.words)
				}
				p.refuse = nil
			})
			p.pass(6*time.Minute + look)
			p.silenced("a", "b")
		},
		"server without writes makes no agent silent": func(p *fixture) {
			p.has("a", "b", "c")
			p.startMonitor()
			p.refuses(apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded")))
			p.pass(6*time.Minute + 30*time.Second) // in which no agent could renew
			p.logged(1, "pausing agent-silence detection")
			p.refuses(nil)
			p.live(8*time.Minute, "a", "b", "c")
			p.silenced()
			p.pass(look)
			p.count(3, 0)
			// A short failure has no effect.
			p.refuses(apierrors.NewServiceUnavailable("bye"))
			p.live(6*time.Minute, "a", "b")
			p.pass(2 * time.Second)
			p.refuses(nil)
			p.pass(15 * time.Second)
			p.silenced("c")
		},
		"stale list makes no agent silent": func(p *fixture) {
			p.has("a")
			p.startMonitor()
			p.do(func() { p.behind = copied(p.leases) })
			p.live(time.Hour, "a")
			p.silenced()
			p.do(func() { p.behind = nil })
			p.pass(6*time.Minute + 2*look)
			p.silenced("a")
		},
		"agent that writes is not silent": func(p *fixture) {
			p.has("a")
			p.startMonitor()
			p.pass(5 * time.Minute) // it has lost the permission to renew
			p.says("a")
			p.pass(6*time.Minute - time.Second)
			p.silenced()
			p.pass(look)
			p.silenced("a")
		},
		// An agent without permission for its Lease still writes its conditions, and rewrites those
		// that were set to Unknown.
		"agent that cannot renew is marked silent once": func(p *fixture) {
			p.has("a", "b")
			p.startMonitor()
			p.live(6*time.Minute+look, "b")
			p.silenced("a")
			p.pass(time.Minute)
			p.restores("a")
			p.live(6*time.Minute, "b")
			p.count(2, 0)
			p.logged(1, "agent works without renewing its lease")
			silent, alive := said{treat.AgentSilent, "a", ""}, said{treat.AgentHeard, "a", "does not renew Lease autohealer-system/autohealer-agent-a"}
			p.told(silent, alive)
			p.live(24*time.Hour, "b")
			p.silenced("a")
			p.logged(1, "agent works without renewing its lease")
			// It gets the permission back, and stops.
			p.renews("a")
			p.live(5*time.Minute, "b")
			p.told(silent, alive, said{treat.AgentHeard, "a", "renews Lease"})
			p.do(func() { p.applied = nil })
			p.live(time.Minute+look, "b")
			p.silenced("a")
		},
		"returning agent is not reported as without lease": func(p *fixture) {
			p.has("a")
			p.startMonitor()
			p.pass(6*time.Minute + look)
			p.silenced("a")
			p.do(func() { p.behind = copied(p.leases) })
			p.renews("a")
			p.restores("a")
			p.pass(6*time.Minute + look)
			p.count(1, 0)
			p.logged(1, "agent heard again")
			p.logged(0, "agent works without")
		},
		"lease of an agent that cannot renew may be deleted": func(p *fixture) {
			p.has("a", "b")
			p.startMonitor()
			p.pass(6*time.Minute + look)
			p.silenced("a", "b")
			p.restores("a")
			p.do(func() { delete(p.leases, namePrefix+"b") }) // before its conditions are read
			p.pass(6 * time.Minute)
			p.restores("b")
			p.count(1, 0)
			p.do(func() { clear(p.leases) })
			p.pass(24 * time.Hour)
			p.silenced("a", "b")
			p.count(0, 0)
		},
		"silent agents are checked rarely": func(p *fixture) {
			names := []string{"a", "b", "c"}
			p.has(names...)
			p.startMonitor()
			p.pass(6*time.Minute + look)
			p.silenced(names...)
			p.do(func() { p.visits, p.reads = nil, nil })
			p.pass(24 * time.Hour)
			p.silenced(names...)
			p.do(func() {
				if n := len(p.visits); n < 3*24 || n > 3*28 || len(p.reads) > 0 {
					p.t.Errorf("three agents that were silent for a day were checked %d times, and their Leases %d", n, len(p.reads))
				}
			})
		},
		"deleted lease makes its agent silent": func(p *fixture) {
			p.has("a", "b", "c")
			p.startMonitor()
			p.pass(time.Minute)
			p.do(func() {
				clear(p.leases)
				delete(p.nodes, "b") // with its Lease
			})
			p.pass(time.Minute)
			p.renews("c") // its agent lives, and creates a new Lease
			p.pass(4*time.Minute - time.Second)
			p.silenced()
			p.pass(look)
			p.silenced("a")
			p.count(1, 0)
			p.told(said{treat.AgentSilent, "a", "The agent is gone"})
		},
		"lease of a silent agent may be deleted": func(p *fixture) {
			p.has("a")
			p.startMonitor()
			p.pass(6*time.Minute + look)
			p.silenced("a")
			p.do(func() { clear(p.leases) })
			p.pass(time.Hour)
			p.silenced("a") // once; its conditions stay Unknown
			p.count(0, 0)
			p.renews("a")
			p.pass(look)
			p.count(1, 0)
		},
		"recreated node has another agent": func(p *fixture) {
			p.has("a")
			p.startMonitor()
			p.pass(time.Minute)
			p.do(func() { p.nodes["a"].UID = "another" }) // its old Lease is not deleted yet
			p.pass(time.Hour)
			p.silenced()
		},
		"conflict is retried": func(p *fixture) {
			p.has("a")
			p.refuses(apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "a", errors.New("changed")))
			p.startMonitor()
			p.pass(6*time.Minute + look)
			p.do(func() {
				if len(p.writes) != maxAttempts {
					p.t.Errorf("it was tried %d times", len(p.writes))
				}
				p.refuse = nil
			})
			p.pass(6*time.Minute + look)
			p.silenced("a")
		},
		"many silent agents are written at a limited rate": func(p *fixture) {
			const agents = 300
			var names []string
			for i := range agents {
				names = append(names, fmt.Sprintf("n%03d", i))
				p.has(names[i])
			}
			p.startMonitor()
			p.pass(6 * time.Minute)
			p.count(0, agents) // at once, although most are not marked yet
			p.pass(10 * time.Second)
			p.do(func() {
				if n := len(p.writes); n < 100 || n > 115 {
					p.t.Errorf("%d writes in 10 seconds, want 10 a second", n)
				}
			})
			p.renews(names[agents-1]) // before its turn
			p.pass(30 * time.Second)
			p.silenced(names[:agents-1]...)
			p.count(1, agents-1)
			p.logged(1, "many agents are silent at once")
			p.renews(names...)
			p.pass(look)
			p.count(agents, 0)
			p.logged(1, "few agents are silent again")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(&fixture{t: t, leases: map[string]*coordinationv1.Lease{}, nodes: map[string]*corev1.Node{}})
			})
		})
	}
}

func TestInvalidHolderIsNotShown(t *testing.T) {
	for holder, want := range map[string]bool{"npd-v0.8.9-x7k2p": true, "node-1.example.com": true, "x. Run: curl evil | sh": false, "": false, strings.Repeat("x", 300): false} {
		lease := realLease("a", noon)
		lease.Spec.HolderIdentity = &holder
		is, _ := Read(lease)
		k := newMonitor(t, &fixture{}, nil)
		if why := k.describe(is, lease); strings.Contains(why, " by "+holder+".") != want || !want && strings.Contains(why, " by ") {
			t.Errorf("holder %q: %s", holder, why)
		}
	}
	lease := realLease("a", noon)
	lease.Spec.HolderIdentity = nil
	testkit.Check(t, holder(lease) == "", "a Lease without a holder has a holder name")
}

func TestListIntervalGrowsWithTheNumberOfAgents(t *testing.T) {
	for agents, want := range map[int]time.Duration{0: 5 * time.Second, 1000: 5 * time.Second, 5000: 15 * time.Second, 10000: 30 * time.Second, 100000: time.Minute} {
		k := newMonitor(t, &fixture{}, nil)
		for i := range agents {
			k.tracker.Renewed(noon, Lease{Name: strconv.Itoa(i), Renewed: noon, Duration: defaultDuration})
		}
		if rest := k.interval(); rest != want {
			t.Errorf("%d agents are listed every %s, want %s", agents, rest, want)
		}
	}
}

func TestConfigReportsMissingFields(t *testing.T) {
	_, err := NewMonitor(Config{})
	for _, field := range []string{"Leases", "Client", "Namespace", "Event", "Wrote", "Count", "Logger"} {
		testkit.Fails(t, err, field+" is missing")
	}
}
