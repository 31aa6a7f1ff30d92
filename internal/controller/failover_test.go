package controller

import (
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// mostInRepair is the bound of the pool in histories.
const mostInRepair = 2

// history is a small world in which everything happens at any time: nodes fall sick and
// recover, writes fail in every way or come late, watches lag behind one another,
// controllers die, Karpenter takes machines away and launches others.
type history struct {
	*hall
	rt       *rapid.T
	launched int
	late     []late                 // writes that are on their way
	out      map[string]*taskResult // errands that are being run, by node
	given    []*givenUp
	ready    []*launch
	hits     *hits
}

// late is an errand whose writes the API server has not worked on yet.
type late struct {
	report *taskResult
	until  time.Time
}

// givenUp is a machine that this system has marked.
type givenUp struct {
	node    string
	since   time.Time
	isThere bool      // its node
	gone    time.Time // its node, or its claim if that went first
}

// launch is a machine that has become ready.
type launch struct{ created, ready time.Time }

type hits struct{ deletions, reigns, full, lateOnes, spared, governed int }

// inRepair counts, from nothing but what the API server had, how many machines this
// system has given up that are there or not replaced yet. A new one replaces one that is
// gone and whose place is kept still: another that is marked and there may yet be spared.
func (s *history) inRepair() (n int) {
	replacedBy := map[*launch]*givenUp{}
	var finds func(g *givenUp, tried map[*launch]bool) bool // a new one for it, if need be by finding others for others
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
		isFirm := g.isThere && s.world.claims["claim-"+g.node] != nil // a node without one is nobody's, after a while
		if isFirm || time.Since(g.gone) < triage.ReplacementWait && (g.isThere || !finds(g, map[*launch]bool{})) {
			n++
		}
	}
	return n
}

// look compares the world with what it was.
func (s *history) look() {
	for name, c := range s.world.claims {
		mark, _ := ownership.ReadMark(c.Annotations)
		at := slices.IndexFunc(s.given, func(g *givenUp) bool { return "claim-"+g.node == name })
		switch {
		case mark != nil && at < 0:
			s.given = append(s.given, &givenUp{node: mark.Node, since: mark.Since, isThere: s.world.nodes[mark.Node] != nil})
		case mark == nil && at >= 0: // it was spared
			s.given = slices.Delete(s.given, at, at+1)
			s.hits.spared++
		}
	}
	for _, g := range s.given {
		if g.gone.IsZero() && (s.world.nodes[g.node] == nil || s.world.claims["claim-"+g.node] == nil) {
			g.gone = time.Now()
		}
		g.isThere = s.world.nodes[g.node] != nil
	}
	switch n := s.inRepair(); {
	case n > mostInRepair:
		s.fails("%d machines are in repair, %d may be: %+v; the log:\n%s", n, mostInRepair, s.tell(), &s.log)
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
		s.world.launch(name, "default")
		s.noteReady(name)
	} else {
		s.world.launch(name, "default", unready)
	}
}

func (s *history) noteReady(name string) {
	s.ready = append(s.ready, &launch{s.world.nodes[name].CreationTimestamp.Time, time.Now()})
}

// some returns one of the names that a condition holds for, empty if there is none.
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

var fates = []treat.Result{treat.Made, treat.Made, treat.Made, treat.Stale, treat.Busy, treat.Refused, treat.Unknown}

func (s *history) goes() how {
	return how{
		first: rapid.SampledFrom(fates).Draw(s.rt, "first"), second: rapid.SampledFrom(fates).Draw(s.rt, "second"),
		unanswered: rapid.Bool().Draw(s.rt, "unanswered"),
	}
}

// act does one thing.
func (s *history) act() {
	anyNode := func(*corev1.Node) bool { return true }
	switch what := rapid.SampledFrom([]string{
		"work", "work", "work", "sicken", "sicken", "sicken", "recover", "touch claim", "touch node", "hear", "hear nodes", "hear claims", "hear", "page", "page", "lost page",
		"run", "run", "run", "run", "report", "report", "late", "late", "late", "arrive", "arrive", "die", "pass", "pass", "finish", "finish", "drop claim", "launch", "ready", "accident", "govern",
	}).Draw(s.rt, "act"); what {
	case "sicken", "recover":
		if name := some(s.rt, s.world.nodes, anyNode); name != "" {
			s.world.changeNode(name, func(n *corev1.Node) {
				n.Status.Conditions[1].Status = map[string]corev1.ConditionStatus{"sicken": corev1.ConditionTrue, "recover": corev1.ConditionFalse}[what]
				n.Status.Conditions[1].LastTransitionTime = metav1.Now()
			})
		}
	case "work":
		s.passes(time.Second)
		s.hears()
		s.turns()
		s.sendOne(false)
	case "touch claim":
		if name := some(s.rt, s.world.claims, func(*karpenter.NodeClaim) bool { return true }); name != "" {
			s.world.changeClaim(name, func(*karpenter.NodeClaim) {})
		}
	case "touch node":
		if name := some(s.rt, s.world.nodes, anyNode); name != "" {
			s.world.changeNode(name, func(*corev1.Node) {})
		}
	case "hear":
		s.hears()
	case "hear nodes":
		s.hears("nodes")
	case "hear claims":
		s.hears("claims")
	case "page":
		s.turns()
	case "lost page":
		s.losePage(rapid.Bool().Draw(s.rt, "written"))
	case "run":
		s.sendOne(false)
	case "late":
		s.sendOne(true)
	case "report":
		if node := some(s.rt, s.out, func(*taskResult) bool { return true }); node != "" {
			r := s.out[node]
			delete(s.out, node)
			s.handleTaskResult(r)
			s.goesOn()
		}
	case "arrive":
		s.arrive()
	case "die":
		s.die()
	case "pass":
		s.passes(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 20 * time.Second, 3 * time.Minute, 10 * time.Minute}).Draw(s.rt, "for"))
	case "finish": // Karpenter is done with a node
		if name := some(s.rt, s.world.claims, func(c *karpenter.NodeClaim) bool { return c.DeletionTimestamp != nil }); name != "" {
			if node := name[len("claim-"):]; s.world.nodes[node] != nil {
				s.world.removeNode(node)
			} else {
				s.world.removeClaim(name)
			}
		}
	case "drop claim": // and may be with its claim first
		if name := some(s.rt, s.world.claims, func(c *karpenter.NodeClaim) bool { return c.DeletionTimestamp != nil }); name != "" {
			s.world.removeClaim(name)
			if rapid.Bool().Draw(s.rt, "at once") && s.world.nodes[name[len("claim-"):]] != nil {
				s.world.removeNode(name[len("claim-"):])
			}
		}
	case "launch":
		if len(s.world.nodes) < 7 {
			s.launchOne(rapid.Bool().Draw(s.rt, "ready"))
		}
	case "ready":
		if name := some(s.rt, s.world.nodes, func(n *corev1.Node) bool { return n.Labels[karpenter.InitializedLabel] == "" }); name != "" {
			s.world.changeNode(name, func(n *corev1.Node) {
				n.Labels[karpenter.InitializedLabel], n.Status.Conditions[0].Status = "true", corev1.ConditionTrue
			})
			s.noteReady(name)
		}
	case "accident": // somebody else deletes a machine
		if name := some(s.rt, s.world.nodes, anyNode); name != "" && s.world.claims["claim-"+name] != nil && !s.isMarked(name) {
			s.world.removeNode(name)
			s.world.removeClaim("claim-" + name)
		}
	case "govern":
		s.governAnew()
	}
	s.look()
}

// governAnew replaces what governs the pool by something else that says the same: the
// block on it by a policy that names it, that by another one, or that by the block.
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

// losePage has a page fail that has been written, or has not.
func (s *history) losePage(isWritten bool) {
	s.sends()
	entries, _ := s.nextSnapshot(time.Now())
	if entries == nil {
		return
	}
	s.ledger.busy = true
	if isWritten {
		s.world.page = entries
	}
	if err := s.snapshotStored(errors.New("for a test")); err != nil {
		s.fails("%v", err)
	}
	s.goesOn()
}

// sendOne has an errand run, or its writes be on their way for a while.
func (s *history) sendOne(isLate bool) {
	node := some(s.rt, s.sends(), func(*task) bool { return true })
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

func (s *history) carry(r *taskResult, goes how) {
	before := len(s.world.deleted)
	s.world.carryOut(r, goes)
	s.look()
	s.hits.deletions += len(s.world.deleted) - before
}

// arrive lets the API server work on a write that has been on its way, for whoever is
// still there to hear the answer.
func (s *history) arrive() {
	if len(s.late) == 0 {
		return
	}
	one := s.late[0]
	s.late = s.late[1:]
	if time.Now().After(one.until) { // it has given up
		one.report.result, one.report.err = treat.Unknown, errBroken
	} else {
		s.carry(one.report, s.goes())
	}
	if s.treatments[one.report.treatments.node] == one.report.treatments {
		s.out[one.report.treatments.node] = one.report
	}
}

// die has another take over. What the one before has sent may arrive yet.
func (s *history) die() {
	s.hits.reigns++
	c := &clinic{t: s.t}
	c.loop = newLoop(slog.New(slog.NewTextHandler(&c.log, nil)), func(treat.Event) {})
	heir := hallIn(s.t, c, s.world)
	heir.pools.changed["default"] = s.repairs.pools["default"]
	for _, pol := range s.repairs.policies {
		must(s.t, heir.repairs.inbox.Update(pol.object))
	}
	heir.load()
	s.hall, s.out = heir, map[string]*taskResult{}
}

// settle has everything come to its end.
func (s *history) settle() {
	for name := range s.world.nodes {
		s.world.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })
	}
	for range 40 {
		for len(s.late) > 0 {
			s.arrive()
		}
		for node, r := range s.out {
			delete(s.out, node)
			s.handleTaskResult(r)
		}
		s.hears()
		s.turns()
		for node := range s.sends() {
			r := s.begins(node)
			s.carry(r, how{})
			s.handleTaskResult(r)
			s.goesOn()
		}
		s.passes(time.Minute)
		s.look()
	}
	for name, c := range s.world.claims {
		if mark, _ := ownership.ReadMark(c.Annotations); mark != nil && c.DeletionTimestamp == nil && s.world.nodes[mark.Node] != nil {
			s.fails("claim %s is left with a mark: %+v; the log:\n%s", name, mark, &s.log)
		}
	}
	for node, b := range s.treatments {
		if b.granted.Object != "" && s.world.claims[b.granted.Object[len(claimKind)+2:]] == nil && s.world.nodes[node] == nil {
			s.fails("the page names %+v for ever", b.granted)
		}
	}
}

// Whatever happens, no more machines are given up than may be, as far as the API server
// can tell, and nothing is left half done.
func TestNoHistoryExceedsTheBound(t *testing.T) {
	var sum hits
	for range 10 { // what a single run draws may miss a place that is lost between two leaders
		rapid.Check(t, func(rt *rapid.T) {
			inBubble(t, rt, func(t *testing.T) {
				t.Helper()
				h := newHall(t)
				s := &history{hall: h, rt: rt, out: map[string]*taskResult{}, hits: &sum}
				h.pool("default", patientFor1s())
				for range 5 {
					s.launchOne(true)
				}
				s.ready = nil // which replace nobody
				s.hears()
				for range rapid.IntRange(20, 120).Draw(rt, "acts") {
					s.act()
				}
				s.settle()
			})
		})
	}
	t.Logf("%+v", sum)
	if sum.deletions == 0 || sum.reigns == 0 || sum.full == 0 || sum.lateOnes == 0 || sum.spared == 0 || sum.governed == 0 {
		t.Error("the histories prove nothing")
	}
}

// failure is why a history is not a lawful one.
type failure string

func (s *history) fails(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// inBubble runs a part of a property in a bubble of its own: rapid has a clock, and must
// not be in it. What rapid itself has to say goes on to it from another line than what is
// wrong, by which it tells them apart.
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
