package history

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// replay is the cluster as it was at one moment of the recording, and what of
// its past is needed to judge the next one.
type replay struct {
	cfg    Config
	at     Moment
	report Report

	nodes  map[string]*node
	sets   map[string]*set
	names  []string // of the sets, so that they are judged in the same order every time
	page   page
	edits  int       // how often the spec of any set has changed
	edited time.Time // when that was the last time

	ward  ward
	fleet fleet
	// suspects is who made the change that is judged, if nobody can prove that it
	// was not us.
	suspects string
}

// node is one node under one UID.
type node struct {
	facts
	name    string
	uid     types.UID
	clocks  map[string]*[looks]clock
	courses map[string]*course
	signs   map[string]*[allStatuses]clock
	cares   map[string]*care
	upkeep

	// What others have done to it, as far as it could be a cause for us: how
	// often, and when the last time. And the taints that they have removed.
	causes int
	caused time.Time
	took   map[taint]bool

	wrote time.Time // when we last wrote to it
	came  time.Time // when it was first seen
}

// course is how things have gone between a node and a set.
type course struct {
	// What the node adds to the numbers of the set, and how often that changed.
	selected, evicting bool
	moves              int

	selectedSince time.Time
	holdsSince    time.Time // without a break
	waitsSince    time.Time // with NoSchedule in place of NoExecute
	lostPlace     time.Time // when it last had no NoExecute any more
	foreignSince  time.Time // with NoExecute of the set's key that is not recorded as ours

	// disturbed says that since the last placement the set did not hold for a
	// moment, or was edited.
	disturbed bool
	// told are taints that we took away unlawfully, which was told.
	told map[spot]bool
	// placed is what the world was like when each taint was placed the last time.
	placed map[spot]world
}

// world is how often anything that could be a cause had happened by a moment.
type world struct{ causes, edits, room int }

// set is a ConditionSet, or the name of one that a record tells of.
type set struct {
	name     string
	object   *unstructured.Unstructured
	written  *v1alpha1.ConditionSetSpec // what it says, if it is one in a ConfigMap
	rule     *rule                      // nil while there is none
	counted  *rule                      // the last one that could be followed
	versions []version

	selected, evicting int
	bound              int
	bounds             []pastBound
	moves              int // how often one of the three numbers changed
}

// version is what a set asked for from a moment on, nil for nothing.
type version struct {
	rule *rule
	from time.Time
}

type pastBound struct {
	bound int
	until time.Time
}

func newReplay(cfg Config) *replay {
	return &replay{
		cfg:    cfg,
		nodes:  map[string]*node{},
		sets:   map[string]*set{},
		report: Report{Peak: map[string]int{}},
		ward:   newWard(),
		fleet:  newFleet(cfg.Repairs),
	}
}

func (r *replay) tell(kind Kind, node, set, text string) {
	r.report.Violations = append(r.report.Violations, Violation{Kind: kind, At: r.at, Node: node, Set: set, Text: text})
}

// set returns the set of that name, one that does not exist if need be.
func (r *replay) set(name string) *set {
	s := r.sets[name]
	if s == nil {
		s = &set{name: name}
		r.sets[name] = s
		at, _ := slices.BinarySearch(r.names, name)
		r.names = slices.Insert(r.names, at, name)
	}
	return s
}

func (n *node) course(set string) *course {
	c := n.courses[set]
	if c == nil {
		c = &course{placed: map[spot]world{}, told: map[spot]bool{}}
		n.courses[set] = c
	}
	return c
}

// ---- nodes

func (r *replay) nodeChanged(change testbed.Change) {
	n := r.nodes[change.Name]
	if n != nil && n.uid != change.UID { // a namesake; the deletion was recorded before
		r.forget(n)
		n = nil
	}
	after := readFacts(change.Object)
	ours, proved := r.author(change, n, after)
	if _, proved := r.authorByLog(change); !proved {
		r.report.Unproved++
	}
	switch {
	case change.Type == watch.Deleted:
		switch {
		case !proved:
			r.tell(UnknownAuthor, change.Name, "", "the node was deleted by "+change.Author.String())
		case ours:
			r.tell(ForeignTouched, change.Name, "", "we deleted the node")
		}
		if n != nil {
			r.forget(n)
		}
	case n == nil:
		if ours {
			r.tell(ForeignTouched, change.Name, "", "we created the node")
		}
		n = &node{name: change.Name, uid: change.UID, clocks: map[string]*[looks]clock{}, courses: map[string]*course{}, took: map[taint]bool{},
			signs: map[string]*[allStatuses]clock{}, cares: map[string]*care{}, came: r.at.Time, upkeep: upkeep{lawful: map[string][]lawfulness{}}}
		r.nodes[change.Name] = n
		r.learn(n, after)
	case ours:
		w := r.judgeWrite(n, after)
		r.learn(n, after)
		r.judgeNumbers(w)
		n.wrote = r.at.Time
	default:
		if !proved && (!sameItems(n.taints, after.taints) || !n.note.says(after.note)) {
			r.tell(UnknownAuthor, n.name, "", "taints or record were changed by "+change.Author.String())
		}
		if !sameCauses(n.facts, after) {
			n.causes++
			n.caused = r.at.Time
		}
		for _, gone := range without(n.taints, after.taints) {
			n.took[gone] = true
		}
		for _, come := range after.taints {
			delete(n.took, come)
		}
		r.learn(n, after)
	}
}

// authorByLog says whether a change is ours, and whether the audit log proves that. Which
// of several others has made it is all the same.
func (r *replay) authorByLog(change testbed.Change) (ours, proved bool) {
	if change.Author.Known() {
		return r.cfg.Us(change.Author), true
	}
	return false, len(change.Suspects) > 0 && !slices.ContainsFunc(change.Suspects, r.cfg.Us)
}

// author says whether a change is ours, and whether that is proved.
func (r *replay) author(change testbed.Change, n *node, after facts) (ours, proved bool) {
	if ours, proved := r.authorByLog(change); proved {
		return ours, true
	}
	if r.cfg.FieldManager != "" && n != nil && !isDeleted(change) {
		if manager, proved := authorByFields(n.object, after.object); proved {
			return manager == r.cfg.FieldManager, true
		}
	}
	return false, false
}

// learn makes these the facts of the node.
func (r *replay) learn(n *node, after facts) {
	r.beforeNode(n)
	if n.object != nil {
		r.beforeRepair(n)
	}
	names := map[string]bool{}
	for name := range n.conditions {
		names[name] = true
	}
	for name := range after.conditions {
		names[name] = true
	}
	for name := range names {
		was, before := n.conditions[name]
		is, there := after.conditions[name]
		if n.clocks[name] == nil {
			n.clocks[name] = new([looks]clock)
		} else if was == is && before == there {
			continue
		}
		for l := range looks {
			n.clocks[name][l].wind(l.of(is, there), is.stamp, r.at.Time, r.cfg.Lag)
		}
		r.windSigns(n, name, is, there)
	}
	r.heedArrival(n, after)
	r.heedPoolArrival(n, after)
	n.facts = after
	for set := range after.carried {
		r.set(set)
	}
	for _, name := range r.names {
		r.look(n, r.sets[name])
	}
	r.attend(n)
	r.attendMachine(n)
}

// forget takes a node that is gone out of all numbers.
func (r *replay) forget(n *node) {
	r.discharge(n)
	n.facts = facts{}
	for _, name := range r.names {
		r.count(n, r.sets[name], false, false)
	}
	delete(r.nodes, n.name)
}

// look brings up to date how things stand between a node and a set.
func (r *replay) look(n *node, s *set) {
	c := n.course(s.name)
	evicting := n.carries(s.name, noExecute)
	waiting := n.carries(s.name, noSchedule)
	selected := s.counted.selects(n.labels)
	f := n.find(s.rule)
	since(&c.selectedSince, s.rule.selects(n.labels), r.at.Time)
	since(&c.holdsSince, f.verdict == holds, r.at.Time)
	since(&c.waitsSince, waiting && !evicting && s.rule.follows() && s.rule.effect == noExecute, r.at.Time)
	since(&c.foreignSince, selected && !evicting && s.counted != nil && n.foreign(s.counted.key, noExecute), r.at.Time)
	c.disturbed = c.disturbed || f.verdict == not
	if c.evicting && !evicting {
		c.lostPlace = r.at.Time
	}
	r.count(n, s, selected, selected && evicting)
}

// since keeps the moment from which something has been so.
func since(moment *time.Time, so bool, now time.Time) {
	switch {
	case !so:
		*moment = time.Time{}
	case moment.IsZero():
		*moment = now
	}
}

// count keeps the numbers of a set.
func (r *replay) count(n *node, s *set, selected, evicting bool) {
	c := n.course(s.name)
	if c.selected == selected && c.evicting == evicting {
		return
	}
	s.selected += one(selected) - one(c.selected)
	s.evicting += one(evicting) - one(c.evicting)
	c.selected, c.evicting = selected, evicting
	s.moves++
	c.moves++
	r.report.Peak[s.name] = max(r.report.Peak[s.name], s.evicting)
	r.measure(s)
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// ---- sets

func (r *replay) setChanged(change testbed.Change) {
	s := r.set(change.Name)
	before := s.object
	if change.Author.Known() && r.cfg.Us(change.Author) {
		r.judgeSetWrite(s, change)
	}
	s.object = change.Object
	switch {
	case isDeleted(change):
		s.object, s.rule = nil, nil
	case before != nil && reflect.DeepEqual(before.Object["spec"], change.Object.Object["spec"]):
		return
	default:
		s.rule = readRule(change.Object.Object["spec"])
		if r.cfg.Refused != nil && r.cfg.Refused(s.name, change.Object.GetGeneration()) {
			s.rule = &rule{refused: "it was to be refused"}
		}
	}
	r.asked(s)
}

// asked takes in that a set asks for something else now.
func (r *replay) asked(s *set) {
	if s.rule.follows() {
		s.counted = s.rule
	}
	s.versions = append(s.versions, version{s.rule, r.at.Time})
	s.moves++
	r.edits++
	r.edited = r.at.Time
	for _, n := range r.nodes {
		n.course(s.name).disturbed = true
		r.look(n, s)
	}
	r.measure(s)
}

// measure works out the bound of a set, and keeps the old one for a while.
func (r *replay) measure(s *set) {
	bound := s.counted.bound(s.selected)
	if bound == s.bound {
		return
	}
	horizon := r.at.Time.Add(-r.cfg.Lag)
	s.bounds = slices.DeleteFunc(s.bounds, func(p pastBound) bool { return p.until.Before(horizon) })
	s.bounds = append(s.bounds, pastBound{s.bound, r.at.Time})
	s.bound = bound
	s.moves++
}

// views returns what the set may have been thought to ask for, the newest first.
func (r *replay) views(s *set) []*rule {
	horizon := r.at.Time.Add(-r.cfg.Lag)
	var views []*rule
	for _, v := range slices.Backward(s.versions) {
		views = append(views, v.rule)
		if v.from.Before(horizon) {
			return views
		}
	}
	return append(views, nil)
}

// largest and smallest bound that may have been thought to hold.
func (r *replay) boundsOf(s *set) (smallest, largest int) {
	smallest, largest = s.bound, s.bound
	for _, p := range s.bounds {
		if !p.until.Before(r.at.Time.Add(-r.cfg.Lag)) {
			smallest, largest = min(smallest, p.bound), max(largest, p.bound)
		}
	}
	return smallest, largest
}

// ---- sets in ConfigMaps, and the ledger

func (r *replay) writtenChanged(change testbed.Change) {
	var specs map[string]v1alpha1.ConditionSetSpec
	if !isDeleted(change) {
		var isGood bool
		if specs, isGood = r.cfg.Written(change.Object); !isGood {
			return
		}
	}
	for _, name := range slices.Clone(r.names) {
		if _, there := specs[name]; !there && strings.HasPrefix(name, change.Name+"/") && r.sets[name].rule != nil {
			r.sets[name].rule, r.sets[name].written = nil, nil
			r.asked(r.sets[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		s, spec := r.set(name), specs[name]
		if s.written != nil && reflect.DeepEqual(*s.written, spec) {
			continue
		}
		s.rule, s.written = readRule(spec), &spec
		r.asked(s)
	}
}

func (r *replay) configMapChanged(change testbed.Change) {
	if r.cfg.Written != nil {
		r.writtenChanged(change)
	}
	if change.Namespace != r.cfg.Ledger.Namespace || change.Name != r.cfg.Ledger.Name || r.cfg.Ledger.Name == "" {
		return
	}
	r.page = page{} // what cannot be read names nothing
	if isDeleted(change) {
		return
	}
	if p, err := readPage(change.Object); err == nil {
		r.page = p
	}
}
