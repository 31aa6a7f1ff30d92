package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// judgeCheckEnd judges the end of the recording: every unhealthy node has its treatment,
// nothing is left over, and the statuses are correct. It expects nothing while another
// controller may be responsible for the health checks.
func (r *replay) judgeCheckEnd() {
	if r.mayBeMedik8sActive() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		r.judgeTreated(r.nodes[name])
	}
	r.judgeLeftovers()
	for _, name := range r.health.inOrder {
		if h := r.health.checks[name]; h.object != nil {
			r.judgeStatus(h)
		}
	}
}

// judgeTreated reports an unhealthy node without a treatment, unless there is a reason for
// it.
func (r *replay) judgeTreated(n *node) {
	if l := r.health.leases[n.name]; l != nil && !l.ofCheck() && l.held(r.horizon()) {
		return // another holder works on the node
	}
	if len(r.health.onNode[n.name]) > 0 {
		r.judgeNextStep(n) // or an existing object has to be deleted first
		return
	}
	if r.rails.mayHold() || r.isLeftAlone(n) {
		return // a rail may hold it, or the work of others
	}
	for _, name := range r.health.inOrder {
		h := r.health.checks[name]
		f := n.examine(h.spec)
		c := n.check(name)
		switch {
		case !h.spec.isValid(): // the last valid version may stay in force, or none
		case r.noTreatment(n, h, false) != "" || !f.surely(r.at.Time, r.cfg.Lag) || c.lost || !r.hasTemplates(h) || r.mayBeClosed(h.spec.windows):
		case h.notHealthy+r.maybeGone(h) > h.valid.bound(h.selected+r.maybeGone(h)) || !r.isCalm(h):
		case onControlPlane(n.labels) && (len(r.health.controlPlane) > 0 || r.health.kept):
		case h.notHealthy+r.maybeGone(h)+r.unsure(h) > h.valid.bound(h.selected+r.maybeGone(h)): // checked last, because it counts every node
		default:
			r.addCheckViolation(WrongEnd, n.name, name, fmt.Sprintf("the node is unhealthy and has no remediation object: %d of %d selected nodes are unhealthy or in treatment, and %d may be", h.notHealthy, h.selected, h.bound))
			return
		}
	}
}

// judgeNextStep reports a step that timed out and was not followed by the next step.
func (r *replay) judgeNextStep(n *node) {
	there := r.health.onNode[n.name]
	newest := there[len(there)-1]
	h := r.check(newest.check)
	isOther := func(o *remediationObject) bool {
		return o.check != h.name || !o.isOf(n) || o.deleting || h.edited.After(o.seen)
	}
	if r.rails.mayHold() || r.isLeftAlone(n) || h.valid != nil && r.mayBeClosed(h.valid.windows) || slices.ContainsFunc(there, isOther) || r.noTreatment(n, h, true) != "" || n.check(h.name).lost || !r.hasTemplates(h) {
		return
	}
	at, isStep := h.valid.stepOf(newest)
	if !isStep || at+1 == len(h.valid.steps) {
		return
	}
	if due := newest.created.Add(h.valid.steps[at].timeout); newest.failed || due.Before(r.horizon()) {
		r.addCheckViolation(WrongEnd, n.name, h.name, fmt.Sprintf("%s timed out at %s at the latest, and the next step was not started", newest, due.UTC().Format(time.TimeOnly)))
	}
}

// hasTemplates reports whether all templates of a health check exist and have a body.
func (r *replay) hasTemplates(h *healthCheck) bool {
	return !slices.ContainsFunc(h.spec.steps, func(s step) bool {
		t := r.template(s.template)
		if t == nil || t.object == nil {
			return true
		}
		_, ok := bodyOf(t.object)
		return !ok
	})
}

// isCalm reports whether there is certainly no wait after a storm.
func (r *replay) isCalm(h *healthCheck) bool {
	if h.valid.cooldown == 0 {
		return true
	}
	isOver := h.calmSince.IsZero() || h.calmSince.Add(h.valid.cooldown).Before(r.horizon())
	return h.overSince.IsZero() && isOver && !r.wasMaybeGone(h, h.valid.cooldown) && h.edited.Add(h.valid.cooldown).Before(r.horizon())
}

// unsure counts the nodes that the controller may or may not count as healthy.
func (r *replay) unsure(h *healthCheck) int {
	count := 0
	for _, n := range r.nodes {
		count += one(!n.check(h.name).notHealthy && n.examine(h.valid).verdict == unclear)
	}
	return count
}

// judgeLeftovers reports objects and Leases that are no longer needed.
func (r *replay) judgeLeftovers() {
	for _, name := range slices.Sorted(maps.Keys(r.health.onNode)) {
		for _, o := range r.health.onNode[name] {
			if o.check == "" || o.deleting {
				continue // not ours, or its remediator keeps it
			}
			if why := r.whyOver(o); why != "" {
				r.addCheckViolation(WrongEnd, name, o.check, fmt.Sprintf("%s still exists: %s", o, why))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.health.leases)) {
		l := r.health.leases[name]
		check := strings.TrimPrefix(l.holder, holderPrefix)
		isServing := slices.ContainsFunc(r.health.onNode[name], func(o *remediationObject) bool {
			return o.check == check || o.policy != "" && policyHolder(o.policy) == check
		})
		if l.ofCheck() && !isServing {
			r.addCheckViolation(WrongEnd, name, check, "the node's Lease is still held, although the health check has no object there")
		}
	}
}

// whyOver returns why an object should be gone, or "" if it may exist.
func (r *replay) whyOver(o *remediationObject) string {
	h, n := r.check(o.check), r.nodes[o.node]
	isAwaited := o.deletesNode && !o.succeeded
	switch {
	case h.object == nil || h.object.GetUID() != o.checkUID:
		return "its health check is gone"
	case !h.valid.isValid(), h.off != "":
		return "" // unspecified
	case n == nil && !isAwaited:
		return "its node is gone"
	case n == nil:
		return ""
	case !o.isOf(n) && !isAwaited:
		return "it is about another node of that name"
	case !o.isOf(n):
		return ""
	case !h.valid.selects(n.labels):
		return "the health check does not select the node"
	case n.examine(h.valid).verdict != not || last(n.check(h.name).healthy.since, h.edited).Add(h.valid.delay).After(r.horizon()):
		return "" // not healthy, or not for long enough under the current spec
	}
	if r.noEnd(n, h, o) != "" {
		return ""
	}
	return "the node is healthy"
}

// judgeStatus compares the status of a health check with the cluster.
func (r *replay) judgeStatus(h *healthCheck) {
	wrong := func(format string, args ...any) {
		r.addCheckViolation(WrongEnd, "", h.name, "the status "+fmt.Sprintf(format, args...))
	}
	status, _ := h.object.Object["status"].(map[string]any)
	if status == nil {
		wrong("is missing")
		return
	}
	phase := text(status, "phase")
	if !h.spec.isValid() && h.valid != nil && statusCondition(h.object, "Ready") == "False" {
		return // the last valid version is in force
	}
	if !h.spec.isValid() || !r.hasTemplates(h) {
		if phase != "Disabled" || statusCondition(h.object, "Disabled") != "True" {
			wrong("has the phase %q, and the health check is invalid", phase)
		}
		return
	}
	if h.off != "" {
		return
	}
	treated := r.treatedBy(h)
	want := "Enabled"
	switch {
	case h.spec.paused:
		want = "Paused"
	case treated > 0:
		want = "Remediating"
	}
	if phase != want {
		wrong("has the phase %q, not %q", phase, want)
	}
	if got, found := number(h.object, "observedNodes"); !found || got != h.selected {
		wrong("reports %d nodes, but %d are selected", got, h.selected)
	}
	if got, found := number(h.object, "healthyNodes"); !found || got > h.selected-h.notHealthy || got < h.selected-h.notHealthy-r.unsure(h) {
		wrong("reports %d healthy nodes, but %d of %d are not", got, h.notHealthy, h.selected)
	}
	// The CRD of medik8s does not have this field.
	if got, found := number(h.object, "inTreatment"); found && got != treated {
		wrong("reports %d nodes in treatment, but there are %d", got, treated)
	}
	isStorm := statusCondition(h.object, "StormActive") == "True"
	switch {
	case isStorm && h.spec.cooldown == 0, isStorm && r.isCalm(h):
		wrong("reports a storm, and there is none")
	case !isStorm && h.spec.cooldown > 0 && settled(h.overSince, r.horizon()):
		wrong("reports no storm, and %d of %d selected nodes are not healthy, where %d may be", h.notHealthy, h.selected, h.bound)
	}
}

// treatedBy counts the nodes that have an object of a health check.
func (r *replay) treatedBy(h *healthCheck) int {
	treated := 0
	for _, objects := range r.health.onNode {
		treated += one(slices.ContainsFunc(objects, func(o *remediationObject) bool { return o.check == h.name }))
	}
	return treated
}

func number(object *unstructured.Unstructured, field string) (value int, found bool) {
	number, found, _ := unstructured.NestedInt64(object.Object, "status", field)
	return int(number), found
}
