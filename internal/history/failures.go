package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/naive"
)

const (
	imageKey          = "image" // in place of the key of a label
	releaseAnnotation = "autohealer.resourcestack.com/release-hold"
)

// failureRail is correlatedFailure of Guardrails.
type failureRail struct {
	threshold naive.Limit
	minNodes  int
	window    time.Duration
	keys      []string
	longest   time.Duration // of a hold, 0 for any time
}

// readFailures parses correlatedFailure. It returns nil if it holds nothing.
func readFailures(s v1alpha1.CorrelatedFailure) (*failureRail, error) {
	if s.Threshold == nil || len(s.Keys) == 0 {
		return nil, nil
	}
	f := &failureRail{minNodes: int(s.MinNodes)}
	for _, key := range s.Keys {
		f.keys = append(f.keys, string(key))
	}
	threshold, err := limitIn(s.Threshold.String())
	f.threshold = threshold
	window, problem := duration(s.Window)
	err, f.window = errors.Join(err, problem), window
	if s.LongestHold != "" {
		f.longest, problem = duration(s.LongestHold)
		err = errors.Join(err, problem)
	}
	if err != nil || threshold == allNodes {
		return nil, err
	}
	return f, nil
}

// releasedUntil returns until when an annotation of Guardrails ends all holds.
func releasedUntil(guardrails *unstructured.Unstructured) time.Time {
	var until string
	if _, err := fmt.Sscanf(guardrails.GetAnnotations()[releaseAnnotation], "until=%s", &until); err != nil {
		return time.Time{}
	}
	return moment(until)
}

// domainOf returns the value of a key that nodes have in common.
func domainOf(key string, object *unstructured.Unstructured) (value string, has bool) {
	if key == imageKey {
		value, _, _ = unstructured.NestedString(object.Object, "status", "nodeInfo", "osImage")
		return value, value != ""
	}
	value, has = object.GetLabels()[key]
	return value, has
}

// sameDomains reports whether two versions of a node are in the same domains.
func sameDomains(before, after *unstructured.Unstructured) bool {
	was, _ := domainOf(imageKey, before)
	is, _ := domainOf(imageKey, after)
	return was == is && sameMap(before.GetLabels(), after.GetLabels())
}

// failureStart is when a node became unhealthy under a rule: the range that a writer may find.
type failureStart struct{ earliest, latest time.Time }

// failedTogether judges whether a step on a node had to wait because many nodes with something in
// common became unhealthy together.
func (r *replay) failedTogether(n *node, s railStep, view *rails) string {
	known := r.horizon()
	if s.stage == taints { // a decided taint is still placed when the failure begins
		known = r.at.Time.Add(-max(r.cfg.Lag, r.cfg.Delay))
	}
	isNew := !r.rails.versions[len(r.rails.versions)-1].from.Before(known)
	if view.failure == nil || view.released.After(known) || s.stage == taints && isNew || n.relabelled.After(known) {
		return ""
	}
	for _, key := range view.failure.keys {
		if value, has := domainOf(key, n.object); has {
			if why := r.failedIn(key, value, known, view.failure); why != "" {
				return why
			}
		}
	}
	return ""
}

// failedIn judges the nodes with one value of a key. It counts as many nodes as the writer may know,
// and only the unhealthy nodes that the writer must know.
func (r *replay) failedIn(key, value string, known time.Time, f *failureRail) string {
	all := 0
	var failed [][]failureStart
	isOf := func(object *unstructured.Unstructured) bool {
		v, has := domainOf(key, object)
		return has && v == value
	}
	for _, n := range r.nodes {
		is, isUnsure := isOf(n.object), n.relabelled.After(known)
		all += one(is || isUnsure)
		if !is || isUnsure {
			continue
		}
		if starts := r.failuresOf(n, known); len(starts) > 0 {
			failed = append(failed, starts)
		}
	}
	for _, d := range r.rails.deleted {
		all += one(d.at.After(known) && isOf(d.object))
	}
	needed := max(naive.Allows(&f.threshold, all)+1, f.minNodes)
	count, first := mostWithin(failed, f.window-2*r.cfg.Lag)
	r.notePeak("correlatedFailure "+key+"="+value, count)
	isOver := f.longest > 0 && !first.Add(f.longest).After(r.at.Time.Add(r.cfg.Lag))
	if count < needed || isOver {
		return ""
	}
	return fmt.Sprintf("%d of %d nodes with %s=%s became unhealthy within %s, correlatedFailure allows %d", count, all, key, value, f.window, needed-1)
}

// mostWithin returns how many nodes certainly became unhealthy within a window, at most, and when the
// first node may have become unhealthy.
func mostWithin(failed [][]failureStart, window time.Duration) (most int, first time.Time) {
	for _, n := range failed {
		for _, begin := range n {
			if first.IsZero() || begin.earliest.Before(first) {
				first = begin.earliest
			}
			count := 0
			for _, other := range failed {
				count += one(slices.ContainsFunc(other, func(s failureStart) bool {
					return !s.earliest.Before(begin.earliest) && !s.latest.After(begin.earliest.Add(window))
				}))
			}
			most = max(most, count)
		}
	}
	return most, first
}

// failuresOf returns since when a node has been unhealthy under each rule with disruptive treatments.
// The writer must have known it at this time.
func (r *replay) failuresOf(n *node, known time.Time) (starts []failureStart) {
	wasReady := settled(n.readySince, known) || n.labels[initializedLabel] == "true"
	add := func(w naive.When, since time.Time) {
		isCoarse := slices.ContainsFunc(w.Signals, func(s naive.Signal) bool { return s.Reason != "" }) // clocks ignore reasons
		// A node that was never ready counts when its treatment is due.
		if settled(since, known) && !isCoarse && (wasReady || n.find(w).surely(known, 0)) {
			starts = append(starts, n.startOf(w))
		}
	}
	for _, name := range r.names {
		s := r.sets[name]
		if s.rule.placesTaints() && !s.rule.paused && s.rule.effect == noExecute && s.versions[len(s.versions)-1].from.Before(known) {
			add(s.rule.when, n.set(name).holdsSince)
		}
	}
	for _, name := range r.health.inOrder {
		h := r.health.checks[name]
		if h.spec.isValid() && !h.spec.paused && h.off == "" && h.edited.Before(known) && r.hasTemplates(h) && !r.mayBeMedik8sActive() {
			add(h.spec.when, n.check(name).unhealthySince)
		}
	}
	if !r.repairs.edited.Before(known) {
		return starts
	}
	for _, g := range r.rulesOf(n) {
		isIdle := g.pool == "" && r.repairs.policies[strings.TrimPrefix(g.rule, repairKind+"RepairPolicy/")].template.name == ""
		if !g.isTimeout && g.off == "" && !g.block.off && !isIdle && settled(n.countedSince, known) {
			add(g.block.when, n.unhealthySince(g.block))
		}
	}
	return starts
}

// startOf returns when the conditions of a rule began to match.
func (n *node) startOf(w naive.When) (s failureStart) {
	isFirst := true
	for _, condition := range naive.Groups(w) {
		signals := naive.SignalsOf(w, condition)
		clocks := n.clocks[condition]
		if clocks == nil || clocks[statusesOf(signals)].since.IsZero() {
			continue
		}
		c := clocks[statusesOf(signals)]
		v, _ := naive.Group(signals, n.row(condition))
		switch {
		case isFirst:
			s = failureStart{c.earliest, c.latest}
		case w.All:
			s = failureStart{last(s.earliest, c.earliest), last(s.latest, c.latest)}
		case v == holds:
			s = failureStart{first(s.earliest, c.earliest), first(s.latest, c.latest)}
		default: // Unknown: its clock may have stopped
			s.earliest = first(s.earliest, c.earliest)
		}
		isFirst = false
	}
	return s
}
