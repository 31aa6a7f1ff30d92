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

// judgePeace says whether we wrote while another controller follows the health
// checks.
func (r *replay) judgePeace(node, check, what string) {
	if peer := r.peer(); peer != "" {
		r.tellOf(Fought, node, check, fmt.Sprintf("%s, while another controller follows the health checks and renews the Lease %s", what, peer))
	}
}

// judgeCreation judges an object that we made, before it is counted.
func (r *replay) judgeCreation(o *remedy) {
	r.report.Remediations++
	r.judgePeace(o.node, o.check, fmt.Sprintf("we made %s", o))
	if o.policy != "" {
		r.judgeRepairObject(o)
		return
	}
	if o.check == "" {
		r.tellOf(Malformed, o.node, "", fmt.Sprintf("we made %s, which no health check owns", o))
		return
	}
	h := r.check(o.check)
	n := r.patientOf(o)
	if n == nil {
		r.tellOf(Unlawful, o.node, h.name, fmt.Sprintf("we made %s for a node that is not there", o))
		return
	}
	asked, at, isStep := r.stepFor(h, o)
	isLater := isStep && at > 0
	why := "the node is gone"
	if r.nodes[n.name] == n {
		why = r.noTreatment(n, h, isLater)
	}
	c := n.care(h.name)
	until := c.treatable
	if isLater {
		until = c.escalatable
	}
	if why != "" && !r.recent(until) {
		r.tellOf(Unlawful, o.node, h.name, fmt.Sprintf("we made %s, but %s", o, why))
		return
	}
	if !isStep {
		r.tellOf(Malformed, o.node, h.name, fmt.Sprintf("we made %s from the template %q, which the health check does not name", o, o.template))
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

// patientOf returns the node that an object is made for, also if it is gone, and nil if
// there never was one.
func (r *replay) patientOf(o *remedy) *node {
	n := r.nodes[o.node]
	if n != nil && (o.nodeUID == "" || n.uid == o.nodeUID) {
		return n
	}
	if n = r.ward.departed[o.nodeUID]; n == nil || n.name != o.node {
		return nil
	}
	return n
}

// stepFor says for which step of what the health check asks, or asked until a moment
// ago, an object was made.
func (r *replay) stepFor(h *healthCheck, o *remedy) (asked *regimen, at int, isStep bool) {
	at, isStep = h.followed.stepOf(o)
	if isStep || !r.recent(h.edited) {
		return h.followed, at, isStep
	}
	at, isStep = h.before.stepOf(o)
	return h.before, at, isStep
}

// noTreatment says what speaks against treating a node, or against a later step of
// its treatment, as everything stands.
func (r *replay) noTreatment(n *node, h *healthCheck, isLater bool) string {
	f := n.examine(h.regimen)
	switch {
	case h.regimen == nil:
		return "there is no such health check"
	case h.regimen.refused != "":
		return "the health check cannot be followed: " + h.regimen.refused
	case h.regimen.paused:
		return "the health check is on pause"
	case !h.regimen.selects(n.labels):
		return "the health check does not select the node"
	case n.labels[excludeLabel] == "true":
		return "the node is excluded from remediation"
	case f.verdict == not:
		return "no sign of sickness stands on the node"
	case f.verdict == unclear:
		return "a condition is Unknown, which the health check does not name: nothing may start"
	case !isLater && !f.maybe(r.at.Time, r.cfg.Lag):
		return "no sign of sickness has stood long enough: not before " + f.earliest.UTC().Format(time.TimeOnly)
	}
	return ""
}

// judgeForm holds an object that we made against the contract with remediators.
func (r *replay) judgeForm(o *remedy, n *node, h *healthCheck, name templateName) {
	templates := r.templatesOf(name)
	if len(templates) == 0 {
		r.tellOf(Unlawful, o.node, h.name, fmt.Sprintf("we made %s, but there is no template %s", o, name))
		return
	}
	wrong := func(format string, args ...any) {
		r.tellOf(Malformed, o.node, h.name, fmt.Sprintf("we made %s: %s", o, fmt.Sprintf(format, args...)))
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

func (r *replay) judgeOwner(o *remedy, h *healthCheck, wrong func(format string, args ...any)) {
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
		wrong("its owner is %s %s, which is not the one that is there", h.name, o.checkUID)
	}
}

// isNamedBy says whether the object is named as its template asks: after the node,
// or after the node with something added.
func (o *remedy) isNamedBy(template *unstructured.Unstructured) bool {
	if _, several := template.GetAnnotations()[severalAnnotation]; !several {
		return o.name == o.node
	}
	cut := strings.LastIndex(o.name, "-")
	return cut > 0 && len(o.name)-cut-1 == chosenNameSuffix && strings.HasPrefix(o.node, o.name[:cut]) && o.object.GetGenerateName() == o.node+"-"
}

// judgeLock says whether the node was locked for the health check, or for the policy:
// by is its name on the Lease.
func (r *replay) judgeLock(o *remedy, h *healthCheck, by string) {
	l := r.ward.locks[o.node]
	switch {
	case l == nil:
		r.tellOf(Unlawful, o.node, h.name, fmt.Sprintf("we made %s without the node's Lease", o))
	case l.holder == holderPrefix+by && l.held(r.horizon()), l.holder == holderPrefix+by && l.held(r.at.Time), r.recent(l.lost[by]):
	default:
		r.tellOf(Unlawful, o.node, h.name, fmt.Sprintf("we made %s, while the node's Lease is held by %q", o, l.holder))
	}
}

// judgeAlone says whether something else was under way already: on the node, or on
// another one of the control plane.
func (r *replay) judgeAlone(o *remedy, n *node, h *healthCheck, at int) {
	isKnown := func(other *remedy) bool { return other.ours || settled(other.seen, r.horizon()) }
	for _, other := range r.ward.onNode[o.node] {
		if other.check == "" || !other.isOf(n) || !isKnown(other) {
			continue
		}
		if other.check != h.name {
			r.tellOf(TreatedTwice, o.node, h.name, fmt.Sprintf("we made %s, while health check %s treats the node by %s", o, other.check, other))
		} else if step, isStep := h.followed.stepOf(other); isStep && step == at {
			r.tellOf(TreatedTwice, o.node, h.name, fmt.Sprintf("we made %s, while %s is there, which was made from the same template", o, other))
		}
	}
	if !onControlPlane(n.labels) {
		return
	}
	for _, other := range r.ward.controlPlane {
		if other.node != o.node && other.ours {
			r.tellOf(TreatedTwice, o.node, h.name, fmt.Sprintf("we made %s on a node of the control plane, while %s, which is another one, is treated by %s", o, other.node, other))
		}
	}
}

// judgeEscalation says whether the step before had its time.
func (r *replay) judgeEscalation(o *remedy, n *node, h *healthCheck, at int) {
	ladder := r.ward.ladders[ladderOf{n.uid, h.name}]
	if slices.ContainsFunc(ladder, func(b *remedy) bool { return b != nil && h.edited.After(b.seen) }) {
		return // the steps were others when it began
	}
	if len(ladder) < at || ladder[at-1] == nil {
		r.tellOf(TooSoon, o.node, h.name, fmt.Sprintf("we made %s, which is step %d, and nothing was made of the step before", o, at+1))
		return
	}
	before := ladder[at-1]
	due := before.created.Add(h.followed.steps[at-1].timeout)
	isThere := r.ward.remedies[before.uid] != nil
	switch {
	case !before.failed && due.After(r.at.Time.Add(r.cfg.Lag)):
		r.tellOf(TooSoon, o.node, h.name, fmt.Sprintf("we made %s, which is step %d, and %s, which is the step before, has time until %s", o, at+1, before, due.UTC().Format(time.TimeOnly)))
	case !before.timedOut && !before.succeeded && isThere:
		r.tellOf(TooSoon, o.node, h.name, fmt.Sprintf("we made %s, which is step %d, and %s, which is the step before, was not told that its time is up", o, at+1, before))
	}
}

// judgeGate says whether too many nodes were not healthy when an object was made. It
// comes when that is counted.
func (r *replay) judgeGate(o *remedy) {
	n := r.nodes[o.node]
	if n == nil || o.check == "" {
		return
	}
	h := r.check(o.check)
	c := n.care(o.check)
	another := slices.ContainsFunc(r.ward.onNode[o.node], func(other *remedy) bool { return other != o && other.check == o.check && other.isOf(n) })
	if at, _ := h.followed.stepOf(o); another || at > 0 || c.sickSince.IsZero() || r.recent(h.edited) {
		return // nothing new was begun, or it is judged for something else
	}
	gone := r.surelyGone(h)
	largest := h.followed.bound(h.selected + gone)
	for _, p := range h.bounds {
		if r.recent(p.until) {
			largest = max(largest, p.bound+gone)
		}
	}
	if known := gone + r.knownUnwell(n, h, largest-gone); known > largest {
		r.tellOf(GateIgnored, o.node, h.name, fmt.Sprintf("we made %s: %d of %d selected nodes are %s, at most %d may be", o, known, h.selected+gone, ailing(gone), largest))
		return
	}
	calm := h.calmSince.Add(h.followed.cooldown)
	if h.followed.cooldown > 0 && settled(h.stormTold, r.horizon()) && !h.calmSince.IsZero() && r.at.Time.Before(calm.Add(-r.cfg.Lag)) {
		r.tellOf(GateIgnored, o.node, h.name, fmt.Sprintf("we made %s: the storm is over since %s, nothing new may be begun before %s",
			o, h.calmSince.UTC().Format(time.TimeOnly), calm.UTC().Format(time.TimeOnly)))
	}
}

// knownUnwell counts the nodes that are not healthy and of which whoever treats this
// one must have known. Nodes come by one watch, in the order in which they change: who
// knows that this one is sick knows what was so before. It looks at every node only
// if that can matter.
func (r *replay) knownUnwell(n *node, h *healthCheck, bound int) int {
	if h.unwell <= bound {
		return h.unwell
	}
	known := 0
	sick := n.care(h.name).sickSince
	for _, other := range r.nodes {
		c := other.care(h.name)
		isKnown := settled(c.unwellSince, r.horizon()) || !c.sickSince.IsZero() && !c.sickSince.After(sick)
		known += one(c.unwell && (other == n || isKnown))
	}
	return known
}

// judgeEnding says whether there was a reason to delete an object.
func (r *replay) judgeEnding(o *remedy) {
	r.report.Releases++
	if o.policy != "" {
		r.judgeRepairObjectEnd(o)
		return
	}
	if o.check == "" {
		r.tellOf(ForeignTouched, o.node, "", fmt.Sprintf("we deleted %s, which no health check owns", o))
		return
	}
	r.judgePeace(o.node, o.check, fmt.Sprintf("we deleted %s", o))
	h := r.check(o.check)
	n := r.nodes[o.node]
	if n == nil || !o.isOf(n) {
		if o.deletesNode && !o.succeeded && h.object != nil && o.checkUID == h.object.GetUID() {
			r.tellOf(Unlawful, o.node, o.check, fmt.Sprintf("we deleted %s, which means the node to go for good and has not succeeded yet", o))
		}
		return
	}
	why := r.noEnd(n, h, o)
	if why == "" || r.recent(n.care(h.name).endable) {
		return
	}
	kind := Unlawful
	if n.examine(h.followed).verdict == not {
		kind = TooSoon
	}
	r.tellOf(kind, o.node, o.check, fmt.Sprintf("we deleted %s, but %s", o, why))
}

// noEnd says what speaks against deleting an object of a node, as everything stands.
func (r *replay) noEnd(n *node, h *healthCheck, o *remedy) string {
	if h.object == nil || o.checkUID != h.object.GetUID() || !o.isOf(n) || !h.followed.selects(n.labels) {
		return ""
	}
	c := n.care(h.name)
	_, confirmed := n.object.GetAnnotations()[confirmedAnnotation]
	until := c.well.earliest.Add(h.followed.delay)
	switch f := n.examine(h.followed); {
	case f.verdict == holds:
		return "the node is sick"
	case f.verdict == unclear:
		return "a condition is Unknown, and what is under way stays"
	case confirmed:
		return ""
	case h.followed.byHand:
		return "nobody has confirmed that the node is healthy"
	case until.After(r.at.Time.Add(r.cfg.Lag)):
		return fmt.Sprintf("the node is healthy since %s, and that is for less than %s", c.well.earliest.UTC().Format(time.TimeOnly), h.followed.delay)
	}
	return ""
}

// judgeRemedyWrite looks at a write of ours to an object that is there: two
// annotations are all that we own of it.
func (r *replay) judgeRemedyWrite(before, after *remedy) {
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
		if ending { // which is judged as such
			delete(metadata, "deletionTimestamp")
			delete(metadata, "deletionGracePeriodSeconds")
		}
		parts["metadata"] = metadata
		return parts
	})
	for _, part := range parts {
		r.tellOf(ForeignTouched, before.node, before.check, fmt.Sprintf("we changed the %s of %s", part, before))
	}
	if ending || len(parts) > 0 {
		return
	}
	r.report.Notes++
	r.judgePeace(before.node, before.check, fmt.Sprintf("we wrote on %s", before))
	was, is := before.object.GetAnnotations(), after.object.GetAnnotations()
	switch {
	case sameMap(was, is):
		r.tellOf(DoneTwice, before.node, before.check, fmt.Sprintf("we wrote to %s and changed nothing", before))
	case was[timedOutAnnotation] != is[timedOutAnnotation] && before.check != "":
		r.judgeTimedOut(before, was[timedOutAnnotation], is[timedOutAnnotation])
	}
}

// judgeTimedOut says whether the time of an object was up when we told it so.
func (r *replay) judgeTimedOut(o *remedy, was, is string) {
	h := r.check(o.check)
	at, isStep := h.followed.stepOf(o)
	switch {
	case was != "":
		r.tellOf(DoneTwice, o.node, o.check, fmt.Sprintf("we told %s again that its time is up", o))
	case moment(is).IsZero():
		r.tellOf(Malformed, o.node, o.check, fmt.Sprintf("we told %s that its time is up at %q, which is no time", o, is))
	case o.failed || !isStep || h.edited.After(o.seen):
	case h.followed.steps[at].timeout == 0:
		r.tellOf(TooSoon, o.node, o.check, fmt.Sprintf("we told %s that its time is up, and it has as long as it likes", o))
	default:
		if due := o.created.Add(h.followed.steps[at].timeout); due.After(r.at.Time.Add(r.cfg.Lag)) {
			r.tellOf(TooSoon, o.node, o.check, fmt.Sprintf("we told %s that its time is up, and it has until %s", o, due.UTC().Format(time.TimeOnly)))
		}
	}
}

// judgeLeaseWrite looks at a write of ours to the Lease of a node: ours are those
// that a health check holds, and those that nobody does.
func (r *replay) judgeLeaseWrite(node string, before, after lock) {
	r.report.Leases++
	check := strings.TrimPrefix(after.holder, holderPrefix)
	if after.object == nil {
		check = strings.TrimPrefix(before.holder, holderPrefix)
	}
	r.judgePeace(node, check, "we wrote to the node's Lease")
	switch {
	case !before.ofCheck() && before.held(r.at.Time):
		r.tellOf(ForeignTouched, node, "", fmt.Sprintf("we wrote to the node's Lease, which is held by %q until %s", before.holder, before.renewed.Add(before.lasts).UTC().Format(time.TimeOnly)))
	case after.object == nil && !before.ofCheck():
		r.tellOf(ForeignTouched, node, "", fmt.Sprintf("we deleted the node's Lease, which was that of %q", before.holder))
	case after.object == nil:
		if !r.mayUnlock(node, check) {
			r.tellOf(Unlawful, node, check, "we gave the node's Lease back, while the node is treated")
		}
	case !after.ofCheck():
		r.tellOf(Malformed, node, "", fmt.Sprintf("we took the node's Lease for %q, which is no health check", after.holder))
	case !after.held(r.at.Time):
		r.tellOf(Malformed, node, check, fmt.Sprintf("we took the node's Lease, and it is over: renewed at %s for %s", after.renewed.UTC().Format(time.TimeOnly), after.lasts))
	case before.object != nil && reflect.DeepEqual(before.object.Object["spec"], after.object.Object["spec"]):
		r.tellOf(DoneTwice, node, check, "we wrote to the node's Lease and changed nothing")
	}
}

// mayUnlock says whether the Lease of a node may go: nothing is there of the health
// check that has a time by which it is over, and has not had all of it.
func (r *replay) mayUnlock(name, check string) bool {
	h, n := r.check(check), r.nodes[name]
	return n == nil || !slices.ContainsFunc(r.ward.onNode[name], func(o *remedy) bool {
		at, isStep := h.followed.stepOf(o)
		isBounded := isStep && h.followed.steps[at].timeout > 0
		return o.check == check && o.isOf(n) && isBounded && !o.timedOut && !o.deleting && !o.failed && !o.succeeded
	})
}

// judgeCheckWrite looks at a write of ours to a health check: the status is all that
// we own of it, and while another controller follows it, one condition of that.
func (r *replay) judgeCheckWrite(h *healthCheck, change testbed.Change) {
	r.report.CheckStatuses++
	switch {
	case isDeleted(change):
		r.tellOf(ForeignTouched, "", h.name, "we deleted the health check")
	case h.object == nil:
		r.tellOf(ForeignTouched, "", h.name, "we created the health check")
	default:
		parts := notStatus(h.object, change.Object)
		for _, part := range parts {
			r.tellOf(ForeignTouched, "", h.name, "we changed the "+part+" of the health check")
		}
		if len(parts) == 0 && reflect.DeepEqual(h.object.Object["status"], change.Object.Object["status"]) {
			r.tellOf(DoneTwice, "", h.name, "we wrote to the health check and changed nothing")
		}
		if !sameButStandingBack(h.object, change.Object) {
			r.judgePeace("", h.name, "we wrote the status of the health check")
		}
	}
}

// judgeConfirmation judges that we took the annotation off a node by which somebody
// had confirmed its health: it has served when nothing is left that waits for it.
func (r *replay) judgeConfirmation(n *node) {
	r.report.Confirmations++
	r.judgePeace(n.name, "", "we took the confirmation off the node")
	if at := slices.IndexFunc(r.ward.onNode[n.name], func(o *remedy) bool { return o.check != "" && o.isOf(n) }); at >= 0 {
		r.tellOf(ForeignTouched, n.name, "", fmt.Sprintf("we took the confirmation off the node while %s is there", r.ward.onNode[n.name][at]))
	}
}

// takesConfirmation says whether a write took that annotation away.
func takesConfirmation(before, after *unstructured.Unstructured) bool {
	_, was := before.GetAnnotations()[confirmedAnnotation]
	_, is := after.GetAnnotations()[confirmedAnnotation]
	return was && !is
}
