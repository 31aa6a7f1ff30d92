package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// judgeCareEnd says whether in the end every node has the treatment that it should
// have, whether nothing is left over, and whether the statuses tell the truth. While
// another controller follows the health checks, or may, there is nothing to expect.
func (r *replay) judgeCareEnd() {
	if r.mayBePeer() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		r.judgeTreated(r.nodes[name])
	}
	r.judgeLeftovers()
	for _, name := range r.ward.inOrder {
		if h := r.ward.checks[name]; h.object != nil {
			r.judgeStatus(h)
		}
	}
}

// judgeTreated says whether a sick node waits although nothing speaks against
// treating it.
func (r *replay) judgeTreated(n *node) {
	if l := r.ward.locks[n.name]; l != nil && !l.ofCheck() && l.held(r.horizon()) {
		return // somebody else is at work on it
	}
	if len(r.ward.onNode[n.name]) > 0 {
		r.judgeNextStep(n) // or whatever is there has to go first
		return
	}
	for _, name := range r.ward.inOrder {
		h := r.ward.checks[name]
		f := n.examine(h.regimen)
		c := n.care(name)
		switch {
		case r.noTreatment(n, h, false) != "" || !f.surely(r.at.Time, r.cfg.Lag) || c.lost || !r.hasTemplates(h):
		case h.unwell+r.maybeGone(h) > h.followed.bound(h.selected+r.maybeGone(h)) || !r.isCalm(h):
		case onControlPlane(n.labels) && (len(r.ward.controlPlane) > 0 || r.ward.kept):
		case h.unwell+r.maybeGone(h)+r.unsure(h) > h.followed.bound(h.selected+r.maybeGone(h)): // it looks at every node, so it is asked last
		default:
			r.tellOf(WrongEnd, n.name, name, fmt.Sprintf("the node is sick and has no remediation object: %d of %d selected nodes are sick or in treatment, and %d may be", h.unwell, h.selected, h.bound))
			return
		}
	}
}

// judgeNextStep says whether what is there has had its time, and nothing came after.
func (r *replay) judgeNextStep(n *node) {
	there := r.ward.onNode[n.name]
	newest := there[len(there)-1]
	h := r.check(newest.check)
	isOther := func(o *remedy) bool { return o.check != h.name || !o.isOf(n) || o.deleting || h.edited.After(o.seen) }
	if slices.ContainsFunc(there, isOther) || r.noTreatment(n, h, true) != "" || n.care(h.name).lost || !r.hasTemplates(h) {
		return
	}
	at, isStep := h.followed.stepOf(newest)
	if !isStep || at+1 == len(h.followed.steps) {
		return
	}
	if due := newest.created.Add(h.followed.steps[at].timeout); newest.failed || due.Before(r.horizon()) {
		r.tellOf(WrongEnd, n.name, h.name, fmt.Sprintf("%s has had its time, which was over at %s at the latest, and the next step was not begun", newest, due.UTC().Format(time.TimeOnly)))
	}
}

// hasTemplates says whether all templates of a health check are there, with a body.
func (r *replay) hasTemplates(h *healthCheck) bool {
	return !slices.ContainsFunc(h.regimen.steps, func(s step) bool {
		t := r.template(s.template)
		if t == nil || t.object == nil {
			return true
		}
		_, ok := bodyOf(t.object)
		return !ok
	})
}

// isCalm says whether there is surely no wait after a storm.
func (r *replay) isCalm(h *healthCheck) bool {
	if h.followed.cooldown == 0 {
		return true
	}
	isOver := h.calmSince.IsZero() || h.calmSince.Add(h.followed.cooldown).Before(r.horizon())
	return h.overSince.IsZero() && isOver && !r.wasMaybeGone(h, h.followed.cooldown) && h.edited.Add(h.followed.cooldown).Before(r.horizon())
}

// unsure counts the nodes of which nobody can tell from outside whether they count
// as healthy.
func (r *replay) unsure(h *healthCheck) int {
	count := 0
	for _, n := range r.nodes {
		count += one(!n.care(h.name).unwell && n.examine(h.followed).verdict == unclear)
	}
	return count
}

// judgeLeftovers looks for objects and Leases that have served.
func (r *replay) judgeLeftovers() {
	for _, name := range slices.Sorted(maps.Keys(r.ward.onNode)) {
		for _, o := range r.ward.onNode[name] {
			if o.check == "" || o.deleting {
				continue // not ours, or its remediator holds on to it
			}
			if why := r.whyOver(o); why != "" {
				r.tellOf(WrongEnd, name, o.check, fmt.Sprintf("%s is still there: %s", o, why))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.ward.locks)) {
		l := r.ward.locks[name]
		check := strings.TrimPrefix(l.holder, holderPrefix)
		isServing := slices.ContainsFunc(r.ward.onNode[name], func(o *remedy) bool { return o.check == check || o.policy != "" && policyHolder(o.policy) == check })
		if l.ofCheck() && !isServing {
			r.tellOf(WrongEnd, name, check, "the node's Lease is still held, and the health check has nothing there")
		}
	}
}

// whyOver says why an object should be gone, and nothing if it may be there.
func (r *replay) whyOver(o *remedy) string {
	h, n := r.check(o.check), r.nodes[o.node]
	isAwaited := o.deletesNode && !o.succeeded
	switch {
	case h.object == nil || h.object.GetUID() != o.checkUID:
		return "its health check is gone"
	case !h.followed.follows():
		return "" // nobody says what becomes of it
	case n == nil && !isAwaited:
		return "its node is gone"
	case n == nil:
		return ""
	case !o.isOf(n) && !isAwaited:
		return "it is about another node of that name"
	case !o.isOf(n):
		return ""
	case !h.followed.selects(n.labels):
		return "the health check does not select the node"
	case n.examine(h.followed).verdict != not || last(n.care(h.name).well.since, h.edited).Add(h.followed.delay).After(r.horizon()):
		return "" // it is not well, or not for long enough under what is asked now
	}
	if r.noEnd(n, h, o) != "" {
		return ""
	}
	return "the node is healthy"
}

// judgeStatus compares what a health check says with what there is.
func (r *replay) judgeStatus(h *healthCheck) {
	wrong := func(format string, args ...any) {
		r.tellOf(WrongEnd, "", h.name, "the status "+fmt.Sprintf(format, args...))
	}
	status, _ := h.object.Object["status"].(map[string]any)
	if status == nil {
		wrong("is missing")
		return
	}
	phase := text(status, "phase")
	if !h.regimen.follows() || !r.hasTemplates(h) {
		if phase != "Disabled" || statusCondition(h.object, "Disabled") != "True" {
			wrong("has the phase %q, and the health check cannot be followed", phase)
		}
		return
	}
	treated := r.treatedBy(h)
	want := "Enabled"
	switch {
	case h.regimen.paused:
		want = "Paused"
	case treated > 0:
		want = "Remediating"
	}
	if phase != want {
		wrong("has the phase %q, not %q", phase, want)
	}
	if got, told := number(h.object, "observedNodes"); !told || got != h.selected {
		wrong("tells of %d nodes, and %d are selected", got, h.selected)
	}
	if got, told := number(h.object, "healthyNodes"); !told || got > h.selected-h.unwell || got < h.selected-h.unwell-r.unsure(h) {
		wrong("tells of %d healthy nodes, and %d of %d are not", got, h.unwell, h.selected)
	}
	// Under the CRD of medik8s there is no such field.
	if got, told := number(h.object, "inTreatment"); told && got != treated {
		wrong("tells of %d nodes in treatment, and there are %d", got, treated)
	}
	isStorm := statusCondition(h.object, "StormActive") == "True"
	switch {
	case isStorm && h.regimen.cooldown == 0, isStorm && r.isCalm(h):
		wrong("tells of a storm, and there is none")
	case !isStorm && h.regimen.cooldown > 0 && settled(h.overSince, r.horizon()):
		wrong("tells of no storm, and %d of %d selected nodes are not healthy, where %d may be", h.unwell, h.selected, h.bound)
	}
}

// treatedBy counts the nodes that have an object of a health check.
func (r *replay) treatedBy(h *healthCheck) int {
	treated := 0
	for _, objects := range r.ward.onNode {
		treated += one(slices.ContainsFunc(objects, func(o *remedy) bool { return o.check == h.name }))
	}
	return treated
}

func number(object *unstructured.Unstructured, field string) (value int, told bool) {
	found, told, _ := unstructured.NestedInt64(object.Object, "status", field)
	return int(found), told
}
