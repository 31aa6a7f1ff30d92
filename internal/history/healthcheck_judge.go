package history

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// judgeOwnership reports a write of ours while another controller is responsible for the
// health checks.
func (r *replay) judgeOwnership(node, check, what string) {
	if peer := r.activeMedik8sLease(); peer != "" {
		r.addCheckViolation(Conflicting, node, check, fmt.Sprintf("%s, while another controller follows the health checks and renews the Lease %s", what, peer))
	}
}

// judgeCreation judges an object that we created, before it is counted.
func (r *replay) judgeCreation(o *remediationObject) {
	r.report.Remediations++
	r.judgeOwnership(o.node, o.check, fmt.Sprintf("we created %s", o))
	if o.policy != "" {
		r.judgeRepairObject(o)
		return
	}
	if o.check == "" {
		r.addCheckViolation(Malformed, o.node, "", fmt.Sprintf("we created %s, which no health check owns", o))
		return
	}
	h := r.check(o.check)
	n := r.nodeOf(o)
	if n == nil {
		r.addCheckViolation(Unjustified, o.node, h.name, fmt.Sprintf("we created %s for a node that does not exist", o))
		return
	}
	asked, at, isStep := r.stepFor(h, o)
	isLater := isStep && at > 0
	why := "the node is gone"
	if r.nodes[n.name] == n {
		why = r.noTreatment(n, h, isLater)
	}
	c := n.check(h.name)
	until := c.treatable
	if isLater {
		until = c.escalatable
	}
	if isStep && why == "" && r.isOutside(h, at) {
		why = "the windows of the health check are closed"
		until = time.Time{}
	}
	if why != "" && !r.recent(until) {
		r.addCheckViolation(Unjustified, o.node, h.name, fmt.Sprintf("we created %s, but %s", o, why))
		return
	}
	if !isStep {
		r.addCheckViolation(Malformed, o.node, h.name, fmt.Sprintf("we created %s from the template %q, which the health check does not name", o, o.template))
		return
	}
	r.judgeForm(o, n, h, asked.steps[at].template)
	r.judgeLock(o, h, h.name)
	r.judgeAlone(o, n, h, at)
	if isLater {
		r.report.Escalations++
		r.judgeEscalation(o, n, h, at)
	}
}

// isOutside reports whether a step had to wait for a window of the health check, by every version that
// the writer may have known.
func (r *replay) isOutside(h *healthCheck, at int) bool {
	isOutside := func(spec *checkSpec) bool {
		return spec.isValid() && at < len(spec.steps) && !slices.Contains(spec.urgent, spec.steps[at].template.name) && r.areClosed(spec.windows)
	}
	return isOutside(h.valid) && (!r.recent(h.edited) || isOutside(h.previous))
}

// nodeOf returns the node of an object, even if the node is deleted. It returns nil if the
// node never existed.
func (r *replay) nodeOf(o *remediationObject) *node {
	n := r.nodes[o.node]
	if n != nil && (o.nodeUID == "" || n.uid == o.nodeUID) {
		return n
	}
	if n = r.health.deleted[o.nodeUID]; n == nil || n.name != o.node {
		return nil
	}
	return n
}

// stepFor returns the step of the health check for which an object was created. The step
// may be of a spec that was current a moment ago.
func (r *replay) stepFor(h *healthCheck, o *remediationObject) (asked *checkSpec, at int, isStep bool) {
	at, isStep = h.valid.stepOf(o)
	if isStep || !r.recent(h.edited) {
		return h.valid, at, isStep
	}
	at, isStep = h.previous.stepOf(o)
	return h.previous, at, isStep
}

// noTreatment returns the reason against treating a node, or against a later step of its
// treatment, in the current state.
func (r *replay) noTreatment(n *node, h *healthCheck, isLater bool) string {
	spec, isPaused := h.spec, h.spec != nil && h.spec.paused
	if spec != nil && spec.invalid != "" && h.valid != nil {
		spec = h.valid // the last valid version may stay in force
	}
	f := n.examine(spec)
	switch {
	case spec == nil:
		return "the health check does not exist"
	case spec.invalid != "":
		return "the health check is invalid: " + spec.invalid
	case isPaused:
		return "the health check is paused"
	case h.off != "":
		return h.off
	case !spec.selects(n.labels):
		return "the health check does not select the node"
	case n.labels[excludeLabel] == "true" && !r.mayTreatExcluded():
		return "the node is excluded from remediation"
	case f.verdict == not:
		return "the node has no unhealthy condition"
	case f.verdict == unclear:
		return "a condition is Unknown, which the health check does not name: nothing may start"
	case !isLater && !f.maybe(r.at.Time, r.cfg.Lag):
		return "no unhealthy condition has lasted long enough: not before " + f.earliest.UTC().Format(time.TimeOnly)
	}
	return ""
}

// judgeForm compares an object that we created with the contract for remediators.
func (r *replay) judgeForm(o *remediationObject, n *node, h *healthCheck, name templateName) {
	templates := r.templatesOf(name)
	if len(templates) == 0 {
		r.addCheckViolation(Unjustified, o.node, h.name, fmt.Sprintf("we created %s, but there is no template %s", o, name))
		return
	}
	wrong := func(format string, args ...any) {
		r.addCheckViolation(Malformed, o.node, h.name, fmt.Sprintf("we created %s: %s", o, fmt.Sprintf(format, args...)))
	}
	annotations, labels := o.object.GetAnnotations(), o.object.GetLabels()
	if !slices.ContainsFunc(templates, func(t *unstructured.Unstructured) bool { return o.isNamedBy(t) }) {
		wrong("it is not named after the node %s as the template asks", n.name)
	}
	if !slices.ContainsFunc(templates, func(t *unstructured.Unstructured) bool { return o.namespace == t.GetNamespace() }) {
		wrong("it is not in the namespace of its template")
	}
	if !slices.ContainsFunc(templates, func(t *unstructured.Unstructured) bool {
		body, ok := bodyOf(t)
		return ok && o.sameBody(body)
	}) {
		wrong("its spec %v is not that of the template", o.object.Object["spec"])
	}
	for annotation, want := range map[string]string{nodeNameAnnotation: n.name, templateNameAnnotation: name.name, nodeUIDAnnotation: string(n.uid)} {
		if got := annotations[annotation]; got != want {
			wrong("its annotation %s is %q, not %q", annotation, got, want)
		}
	}
	if labels[partOfLabel] != partOf {
		wrong("its label %s is %q, not %q", partOfLabel, labels[partOfLabel], partOf)
	}
	if o.controlPlane != onControlPlane(n.labels) && !r.recent(n.caused) {
		wrong("its label %s says %v of whether the node is one of the control plane", treatedAsControlPlane, o.controlPlane)
	}
	r.judgeOwner(o, h, wrong)
}

func (r *replay) judgeOwner(o *remediationObject, h *healthCheck, wrong func(format string, args ...any)) {
	owners := rows(o.object, "metadata", "ownerReferences")
	if len(owners) != 1 {
		wrong("it has %d owners", len(owners))
		return
	}
	want := checkAPIVersion
	if o.policy != "" {
		want = policyAPIVersion
	}
	if got := text(owners[0], "apiVersion"); got != want {
		wrong("its owner is of %s, not of %s", got, want)
	}
	if controls, _ := owners[0]["controller"].(bool); controls {
		wrong("its owner controls it")
	}
	if h.object != nil && o.checkUID != h.object.GetUID() && !r.recent(h.edited) {
		wrong("its owner is %s %s, which does not exist", h.name, o.checkUID)
	}
}

// isNamedBy reports whether the object has the name that its template asks for: the name of
// the node, or that name with a suffix.
func (o *remediationObject) isNamedBy(template *unstructured.Unstructured) bool {
	if _, several := template.GetAnnotations()[severalAnnotation]; !several {
		return o.name == o.node
	}
	cut := strings.LastIndex(o.name, "-")
	return cut > 0 && len(o.name)-cut-1 == chosenNameSuffix && strings.HasPrefix(o.node, o.name[:cut]) && o.object.GetGenerateName() == o.node+"-"
}

// judgeLock judges whether the health check or the policy held the Lease of the node. The
// argument by is its name on the Lease.
func (r *replay) judgeLock(o *remediationObject, h *healthCheck, by string) {
	l := r.health.leases[o.node]
	switch {
	case l == nil:
		r.addCheckViolation(Unjustified, o.node, h.name, fmt.Sprintf("we created %s without the node's Lease", o))
	case l.holder == holderPrefix+by && l.held(r.horizon()), l.holder == holderPrefix+by && l.held(r.at.Time), r.recent(l.lost[by]):
	default:
		r.addCheckViolation(Unjustified, o.node, h.name, fmt.Sprintf("we created %s, while the node's Lease is held by %q", o, l.holder))
	}
}

// judgeAlone reports a treatment that runs at the same time, on the node or on another
// control-plane node.
func (r *replay) judgeAlone(o *remediationObject, n *node, h *healthCheck, at int) {
	isKnown := func(other *remediationObject) bool { return other.ours || settled(other.seen, r.horizon()) }
	for _, other := range r.health.onNode[o.node] {
		if other.check == "" || !other.isOf(n) || !isKnown(other) {
			continue
		}
		if other.check != h.name {
			r.addCheckViolation(TreatedTwice, o.node, h.name, fmt.Sprintf("we created %s, while health check %s treats the node by %s", o, other.check, other))
		} else if step, isStep := h.valid.stepOf(other); isStep && step == at {
			r.addCheckViolation(TreatedTwice, o.node, h.name, fmt.Sprintf("we created %s, while %s is there, which was created from the same template", o, other))
		}
	}
	if !onControlPlane(n.labels) {
		return
	}
	for _, other := range r.health.controlPlane {
		if other.node != o.node && other.ours {
			r.addCheckViolation(TreatedTwice, o.node, h.name, fmt.Sprintf("we created %s on a node of the control plane, while %s, which is another one, is treated by %s", o, other.node, other))
		}
	}
}

// judgeEscalation judges whether the previous step had its time.
func (r *replay) judgeEscalation(o *remediationObject, n *node, h *healthCheck, at int) {
	objects := r.health.steps[nodeAndCheck{n.uid, h.name}]
	if slices.ContainsFunc(objects, func(b *remediationObject) bool { return b != nil && h.edited.After(b.seen) }) {
		return // the steps were different when it began
	}
	if len(objects) < at || objects[at-1] == nil {
		r.addCheckViolation(TooSoon, o.node, h.name, fmt.Sprintf("we created %s, which is step %d, and the previous step has no object", o, at+1))
		return
	}
	before := objects[at-1]
	due := before.created.Add(h.valid.steps[at-1].timeout)
	isThere := r.health.objects[before.uid] != nil
	switch {
	case !before.failed && due.After(r.at.Time.Add(r.cfg.Lag)):
		r.addCheckViolation(TooSoon, o.node, h.name, fmt.Sprintf("we created %s, which is step %d, and %s, which is the previous step, has time until %s", o, at+1, before, due.UTC().Format(time.TimeOnly)))
	case !before.timedOut && !before.succeeded && isThere:
		r.addCheckViolation(TooSoon, o.node, h.name, fmt.Sprintf("we created %s, which is step %d, and %s, which is the previous step, was not marked as timed out", o, at+1, before))
	}
}

// judgeGate judges whether too many nodes were unhealthy when an object was created. It
// runs after the object is counted.
func (r *replay) judgeGate(o *remediationObject) {
	n := r.nodes[o.node]
	if n == nil || o.check == "" {
		return
	}
	h := r.check(o.check)
	c := n.check(o.check)
	another := slices.ContainsFunc(r.health.onNode[o.node], func(other *remediationObject) bool { return other != o && other.check == o.check && other.isOf(n) })
	if at, _ := h.valid.stepOf(o); another || at > 0 || c.unhealthySince.IsZero() || r.recent(h.edited) {
		return // nothing new was started, or another check judges it
	}
	gone := r.surelyGone(h)
	largest := h.valid.bound(h.selected + gone)
	for _, p := range h.bounds {
		if r.recent(p.until) {
			largest = max(largest, p.bound+gone)
		}
	}
	if known := gone + r.knownNotHealthy(n, h, largest-gone); known > largest {
		r.addCheckViolation(GateIgnored, o.node, h.name, fmt.Sprintf("we created %s: %d of %d selected nodes are %s, at most %d may be", o, known, h.selected+gone, countedNodes(gone), largest))
		return
	}
	calm := h.calmSince.Add(h.valid.cooldown)
	if h.valid.cooldown > 0 && settled(h.stormReported, r.horizon()) && !h.calmSince.IsZero() && r.at.Time.Before(calm.Add(-r.cfg.Lag)) {
		r.addCheckViolation(GateIgnored, o.node, h.name, fmt.Sprintf("we created %s: the storm is over since %s, nothing new may start before %s",
			o, h.calmSince.UTC().Format(time.TimeOnly), calm.UTC().Format(time.TimeOnly)))
	}
}

// knownNotHealthy counts the unhealthy nodes that the writer must have known when it
// treated this node. One watch delivers all nodes in the order of their changes. So a
// writer that knows this node's state knows all earlier changes. It iterates over all nodes
// only if the result can matter.
func (r *replay) knownNotHealthy(n *node, h *healthCheck, bound int) int {
	if h.notHealthy <= bound {
		return h.notHealthy
	}
	known := 0
	since := n.check(h.name).unhealthySince
	for _, other := range r.nodes {
		c := other.check(h.name)
		isKnown := settled(c.notHealthySince, r.horizon()) || !c.unhealthySince.IsZero() && !c.unhealthySince.After(since)
		known += one(c.notHealthy && (other == n || isKnown))
	}
	return known
}

// judgeEnding judges whether there was a reason to delete an object.
func (r *replay) judgeEnding(o *remediationObject) {
	r.report.Releases++
	if o.policy != "" {
		r.judgeRepairObjectEnd(o)
		return
	}
	if o.check == "" {
		r.addCheckViolation(ForeignTouched, o.node, "", fmt.Sprintf("we deleted %s, which no health check owns", o))
		return
	}
	r.judgeOwnership(o.node, o.check, fmt.Sprintf("we deleted %s", o))
	h := r.check(o.check)
	n := r.nodes[o.node]
	if n == nil || !o.isOf(n) {
		// A node that was healthy a moment before it was deleted has ended its treatment.
		gone := r.nodeOf(o)
		hadRecovered := gone != nil && r.recent(gone.check(h.name).endable)
		if o.deletesNode && !o.succeeded && !hadRecovered && h.object != nil && o.checkUID == h.object.GetUID() {
			r.addCheckViolation(Unjustified, o.node, o.check, fmt.Sprintf("we deleted %s, which removes the node permanently and has not succeeded yet", o))
		}
		return
	}
	why := r.noEnd(n, h, o)
	if why == "" || r.recent(n.check(h.name).endable) {
		return
	}
	kind := Unjustified
	if n.examine(h.valid).verdict == not {
		kind = TooSoon
	}
	r.addCheckViolation(kind, o.node, o.check, fmt.Sprintf("we deleted %s, but %s", o, why))
}

// noEnd returns the reason against deleting an object of a node, in the current state.
func (r *replay) noEnd(n *node, h *healthCheck, o *remediationObject) string {
	if h.object == nil || o.checkUID != h.object.GetUID() || !o.isOf(n) || !h.valid.selects(n.labels) || h.off == observing {
		return ""
	}
	c := n.check(h.name)
	_, confirmed := n.object.GetAnnotations()[confirmedAnnotation]
	until := c.healthy.earliest.Add(h.valid.delay)
	switch f := n.examine(h.valid); {
	case f.verdict == holds:
		return "the node is unhealthy"
	case f.verdict == unclear:
		return "a condition is Unknown, so the treatment continues"
	case confirmed:
		return ""
	case h.valid.byHand:
		return "no user has confirmed that the node is healthy"
	case until.After(r.at.Time.Add(r.cfg.Lag)):
		return fmt.Sprintf("the node is healthy since %s, which is less than %s", c.healthy.earliest.UTC().Format(time.TimeOnly), h.valid.delay)
	}
	return ""
}

// judgeRemediationWrite judges a write of ours to an existing object. We own only two
// annotations of it.
func (r *replay) judgeRemediationWrite(before, after *remediationObject) {
	ending := after.deleting && !before.deleting
	parts := differences(before.object, after.object, func(object map[string]any) map[string]any {
		parts := partsOf(object)
		annotations := copied(parts["annotations"])
		if before.check+before.policy != "" {
			delete(annotations, timedOutAnnotation)
			delete(annotations, healthyAnnotation)
		}
		parts["annotations"] = annotations
		metadata := copied(parts["metadata"])
		if ending { // the deletion is judged separately
			delete(metadata, "deletionTimestamp")
			delete(metadata, "deletionGracePeriodSeconds")
		}
		parts["metadata"] = metadata
		return parts
	})
	for _, part := range parts {
		r.addCheckViolation(ForeignTouched, before.node, before.check, fmt.Sprintf("we changed the %s of %s", part, before))
	}
	if ending || len(parts) > 0 {
		return
	}
	r.report.Notes++
	r.judgeOwnership(before.node, before.check, fmt.Sprintf("we wrote to %s", before))
	was, is := before.object.GetAnnotations(), after.object.GetAnnotations()
	switch {
	case sameMap(was, is):
		r.addCheckViolation(DoneTwice, before.node, before.check, fmt.Sprintf("we wrote to %s and changed nothing", before))
	case was[timedOutAnnotation] != is[timedOutAnnotation] && before.check != "":
		r.judgeTimedOut(before, was[timedOutAnnotation], is[timedOutAnnotation])
	}
}

// judgeTimedOut judges whether an object had used up its time when we marked it as timed
// out. A remediator whose node is gone is told at once.
func (r *replay) judgeTimedOut(o *remediationObject, was, is string) {
	h := r.check(o.check)
	at, isStep := h.valid.stepOf(o)
	n := r.nodes[o.node]
	switch {
	case was != "":
		r.addCheckViolation(DoneTwice, o.node, o.check, fmt.Sprintf("we marked %s as timed out again", o))
	case moment(is).IsZero():
		r.addCheckViolation(Malformed, o.node, o.check, fmt.Sprintf("we marked %s as timed out at %q, which is not a time", o, is))
	case n == nil || !o.isOf(n) || o.failed || !isStep || h.edited.After(o.seen):
	case h.valid.steps[at].timeout == 0:
		r.addCheckViolation(TooSoon, o.node, o.check, fmt.Sprintf("we marked %s as timed out, but it has no timeout", o))
	default:
		if due := o.created.Add(h.valid.steps[at].timeout); due.After(r.at.Time.Add(r.cfg.Lag)) {
			r.addCheckViolation(TooSoon, o.node, o.check, fmt.Sprintf("we marked %s as timed out, but it has until %s", o, due.UTC().Format(time.TimeOnly)))
		}
	}
}

// judgeLeaseWrite judges a write of ours to the Lease of a node. We may write Leases that a
// health check holds, and Leases without a holder.
func (r *replay) judgeLeaseWrite(node string, before, after leaseState) {
	r.report.Leases++
	check := strings.TrimPrefix(after.holder, holderPrefix)
	if after.object == nil {
		check = strings.TrimPrefix(before.holder, holderPrefix)
	}
	r.judgeOwnership(node, check, "we wrote to the node's Lease")
	switch {
	case !before.ofCheck() && before.held(r.at.Time):
		r.addCheckViolation(ForeignTouched, node, "", fmt.Sprintf("we wrote to the node's Lease, which is held by %q until %s", before.holder, before.renewed.Add(before.lasts).UTC().Format(time.TimeOnly)))
	case after.object == nil && !before.ofCheck():
		r.addCheckViolation(ForeignTouched, node, "", fmt.Sprintf("we deleted the node's Lease, which was that of %q", before.holder))
	case after.object == nil:
		if !r.mayUnlock(node, check) {
			r.addCheckViolation(Unjustified, node, check, "we released the node's Lease while the node is under treatment")
		}
	case !after.ofCheck():
		r.addCheckViolation(Malformed, node, "", fmt.Sprintf("we took the node's Lease for %q, which is no health check", after.holder))
	case !after.held(r.at.Time):
		r.addCheckViolation(Malformed, node, check, fmt.Sprintf("we took the node's Lease, but it is expired: renewed at %s for %s", after.renewed.UTC().Format(time.TimeOnly), after.lasts))
	case before.object != nil && reflect.DeepEqual(before.object.Object["spec"], after.object.Object["spec"]):
		r.addCheckViolation(DoneTwice, node, check, "we wrote to the node's Lease and changed nothing")
	}
}

// mayUnlock reports whether the health check may release the Lease of a node. It may not
// while an object with a timeout still has time.
func (r *replay) mayUnlock(name, check string) bool {
	h, n := r.check(check), r.nodes[name]
	return n == nil || !slices.ContainsFunc(r.health.onNode[name], func(o *remediationObject) bool {
		at, isStep := h.valid.stepOf(o)
		isBounded := isStep && h.valid.steps[at].timeout > 0
		return o.check == check && o.isOf(n) && isBounded && !o.timedOut && !o.deleting && !o.failed && !o.succeeded
	})
}

// judgeCheckWrite judges a write of ours to a health check. While another controller is
// responsible, we own only two conditions of its status.
func (r *replay) judgeCheckWrite(h *healthCheck, change testbed.Change) {
	r.report.CheckStatuses++
	isStatus := judgeStatusWrite("health check", h.object, change, func(kind Kind, text string) { r.addCheckViolation(kind, "", h.name, text) })
	if isStatus && !differsOnlyInOwnership(h.object, change.Object) {
		r.judgeOwnership("", h.name, "we wrote the status of the health check")
	}
}

// judgeConfirmation judges the removal of the annotation by which a user confirmed the
// health of a node. We may remove it when no object waits for it any longer.
func (r *replay) judgeConfirmation(n *node) {
	r.report.Confirmations++
	r.judgeOwnership(n.name, "", "we removed the confirmation from the node")
	if at := slices.IndexFunc(r.health.onNode[n.name], func(o *remediationObject) bool { return o.check != "" && o.isOf(n) }); at >= 0 {
		r.addCheckViolation(ForeignTouched, n.name, "", fmt.Sprintf("we removed the confirmation from the node while %s is there", r.health.onNode[n.name][at]))
	}
}

// takesConfirmation reports whether a write removed that annotation.
func takesConfirmation(before, after *unstructured.Unstructured) bool {
	_, was := before.GetAnnotations()[confirmedAnnotation]
	_, is := after.GetAnnotations()[confirmedAnnotation]
	return was && !is
}
