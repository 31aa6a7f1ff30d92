package repair

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// mostInRepair is the bound of the pool.
const mostInRepair = 2

// history simulates a cluster with random events: nodes become unhealthy and recover,
// writes fail or arrive late, watches lag, controllers are replaced, and Karpenter
// removes and launches nodes.
type history struct {
	*nodePoolFixture
	rt       *rapid.T
	launched int
	late     []late                        // writes in flight
	out      map[string]*engine.TaskResult // running tasks, by node
	given    []*givenUp
	ready    []*launch
	hits     *hits
}

// late is a task whose writes the API server has not processed yet.
type late struct {
	report *engine.TaskResult
	until  time.Time
}

// givenUp is a node whose claim the controller has marked.
type givenUp struct {
	node    string
	since   time.Time
	isThere bool      // the node exists
	gone    time.Time // when the node was gone, or its claim if that went first
}

// launch is a node that has become Ready.
type launch struct{ created, ready time.Time }

type hits struct{ deletions, failovers, full, lateOnes, cancelled, governed, forced int }

// inRepair counts, from API objects only, the terminated nodes that still exist or are
// not replaced. A new node replaces a deleted node that still keeps its slot, because the
// termination of an existing marked node may be cancelled.
func (s *history) inRepair() (n int) {
	replacedBy := map[*launch]*givenUp{}
	var finds func(g *givenUp, tried map[*launch]bool) bool // finds a replacement, if necessary by reassigning others
	finds = func(g *givenUp, tried map[*launch]bool) bool {
		for _, l := range s.ready {
			if tried[l] || l.created.Before(g.since.Truncate(time.Second)) || l.ready.Before(g.since) || !l.ready.Before(g.gone.Add(triage.ReplacementWait)) {
				continue
			}
			tried[l] = true
			if other := replacedBy[l]; other == nil || finds(other, tried) {
				replacedBy[l] = g
				return true
			}
		}
		return false
	}
	for _, g := range s.given {
		isFirm := g.isThere && s.api.claims["claim-"+g.node] != nil // a node without a claim does not count after a while
		if isFirm || time.Since(g.gone) < triage.ReplacementWait && (g.isThere || !finds(g, map[*launch]bool{})) {
			n++
		}
	}
	return n
}

// look compares the API objects with their previous state.
func (s *history) look() {
	for name, c := range s.api.claims {
		mark, _ := ownership.ReadMark(c.Annotations)
		at := slices.IndexFunc(s.given, func(g *givenUp) bool { return "claim-"+g.node == name })
		switch {
		case mark != nil && at < 0:
			s.given = append(s.given, &givenUp{node: mark.Node, since: mark.Since, isThere: s.api.nodes[mark.Node] != nil})
		case mark == nil && at >= 0: // the termination was cancelled
			s.given = slices.Delete(s.given, at, at+1)
			s.hits.cancelled++
		}
	}
	for _, g := range s.given {
		if g.gone.IsZero() && (s.api.nodes[g.node] == nil || s.api.claims["claim-"+g.node] == nil) {
			g.gone = time.Now()
		}
		g.isThere = s.api.nodes[g.node] != nil
	}
	forced := 0
	for _, c := range s.api.claims {
		if c.Annotations[ownership.MarkAnnotation] == "" && c.DeletionTimestamp != nil && c.Annotations[karpenter.TerminationTimestampAnnotation] != "" {
			forced++
		}
	}
	s.hits.forced += forced
	switch n := s.inRepair() + forced; {
	case n > mostInRepair:
		s.fails("%d machines are in repair, %d may be: %+v; the log:\n%s", n, mostInRepair, s.tell(), &s.Log)
	case n == mostInRepair:
		s.hits.full++
	}
}

func (s *history) tell() (words []string) {
	for _, g := range s.given {
		words = append(words, fmt.Sprintf("%+v", *g))
	}
	return words
}

func (s *history) launchOne(isReady bool) {
	s.launched++
	name := fmt.Sprintf("n%d", s.launched)
	if isReady {
		s.api.launch(name, "default")
		s.noteReady(name)
	} else {
		s.api.launch(name, "default", unready)
	}
}

func (s *history) noteReady(name string) {
	s.ready = append(s.ready, &launch{s.api.nodes[name].CreationTimestamp.Time, time.Now()})
}

// some returns a random name that satisfies the predicate, empty for none.
func some[T any](rt *rapid.T, of map[string]T, is func(T) bool) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if is(of[name]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return rapid.SampledFrom(names).Draw(rt, "which")
}

var fates = []treat.Outcome{treat.Made, treat.Made, treat.Made, treat.Stale, treat.Busy, treat.Refused, treat.Unknown}

func (s *history) goes() how {
	return how{
		first: rapid.SampledFrom(fates).Draw(s.rt, "first"), second: rapid.SampledFrom(fates).Draw(s.rt, "second"),
		unanswered: rapid.Bool().Draw(s.rt, "unanswered"),
	}
}

// act performs one random event.
func (s *history) act() {
	anyNode := func(*corev1.Node) bool { return true }
	switch what := rapid.SampledFrom([]string{
		"work", "work", "work", "make unhealthy", "make unhealthy", "make unhealthy", "recover", "touch claim", "touch node", "hear", "hear nodes", "hear claims", "hear", "page", "page", "lost page",
		"run", "run", "run", "run", "report", "report", "late", "late", "late", "arrive", "arrive", "die", "pass", "pass", "finish", "finish", "drop claim", "launch", "ready", "accident", "drain", "govern",
	}).Draw(s.rt, "act"); what {
	case "make unhealthy", "recover":
		if name := some(s.rt, s.api.nodes, anyNode); name != "" {
			s.api.changeNode(name, func(n *corev1.Node) {
				n.Status.Conditions[1].Status = map[string]corev1.ConditionStatus{"make unhealthy": corev1.ConditionTrue, "recover": corev1.ConditionFalse}[what]
				n.Status.Conditions[1].LastTransitionTime = metav1.Now()
			})
		}
	case "work":
		s.advance(time.Second)
		s.deliver()
		s.writeSnapshot()
		s.sendOne(false)
	case "touch claim":
		if name := some(s.rt, s.api.claims, func(*karpenter.NodeClaim) bool { return true }); name != "" {
			s.api.changeClaim(name, func(*karpenter.NodeClaim) {})
		}
	case "touch node":
		if name := some(s.rt, s.api.nodes, anyNode); name != "" {
			s.api.changeNode(name, func(*corev1.Node) {})
		}
	case "hear":
		s.deliver()
	case "hear nodes":
		s.deliver("nodes")
	case "hear claims":
		s.deliver("claims")
	case "page":
		s.writeSnapshot()
	case "lost page":
		s.losePage(rapid.Bool().Draw(s.rt, "written"))
	case "run":
		s.sendOne(false)
	case "late":
		s.sendOne(true)
	case "report":
		if node := some(s.rt, s.out, func(*engine.TaskResult) bool { return true }); node != "" {
			r := s.out[node]
			delete(s.out, node)
			s.Finish(r)
			s.runRound()
		}
	case "arrive":
		s.arrive()
	case "die":
		s.die()
	case "pass":
		s.advance(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 20 * time.Second, 3 * time.Minute, 10 * time.Minute}).Draw(s.rt, "for"))
	case "finish": // Karpenter has removed the node
		if name := some(s.rt, s.api.claims, func(c *karpenter.NodeClaim) bool { return c.DeletionTimestamp != nil }); name != "" {
			if node := name[len("claim-"):]; s.api.nodes[node] != nil {
				s.api.removeNode(node)
			} else {
				s.api.removeClaim(name)
			}
		}
	case "drop claim": // Karpenter may remove the claim first
		if name := some(s.rt, s.api.claims, func(c *karpenter.NodeClaim) bool { return c.DeletionTimestamp != nil }); name != "" {
			s.api.removeClaim(name)
			if rapid.Bool().Draw(s.rt, "at once") && s.api.nodes[name[len("claim-"):]] != nil {
				s.api.removeNode(name[len("claim-"):])
			}
		}
	case "launch":
		if len(s.api.nodes) < 7 {
			s.launchOne(rapid.Bool().Draw(s.rt, "ready"))
		}
	case "ready":
		if name := some(s.rt, s.api.nodes, func(n *corev1.Node) bool { return n.Labels[karpenter.InitializedLabel] == "" }); name != "" {
			s.api.changeNode(name, func(n *corev1.Node) {
				n.Labels[karpenter.InitializedLabel], n.Status.Conditions[0].Status = "true", corev1.ConditionTrue
			})
			s.noteReady(name)
		}
	case "accident": // another component deletes a node
		if name := some(s.rt, s.api.nodes, anyNode); name != "" && s.api.claims["claim-"+name] != nil && !s.isMarked(name) {
			s.api.removeNode(name)
			s.api.removeClaim("claim-" + name)
		}
	case "drain": // another component deletes a claim gracefully
		if name := some(s.rt, s.api.claims, func(c *karpenter.NodeClaim) bool {
			return c.DeletionTimestamp == nil && c.Annotations[ownership.MarkAnnotation] == ""
		}); name != "" {
			s.api.changeClaim(name, func(c *karpenter.NodeClaim) { c.DeletionTimestamp = new(metav1.Now()) })
		}
	case "govern":
		s.governAnew()
	}
	s.look()
}

// governAnew replaces the policy of the pool by an equal one: the block by a policy that
// names the pool, that policy by another one, or that one by the block.
func (s *history) governAnew() {
	s.hits.governed++
	for _, name := range slices.Sorted(maps.Keys(s.repairs.policies)) {
		s.noPolicy(name)
	}
	if s.repairs.pools["default"].Block == nil && rapid.Bool().Draw(s.rt, "on the pool") {
		s.pool("default", patientFor1s())
		return
	}
	s.pool("default", nil)
	s.policy(fmt.Sprintf("policy-%d", s.hits.governed), forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = *patientFor1s() })
}

func patientFor1s() *v1alpha1.RepairSpec {
	block := ofAtMost(strconv.Itoa(mostInRepair))
	block.DefaultTolerationDuration = "1s"
	return block
}

// losePage makes a snapshot fail that may have been stored.
func (s *history) losePage(isWritten bool) {
	s.Startable()
	entries, _ := s.Snapshot()
	if entries == nil {
		return
	}
	if isWritten {
		s.api.page = entries
	}
	if err := s.Stored(errors.New("for a test")); err != nil {
		s.fails("%v", err)
	}
	s.runRound()
}

// sendOne runs a task, or leaves its writes in flight for a while.
func (s *history) sendOne(isLate bool) {
	node := some(s.rt, s.Startable(), func(*engine.Task) bool { return true })
	if node == "" || s.out[node] != nil {
		return
	}
	r := s.begins(node)
	if isLate {
		s.late = append(s.late, late{r, time.Now().Add(time.Minute)})
		s.hits.lateOnes++
		return
	}
	s.carry(r, s.goes())
	s.out[node] = r
}

func (s *history) carry(r *engine.TaskResult, goes how) {
	before := len(s.api.deleted)
	s.api.carryOut(r, goes)
	s.look()
	s.hits.deletions += len(s.api.deleted) - before
}

// arrive processes a write in flight, and returns the answer if its sender still exists.
func (s *history) arrive() {
	if len(s.late) == 0 {
		return
	}
	one := s.late[0]
	s.late = s.late[1:]
	if time.Now().After(one.until) { // the client has timed out
		one.report.Outcome, one.report.Err = treat.Unknown, enginetest.ErrBroken
	} else {
		s.carry(one.report, s.goes())
	}
	if s.FindNodeTasks(one.report.NodeTasks.Node) == one.report.NodeTasks {
		s.out[one.report.NodeTasks.Node] = one.report
	}
}

// die replaces the leader. Writes of the previous leader may still arrive.
func (s *history) die() {
	s.hits.failovers++
	successor := nodePoolFixtureIn(s.T, s.api)
	successor.pools.changed["default"] = s.repairs.pools["default"]
	for _, pol := range s.repairs.policies {
		testkit.Must(s.T, successor.policies.Update(pol.object))
	}
	successor.load()
	s.nodePoolFixture, s.out = successor, map[string]*engine.TaskResult{}
}

// settle lets everything finish.
func (s *history) settle() {
	for name := range s.api.nodes {
		s.api.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
	}
	for range 40 {
		for len(s.late) > 0 {
			s.arrive()
		}
		for node, r := range s.out {
			delete(s.out, node)
			s.Finish(r)
		}
		s.deliver()
		s.writeSnapshot()
		for node := range s.Startable() {
			r := s.begins(node)
			s.carry(r, how{})
			s.Finish(r)
			s.runRound()
		}
		s.advance(time.Minute)
		s.look()
	}
	for name, c := range s.api.claims {
		if mark, _ := ownership.ReadMark(c.Annotations); mark != nil && c.DeletionTimestamp == nil && s.api.nodes[mark.Node] != nil {
			s.fails("claim %s is left with a mark: %+v; the log:\n%s", name, mark, &s.Log)
		}
	}
	for _, e := range enginetest.EntriesOf[ledger.ObjectWrite](s.Entries()) {
		if s.api.claims[e.Object.Name] == nil && s.api.nodes[e.Node] == nil {
			s.fails("the ledger names %+v for ever", e)
		}
	}
}

// In every history the bound holds, judged by API objects, and nothing is left
// unfinished.
func TestNoHistoryExceedsTheBound(t *testing.T) {
	var sum hits
	for range 10 { // a single run may miss a slot that is lost between two leaders
		rapid.Check(t, func(rt *rapid.T) {
			inBubble(t, rt, func(t *testing.T) {
				t.Helper()
				h := newNodePoolFixture(t)
				s := &history{nodePoolFixture: h, rt: rt, out: map[string]*engine.TaskResult{}, hits: &sum}
				h.pool("default", patientFor1s())
				for range 5 {
					s.launchOne(true)
				}
				s.ready = nil // replacements do not count any more
				s.deliver()
				for range rapid.IntRange(20, 120).Draw(rt, "acts") {
					s.act()
				}
				s.settle()
			})
		})
	}
	t.Logf("%+v", sum)
	if sum.deletions == 0 || sum.failovers == 0 || sum.full == 0 || sum.lateOnes == 0 || sum.cancelled == 0 || sum.governed == 0 || sum.forced == 0 {
		t.Error("the histories prove nothing")
	}
}

// failure says why a history violates an invariant.
type failure string

func (s *history) fails(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// inBubble runs a part of a property in its own synctest bubble, because rapid uses a
// clock and must stay outside. Failures of rapid itself are raised from another line than
// violations, because rapid tells failures apart by line.
func inBubble(t *testing.T, rt *rapid.T, part func(*testing.T)) {
	t.Helper()
	var said any
	synctest.Test(t, func(t *testing.T) {
		defer func() { said = recover() }()
		part(t)
	})
	switch said := said.(type) {
	case nil:
	case failure:
		rt.Fatal(string(said))
	default:
		panic(said)
	}
}
