package treat

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Change is one write that brings a node in line with its plan.
type Change struct {
	// Node is the node as the change was made from it.
	Node *corev1.Node

	// Placed and Removed are the taints that come and go, with the reason of each.
	Placed  []triage.PlannedTaint
	Removed []RemovedTaint

	// Takes are the rules under whose cap the change takes a place: they put
	// NoExecute on the node, which they did not have there before.
	Takes []triage.RuleID

	taints []corev1.Taint
	record ownership.Record
	spec   bool // the taints change, not only the record of them
}

// RemovedTaint is a taint of ours that goes.
type RemovedTaint struct {
	triage.Taint
	Reason triage.Reason
}

// Prepare returns the change that a node needs to look like its plan, nil if it
// does already. A taint with the wanted key and effect that somebody else put
// there is left to them, and serves. That the node was ready for work is noted if the
// plan says so, and stays.
func Prepare(node *corev1.Node, plan triage.Plan, now time.Time) *Change {
	before, err := ownership.Read(node.Annotations) // unreadable: nothing on the node counts as ours
	c := &Change{Node: node}
	c.record.Unrecognized = before.Unrecognized
	for _, wanted := range plan.Taints {
		effect := corev1.TaintEffect(wanted.Effect.String())
		there, ours := find(node, before, wanted.Key, effect)
		switch {
		case ours:
			c.note(before, wanted, effect, there.TimeAdded.Time)
		case there != nil: // somebody else's
			continue
		default:
			added := now.UTC().Truncate(time.Second)
			if at := slices.IndexFunc(c.record.Taints, func(t ownership.Taint) bool { return t.Key == wanted.Key && t.Effect == effect }); at >= 0 {
				added = c.record.Taints[at].Added // another rule places the same one
			}
			c.note(before, wanted, effect, added)
			c.Placed = append(c.Placed, wanted)
		}
		if wanted.Effect == triage.NoExecute && (!ours || !notes(before, wanted.Rule, *there)) {
			c.Takes = append(c.Takes, wanted.Rule)
		}
	}
	for _, m := range plan.Remember {
		noted := ownership.RememberedStart{Rule: ownership.Rule(m.Rule), Condition: m.Condition, Since: m.Since, Transition: m.Transition}
		if at := slices.IndexFunc(before.Starts, func(was ownership.RememberedStart) bool {
			return was.Rule == noted.Rule && was.Condition == noted.Condition
		}); at >= 0 {
			noted.Unknown = before.Starts[at].Unknown
		}
		c.record.Starts = append(c.record.Starts, noted)
	}
	c.record.Initialized = before.Initialized || plan.Initialized
	c.settle(before, plan)
	if c.spec {
		return c
	}
	was, _ := before.Encode()
	is, some := c.record.Encode()
	if is == was && (err == nil || !some) {
		return nil
	}
	return c
}

// Fence returns a change that does nothing but give the node a new version, so
// that an older write which may be on its way can never be made.
func Fence(node *corev1.Node, token string) *Change {
	before, _ := ownership.Read(node.Annotations)
	before.Fence = token
	return &Change{Node: node, record: before, taints: node.Spec.Taints}
}

// find returns the taint of that key and effect on the node, and whether it is
// ours. There is at most one.
func find(node *corev1.Node, before ownership.Record, key string, effect corev1.TaintEffect) (there *corev1.Taint, ours bool) {
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; t.Key == key && t.Effect == effect {
			return t, before.Owns(*t)
		}
	}
	return nil, false
}

// notes says whether the record has the taint under this very rule.
func notes(before ownership.Record, rule triage.RuleID, taint corev1.Taint) bool {
	return slices.ContainsFunc(before.Taints, func(t ownership.Taint) bool { return t.Rule == ownership.Rule(rule) && t.Is(taint) })
}

func (c *Change) note(before ownership.Record, wanted triage.PlannedTaint, effect corev1.TaintEffect, added time.Time) {
	noted := ownership.Taint{Rule: ownership.Rule(wanted.Rule), Key: wanted.Key, Effect: effect, Added: added.UTC()}
	if at := slices.IndexFunc(before.Taints, func(was ownership.Taint) bool { return was.Rule == noted.Rule && was.Is(noted.Taint()) }); at >= 0 {
		noted.Unknown = before.Taints[at].Unknown
	}
	c.record.Taints = append(c.record.Taints, noted)
}

// settle makes the list of taints: everybody's, without those of ours that go,
// with those that come.
func (c *Change) settle(before ownership.Record, plan triage.Plan) {
	for _, taint := range c.Node.Spec.Taints {
		if before.Owns(taint) && !c.record.Owns(taint) && !before.Keeps(taint) {
			c.spec = true
			continue
		}
		c.taints = append(c.taints, taint)
	}
	for _, t := range c.record.Taints {
		if taint := t.Taint(); !slices.ContainsFunc(c.taints, t.Is) {
			c.taints = append(c.taints, taint)
			c.spec = true
		}
	}
	for _, t := range before.Taints {
		if slices.ContainsFunc(c.Node.Spec.Taints, t.Is) && !slices.ContainsFunc(c.taints, t.Is) {
			c.Removed = append(c.Removed, RemovedTaint{
				Taint:  triage.Taint{Rule: triage.RuleID(t.Rule), Key: t.Key, Effect: effectOf(t.Effect)},
				Reason: why(plan, triage.RuleID(t.Rule)),
			})
		}
	}
}

func effectOf(e corev1.TaintEffect) triage.Effect {
	effect, _ := triage.ParseEffect(string(e)) // we wrote it
	return effect
}

// why returns what the plan says of a rule.
func why(plan triage.Plan, rule triage.RuleID) triage.Reason {
	for _, reason := range plan.Findings {
		if reason.Rule == rule {
			return reason
		}
	}
	return triage.Reason{Code: triage.RuleGone, Rule: rule}
}

// patch returns the change as a JSON merge patch. It names the version of the
// node that it was made from, so the lists in it are whole and nobody's change
// can get lost.
func (c *Change) patch() ([]byte, error) {
	var note any // null removes it
	if text, some := c.record.Encode(); some {
		note = text
	}
	body := map[string]any{"metadata": map[string]any{
		"uid":             c.Node.UID,
		"resourceVersion": c.Node.ResourceVersion,
		"annotations":     map[string]any{ownership.Annotation: note},
	}}
	if c.spec {
		body["spec"] = map[string]any{"taints": c.taints}
	}
	return json.Marshal(body)
}

// Made returns the node as it is after the change.
func (c *Change) Made(resourceVersion string) *corev1.Node {
	node := *c.Node
	node.ResourceVersion = resourceVersion
	node.Annotations = map[string]string{}
	for key, value := range c.Node.Annotations {
		if key != ownership.Annotation {
			node.Annotations[key] = value
		}
	}
	if text, some := c.record.Encode(); some {
		node.Annotations[ownership.Annotation] = text
	}
	node.Spec.Taints = c.taints
	return &node
}

var nodeKind = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
