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
	"github.com/resourcestack/autohealer/internal/naive"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// replay is the state of the cluster after a change of the recording, with the history that
// is necessary to judge the next change.
type replay struct {
	cfg    Config
	at     Moment
	report Report

	nodes  map[string]*node
	sets   map[string]*set
	names  []string // of the sets, sorted, so that every replay judges in the same order
	ledger ledgerState
	edits  int       // how often the spec of any set has changed
	edited time.Time // when that last happened

	health  healthState
	repairs repairState
	rails   railState
	// suspects describes the author of the current change if it may be us.
	suspects string
}

// node is a node with one UID.
type node struct {
	facts
	name   string
	uid    types.UID
	clocks map[string]*[allStatuses]clock // by condition and statuses
	sets   map[string]*nodeSet
	checks map[string]*nodeCheck
	nodeRepair
	nodeRails

	// The changes of other writers that may cause a write of ours: their number, the time
	// of the last change, and the taints that they removed.
	causes int
	caused time.Time
	took   map[taint]bool

	wrote time.Time // our last write to it
	came  time.Time // when it was first seen
}

// nodeSet is the history of one node under one set.
type nodeSet struct {
	// How the set counts the node, and how often that changed.
	selected, evicting bool
	moves              int

	selectedSince time.Time
	holdsSince    time.Time // without interruption
	waitsSince    time.Time // with NoSchedule in place of NoExecute
	lostPlace     time.Time // when it last lost NoExecute
	foreignSince  time.Time // with a NoExecute taint of the set's key that is not in our record

	// disturbed is true if the set did not match for a moment since the last placement, or
	// was edited.
	disturbed bool
	// reported are the taints that we removed without a reason. That violation is already
	// reported.
	reported map[taintID]bool
	// placed has the causes at the last placement of each taint.
	placed map[taintID]causeCounts
}

// causeCounts counts the changes so far that may cause a placement.
type causeCounts struct{ causes, edits, room int }

// set is a ConditionSet, or only the name of a set in a record.
type set struct {
	name     string
	object   *unstructured.Unstructured
	written  *v1alpha1.ConditionSetSpec // its content, if it is in a ConfigMap
	rule     *rule                      // nil if it does not exist
	counted  *rule                      // the last valid rule
	versions []version

	selected, evicting int
	bound              int
	bounds             []pastBound
	moves              int // how often one of the three numbers changed
}

// version is the rule of a set from a time on, nil for none.
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
		cfg:     cfg,
		nodes:   map[string]*node{},
		sets:    map[string]*set{},
		report:  Report{Peak: map[string]int{}},
		health:  newHealthState(),
		repairs: newRepairState(cfg.Repairs),
		rails:   newRailState(cfg),
	}
}

func (r *replay) addViolation(kind Kind, node, set, text string) {
	r.report.Violations = append(r.report.Violations, Violation{Kind: kind, At: r.at, Node: node, Set: set, Text: text})
}

// set returns the set with that name. It creates an entry for a missing set.
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

func (n *node) set(set string) *nodeSet {
	c := n.sets[set]
	if c == nil {
		c = &nodeSet{placed: map[taintID]causeCounts{}, reported: map[taintID]bool{}}
		n.sets[set] = c
	}
	return c
}

// ---- nodes

func (r *replay) nodeChanged(change testbed.Change) {
	n := r.nodes[change.Name]
	if n != nil && n.uid != change.UID { // another node with this name; the deletion was recorded before
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
			r.addViolation(UnknownAuthor, change.Name, "", "the node was deleted by "+change.Author.String())
		case ours:
			r.addViolation(ForeignTouched, change.Name, "", "we deleted the node")
		}
		if n != nil {
			r.forget(n)
		}
	case n == nil:
		if ours {
			r.addViolation(ForeignTouched, change.Name, "", "we created the node")
		}
		n = &node{name: change.Name, uid: change.UID, clocks: map[string]*[allStatuses]clock{}, sets: map[string]*nodeSet{}, took: map[taint]bool{},
			checks: map[string]*nodeCheck{}, came: r.at.Time, nodeRepair: nodeRepair{permitted: map[string][]permission{}}}
		r.nodes[change.Name] = n
		r.learn(n, after)
	case ours:
		w := r.judgeWrite(n, after)
		r.learn(n, after)
		r.judgeNumbers(w)
		n.wrote = r.at.Time
	default:
		if !proved && (!sameItems(n.taints, after.taints) || !n.record.equals(after.record)) {
			r.addViolation(UnknownAuthor, n.name, "", "taints or record were changed by "+change.Author.String())
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

// authorByLog reports whether a change is ours, and whether the audit log proves that. If
// several other clients may be the author, it does not matter which.
func (r *replay) authorByLog(change testbed.Change) (ours, proved bool) {
	if change.Author.Known() {
		return r.cfg.Us(change.Author), true
	}
	return false, len(change.Suspects) > 0 && !slices.ContainsFunc(change.Suspects, r.cfg.Us)
}

// author reports whether a change is ours, and whether that is proved.
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

// learn stores a new version of the node.
func (r *replay) learn(n *node, after facts) {
	r.beforeNode(n)
	r.beforeRails(n)
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
			n.clocks[name] = new([allStatuses]clock)
		} else if was == is && before == there {
			continue
		}
		for set, signals := range signalsOf {
			v, _ := naive.Group(signals, after.row(name))
			n.clocks[name][set].update(v, is.stamp, r.at.Time, r.cfg.Lag)
		}
	}
	r.noteOthers(n, after)
	r.noteReady(n, after)
	r.notePoolReady(n, after)
	n.facts = after
	since(&n.closedSince, n.closedByOthers(), r.at.Time)
	for set := range after.carried {
		r.set(set)
	}
	for _, name := range r.names {
		r.updateSet(n, r.sets[name])
	}
	r.updateChecks(n)
	r.updateRepair(n)
}

// forget removes a deleted node from all counts.
func (r *replay) forget(n *node) {
	r.removeFromCounts(n)
	n.facts = facts{}
	for _, name := range r.names {
		r.count(n, r.sets[name], false, false)
	}
	delete(r.nodes, n.name)
}

// updateSet updates the state of a node under a set.
func (r *replay) updateSet(n *node, s *set) {
	c := n.set(s.name)
	evicting := n.carries(s.name, noExecute)
	waiting := n.carries(s.name, noSchedule)
	selected := s.counted.selects(n.labels)
	f := n.findSet(s.rule)
	since(&c.selectedSince, s.rule.selects(n.labels), r.at.Time)
	since(&c.holdsSince, f.verdict == holds, r.at.Time)
	since(&c.waitsSince, waiting && !evicting && s.rule.isValid() && s.rule.effect == noExecute, r.at.Time)
	since(&c.foreignSince, selected && !evicting && s.counted != nil && n.foreign(s.counted.key, noExecute), r.at.Time)
	c.disturbed = c.disturbed || f.verdict == not
	if c.evicting && !evicting {
		c.lostPlace = r.at.Time
	}
	r.count(n, s, selected, selected && evicting)
}

// since keeps the time from which a fact has been true.
func since(moment *time.Time, so bool, now time.Time) {
	switch {
	case !so:
		*moment = time.Time{}
	case moment.IsZero():
		*moment = now
	}
}

// count updates the counts of a set.
func (r *replay) count(n *node, s *set, selected, evicting bool) {
	c := n.set(s.name)
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
		r.report.Statuses++
		judgeStatusWrite("set", s.object, change, func(kind Kind, text string) { r.addViolation(kind, "", s.name, text) })
	}
	s.object = change.Object
	switch {
	case isDeleted(change):
		s.object, s.rule = nil, nil
	case before != nil && reflect.DeepEqual(before.Object["spec"], change.Object.Object["spec"]) && isPaused(before) == isPaused(change.Object):
		return
	default:
		was := s.rule
		s.rule = readRule(change.Object.Object["spec"])
		if r.cfg.Refused != nil && r.cfg.Refused(s.name, change.Object.GetGeneration()) {
			s.rule = &rule{invalid: "the controller had to refuse it"}
		}
		s.rule.paused = isPaused(change.Object)
		if was != nil && s.rule.invalid != "" {
			if s.rule.lastValid = was; was.invalid != "" {
				s.rule.lastValid = was.lastValid
			}
		}
	}
	r.asked(s)
}

// isPaused reports whether an annotation pauses a policy.
func isPaused(policy *unstructured.Unstructured) bool {
	reason, is := policy.GetAnnotations()[pausedAnnotation]
	return is && reason != "false"
}

const pausedAnnotation = "autohealer.resourcestack.com/paused"

// asked stores a changed spec of a set.
func (r *replay) asked(s *set) {
	if s.rule.isValid() {
		s.counted = s.rule
	}
	s.versions = append(s.versions, version{s.rule, r.at.Time})
	s.moves++
	r.edits++
	r.edited = r.at.Time
	for _, n := range r.nodes {
		n.set(s.name).disturbed = true
		r.updateSet(n, s)
	}
	r.measure(s)
}

// measure computes the bound of a set, and keeps the old bound for a while.
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

// views returns the rules of the set that may be in a writer's cache, newest first.
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

// boundsOf returns the smallest and the largest bound that the writer may have known.
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
		s, spec, pause := r.set(name), specs[name], isPaused(change.Object)
		if s.written != nil && reflect.DeepEqual(*s.written, spec) && s.rule.paused == pause {
			continue
		}
		s.rule, s.written = readRule(spec), &spec
		s.rule.paused = pause
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
	r.ledger = ledgerState{} // an unreadable ledger names nothing
	if isDeleted(change) {
		return
	}
	if p, err := readLedger(change.Object); err == nil {
		r.ledger = p
	}
}
