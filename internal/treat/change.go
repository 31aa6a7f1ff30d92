package treat

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Change is one write that makes a node match its plan.
type Change struct {
	// Node is the version of the node that the change was made from.
	Node *corev1.Node

	// Placed and Removed are the taints to add and to remove, each with its reason.
	Placed  []triage.PlannedTaint
	Removed []RemovedTaint

	// Again are the rules in Placed whose taint another client has removed.
	Again []triage.RuleID

	// Takes are the rules whose cap the change counts against: they add NoExecute to the
	// node and did not have it there before.
	Takes []triage.RuleID

	// Closes is a rule that closes the node to new pods with a taint that is weaker than
	// NoExecute. It is zero if the node has such a taint of this controller already, or if
	// Takes names a rule.
	Closes triage.RuleID

	taints    []corev1.Taint
	record    ownership.Record
	spec      bool // the taints change, not only their record
	endsPause bool // the annotation that paused the node is removed
}

// RemovedTaint is a taint of this controller to remove.
type RemovedTaint struct {
	triage.Taint
	Reason triage.Reason
}

// Prepare returns the change that makes a node match its plan, nil if it already does. If
// another component has set a taint with the wanted key and effect, that taint is
// sufficient and stays unchanged. If the plan says that the node was initialized, the
// record notes it permanently. A pause whose time has passed is removed.
func Prepare(node *corev1.Node, plan triage.Plan, now time.Time) *Change {
	before, err := ownership.Read(node.Annotations) // if unreadable, no taint on the node counts as ours
	c := &Change{Node: node, endsPause: nodepause.HasExpired(node.Annotations, now)}
	c.record.Unrecognized = before.Unrecognized
	for _, wanted := range plan.Taints {
		effect := corev1.TaintEffect(wanted.Effect.String())
		there, ours := find(node, before, wanted.Key, effect)
		switch {
		case ours:
			c.addRecord(before, wanted, effect, there.TimeAdded.Time)
		case there != nil: // another component set it
			continue
		default:
			added := now.UTC().Truncate(time.Second)
			if at := slices.IndexFunc(c.record.Taints, func(t ownership.Taint) bool { return t.Key == wanted.Key && t.Effect == effect }); at >= 0 {
				added = c.record.Taints[at].Added // another rule places the same taint
			}
			c.addRecord(before, wanted, effect, added)
			c.Placed = append(c.Placed, wanted)
			if slices.ContainsFunc(before.Taints, func(t ownership.Taint) bool {
				return t.Rule == ownership.Rule(wanted.Rule) && t.Key == wanted.Key && t.Effect == effect
			}) {
				c.Again = append(c.Again, wanted.Rule)
			}
		}
		if wanted.Effect == triage.NoExecute && (!ours || !hasRecord(before, wanted.Rule, *there)) {
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
	if !hasClosing(node, before) && len(c.Takes) == 0 {
		if at := slices.IndexFunc(c.Placed, func(t triage.PlannedTaint) bool { return t.Effect >= triage.NoSchedule }); at >= 0 {
			c.Closes = c.Placed[at].Rule
		}
	}
	c.record.Initialized = before.Initialized || plan.Initialized
	c.mergeTaints(before, plan)
	if c.spec || c.endsPause {
		return c
	}
	was, _ := before.Encode()
	is, some := c.record.Encode()
	if is == was && (err == nil || !some) {
		return nil
	}
	return c
}

// Fence returns a change that only gives the node a new resourceVersion, so that an older
// write that may still be in flight fails.
func Fence(node *corev1.Node, token string) *Change {
	before, _ := ownership.Read(node.Annotations)
	before.Fence = token
	return &Change{Node: node, record: before, taints: node.Spec.Taints}
}

// find returns the taint with this key and effect on the node, and whether this controller
// set it. A node has at most one.
func find(node *corev1.Node, before ownership.Record, key string, effect corev1.TaintEffect) (there *corev1.Taint, ours bool) {
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; t.Key == key && t.Effect == effect {
			return t, before.Owns(*t)
		}
	}
	return nil, false
}

// hasClosing reports whether a taint of this controller closes the node to new pods.
func hasClosing(node *corev1.Node, before ownership.Record) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule && before.Owns(t) })
}

// hasRecord reports whether the record has the taint for this rule.
func hasRecord(before ownership.Record, rule triage.RuleID, taint corev1.Taint) bool {
	return slices.ContainsFunc(before.Taints, func(t ownership.Taint) bool { return t.Rule == ownership.Rule(rule) && t.Is(taint) })
}

func (c *Change) addRecord(before ownership.Record, wanted triage.PlannedTaint, effect corev1.TaintEffect, added time.Time) {
	noted := ownership.Taint{Rule: ownership.Rule(wanted.Rule), Key: wanted.Key, Effect: effect, Added: added.UTC()}
	if at := slices.IndexFunc(before.Taints, func(was ownership.Taint) bool { return was.Rule == noted.Rule && was.Is(noted.Taint()) }); at >= 0 {
		noted.Unknown = before.Taints[at].Unknown
	}
	c.record.Taints = append(c.record.Taints, noted)
}

// mergeTaints computes the list of taints: all existing ones, without the removed and with the
// added ones.
func (c *Change) mergeTaints(before ownership.Record, plan triage.Plan) {
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
	effect, _ := triage.ParseEffect(string(e)) // this controller wrote it
	return effect
}

// why returns the plan's reason for a rule.
func why(plan triage.Plan, rule triage.RuleID) triage.Reason {
	for _, reason := range plan.Findings {
		if reason.Rule == rule {
			return reason
		}
	}
	return triage.Reason{Code: triage.RuleGone, Rule: rule}
}

// patch returns the change as a JSON merge patch. The patch contains complete lists, and
// requires the resourceVersion that they were made from, so that no other change is lost.
func (c *Change) patch() ([]byte, error) {
	var note any // null removes it
	if text, some := c.record.Encode(); some {
		note = text
	}
	annotations := map[string]any{ownership.Annotation: note}
	if c.endsPause {
		annotations[nodepause.Annotation] = nil
	}
	body := map[string]any{"metadata": map[string]any{
		"uid":             c.Node.UID,
		"resourceVersion": c.Node.ResourceVersion,
		"annotations":     annotations,
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
		if key != ownership.Annotation && (key != nodepause.Annotation || !c.endsPause) {
			node.Annotations[key] = value
		}
	}
	if text, some := c.record.Encode(); some {
		node.Annotations[ownership.Annotation] = text
	}
	node.Spec.Taints = c.taints
	return &node
}

// IsOn says whether this version of the node shows the change. Other clients may have changed the node
// since.
func (c *Change) IsOn(node *corev1.Node) bool {
	record, _ := c.record.Encode()
	has := func(key string, effect triage.Effect) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && string(t.Effect) == effect.String() })
	}
	return node.Annotations[ownership.Annotation] == record &&
		!slices.ContainsFunc(c.Placed, func(t triage.PlannedTaint) bool { return !has(t.Key, t.Effect) }) &&
		!slices.ContainsFunc(c.Removed, func(t RemovedTaint) bool { return has(t.Key, t.Effect) })
}

var nodeKind = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
