package history

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

const pauseAnnotation = "autohealer.resourcestack.com/pause"

// endless is the end of a pause without an end.
var endless = time.Date(9999, time.January, 1, 0, 0, 0, 0, time.UTC)

// pausedUntil returns until when an annotation pauses a node, zero without the annotation. A value
// that cannot be read has no end.
func pausedUntil(object *unstructured.Unstructured) time.Time {
	value, is := object.GetAnnotations()[pauseAnnotation]
	if !is {
		return time.Time{}
	}
	for word := range strings.FieldsSeq(value) {
		if text, has := strings.CutPrefix(word, "until="); has && !moment(text).IsZero() {
			return moment(text)
		}
	}
	return endless
}

// takesPause reports whether a write removed the pause of a node after its end.
func (r *replay) takesPause(before, after *unstructured.Unstructured) bool {
	until := pausedUntil(before)
	return !until.IsZero() && pausedUntil(after).IsZero() && !until.After(r.at.Time.Add(r.cfg.Lag))
}

// paused judges whether the node was paused. We place a taint on a version of the node that we know.
func (r *replay) paused(n *node, s railStep) string {
	object := s.node
	if object == nil {
		object = n.object
	}
	isKnown := s.stage == taints || settled(n.pauseChanged, r.horizon())
	if until := pausedUntil(object); isKnown && until.After(r.at.Time.Add(r.cfg.Lag)) {
		return "the node is paused: " + object.GetAnnotations()[pauseAnnotation]
	}
	return ""
}

// The work of others on a node that keeps us from treating it.
const (
	cordoned = iota
	removedByAutoscaler
	disruptedByKarpenter
	inMaintenance
	excluded
	kindsOfWork
)

// workOn reports which others work on a node.
func (f *facts) workOn() (is [kindsOfWork]bool) {
	isTainted := func(keys ...string) bool {
		return slices.ContainsFunc(f.taints, func(t taint) bool { return slices.Contains(keys, t.key) })
	}
	is[cordoned], _, _ = unstructured.NestedBool(f.object.Object, "spec", "unschedulable")
	is[removedByAutoscaler] = isTainted("ToBeDeletedByClusterAutoscaler")
	is[disruptedByKarpenter] = isTainted("karpenter.sh/disrupted", "karpenter.sh/disruption")
	is[inMaintenance] = isTainted("medik8s.io/drain", "kubevirt.io/drain") || f.conditions["VMEventScheduled"].status == corev1.ConditionTrue
	is[excluded] = f.labels[excludeLabel] == "true"
	return is
}

// noteOthers stores since when others work on a node, and when its pause last changed. It runs before
// the new version is stored.
func (r *replay) noteOthers(n *node, after facts) {
	for kind, is := range after.workOn() {
		since(&n.work[kind], is, r.at.Time)
	}
	if n.object == nil {
		return
	}
	if !pausedUntil(n.object).Equal(pausedUntil(after.object)) {
		n.pauseChanged = r.at.Time
	}
	if !sameDomains(n.object, after.object) {
		n.relabelled = r.at.Time
	}
}

// hadStep reports whether a remediation or a mark of ours may be on a node, as a writer knows it.
func (r *replay) hadStep(n *node) bool { return r.hasStep(n) || r.recent(n.lastStep) }

// hasStep reports whether a remediation or a mark of ours is on a node.
func (r *replay) hasStep(n *node) bool {
	isMarked := func(m *claimState) bool { return m.markedByUs && m.mark.NodeUID == n.uid }
	return len(r.health.onNode[n.name]) > 0 || n.providerID() != "" && slices.ContainsFunc(r.repairs.byID[n.providerID()], isMarked)
}

// othersWork judges whether others work on the node, as far as the Guardrails respect it. Remediators
// cordon nodes, and Karpenter taints nodes whose claim we delete: neither counts during a treatment.
func (r *replay) othersWork(n *node, s railStep, respect v1alpha1.Respect) string {
	for kind, rule := range [kindsOfWork]struct {
		field    *bool
		isOurs   bool
		what, by string
	}{
		cordoned:             {respect.Cordons, s.hadStep, "the node is cordoned", "cordons"},
		removedByAutoscaler:  {respect.ClusterAutoscaler, false, "the Cluster Autoscaler removes the node", "clusterAutoscaler"},
		disruptedByKarpenter: {respect.Karpenter, s.hadStep || s.forces, "Karpenter disrupts the node", "karpenter"},
		inMaintenance:        {respect.Maintenance, false, "the node is in maintenance", "maintenance"},
		excluded:             {respect.ExcludeLabel, false, "the node is excluded from remediation", "excludeLabel"},
	} {
		if isRespected(rule.field) && !rule.isOurs && settled(n.work[kind], r.horizon()) {
			return fmt.Sprintf("%s since %s, which respect.%s protects", rule.what, n.work[kind].UTC().Format(time.TimeOnly), rule.by)
		}
	}
	if s.object == nil || !isRespected(respect.DeletingMachines) || n.providerID() == "" {
		return "" // repairs of claims are judged by their own rules
	}
	for _, c := range r.repairs.byID[n.providerID()] {
		if settled(c.going, r.horizon()) && !c.markedByUs {
			return c.String() + " " + c.disrupted + ", which respect.deletingMachines protects"
		}
	}
	return ""
}

func isRespected(field *bool) bool { return field == nil || *field }

// mayTreatExcluded reports whether a version of the Guardrails does not respect the label that
// excludes nodes.
func (r *replay) mayTreatExcluded() bool {
	return slices.ContainsFunc(r.railViews(), func(view *rails) bool { return !isRespected(view.respect.ExcludeLabel) })
}

// isLeftAlone reports whether a pause or the work of others may keep a node from treatment.
func (r *replay) isLeftAlone(n *node) bool {
	return r.mayBePaused(n) || slices.ContainsFunc(n.work[:], func(since time.Time) bool { return !since.IsZero() })
}

func (r *replay) mayBePaused(n *node) bool {
	return !pausedUntil(n.object).IsZero() || r.recent(n.pauseChanged)
}

// mayBeHeld reports whether a rail for some nodes may hold the node, or a pause.
func (r *replay) mayBeHeld(n *node) bool {
	isPartial := func(view *rails) bool { return view.failure != nil || len(view.topology) > 0 }
	return r.mayBePaused(n) || slices.ContainsFunc(r.railViews(), isPartial)
}
