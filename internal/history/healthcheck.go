package history

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// healthState holds the replayed health checks, and their remediation objects, templates
// and Leases.
type healthState struct {
	checks  map[string]*healthCheck
	inOrder []string // names of the checks, sorted, so that every replay judges in the same order
	objects map[types.UID]*remediationObject
	onNode  map[string][]*remediationObject // by node name
	// controlPlane has the remediation objects of control-plane nodes, in order of
	// creation.
	controlPlane   []*remediationObject
	templates      map[templateName]*template
	leases         map[string]*leaseHistory              // by node name
	medik8sLeaders map[string]*medik8sLeader             // by namespace
	steps          map[nodeAndCheck][]*remediationObject // the last object of each step
	deleted        map[types.UID]*node
	removed        []*removedNode
	readyNodes     []readyNode
	// kept is true once a control-plane node was deleted during its replacement. The
	// recording does not show how long the controller reserves its place.
	kept bool
}

func newHealthState() healthState {
	return healthState{
		checks: map[string]*healthCheck{}, objects: map[types.UID]*remediationObject{}, onNode: map[string][]*remediationObject{},
		templates: map[templateName]*template{}, leases: map[string]*leaseHistory{}, medik8sLeaders: map[string]*medik8sLeader{},
		steps: map[nodeAndCheck][]*remediationObject{}, deleted: map[types.UID]*node{},
	}
}

// nodeAndCheck identifies the treatment of one node by one health check.
type nodeAndCheck struct {
	node  types.UID
	check string
}

// healthCheck is a NodeHealthCheck, or only the name of a missing NodeHealthCheck.
type healthCheck struct {
	name     string
	object   *unstructured.Unstructured // nil if it does not exist
	spec     *checkSpec                 // nil if it does not exist
	valid    *checkSpec                 // the last valid spec, nil if the health check does not exist
	previous *checkSpec                 // the valid spec before the last edit
	edited   time.Time
	off      string // why its mode starts nothing, empty if it may

	selected, notHealthy int
	bound                int
	bounds               []pastBound

	// overSince is when the number of unhealthy nodes exceeded the bound, calmSince when it
	// fell below it again, and stormReported when the status started to report a storm.
	overSince, calmSince time.Time
	stormReported        time.Time
}

// nodeCheck is the history of one node under one health check.
type nodeCheck struct {
	selected, notHealthy bool      // how the health check counts the node
	notHealthySince      time.Time // without interruption
	unhealthySince       time.Time // without interruption
	healthy              clock     // since when the node has no unhealthy condition

	// These are the last times at which the health check asked for a treatment, for a later
	// step, and allowed a deletion. A decision of that time may arrive now.
	treatable, escalatable, endable time.Time

	// lost is true if another writer deleted our object. The controller may need some time
	// to create the next object.
	lost bool
}

// template is a remediation template with its recent versions.
type template struct {
	object   *unstructured.Unstructured // nil if it does not exist
	versions []templateVersion
}

type templateVersion struct {
	object *unstructured.Unstructured
	until  time.Time
}

// leaseHistory is the Lease of a node with its recent holders.
type leaseHistory struct {
	leaseState
	// lost is the time at which each health check last lost the Lease. Writes that it sent
	// before may arrive later.
	lost map[string]time.Time
}

// medik8sLeader is the time for which a leader of medik8s' own controller has been active.
type medik8sLeader struct {
	leaseState
	since, until time.Time
}

func (r *replay) check(name string) *healthCheck {
	h := r.health.checks[name]
	if h == nil {
		h = &healthCheck{name: name}
		r.health.checks[name] = h
		at, _ := slices.BinarySearch(r.health.inOrder, name)
		r.health.inOrder = slices.Insert(r.health.inOrder, at, name)
	}
	return h
}

func (n *node) check(check string) *nodeCheck {
	c := n.checks[check]
	if c == nil {
		c = &nodeCheck{}
		n.checks[check] = c
	}
	return c
}

func (r *replay) addCheckViolation(kind Kind, node, check, text string) {
	if r.suspects != "" { // the author is unknown, and may be us
		kind, text = UnknownAuthor, "it was done by "+r.suspects+", and if it was us: "+text
	}
	r.report.Violations = append(r.report.Violations, Violation{Kind: kind, At: r.at, Node: node, Check: check, Text: text})
}

func (r *replay) horizon() time.Time { return r.at.Time.Add(-r.cfg.Lag) }

// recent reports whether a fact that ended at this time may still be in the writer's cache.
func (r *replay) recent(until time.Time) bool {
	return !until.IsZero() && !until.Before(r.horizon())
}

// ---- nodes

// beforeNode stores which decisions about a node were allowed until now. Callers run it
// before every change that affects the node.
func (r *replay) beforeNode(n *node) {
	for _, name := range r.health.inOrder {
		r.beforeCheck(n, r.health.checks[name])
	}
}

func (r *replay) beforeCheck(n *node, h *healthCheck) {
	c := n.checks[h.name]
	if c == nil {
		return
	}
	if !c.unhealthySince.IsZero() && r.noTreatment(n, h, true) == "" {
		c.escalatable = r.at.Time
		if r.noTreatment(n, h, false) == "" {
			c.treatable = r.at.Time
		}
	}
	for _, o := range r.health.onNode[n.name] {
		if o.check == h.name && r.noEnd(n, h, o) == "" {
			c.endable = r.at.Time
		}
	}
}

func (r *replay) beforeAll(h *healthCheck) {
	for _, n := range r.nodes {
		r.beforeCheck(n, h)
	}
}

// updateChecks updates the state of a node under all health checks.
func (r *replay) updateChecks(n *node) {
	for _, name := range r.health.inOrder {
		r.updateCheck(n, r.health.checks[name])
	}
}

func (r *replay) updateCheck(n *node, h *healthCheck) {
	c := n.check(h.name)
	f := n.examine(h.valid)
	selected := h.valid.selects(n.labels)
	treated := slices.ContainsFunc(r.health.onNode[n.name], func(o *remediationObject) bool { return o.check == h.name && o.isOf(n) })
	unwell := selected && (f.verdict == holds || treated)
	since(&c.unhealthySince, f.verdict == holds, r.at.Time)
	since(&c.notHealthySince, unwell, r.at.Time)
	c.healthy.update(when(f.verdict == not), time.Time{}, r.at.Time, r.cfg.Lag)
	r.countCheck(h, c, selected, unwell)
}

// countCheck updates the counts of a health check.
func (r *replay) countCheck(h *healthCheck, c *nodeCheck, selected, unwell bool) {
	if c.selected != selected || c.notHealthy != unwell {
		h.selected += one(selected) - one(c.selected)
		h.notHealthy += one(unwell) - one(c.notHealthy)
		c.selected, c.notHealthy = selected, unwell
		r.measureCheck(h)
	}
}

// measureCheck computes the bound of a health check, keeps the old bound for a while, and
// detects storms.
func (r *replay) measureCheck(h *healthCheck) {
	if bound := h.valid.bound(h.selected); bound != h.bound {
		h.bounds = slices.DeleteFunc(h.bounds, func(p pastBound) bool { return p.until.Before(r.horizon()) })
		h.bounds = append(h.bounds, pastBound{h.bound, r.at.Time})
		h.bound = bound
	}
	over := h.notHealthy > h.bound
	// A controller that looks periodically misses a short storm.
	if !over && !h.overSince.IsZero() && (h.calmSince.IsZero() || h.overSince.Before(r.horizon())) {
		h.calmSince = r.at.Time
	}
	since(&h.overSince, over, r.at.Time)
}

// removeFromCounts removes a deleted node from all counts.
func (r *replay) removeFromCounts(n *node) {
	r.beforeNode(n)
	r.beforeRepair(n)
	gone := *n // with its last known state
	r.health.deleted[n.uid] = &gone
	r.addRemovedNode(n)
	r.removeFromRepair(n)
	r.removeFromRails(n)
	for _, name := range r.health.inOrder {
		r.countCheck(r.health.checks[name], n.check(name), false, false)
	}
	isReplaced := func(o *remediationObject) bool { return o.deletesNode && o.isOf(n) }
	r.health.kept = r.health.kept || onControlPlane(n.labels) && slices.ContainsFunc(r.health.onNode[n.name], isReplaced)
}

// ---- health checks

func (r *replay) checkChanged(change testbed.Change) {
	h := r.check(change.Name)
	before := h.object
	if ours, proved := r.authorOf(change, before); ours && proved {
		r.judgeCheckWrite(h, change)
	}
	if isDeleted(change) || before == nil || !sameCheck(before, change.Object) {
		object := change.Object
		if isDeleted(change) {
			object = nil
		}
		r.followCheck(h, object)
		h.off = switchedOffCheck(change.Object)
	}
	h.object = change.Object
	if isDeleted(change) {
		h.object = nil
	}
	since(&h.stormReported, statusCondition(h.object, "StormActive") == "True", r.at.Time)
}

// followCheck updates the specs of a health check for its newest version, nil if it is deleted.
func (r *replay) followCheck(h *healthCheck, object *unstructured.Unstructured) {
	r.beforeAll(h)
	h.edited, h.calmSince = r.at.Time, time.Time{}
	h.previous = h.valid
	h.spec, h.valid = r.specsOf(h, object)
	for _, n := range r.nodes {
		r.updateCheck(n, h)
	}
	r.measureCheck(h)
}

// specsOf returns the current spec of a health check, and the last valid spec. An invalid
// version does not change the last valid spec, except for valid windows. A version that
// interrupts remediations counts as invalid until they are over.
func (r *replay) specsOf(h *healthCheck, object *unstructured.Unstructured) (is, followed *checkSpec) {
	if object == nil {
		return nil, nil
	}
	is = readCheck(object)
	switch {
	case h.valid == nil && !is.isValid():
		return is, nil
	case is.isValid() && r.interrupts(h, is, object):
		return &checkSpec{invalid: interrupting, paused: is.paused}, h.valid
	case is.isValid():
		return is, is
	}
	kept := *h.valid
	if readCheckSpec(object.Object["spec"]).isValid() || kept.readWindows(object.GetAnnotations()) != nil {
		return is, h.valid
	}
	return is, &kept
}

const interrupting = "it interrupts remediations"

// interrupts reports whether a version changes the selector or the templates of the last valid spec during
// a remediation, and no user accepted that.
func (r *replay) interrupts(h *healthCheck, is *checkSpec, object *unstructured.Unstructured) bool {
	if h.valid == nil || object.GetAnnotations()[acceptImpactAnnotation] == "true" || is.actsAs(h.valid) {
		return false
	}
	for _, o := range r.health.objects {
		if o.check == h.name && o.checkUID == object.GetUID() && !o.deleting {
			return true
		}
	}
	return false
}

func statusCondition(object *unstructured.Unstructured, kind string) string {
	if object == nil {
		return ""
	}
	for _, row := range rows(object, "status", "conditions") {
		if text(row, "type") == kind {
			return text(row, "status")
		}
	}
	return ""
}

// authorOf reports whether a change of an object other than a node is ours, and whether
// that is proved. If the audit log does not name the author, the managedFields may.
func (r *replay) authorOf(change testbed.Change, before *unstructured.Unstructured) (ours, proved bool) {
	if ours, proved := r.authorByLog(change); proved {
		return ours, true
	}
	r.report.Unproved++
	if r.cfg.FieldManager == "" || isDeleted(change) {
		return false, false
	}
	if before == nil {
		before = &unstructured.Unstructured{Object: map[string]any{}}
	}
	manager, proved := authorByFields(before, change.Object)
	return manager == r.cfg.FieldManager, proved
}

// ---- remediation objects and templates

func (r *replay) remediationChanged(change testbed.Change) {
	if strings.HasSuffix(change.Object.GetKind(), "Template") {
		r.templateChanged(change)
		return
	}
	before := r.health.objects[change.UID]
	var was *unstructured.Unstructured
	if before != nil {
		was = before.object
	}
	ours, proved := r.authorOf(change, was)
	o := readRemediation(change.Object)
	if !proved && r.looksLikeOurs(before, o, change) {
		ours, r.suspects = true, change.Author.String()
	}
	defer func() { r.suspects = "" }()
	n := r.nodes[o.node]
	wasTreated, hadStep := false, false
	if n != nil {
		r.beforeNode(n)
		r.beforeRails(n)
		wasTreated, hadStep = r.isTreated(n), r.hadStep(n)
	}
	switch {
	case change.Type == watch.Added:
		o.ours, o.seen = ours, r.at.Time
		if ours {
			r.judgeCreation(o)
		}
		r.addRemediation(o)
		if ours {
			r.judgeGate(o)
			r.judgeObjectStep(o, wasTreated, hadStep)
		}
	case isDeleted(change):
		if !before.deleting {
			r.handleEnding(before, n, ours)
		}
		r.removeRemediation(before)
	default:
		o.ours, o.seen, o.deletesNodeSince = before.ours, before.seen, before.deletesNodeSince
		if ours {
			r.judgeRemediationWrite(before, o)
		}
		if o.deleting && !before.deleting {
			r.handleEnding(before, n, ours)
		}
		*before = *o
		r.noteDeletesNode(before)
	}
	if n != nil {
		r.updateChecks(n)
	}
	if h := r.check(o.check); h.object != nil && h.spec.invalid == interrupting {
		r.followCheck(h, h.object) // that was perhaps the last remediation
	}
}

// looksLikeOurs reports whether an unknown author made a change that only we make.
func (r *replay) looksLikeOurs(before, after *remediationObject, change testbed.Change) bool {
	switch {
	case after.check+after.policy == "":
		return false
	case change.Type == watch.Added:
		return true
	case isDeleted(change) || after.deleting != before.deleting:
		return !before.deleting
	}
	return before.timedOut != after.timedOut
}

// handleEnding handles the start of a deletion. It judges the deletion if we started it.
func (r *replay) handleEnding(o *remediationObject, n *node, ours bool) {
	switch {
	case ours:
		r.judgeEnding(o)
	case n != nil && o.check != "":
		n.check(o.check).lost = true
	}
}

// addRemediation adds a new object.
func (r *replay) addRemediation(o *remediationObject) {
	r.health.objects[o.uid] = o
	r.noteDeletesNode(o)
	r.health.onNode[o.node] = append(r.health.onNode[o.node], o)
	if o.controlPlane && o.check != "" {
		r.health.controlPlane = append(r.health.controlPlane, o)
	}
	n := r.nodes[o.node]
	if n == nil || o.check == "" || !o.isOf(n) {
		return
	}
	n.check(o.check).lost = false
	at, _ := r.check(o.check).valid.stepOf(o)
	key := nodeAndCheck{n.uid, o.check}
	objects := r.health.steps[key]
	if at == 0 {
		objects = nil // the first step starts over
	}
	for len(objects) <= at {
		objects = append(objects, nil)
	}
	objects[at] = o
	r.health.steps[key] = objects
	r.updateChecks(n)
	h := r.check(o.check)
	r.report.Peak[checkKind+"/"+h.name] = max(r.report.Peak[checkKind+"/"+h.name], h.notHealthy)
}

func (r *replay) removeRemediation(o *remediationObject) {
	delete(r.health.objects, o.uid)
	r.noteRemovedObject(o)
	isIt := func(other *remediationObject) bool { return other == o }
	r.health.controlPlane = slices.DeleteFunc(r.health.controlPlane, isIt)
	left := slices.DeleteFunc(r.health.onNode[o.node], isIt)
	if r.health.onNode[o.node] = left; len(left) == 0 {
		delete(r.health.onNode, o.node)
	}
}

func (r *replay) templateChanged(change testbed.Change) {
	key := templateName{change.Object.GroupVersionKind().GroupKind(), change.Namespace, change.Name}
	t := r.health.templates[key]
	if t == nil {
		t = &template{}
		r.health.templates[key] = t
	}
	if ours, proved := r.authorOf(change, t.object); ours && proved {
		r.addCheckViolation(ForeignTouched, "", "", "we wrote to the template "+key.String())
	}
	t.versions = slices.DeleteFunc(t.versions, func(v templateVersion) bool { return v.until.Before(r.horizon()) })
	t.versions = append(t.versions, templateVersion{t.object, r.at.Time})
	t.object = change.Object
	if isDeleted(change) {
		t.object = nil
	}
}

// template returns an existing or former template, nil if there was none.
func (r *replay) template(name templateName) *template {
	if t := r.health.templates[name]; t != nil {
		return t
	}
	name.namespace = "" // the kind is cluster-scoped, but the reference has a namespace
	return r.health.templates[name]
}

// templatesOf returns the versions of a template that may be in a writer's cache.
func (r *replay) templatesOf(name templateName) []*unstructured.Unstructured {
	t := r.template(name)
	if t == nil {
		return nil
	}
	var known []*unstructured.Unstructured
	if t.object != nil {
		known = append(known, t.object)
	}
	for _, v := range t.versions {
		if v.object != nil && r.recent(v.until) {
			known = append(known, v.object)
		}
	}
	return known
}

// ---- Leases

func (r *replay) leaseChanged(change testbed.Change) {
	if change.Name == peerLease {
		r.medik8sLeaseChanged(change)
		return
	}
	node, ok := strings.CutPrefix(change.Name, leasePrefix)
	if change.Namespace != leaseNamespace || !ok {
		return
	}
	l := r.health.leases[node]
	if l == nil {
		l = &leaseHistory{lost: map[string]time.Time{}}
		r.health.leases[node] = l
	}
	after := readLease(change.Object)
	if isDeleted(change) {
		after = leaseState{}
	}
	ours, proved := r.authorOf(change, l.object)
	if ours && proved {
		r.judgeLeaseWrite(node, l.leaseState, after)
	}
	if l.ofCheck() && l.holder != after.holder {
		l.lost[strings.TrimPrefix(l.holder, holderPrefix)] = r.at.Time
	}
	l.leaseState = after
}

func (r *replay) medik8sLeaseChanged(change testbed.Change) {
	p := r.health.medik8sLeaders[change.Namespace]
	if p == nil {
		p = &medik8sLeader{}
		r.health.medik8sLeaders[change.Namespace] = p
	}
	if ours, proved := r.authorOf(change, p.object); ours && proved {
		r.addCheckViolation(ForeignTouched, "", "", "we wrote to the Lease "+change.Namespace+"/"+change.Name)
	}
	was := p.leaseState
	if p.leaseState = readLease(change.Object); isDeleted(change) || p.holder == "" {
		p.leaseState, p.until = leaseState{}, time.Time{}
		return
	}
	if was.holder == p.holder && was.renewed.Equal(p.renewed) && was.object != nil {
		return // it was not renewed
	}
	if !r.at.Time.Before(p.until) {
		p.since = r.at.Time
	}
	lasts := p.lasts
	if lasts == 0 {
		lasts = peerLeaseLasts
	}
	p.until = r.at.Time.Add(lasts)
}

// activeMedik8sLease returns the name of the Lease of medik8s' own controller, if that
// controller is active and every client must know it by now.
func (r *replay) activeMedik8sLease() string {
	for namespace, p := range r.health.medik8sLeaders {
		if settled(p.since, r.horizon()) && r.at.Time.Before(p.until.Add(-r.cfg.Lag)) {
			return namespace + "/" + peerLease + " of " + p.holder
		}
	}
	return ""
}

// mayBeMedik8sActive reports whether medik8s' own controller may be active.
func (r *replay) mayBeMedik8sActive() bool {
	for _, p := range r.health.medik8sLeaders {
		if !p.until.IsZero() && r.at.Time.Before(p.until.Add(r.cfg.Lag)) {
			return true
		}
	}
	return false
}

// differsOnlyInOwnership reports whether two statuses differ only in the conditions that say which
// controller follows the health check. medik8s has neither of them.
func differsOnlyInOwnership(a, b *unstructured.Unstructured) bool {
	strip := func(object *unstructured.Unstructured) map[string]any {
		status := copied(object.Object["status"])
		conditions := []map[string]any{}
		for _, row := range rows(object, "status", "conditions") {
			if kind := text(row, "type"); kind != "StandingBack" && kind != "Ready" {
				conditions = append(conditions, row)
			}
		}
		status["conditions"] = conditions
		for field, value := range status {
			if value == nil || reflect.ValueOf(value).IsZero() { // an empty value
				delete(status, field)
			}
		}
		return status
	}
	return equality.Semantic.DeepEqual(strip(a), strip(b))
}
