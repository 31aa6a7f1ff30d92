package triage_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The fixture of the benchmarks: 100 rules, of which 10 select each node. Nodes have 14
// conditions and 20 labels, in 10 pools and 3 zones, and 5% are unhealthy. Each pool has two
// ConditionSets with NoExecute, two with NoSchedule, three health checks, two repair rules
// and a ready timeout. Half of the rules have a duration of some minutes. The repair rules
// and the ready timeout share their caps. At every size nodes are being replaced: some are
// deleted, and their replacements exist and are not ready.
const (
	benchPools             = 10
	benchRulesPerPool      = 10
	benchConditions        = 14
	benchLabels            = 20
	benchUnhealthyPerMille = 50
	benchBytesPerNode      = 1500
	benchTouchedPerChange  = 2
	benchStarting          = 2 // replacements that are not ready yet
)

var benchStart = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// benchCluster is the cluster of the benchmarks. It builds the facts of a node again for
// each operation, as a caller does from a watch event.
type benchCluster struct {
	core      *triage.Core
	pools     []triage.Node // a node of each pool, to build facts in
	names     []nodeName
	failing   []int8  // the failing condition of each node, -1 for none
	at        []int32 // index of each node in unhealthy
	unhealthy []int   // nodes with a failing condition
	rng       *rand.Rand
	now       time.Time

	index    map[string]int // index of nodes by name
	due      []int          // nodes with a decided termination
	gone     int            // the deleted node without a replacement, -1 for none
	starting []int          // replacements that are not ready yet, oldest first
	departed int            // number of deleted nodes
}

type nodeName struct {
	name, uid string
	created   time.Time
	isReady   bool
}

func conditionType(i int) string {
	if i == 0 {
		return triage.Ready
	}
	return fmt.Sprintf("Problem%02d", i)
}

func healthyStatus(i int) triage.Status {
	if i == 0 {
		return triage.True
	}
	return triage.False
}

func unhealthyStatus(i int) triage.Status {
	if i == 0 {
		return triage.Unknown
	}
	return triage.True
}

func benchRules(tb testing.TB) []triage.Rule {
	tb.Helper()
	limit := func(n int) *triage.Limit { return &triage.Limit{Number: n, Percent: true} }
	var rules []triage.Rule
	for pool := range benchPools {
		who, err := triage.NewSelector(triage.Requirement{Key: "pool", Op: triage.In, Values: []string{fmt.Sprintf("pool-%d", pool)}})
		if err != nil {
			tb.Fatal(err)
		}
		for i := range benchRulesPerPool {
			r := triage.Rule{Selector: who, Stage: policykind.StageRemediate}
			stand := time.Duration(i%2) * 5 * time.Minute
			signal := func(condition int) triage.Signal {
				return triage.Signal{Condition: conditionType(condition), Status: unhealthyStatus(condition), For: stand}
			}
			name := fmt.Sprintf("pool-%d-rule-%d", pool, i)
			switch {
			case i < 4:
				r.ID = triage.RuleID{Kind: policykind.ConditionSet, Name: name}
				r.When = triage.When{All: true, Signals: []triage.Signal{signal(1 + i)}}
				r.Response.Taint = &triage.TaintResponse{Key: "example.com/" + name, Effect: triage.NoSchedule}
				if i < 2 {
					r.Response.Taint.Effect = triage.NoExecute
					r.Bound.Cap = limit(1)
				}
			case i < 7:
				r.ID = triage.RuleID{Kind: policykind.NodeHealthCheck, Name: name}
				r.When.Signals = []triage.Signal{signal(0), signal(i), signal(i + 1)}
				r.Bound.Gate = &triage.Limit{Number: 49, Percent: true, RoundUp: true}
				r.Response.Ladder = []triage.Step{{Action: triage.Remediate, Timeout: 10 * time.Minute}, {Action: triage.Reboot}}
			case i < 9:
				r.ID = triage.RuleID{Kind: policykind.Repair, Name: name}
				r.When.Signals = []triage.Signal{signal(0), signal(i + 2), signal(i + 3), signal(i + 4)}
				r.Bound.Cap, r.Bound.Pool = limit(1), fmt.Sprintf("NodePool/pool-%d", pool)
				r.Response.Ladder = []triage.Step{{Action: triage.Terminate}}
			default:
				r.ID = triage.RuleID{Kind: policykind.ReadyTimeout, Name: name}
				r.When.Signals = []triage.Signal{
					{Condition: triage.Ready, Status: triage.False, For: 10 * time.Minute, FromCreation: true},
					{Condition: triage.Ready, Status: triage.Unknown, For: 10 * time.Minute, FromCreation: true},
				}
				r.Bound.Cap, r.Bound.Pool = limit(1), fmt.Sprintf("NodePool/pool-%d", pool)
				r.Response.Ladder = []triage.Step{{Action: triage.Terminate}}
			}
			rules = append(rules, r)
		}
	}
	return rules
}

var benchZones = [...]string{"zone-a", "zone-b", "zone-c"}

func benchPool(pool int) triage.Node {
	n := triage.Node{Initialized: true, Created: benchStart.Add(-1000 * time.Hour), Labels: make(map[string]string, benchLabels)}
	n.Labels["pool"] = fmt.Sprintf("pool-%d", pool)
	n.Image = "Linux " + strconv.Itoa(pool%2)
	for k := 3; k < benchLabels; k++ { // in addition to the pool, the host name and the zone
		n.Labels["example.com/label-"+strconv.Itoa(k)] = "value-" + strconv.Itoa(pool%7)
	}
	for k := range benchConditions {
		n.Conditions = append(n.Conditions, triage.Condition{Type: conditionType(k), Status: healthyStatus(k), Reason: "NoProblemFound", Transition: n.Created})
	}
	return n
}

// observe passes the facts of a node to the core.
func (w *benchCluster) observe(i int) {
	n := &w.pools[i%benchPools]
	n.Name, n.UID, n.Zone = w.names[i].name, w.names[i].uid, benchZones[i%len(benchZones)]
	transition := n.Conditions[0].Transition
	if n.Created, n.Initialized = w.names[i].created, w.names[i].isReady; !n.Initialized {
		n.Conditions[0].Status, n.Conditions[0].Transition = triage.False, n.Created
	}
	n.Labels["kubernetes.io/hostname"] = n.Name
	n.Labels["topology.kubernetes.io/zone"] = n.Zone
	ill := int(w.failing[i])
	if ill >= 0 {
		n.Conditions[ill].Status, n.Conditions[ill].Transition = unhealthyStatus(ill), w.now
	}
	w.core.Observe(w.now, *n)
	for _, k := range []int{0, max(ill, 0)} {
		n.Conditions[k].Status, n.Conditions[k].Transition = healthyStatus(k), transition
	}
}

// newBenchCluster builds a cluster of the given size.
func newBenchCluster(tb testing.TB, size int) *benchCluster {
	tb.Helper()
	w := &benchCluster{core: triage.New(), rng: rand.New(rand.NewPCG(1, 2)), now: benchStart, index: map[string]int{}, gone: -1}
	half := triage.Limit{Number: 49, Percent: true}
	if err := w.core.SetRails(w.now, triage.Rails{
		InTreatment: &half, Unschedulable: &half, KeepLast: true,
		Topology: []triage.Share{{Label: "topology.kubernetes.io/zone", Limit: half}},
		Pace:     &triage.Pace{Limit: triage.Limit{Number: 10, Percent: true}, AtLeast: 2, Period: time.Minute},
		CorrelatedFailure: &triage.CorrelatedFailure{
			Threshold: triage.Limit{Number: 50, Percent: true}, MinNodes: 3, Window: 5 * time.Minute,
			Labels: []string{"topology.kubernetes.io/zone", "pool"}, Image: true,
		},
		MaxAttempts: &triage.MaxAttempts{Limit: 3, Window: 24 * time.Hour},
	}); err != nil {
		tb.Fatal(err)
	}
	for _, r := range benchRules(tb) {
		if err := w.core.SetRule(w.now, r); err != nil {
			tb.Fatal(err)
		}
	}
	for pool := range benchPools {
		w.pools = append(w.pools, benchPool(pool))
	}
	for i := range size {
		w.names = append(w.names, nodeName{
			name: fmt.Sprintf("ip-10-%d-%d-%d.example.internal", i>>16, i>>8&255, i&255),
			uid:  fmt.Sprintf("5e1f9a62-0000-4000-8000-%012d", i),

			created: benchStart.Add(-time.Duration(i*7919%1000) * time.Hour), isReady: true,
		})
		w.index[w.names[i].name] = i
		w.failing, w.at = append(w.failing, -1), append(w.at, 0)
		w.observe(i)
	}
	w.core.Loaded(w.now)
	w.drain()
	for len(w.unhealthy) < size*benchUnhealthyPerMille/1000 {
		w.flip(w.rng.IntN(size))
	}
	return w
}

// step flips a condition of a random node. Healthy nodes fail and unhealthy nodes recover in
// turn, so that their number stays the same. Three of 64 steps replace nodes: a node is
// deleted, a replacement is created, a replacement becomes ready.
func (w *benchCluster) step(i int) {
	switch {
	case i%64 == 61 && w.deleteNode(), i%64 == 62 && w.createReplacement(), i%64 == 63 && w.makeReady():
	case len(w.unhealthy) < len(w.names)*benchUnhealthyPerMille/1000:
		i := w.rng.IntN(len(w.names))
		for w.failing[i] >= 0 {
			i = w.rng.IntN(len(w.names))
		}
		w.flip(i)
	default:
		w.flip(w.unhealthy[w.rng.IntN(len(w.unhealthy))])
	}
}

// deleteNode deletes a node with a decided termination, if there is one.
func (w *benchCluster) deleteNode() bool {
	for len(w.due) > 0 {
		i := w.due[0]
		w.due = w.due[1:]
		plan, _ := w.core.Plan(w.names[i].name)
		if plan.Treatment == nil || plan.Treatment.Action != triage.Terminate {
			continue
		}
		w.tick()
		if w.failing[i] >= 0 {
			w.recover(i)
		}
		delete(w.index, w.names[i].name)
		w.core.Forget(w.now, w.names[i].name)
		w.gone = i
		w.departed++
		w.drain()
		return true
	}
	return false
}

// createReplacement creates the replacement of the deleted node. It is not ready yet.
func (w *benchCluster) createReplacement() bool {
	i := w.gone
	if i < 0 {
		return false
	}
	w.tick()
	w.gone = -1
	n := &w.names[i]
	n.name, n.uid = fmt.Sprintf("replacement-%d", w.departed), fmt.Sprintf("5e1f9a62-0000-4000-9000-%012d", w.departed)
	n.created, n.isReady = w.now, false
	w.index[n.name] = i
	w.starting = append(w.starting, i)
	w.observe(i)
	w.drain()
	return true
}

// makeReady makes the oldest replacement ready, if there are several.
func (w *benchCluster) makeReady() bool {
	if len(w.starting) <= benchStarting {
		return false
	}
	w.tick()
	i := w.starting[0]
	w.starting = w.starting[1:]
	w.names[i].isReady = true
	w.observe(i)
	w.drain()
	return true
}

func (w *benchCluster) tick() { w.now = w.now.Add(time.Millisecond) }

// flip is one operation: observe a node, and read the plans of all woken nodes.
func (w *benchCluster) flip(i int) {
	w.tick()
	if w.failing[i] >= 0 {
		w.recover(i)
	} else {
		w.failing[i], w.at[i] = int8(w.rng.IntN(benchConditions)), int32(len(w.unhealthy))
		w.unhealthy = append(w.unhealthy, i)
	}
	w.observe(i)
	w.drain()
}

func (w *benchCluster) recover(i int) {
	last := w.unhealthy[len(w.unhealthy)-1]
	w.unhealthy[w.at[i]], w.at[last] = last, w.at[i]
	w.unhealthy = w.unhealthy[:len(w.unhealthy)-1]
	w.failing[i] = -1
}

// drain reads the plans of all woken nodes, and abandons the releases.
func (w *benchCluster) drain() {
	for {
		name, ok := w.core.NextWoken()
		if !ok {
			return
		}
		plan, _ := w.core.Plan(name)
		for _, release := range plan.Release {
			w.core.Abandon(w.now, name, release.Rule, 0)
		}
		if plan.Treatment != nil && plan.Treatment.Action == triage.Terminate && len(w.due) < 256 {
			w.due = append(w.due, w.index[name])
		}
	}
}

// BenchmarkObserve measures one operation: a condition of a random node flips, or a node is
// deleted, created or becomes ready. The operation includes the plans of all woken nodes.
// Seed 1, 2.
func BenchmarkObserve(b *testing.B) {
	for _, size := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			w := newBenchCluster(b, size)
			runtime.GC()
			before, departed := w.core.Work(), w.departed
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime(b)
			for i := range b.N {
				w.step(i)
			}
			cpu = cpuTime(b) - cpu
			b.StopTimer()
			after := w.core.Work()
			judged := float64(after.Judged-before.Judged) / float64(b.N)
			touched := float64(after.Touched-before.Touched) / float64(b.N)
			if judged > benchRulesPerPool {
				b.Errorf("%.2f rules judged per change, want at most the %d that select the node", judged, benchRulesPerPool)
			}
			if touched > benchTouchedPerChange {
				b.Errorf("%.2f nodes touched per change, want at most %d", touched, benchTouchedPerChange)
			}
			if walked := after.Walked - before.Walked; walked > 0 {
				b.Errorf("%d nodes looked at in walks through all of them, want none", walked)
			}
			if w.departed == departed && b.N >= 1000 {
				b.Errorf("no node has gone in %d steps", b.N)
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(w.departed-departed)/float64(b.N), "departed/op")
			b.ReportMetric(float64(after.Young-before.Young)/float64(b.N), "young/op")
			b.ReportMetric(judged, "judged/op")
			b.ReportMetric(touched, "touched/op")
		})
	}
}

// cpuTime is the CPU time of the process, which is more precise than wall time on a busy
// machine.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkHeap measures the memory of a node with 14 conditions and 20 labels under 10
// rules, if 5% of the nodes are unhealthy.
func BenchmarkHeap(b *testing.B) {
	for _, size := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			for range b.N {
				heap := func() uint64 {
					runtime.GC()
					runtime.GC()
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					return m.HeapAlloc
				}
				before := heap()
				core := newBenchCluster(b, size).core
				perNode := float64(heap()-before) / float64(size)
				runtime.KeepAlive(core)
				if perNode > benchBytesPerNode {
					b.Errorf("%.0f bytes per node, want at most %d", perNode, benchBytesPerNode)
				}
				b.ReportMetric(perNode, "B/node")
			}
		})
	}
}
