package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/naive"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// drawnSet is the spec of a set that the simulator draws.
type drawnSet struct {
	Type         string                `json:"type"`
	Effect       string                `json:"effect"`
	TaintKey     string                `json:"taintKey"`
	Conditions   map[string]wishStatus `json:"conditions"`
	Selector     *metav1.LabelSelector `json:"selector,omitempty"`
	MaxUnhealthy any                   `json:"maxUnhealthy,omitempty"`
	DryRun       bool                  `json:"dryRun,omitempty"`
}

type wishStatus struct {
	Status     any    `json:"status"`
	Duration   string `json:"duration,omitempty"`
	EvenSilent bool   `json:"evenSilent,omitempty"`
}

// simulator generates histories without violations. Events happen to a cluster, and a
// simple controller that sees everything at once corrects it, one write at a time. It
// implements the rules a second time, because the checker's rules are under test.
type simulator struct {
	*story
	t      *rapid.T
	wishes map[string]drawnSet
	serial int
	timed  bool // sets may ask for durations
	saw    map[string]int
}

func pick[E any](t *rapid.T, of ...E) E { return rapid.SampledFrom(of).Draw(t, "") }

func (s *simulator) live() {
	s.timed = pick(s.t, false, true, false)
	for range pick(s.t, 5, 4, 3, 6, 2, 8) {
		s.happenNode()
	}
	for _, set := range []string{"x", "y", "z"}[:pick(s.t, 1, 2, 3)] {
		s.happenSet(set)
	}
	for range pick(s.t, 40, 30, 20, 10) {
		s.happen()
		for range pick(s.t, 100, 0, 1, 2) {
			if !s.step() {
				break
			}
		}
	}
	for s.step() {
	}
}

func (s *simulator) happenNode() {
	s.serial++
	name := fmt.Sprintf("n%d", s.serial)
	s.node(name)
	if pick(s.t, 1, 2, 3, 4, 5) == 5 {
		s.label(name, controlPlaneLabel, "")
	}
}

func (s *simulator) happen() {
	s.pass(pick(s.t, 3*time.Second, 50*time.Millisecond, 0, time.Second, 20*time.Second, time.Minute))
	if len(s.nodes) == 0 {
		s.happenNode()
	}
	name := pick(s.t, slices.Sorted(maps.Keys(s.nodes))...)
	taints := s.nodes[name].Spec.Taints
	switch what := pick(s.t, "condition", "condition", "condition", "condition", "fence", "foreign", "take", "set", "gone", "drop", "node", "label", "condition", "condition"); what {
	case "condition":
		kind, status := pick(s.t, "A", "B"), pick(s.t, "True", "True", "False", "Unknown", "Unknown/AgentSilent")
		stamp := s.now // of the last status change
		for _, c := range s.nodes[name].Status.Conditions {
			if was, _, _ := strings.Cut(status, "/"); string(c.Type) == kind && string(c.Status) == was {
				stamp = c.LastTransitionTime.Time
			}
		}
		s.stamped(name, stamp, kind+"="+status)
	case "set":
		s.happenSet(pick(s.t, "x", "y", "z"))
	case "label":
		s.label(name, "pool", pick(s.t, "web", "lab"))
	case "foreign":
		text := pick(s.t, "theirs:NoSchedule", "theirs:NoExecute", "example.com/k1:NoSchedule", "example.com/k2:NoExecute")
		if !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == keyOf(text) && t.Effect == effectOf(text) }) {
			s.foreign(name, text)
		}
	case "take": // of any writer
		if len(taints) > 0 {
			t := pick(s.t, taints...)
			s.takeAway(admin, name, t.Key+":"+string(t.Effect))
		}
	case "node":
		s.happenNode()
	case "gone":
		s.deleteNode(admin, name)
	case "drop":
		if len(s.wishes) > 0 {
			set := pick(s.t, slices.Sorted(maps.Keys(s.wishes))...)
			s.deleteSet(admin, set)
			delete(s.wishes, set)
		}
	case "fence":
		if pick(s.t, "condition", "foreign", "fence") != "fence" {
			return
		}
		s.we(name, fence(fmt.Sprint("token-", s.version)))
	}
}

func (s *simulator) happenSet(name string) {
	w := drawnSet{
		Type:         "T",
		Effect:       pick(s.t, "NoExecute", "NoExecute", "NoExecute", "NoSchedule", "PreferNoSchedule"),
		TaintKey:     pick(s.t, "example.com/k1", "example.com/k2", "example.com/k3"),
		MaxUnhealthy: pick[any](s.t, nil, 2, 1, "0%", "30%", nil, "100%"),
		DryRun:       pick(s.t, false, false, false, false, true),
		Conditions:   map[string]wishStatus{},
	}
	for range pick(s.t, 1, 1, 2) {
		duration := ""
		if s.timed {
			duration = pick(s.t, "", "5s", "1m")
		}
		w.Conditions[pick(s.t, "A", "B")] = wishStatus{
			Status: pick[any](s.t, true, "True", "unknown", false, true), Duration: duration, EvenSilent: pick(s.t, false, true),
		}
	}
	switch pick(s.t, "all", "all", "web", "masters") {
	case "web":
		w.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "web"}}
	case "masters":
		w.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: controlPlaneLabel, Operator: metav1.LabelSelectorOpExists}}}
	}
	text, err := json.Marshal(w)
	if err != nil {
		s.t.Fatal(err)
	}
	s.wishes[name] = w
	s.set(name, string(text))
}

// step makes the next due write, and reports whether there was one.
func (s *simulator) step() bool {
	for _, name := range s.order() {
		node := s.nodes[name]
		f := readForm(node)
		wanted := s.wanted(node)
		if f.Fence == "" && sameItems(wanted, f.Taints) && len(carriedBy(node)) == len(f.Taints) {
			continue
		}
		s.we(name, func(node *corev1.Node, f *form) {
			node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
				is := func(e formTaint) bool { return e.is(t) }
				return slices.ContainsFunc(f.Taints, is) && !slices.ContainsFunc(wanted, is)
			})
			for _, w := range wanted {
				if !slices.ContainsFunc(node.Spec.Taints, w.is) {
					node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: w.Key, Effect: corev1.TaintEffect(w.Effect), TimeAdded: new(metav1.NewTime(w.Added))})
				}
			}
			f.Taints, f.Fence = wanted, ""
		})
		s.saw["writes"]++
		return true
	}
	return false
}

// order returns the nodes by waiting time, longest first.
func (s *simulator) order() []string {
	names := slices.Sorted(maps.Keys(s.nodes))
	slices.SortStableFunc(names, func(a, b string) int { return s.waits(a).Compare(s.waits(b)) })
	return names
}

func (s *simulator) waits(name string) time.Time {
	earliest := s.now.Add(time.Hour)
	for _, w := range s.wishes {
		if v, since := s.judge(s.nodes[name], w); v == holds {
			earliest = first(earliest, since)
		}
	}
	return earliest
}

// wanted returns the entries that the record of a node should have.
func (s *simulator) wanted(node *corev1.Node) []formTaint {
	carried := map[string]formTaint{}
	for _, e := range carriedBy(node) {
		if old, both := carried[e.Rule]; !both || old.Effect != noExecute {
			carried[e.Rule] = e
		}
	}
	highest := 0
	stands := map[string]string{} // by set, the effect in force
	for name, w := range s.wishes {
		v, since := s.judge(node, w)
		e, there := carried["ConditionSet/"+name]
		switch {
		case w.DryRun || v == not:
			continue
		case v == holds && !since.After(s.now):
			stands[name] = w.Effect
			if w.Effect == noExecute && !s.mayEvict(node, name) {
				stands[name] = noSchedule
			}
		case there:
			stands[name] = e.Effect
		default:
			continue
		}
		highest = max(highest, strength[w.Effect])
	}
	var wanted []formTaint
	for _, name := range slices.Sorted(maps.Keys(stands)) {
		w, effect := s.wishes[name], stands[name]
		if strength[w.Effect] < highest {
			s.saw["superseded"]++
			continue
		}
		e := formTaint{"ConditionSet/" + name, w.TaintKey, effect, s.now.UTC().Truncate(time.Second)}
		foreign := false
		for _, t := range node.Spec.Taints {
			if t.Key != e.Key || string(t.Effect) != e.Effect {
				continue
			}
			foreign = !slices.ContainsFunc(carriedBy(node), func(e formTaint) bool { return e.is(t) })
			if !foreign {
				e.Added = t.TimeAdded.UTC()
			}
		}
		if !foreign {
			wanted = append(wanted, e)
		}
	}
	return wanted
}

// mayEvict reports whether a node may have the NoExecute taint of a set: it has it, or the
// bound has room and no other node waits longer.
func (s *simulator) mayEvict(node *corev1.Node, set string) bool {
	w := s.wishes[set]
	_, controlPlane := node.Labels[controlPlaneLabel]
	if controlPlane && (w.Selector == nil || len(w.Selector.MatchExpressions) == 0) {
		return false
	}
	evicts := func(n *corev1.Node) bool {
		return slices.ContainsFunc(carriedBy(n), func(e formTaint) bool { return e.Rule == "ConditionSet/"+set && e.Effect == noExecute }) ||
			slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { // or the owner is ambiguous
				return t.Key == w.TaintKey && string(t.Effect) == noExecute && !slices.ContainsFunc(carriedBy(n), func(e formTaint) bool { return e.is(t) })
			})
	}
	if evicts(node) {
		return true
	}
	selected, evicted := 0, 0
	for _, n := range s.nodes {
		if selects(w, n) {
			selected++
			if evicts(n) {
				evicted++
			}
		}
	}
	_, mine := s.judge(node, w)
	for _, n := range s.nodes {
		_, exempt := n.Labels[controlPlaneLabel]
		exempt = exempt && (w.Selector == nil || len(w.Selector.MatchExpressions) == 0)
		blocked := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == w.TaintKey && string(t.Effect) == noExecute })
		v, theirs := s.judge(n, w)
		if v == holds && !theirs.After(s.now) && !exempt && !blocked && !evicts(n) && cmp.Or(theirs.Compare(mine), cmp.Compare(n.Name, node.Name)) < 0 {
			evicted++ // these come first
		}
	}
	limit, err := limitIn("49%")
	if w.MaxUnhealthy != nil {
		limit, err = limitIn(fmt.Sprint(w.MaxUnhealthy))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	bound := naive.Allows(&limit, selected)
	if evicted >= bound {
		s.saw["held back"]++
	}
	return evicted < bound
}

func selects(w drawnSet, node *corev1.Node) bool {
	if w.Selector == nil {
		return true
	}
	selector, _ := metav1.LabelSelectorAsSelector(w.Selector) // generated by the test
	return selector.Matches(labels.Set(node.Labels))
}

// judge reports whether the conditions of a set match, and from when on they have matched
// long enough. It reads the whole history of the node.
func (s *simulator) judge(node *corev1.Node, w drawnSet) (verdict, time.Time) {
	if !selects(w, node) {
		return not, time.Time{}
	}
	all, due := holds, time.Time{}
	for kind, want := range w.Conditions {
		v, since := not, time.Time{}
		for _, change := range s.made {
			if change.UID != node.UID || change.GVR != testbed.NodesResource {
				continue
			}
			v = not
			for _, row := range rows(change.Object, "status", "conditions") {
				if text(row, "type") == kind {
					v = resembles(want, text(row, "status"), text(row, "reason"))
				}
			}
			switch {
			case v == not:
				since = time.Time{}
			case v == holds && since.IsZero():
				since = change.Time
			}
		}
		wait, _ := time.ParseDuration(cmp.Or(want.Duration, "0s")) // generated by the test
		all, due = min(all, v), last(due, since.Add(wait))
	}
	return all, due
}

func resembles(want wishStatus, status, reason string) verdict {
	wanted := map[any]string{true: "True", "True": "True", false: "False", "unknown": "Unknown"}[want.Status]
	switch {
	case status == "Unknown" && (wanted != "Unknown" || reason == "AgentSilent" && !want.EvenSilent):
		return unclear
	case status == wanted:
		return holds
	}
	return not
}

func newSimulator(tb testing.TB, t *rapid.T, saw map[string]int) *simulator {
	tb.Helper()
	return &simulator{story: newStory(tb), t: t, wishes: map[string]drawnSet{}, saw: saw}
}

// runRandom runs a test on random histories until all required situations occurred. It
// draws without rapid's log.
func runRandom[S interface{ live() }](t *testing.T, draw func(testing.TB, *rapid.T, map[string]int) S, judge func(t *rapid.T, s S, saw map[string]int), should ...string) {
	t.Helper()
	saw := map[string]int{}
	missing := func(what string) bool { return saw[what] == 0 }
	for tries := 0; tries == 0 || tries < 10 && !t.Failed() && slices.ContainsFunc(should, missing); tries++ {
		rapid.Check(t, func(outer *rapid.T) {
			rapid.Custom(func(inner *rapid.T) int {
				s := draw(t, inner, saw)
				s.live()
				judge(inner, s, saw)
				return 0
			}).Draw(outer, "")
		})
	}
	t.Logf("saw %v", saw)
	for _, what := range should {
		if missing(what) {
			t.Errorf("no history in which it %s: the test proves nothing", what)
		}
	}
}

// isFine fails a test if a random history has a violation.
func (s *story) isFine(t *rapid.T, cfg Config) Report {
	cfg.EndAt = s.now
	report, err := Check(s.made, cfg)
	if err != nil || len(report.Violations) > 0 {
		t.Fatalf("%v %s\n%s", err, report, s)
	}
	return report
}

func TestRandomPermittedHistoriesHaveNoViolation(t *testing.T) {
	runRandom(t, newSimulator, func(t *rapid.T, s *simulator, saw map[string]int) {
		report := s.isFine(t, testConfig)
		saw["changes"] += report.Changes
		saw["evicted"] += report.Evictions
		saw["fell back"] += report.Fallbacks
		saw["removed"] += report.Removals
		saw["fenced"] += report.Fences
	}, "evicted", "fell back", "removed", "fenced", "superseded", "held back")
}

// The test falsifies one change of a history without violations. The checker must report
// the right kind.
func TestRandomHistoriesWithOneFalseChangeAreCaught(t *testing.T) {
	runRandom(t, newSimulator, func(t *rapid.T, s *simulator, saw map[string]int) {
		i, what, want := falsify(t, s)
		if what == "" {
			return
		}
		saw[what]++
		cfg := testConfig
		cfg.EndAt = s.now.Add(2 * DefaultLag)
		cfg.Unfinished = want != WrongEnd
		report, err := Check(s.made, cfg)
		if err != nil || want != "" && len(report.Of(want)) == 0 || len(report.Violations) == 0 {
			t.Fatalf("%s at %d: want %s, got %v %s\n%s", what, i, want, err, report, s)
		}
	}, "blamed", "unproved", "cut short", "repeated", "unrecorded")
}

// falsify falsifies one change. It returns which, how, and the expected kind. An empty how
// means no change, an empty kind means any kind.
func falsify(t *rapid.T, s *simulator) (i int, what string, want Kind) {
	what = pick(t, "blamed", "unproved", "cut short", "repeated", "unrecorded")
	var chances []int
	last := map[string]facts{} // by UID
	timed := false
	for i, change := range s.made {
		if spec, err := json.Marshal(change.Object.Object["spec"]); err != nil || strings.Contains(string(spec), `"duration"`) {
			timed = true
		}
		if change.GVR == ConfigMapsResource && what == "unrecorded" {
			chances = append(chances, i)
		}
		if change.GVR != testbed.NodesResource {
			continue
		}
		before, after := last[string(change.UID)], readFacts(change.Object)
		last[string(change.UID)] = after
		ours, tainted := change.Author == us, !sameItems(before.taints, after.taints)
		// Without it the end may be correct as well: another writer's taint may be in
		// place, or the duration may not have passed.
		served := slices.ContainsFunc(before.taints, func(t taint) bool { return !before.record.owns(t) })
		switch {
		case change.Type != watch.Modified:
		case what == "blamed" && !ours && !sameCauses(before, after),
			what == "unproved" && ours && tainted,
			what == "repeated" && ours && tainted,
			what == "cut short" && ours && tainted && !served && !timed:
			chances = append(chances, i)
		}
	}
	if len(chances) == 0 {
		return 0, "", ""
	}
	i = pick(t, chances...)
	change := &s.made[i]
	switch what {
	case "blamed":
		change.Author = us
	case "unproved":
		change.Author = unknownAuthor
		want = UnknownAuthor
	case "repeated":
		again := *change
		again.ResourceVersion += "0"
		s.made = append(s.made[:i+1:i+1], again)
		want = DoneTwice
	case "unrecorded":
		s.made = slices.Delete(s.made, i, i+1)
		want = Unrecorded
	case "cut short":
		s.now = change.Time
		s.made = s.made[:i]
		want = WrongEnd
	}
	return i, what, want
}
