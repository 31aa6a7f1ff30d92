package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/naive"
)

// drawnPool is the repair block and budget of a pool that the simulator draws.
type drawnPool struct {
	wait         time.Duration
	most         string // the bound, as written; may be empty
	threshold    string // of unhealthy nodes, as written; may be empty
	mode, period string
	budget       string // the number in its only budget; empty if there is none
	off, vetoed  bool
}

func (d drawnPool) spec() string {
	block := fmt.Sprintf(`{"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":%q}]}}`, d.wait)
	for field, value := range map[string]string{"maxConcurrent": d.most, "unhealthyThreshold": d.threshold, "termination": d.mode, "terminationGracePeriod": d.period} {
		if value != "" {
			block = withRepair(block, fmt.Sprintf("%q:%q", field, value))
		}
	}
	if d.off {
		block = withRepair(block, `"enabled":false`)
	}
	if d.budget != "" {
		block = with(block, `"disruption":{"budgets":[{"nodes":"`+d.budget+`"}]}`)
	}
	return block
}

// repairSimulator generates histories of repairs without violations. Events happen to
// pools, and a simple controller that sees everything at once does one thing at a time. It
// implements the rules a second time, because the checker's rules are under test.
type repairSimulator struct {
	*story
	t              *rapid.T
	terms          map[string]drawnPool
	unhealthy      map[string]time.Time // since when, by node
	born           map[string]time.Time
	ready          map[string]bool
	vetoed         map[string]bool // nodes and claims
	taken          map[string]bool // claims that other clients delete
	marked         map[string]string
	ended          map[string]bool
	spots          []*spotInRepair
	launchFailures map[string]int       // by pool, of its current template
	templates      map[string]string    // the template of a pool, and the template of a node
	lastFailure    map[string]time.Time // the last failure
	serial         int
	saw            map[string]int

	ignores string // the rule that the controller ignores once
	wrong   string // the node of that violation
}

type spotInRepair struct {
	pool, node  string
	since, gone time.Time
	isReplaced  bool
}

// repairSimulators draws simulators whose controllers ignore one of the rules.
func repairSimulators(rules ...string) func(testing.TB, *rapid.T, map[string]int) *repairSimulator {
	return func(tb testing.TB, t *rapid.T, saw map[string]int) *repairSimulator {
		tb.Helper()
		return &repairSimulator{
			story: newCheckStory(tb), t: t, terms: map[string]drawnPool{}, unhealthy: map[string]time.Time{}, born: map[string]time.Time{}, ready: map[string]bool{},
			vetoed: map[string]bool{}, taken: map[string]bool{}, marked: map[string]string{}, ended: map[string]bool{}, launchFailures: map[string]int{},
			templates: map[string]string{}, lastFailure: map[string]time.Time{}, saw: saw, ignores: pick(t, rules...),
		}
	}
}

func (s *repairSimulator) live() {
	for _, pool := range []string{"blue", "red"} {
		s.draw(pool)
		s.repairTemplate(pool) // before that it is unknown
		for range pick(s.t, 4, 6, 3, 1) {
			s.nodeAdded(pool, true)
		}
	}
	for range pick(s.t, 60, 90, 30) {
		s.happen()
		for range pick(s.t, 100, 0, 1, 2) {
			if s.wrong != "" || !s.step() {
				break
			}
		}
		if s.wrong != "" {
			return
		}
	}
	for s.step() {
		if s.wrong != "" {
			return
		}
	}
	for _, node := range slices.Sorted(maps.Keys(s.marked)) {
		if !s.ended[node] {
			s.cancel(node)
		}
	}
}

func (s *repairSimulator) draw(pool string) {
	d := drawnPool{
		wait: pick(s.t, 5*time.Second, 0, 30*time.Second), most: pick(s.t, "2", "", "1", "50%", "100%", "0"), threshold: pick(s.t, "100%", "", "100%", "1", "50%"),
		mode: pick(s.t, "", "Forceful", "Graceful"), budget: pick(s.t, "50%", "100%", "", "1", "2", "0"),
		off: pick(s.t, false, false, false, true), vetoed: pick(s.t, false, false, false, false, true),
	}
	if d.mode == "Graceful" {
		d.period = pick(s.t, "", "5m")
	}
	if s.ignores == "held" { // needs many failures in a row
		d = drawnPool{wait: d.wait, most: "100%", threshold: "100%", budget: "100%"}
	}
	d.vetoed = d.vetoed && s.pools[pool] != nil
	if s.pools[pool] != nil {
		word := ""
		if d.vetoed {
			word = "true"
		}
		annotated(map[string]string{theirVeto: word})(s.pools[pool])
	}
	s.pool(pool, d.spec())
	s.terms[pool] = d
}

func (s *repairSimulator) nodeAdded(pool string, isReady bool) {
	s.serial++
	name := fmt.Sprintf("%s-%d", pool, s.serial)
	s.born[name], s.templates[name] = s.now, s.templates[pool]
	s.startingNodes(pool, name)
	if isReady {
		s.becomesReady(name)
	}
}

func (s *repairSimulator) becomesReady(name string) {
	pool := s.nodes[name].Labels[poolLabel]
	s.condition(name, "Ready=True")
	s.edit(karpenter, name, func(n *corev1.Node) {
		n.Spec.Taints = nil
		n.Labels = maps.Clone(n.Labels)
		n.Labels[initializedLabel] = "true"
	})
	if s.ready[name] = true; s.isLaunchFailure(name) {
		s.launchFailures[pool] = 0
	}
	for _, p := range s.spots {
		if p.pool == pool && !p.isReplaced && p.since.Before(s.born[name]) {
			p.isReplaced = true
			s.saw["replaced"]++
			break
		}
	}
}

func (s *repairSimulator) happen() {
	s.pass(pick(s.t, 3*time.Second, 50*time.Millisecond, 0, 20*time.Second, time.Minute, 11*time.Minute))
	pool := pick(s.t, "blue", "red")
	if len(s.nodes) == 0 {
		s.nodeAdded(pool, true)
	}
	node := pick(s.t, slices.Sorted(maps.Keys(s.nodes))...)
	switch pick(s.t, "unhealthy", "unhealthy", "unhealthy", "unhealthy", "unhealthy", "well", "unclear", "new", "new", "new", "slow", "slow", "ready", "ready", "leave", "leave", "leave", "veto", "other", "terms", "bad image", "template") {
	case "unhealthy":
		s.condition(node, "Disk=True")
		if s.unhealthy[node].IsZero() {
			s.unhealthy[node] = s.now
		}
	case "well":
		s.condition(node, "Disk=False")
		delete(s.unhealthy, node)
	case "unclear":
		if !s.unhealthy[node].IsZero() && s.marked[node] == "" { // no repair may start then, and the node counts as healthy until a condition says otherwise
			s.condition(node, "Disk=Unknown")
			s.condition(node, "Disk=False")
			delete(s.unhealthy, node)
		}
	case "new":
		s.nodeAdded(pool, true)
	case "slow":
		s.nodeAdded(pool, false)
	case "bad image":
		for range 4 {
			s.nodeAdded(pool, false)
		}
		if pick(s.t, true, false) {
			s.repairTemplate(pool)
		}
		s.pass(11 * time.Minute)
	case "ready":
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			if !s.ready[name] {
				s.becomesReady(name)
				break
			}
		}
	case "leave":
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			if s.ended[name] || s.taken[name] {
				s.nodeRemoved(name)
				break
			}
		}
	case "veto":
		s.vetoed[node] = !s.vetoed[node]
		word := ""
		if s.vetoed[node] {
			word = "true"
		}
		s.changeClaim(admin, "c-"+node, annotated(map[string]string{ourVeto: word}))
	case "other":
		if !s.ended[node] && !s.taken[node] && pick(s.t, true, false) {
			s.taken[node] = true
			s.deleteClaim(karpenter, node)
		}
	case "terms":
		s.draw(pool)
	case "template":
		s.repairTemplate(pool)
	}
}

// repairTemplate changes the template of a pool.
func (s *repairSimulator) repairTemplate(pool string) {
	s.serial++
	s.templates[pool], s.launchFailures[pool] = strconv.Itoa(s.serial), 0
	s.changeTemplate(pool, s.templates[pool])
	s.pass(3 * DefaultLag) // so that every writer knows
}

// isLaunchFailure reports whether a node counts for its pool's current template.
func (s *repairSimulator) isLaunchFailure(node string) bool {
	pool := s.nodes[node].Labels[poolLabel]
	return s.templates[node] == "" || s.templates[node] == s.templates[pool]
}

func (s *repairSimulator) nodeRemoved(name string) {
	for _, p := range s.spots {
		if p.node == name {
			p.gone = s.now
		}
	}
	s.finishDeletion(name)
	for _, of := range []map[string]bool{s.ready, s.vetoed, s.taken, s.ended} {
		delete(of, name)
	}
	delete(s.unhealthy, name)
	delete(s.marked, name)
}

// step makes the next due write, and reports whether there was one.
func (s *repairSimulator) step() bool {
	for _, node := range slices.Sorted(maps.Keys(s.nodes)) {
		switch rule := s.marked[node]; {
		case s.ended[node] || s.taken[node]:
		case rule == "":
			for _, rule := range []string{"Repair/NodePool/", timeoutKind} {
				if s.begins(node, rule+s.nodes[node].Labels[poolLabel]) {
					return true
				}
			}
		case len(s.objections(node, rule, true)) > 0:
			s.cancel(node)
			return true
		default:
			s.deleteClaim(us, node)
			s.ended[node] = true
			return true
		}
	}
	return false
}

func (s *repairSimulator) cancel(node string) {
	if s.taken[node] {
		return
	}
	s.saw["cancelled"]++
	s.unmarks(node)
	s.spots = slices.DeleteFunc(s.spots, func(p *spotInRepair) bool { return p.node == node })
	delete(s.marked, node)
}

// begins marks the claim of a node if no rule forbids it, or only the ignored rule.
func (s *repairSimulator) begins(node, rule string) bool {
	against := s.objections(node, rule, false)
	for _, why := range against {
		s.saw[why]++
	}
	isRash := s.ignores != "" && slices.Equal(against, []string{s.ignores})
	if isRash {
		s.pass(3 * DefaultLag) // so that every writer knows
		isRash = slices.Equal(s.objections(node, rule, false), []string{s.ignores}) && s.isSure(node)
	}
	if len(against) > 0 && !isRash {
		return false
	}
	if isRash {
		s.wrong = node
	}
	pool := s.nodes[node].Labels[poolLabel]
	d := s.terms[pool]
	switch {
	case d.mode != "Graceful":
		s.marks(node, rule, s.now)
	case d.period != "":
		s.marks(node, rule, s.now.Add(5*time.Minute))
	default:
		s.marks(node, rule)
	}
	s.marked[node] = rule
	s.spots = append(s.spots, &spotInRepair{pool: pool, node: node, since: s.now})
	if strings.HasPrefix(rule, timeoutKind) {
		s.saw["timed out"]++
		if s.isLaunchFailure(node) {
			s.launchFailures[pool]++
			s.lastFailure[pool] = s.now
		} else {
			s.saw["of an old template"]++
		}
	}
	if isRash && s.ignores == "budget" {
		s.deleteClaim(us, node)
	}
	return true
}

// objections returns all reasons against replacing a node, or against continuing.
func (s *repairSimulator) objections(node, rule string, isUnderWay bool) (why []string) {
	pool := s.nodes[node].Labels[poolLabel]
	d := s.terms[pool]
	say := func(is bool, what string) {
		if is {
			why = append(why, what)
		}
	}
	isTimeout := strings.HasPrefix(rule, timeoutKind)
	say(s.vetoed[node] || d.vetoed, "veto")
	say(d.off && !isUnderWay, "off")
	if isTimeout {
		say(s.ready[node], "ready")
		say(!isUnderWay && s.born[node].Add(10*time.Minute+time.Second).After(s.now), "young")
		say(!isUnderWay && s.launchFailures[pool] >= 3, "held")
	} else {
		say(s.unhealthy[node].IsZero(), "well")
		say(!isUnderWay && !s.unhealthy[node].IsZero() && s.unhealthy[node].Add(d.wait+time.Second).After(s.now), "soon")
		least, _ := s.thresholds(pool)
		say(!isUnderWay && s.unhealthyIn(pool, false)+s.inRepair(pool) > least, "threshold")
	}
	say(!isUnderWay && s.inRepair(pool)+1 > s.bound(pool, s.members(pool)), "bound")
	total, going := 0, 0
	for other, n := range s.nodes {
		if n.Labels[poolLabel] == pool && (s.ready[other] || isTimeout) {
			total++
			going += one(other != node && (s.marked[other] != "" || s.taken[other]))
		}
	}
	needsBudget := s.ready[node] || isTimeout
	say(needsBudget && going+1 > s.allowed(pool, total), "budget")
	return why
}

// members counts the nodes of a pool without the nodes that are younger than the first node
// in repair.
func (s *repairSimulator) members(pool string) (count int) {
	first := s.now
	for _, p := range s.spots {
		if p.pool == pool && !s.isFree(p) && p.since.Before(first) {
			first = p.since
		}
	}
	for name, n := range s.nodes {
		count += one(n.Labels[poolLabel] == pool && s.born[name].Before(first))
	}
	return count
}

func (s *repairSimulator) isFree(p *spotInRepair) bool {
	return !p.gone.IsZero() && (p.isReplaced || !s.now.Before(p.gone.Add(15*time.Minute)))
}

func (s *repairSimulator) inRepair(pool string) (count int) {
	for _, p := range s.spots {
		count += one(p.pool == pool && !s.isFree(p))
	}
	return count
}

func (s *repairSimulator) bound(pool string, nodes int) int {
	limit, err := limitIn(cmp.Or(s.terms[pool].most, "20%"))
	if err != nil {
		s.t.Fatal(err)
	}
	return naive.Allows(&limit, nodes)
}

// unhealthyIn counts the unhealthy nodes of a pool, or only those that every writer counts. Nodes in
// repair do not count.
func (s *repairSimulator) unhealthyIn(pool string, isSure bool) (count int) {
	for name, n := range s.nodes {
		count += one(n.Labels[poolLabel] == pool && !s.unhealthy[name].IsZero() && (s.marked[name] == "" || isSure) && (s.ready[name] || !isSure))
	}
	return count
}

// thresholds returns the smallest and the largest number of unhealthy nodes that a writer may find
// allowed in a pool. Writers count new nodes and deleted nodes at different times.
func (s *repairSimulator) thresholds(pool string) (least, most int) {
	limit, err := limitIn(cmp.Or(s.terms[pool].threshold, "20%"))
	if err != nil {
		s.t.Fatal(err)
	}
	limit.RoundUp = true
	if s.terms[pool].threshold == "" {
		limit.Few, limit.FewNumber = 5, 49
	}
	ready, all := 0, len(s.spots)
	for name, n := range s.nodes {
		all += one(n.Labels[poolLabel] == pool)
		ready += one(n.Labels[poolLabel] == pool && s.ready[name])
	}
	least = all
	for total := ready; total <= all; total++ {
		least, most = min(least, naive.Allows(&limit, total)), max(most, naive.Allows(&limit, total))
	}
	return least, most
}

func (s *repairSimulator) allowed(pool string, total int) int {
	limit, err := limitIn(cmp.Or(s.terms[pool].budget, "10%"))
	if err != nil {
		s.t.Fatal(err)
	}
	limit.RoundUp = true
	return naive.Allows(&limit, total)
}

// isSure reports whether the checker must see the violation, too. The checker has more
// tolerance than the simulator.
func (s *repairSimulator) isSure(node string) bool {
	pool := s.nodes[node].Labels[poolLabel]
	switch s.ignores {
	case "held": // at least the ready timeout
		return s.lastFailure[pool].Add(9 * time.Minute).After(s.now)
	case "soon": // timestamps are whole seconds, may be of the second before, and the lag is tolerated
		return s.unhealthy[node].Truncate(time.Second).Add(s.terms[pool].wait - 2*time.Second).After(s.now)
	case "threshold":
		_, most := s.thresholds(pool)
		return s.unhealthyIn(pool, true) > most
	case "young":
		return s.born[node].Truncate(time.Second).Add(10*time.Minute - 2*time.Second).After(s.now)
	}
	there, most := 0, len(s.spots)
	for _, p := range s.spots {
		there += one(p.pool == pool && p.gone.IsZero())
	}
	for _, n := range s.nodes {
		most += one(n.Labels[poolLabel] == pool)
	}
	return s.ignores != "bound" || there+1 > s.bound(pool, most)
}

func TestRandomPermittedRepairsHaveNoViolation(t *testing.T) {
	runRandom(t, repairSimulators(""), func(t *rapid.T, s *repairSimulator, saw map[string]int) {
		report := s.isFine(t, repairCfg)
		saw["changes"] += report.Changes
		saw["marked"] += report.Marks
		saw["deleted"] += report.Terminations
		saw["called off"] += report.Unmarks
	}, "marked", "deleted", "called off", "timed out", "of an old template", "replaced", "veto", "off", "ready", "young", "held", "well", "soon", "threshold", "bound", "budget")
}

// A controller without other errors ignores one rule, once.
func TestRandomRepairsThatIgnoreARuleAreCaught(t *testing.T) {
	kinds := map[string]Kind{"veto": Unjustified, "off": Unjustified, "ready": Unjustified, "young": TooSoon, "held": TooSoon, "well": Unjustified, "soon": TooSoon, "threshold": GateIgnored, "bound": CapExceeded, "budget": GateIgnored}
	runRandom(t, repairSimulators(slices.Sorted(maps.Keys(kinds))...), func(t *rapid.T, s *repairSimulator, saw map[string]int) {
		if s.wrong == "" {
			return
		}
		cfg := repairCfg
		cfg.Unfinished = true
		report, err := Check(s.made, cfg)
		if err != nil || len(report.Violations) != 1 || report.Violations[0].Kind != kinds[s.ignores] || report.Violations[0].Node != s.wrong {
			t.Fatalf("%s on %s: %v %s\n%s", s.ignores, s.wrong, err, report, s)
		}
		saw["caught "+s.ignores]++
	}, "caught veto", "caught off", "caught ready", "caught young", "caught held", "caught well", "caught soon", "caught threshold", "caught bound", "caught budget")
}
