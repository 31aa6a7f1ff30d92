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

// ward is what is known of health checks, and of the remediation objects, templates
// and Leases that they are about.
type ward struct {
	checks   map[string]*healthCheck
	inOrder  []string // their names, so that they are judged in the same order every time
	remedies map[types.UID]*remedy
	onNode   map[string][]*remedy // by the name of the node
	// controlPlane are those of nodes of the control plane, in the order in which
	// they were made.
	controlPlane []*remedy
	templates    map[templateName]*template
	locks        map[string]*lockCourse // by the name of the node
	peers        map[string]*tenure     // by namespace
	ladders      map[ladderOf][]*remedy // what was made of each step the last time
	departed     map[types.UID]*node
	lost         []*loss
	arrivals     []arrival
	// kept says that a node of the control plane went while it was being replaced:
	// then nobody can tell from outside for how long its place is kept.
	kept bool
}

func newWard() ward {
	return ward{
		checks: map[string]*healthCheck{}, remedies: map[types.UID]*remedy{}, onNode: map[string][]*remedy{},
		templates: map[templateName]*template{}, locks: map[string]*lockCourse{}, peers: map[string]*tenure{},
		ladders: map[ladderOf][]*remedy{}, departed: map[types.UID]*node{},
	}
}

// ladderOf is what one health check does about one node.
type ladderOf struct {
	node  types.UID
	check string
}

// healthCheck is a NodeHealthCheck, or the name of one.
type healthCheck struct {
	name     string
	object   *unstructured.Unstructured // nil while there is none
	regimen  *regimen                   // nil while there is none
	followed *regimen                   // the last one that could be followed, while there is one
	before   *regimen                   // what was followed before the last edit
	edited   time.Time

	selected, unwell int
	bound            int
	bounds           []pastBound

	// Since when too many nodes are not healthy, since when no longer, and since when
	// the status tells of a storm.
	overSince, calmSince time.Time
	stormTold            time.Time
}

// care is how things have gone between a node and a health check.
type care struct {
	selected, unwell bool      // what the node adds to the numbers
	unwellSince      time.Time // without a break
	sickSince        time.Time // likewise
	well             clock     // since when no sign of sickness stands

	// When the health check last asked for a treatment, for a later step of one, and
	// last let one end: what was decided then may arrive now.
	treatable, escalatable, endable time.Time

	// lost says that somebody else has deleted what we made, and that it may be a
	// while until there is another.
	lost bool
}

// template is a template, and what it was.
type template struct {
	object   *unstructured.Unstructured // nil while there is none
	versions []templateVersion
}

type templateVersion struct {
	object *unstructured.Unstructured
	until  time.Time
}

// lockCourse is a node's Lease, and whose it was.
type lockCourse struct {
	lock
	// lost is, by health check, when it last had the Lease no more: what was sent
	// while it did may arrive later.
	lost map[string]time.Time
}

// tenure is how long a leader of medik8s' own controller has been at work.
type tenure struct {
	lock
	since, until time.Time
}

func (r *replay) check(name string) *healthCheck {
	h := r.ward.checks[name]
	if h == nil {
		h = &healthCheck{name: name}
		r.ward.checks[name] = h
		at, _ := slices.BinarySearch(r.ward.inOrder, name)
		r.ward.inOrder = slices.Insert(r.ward.inOrder, at, name)
	}
	return h
}

func (n *node) care(check string) *care {
	c := n.cares[check]
	if c == nil {
		c = &care{}
		n.cares[check] = c
	}
	return c
}

func (r *replay) tellOf(kind Kind, node, check, text string) {
	if r.suspects != "" { // whoever it was, it may have been us
		kind, text = UnknownAuthor, "it was done by "+r.suspects+", and if it was us: "+text
	}
	r.report.Violations = append(r.report.Violations, Violation{Kind: kind, At: r.at, Node: node, Check: check, Text: text})
}

func (r *replay) horizon() time.Time { return r.at.Time.Add(-r.cfg.Lag) }

// recent says whether something was so until a moment that a writer may have known
// last.
func (r *replay) recent(until time.Time) bool {
	return !until.IsZero() && !until.Before(r.horizon())
}

// ---- nodes

// windSigns brings the clocks of a condition up to date.
func (r *replay) windSigns(n *node, name string, is condition, there bool) {
	if n.signs[name] == nil {
		n.signs[name] = new([allStatuses]clock)
	}
	for s := statuses(1); s < allStatuses; s++ {
		n.signs[name][s].wind(s.of(is, there), is.stamp, r.at.Time, r.cfg.Lag)
	}
}

// beforeNode notes what could be decided about a node until now. It comes before
// anything changes that bears on it.
func (r *replay) beforeNode(n *node) {
	for _, name := range r.ward.inOrder {
		r.beforeCare(n, r.ward.checks[name])
	}
}

func (r *replay) beforeCare(n *node, h *healthCheck) {
	c := n.cares[h.name]
	if c == nil {
		return
	}
	if !c.sickSince.IsZero() && r.noTreatment(n, h, true) == "" {
		c.escalatable = r.at.Time
		if r.noTreatment(n, h, false) == "" {
			c.treatable = r.at.Time
		}
	}
	for _, o := range r.ward.onNode[n.name] {
		if o.check == h.name && r.noEnd(n, h, o) == "" {
			c.endable = r.at.Time
		}
	}
}

func (r *replay) beforeAll(h *healthCheck) {
	for _, n := range r.nodes {
		r.beforeCare(n, h)
	}
}

// attend brings up to date how things stand between a node and all health checks.
func (r *replay) attend(n *node) {
	for _, name := range r.ward.inOrder {
		r.attendCheck(n, r.ward.checks[name])
	}
}

func (r *replay) attendCheck(n *node, h *healthCheck) {
	c := n.care(h.name)
	f := n.examine(h.followed)
	selected := h.followed.selects(n.labels)
	treated := slices.ContainsFunc(r.ward.onNode[n.name], func(o *remedy) bool { return o.check == h.name && o.isOf(n) })
	unwell := selected && (f.verdict == holds || treated)
	since(&c.sickSince, f.verdict == holds, r.at.Time)
	since(&c.unwellSince, unwell, r.at.Time)
	c.well.wind(when(f.verdict == not), time.Time{}, r.at.Time, r.cfg.Lag)
	r.countCare(h, c, selected, unwell)
}

// countCare keeps the numbers of a health check.
func (r *replay) countCare(h *healthCheck, c *care, selected, unwell bool) {
	if c.selected != selected || c.unwell != unwell {
		h.selected += one(selected) - one(c.selected)
		h.unwell += one(unwell) - one(c.unwell)
		c.selected, c.unwell = selected, unwell
		r.measureCheck(h)
	}
}

// measureCheck works out the bound of a health check, keeps the old one for a while,
// and sees whether there is a storm.
func (r *replay) measureCheck(h *healthCheck) {
	if bound := h.followed.bound(h.selected); bound != h.bound {
		h.bounds = slices.DeleteFunc(h.bounds, func(p pastBound) bool { return p.until.Before(r.horizon()) })
		h.bounds = append(h.bounds, pastBound{h.bound, r.at.Time})
		h.bound = bound
	}
	over := h.unwell > h.bound
	// Who looks now and then does not see a short one.
	if !over && !h.overSince.IsZero() && (h.calmSince.IsZero() || h.overSince.Before(r.horizon())) {
		h.calmSince = r.at.Time
	}
	since(&h.overSince, over, r.at.Time)
}

// discharge takes a node that is gone out of all numbers.
func (r *replay) discharge(n *node) {
	r.beforeNode(n)
	r.beforeRepair(n)
	gone := *n // with what is known of it now
	r.ward.departed[n.uid] = &gone
	r.lose(n)
	r.loseNode(n)
	for _, name := range r.ward.inOrder {
		r.countCare(r.ward.checks[name], n.care(name), false, false)
	}
	isReplaced := func(o *remedy) bool { return o.deletesNode && o.isOf(n) }
	r.ward.kept = r.ward.kept || onControlPlane(n.labels) && slices.ContainsFunc(r.ward.onNode[n.name], isReplaced)
}

// ---- health checks

func (r *replay) checkChanged(change testbed.Change) {
	h := r.check(change.Name)
	before := h.object
	if ours, proved := r.authorOf(change, before); ours && proved {
		r.judgeCheckWrite(h, change)
	}
	if isDeleted(change) || before == nil || !reflect.DeepEqual(before.Object["spec"], change.Object.Object["spec"]) || before.GetUID() != change.UID {
		r.beforeAll(h)
		h.edited, h.calmSince = r.at.Time, time.Time{}
		h.before = h.followed
		h.regimen, h.followed = r.readCheck(h, change)
		for _, n := range r.nodes {
			r.attendCheck(n, h)
		}
		r.measureCheck(h)
	}
	h.object = change.Object
	if isDeleted(change) {
		h.object = nil
	}
	since(&h.stormTold, statusCondition(h.object, "StormActive") == "True", r.at.Time)
}

// readCheck returns what a health check asks for now, and what is followed of it: a
// version that cannot be followed changes nothing about the one before.
func (r *replay) readCheck(h *healthCheck, change testbed.Change) (is, followed *regimen) {
	if isDeleted(change) {
		return nil, nil
	}
	is = readRegimen(change.Object.Object["spec"])
	if is.follows() {
		return is, is
	}
	return is, h.followed
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

// authorOf says whether a change of something else than a node is ours, and whether
// that is proved. Where the audit log cannot tell, the fields may.
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
	before := r.ward.remedies[change.UID]
	var was *unstructured.Unstructured
	if before != nil {
		was = before.object
	}
	ours, proved := r.authorOf(change, was)
	o := readRemedy(change.Object)
	if !proved && r.looksLikeOurs(before, o, change) {
		ours, r.suspects = true, change.Author.String()
	}
	defer func() { r.suspects = "" }()
	n := r.nodes[o.node]
	if n != nil {
		r.beforeNode(n)
	}
	switch {
	case change.Type == watch.Added:
		o.ours, o.seen = ours, r.at.Time
		if ours {
			r.judgeCreation(o)
		}
		r.admit(o)
		if ours {
			r.judgeGate(o)
		}
	case isDeleted(change):
		if !before.deleting {
			r.heedEnding(before, n, ours)
		}
		r.dismiss(before)
	default:
		o.ours, o.seen, o.meant = before.ours, before.seen, before.meant
		if ours {
			r.judgeRemedyWrite(before, o)
		}
		if o.deleting && !before.deleting {
			r.heedEnding(before, n, ours)
		}
		*before = *o
		r.heedMeaning(before)
	}
	if n != nil {
		r.attend(n)
	}
}

// looksLikeOurs says whether somebody unknown did what we do.
func (r *replay) looksLikeOurs(before, after *remedy, change testbed.Change) bool {
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

// heedEnding takes in that the end of an object has begun, which is to be judged if
// it is our doing.
func (r *replay) heedEnding(o *remedy, n *node, ours bool) {
	switch {
	case ours:
		r.judgeEnding(o)
	case n != nil && o.check != "":
		n.care(o.check).lost = true
	}
}

// admit takes in an object that is new.
func (r *replay) admit(o *remedy) {
	r.ward.remedies[o.uid] = o
	r.heedMeaning(o)
	r.ward.onNode[o.node] = append(r.ward.onNode[o.node], o)
	if o.controlPlane && o.check != "" {
		r.ward.controlPlane = append(r.ward.controlPlane, o)
	}
	n := r.nodes[o.node]
	if n == nil || o.check == "" || !o.isOf(n) {
		return
	}
	n.care(o.check).lost = false
	at, _ := r.check(o.check).followed.stepOf(o)
	key := ladderOf{n.uid, o.check}
	ladder := r.ward.ladders[key]
	if at == 0 {
		ladder = nil // from the beginning
	}
	for len(ladder) <= at {
		ladder = append(ladder, nil)
	}
	ladder[at] = o
	r.ward.ladders[key] = ladder
	r.attend(n)
	h := r.check(o.check)
	r.report.Peak[checkKind+"/"+h.name] = max(r.report.Peak[checkKind+"/"+h.name], h.unwell)
}

func (r *replay) dismiss(o *remedy) {
	delete(r.ward.remedies, o.uid)
	r.loseTrace(o)
	isIt := func(other *remedy) bool { return other == o }
	r.ward.controlPlane = slices.DeleteFunc(r.ward.controlPlane, isIt)
	left := slices.DeleteFunc(r.ward.onNode[o.node], isIt)
	if r.ward.onNode[o.node] = left; len(left) == 0 {
		delete(r.ward.onNode, o.node)
	}
}

func (r *replay) templateChanged(change testbed.Change) {
	key := templateName{change.Object.GroupVersionKind().GroupKind(), change.Namespace, change.Name}
	t := r.ward.templates[key]
	if t == nil {
		t = &template{}
		r.ward.templates[key] = t
	}
	if ours, proved := r.authorOf(change, t.object); ours && proved {
		r.tellOf(ForeignTouched, "", "", "we wrote to the template "+key.String())
	}
	t.versions = slices.DeleteFunc(t.versions, func(v templateVersion) bool { return v.until.Before(r.horizon()) })
	t.versions = append(t.versions, templateVersion{t.object, r.at.Time})
	t.object = change.Object
	if isDeleted(change) {
		t.object = nil
	}
}

// template returns a template that is there or was, nil if there never was one.
func (r *replay) template(name templateName) *template {
	if t := r.ward.templates[name]; t != nil {
		return t
	}
	name.namespace = "" // its kind has none, and it was referred to with one
	return r.ward.templates[name]
}

// templatesOf returns the versions of a template that a writer may have known.
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
		r.peerChanged(change)
		return
	}
	node, ok := strings.CutPrefix(change.Name, leasePrefix)
	if change.Namespace != leaseNamespace || !ok {
		return
	}
	l := r.ward.locks[node]
	if l == nil {
		l = &lockCourse{lost: map[string]time.Time{}}
		r.ward.locks[node] = l
	}
	after := readLock(change.Object)
	if isDeleted(change) {
		after = lock{}
	}
	ours, proved := r.authorOf(change, l.object)
	if ours && proved {
		r.judgeLeaseWrite(node, l.lock, after)
	}
	if l.ofCheck() && l.holder != after.holder {
		l.lost[strings.TrimPrefix(l.holder, holderPrefix)] = r.at.Time
	}
	l.lock = after
}

func (r *replay) peerChanged(change testbed.Change) {
	p := r.ward.peers[change.Namespace]
	if p == nil {
		p = &tenure{}
		r.ward.peers[change.Namespace] = p
	}
	if ours, proved := r.authorOf(change, p.object); ours && proved {
		r.tellOf(ForeignTouched, "", "", "we wrote to the Lease "+change.Namespace+"/"+change.Name)
	}
	was := p.lock
	if p.lock = readLock(change.Object); isDeleted(change) || p.holder == "" {
		p.lock, p.until = lock{}, time.Time{}
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

// peer names the Lease of medik8s' own controller if it has been at work for so long
// that everybody must know, and is still.
func (r *replay) peer() string {
	for namespace, p := range r.ward.peers {
		if settled(p.since, r.horizon()) && r.at.Time.Before(p.until.Add(-r.cfg.Lag)) {
			return namespace + "/" + peerLease + " of " + p.holder
		}
	}
	return ""
}

// mayBePeer says whether it may be at work.
func (r *replay) mayBePeer() bool {
	for _, p := range r.ward.peers {
		if !p.until.IsZero() && r.at.Time.Before(p.until.Add(r.cfg.Lag)) {
			return true
		}
	}
	return false
}

// sameButStandingBack says whether two statuses differ in nothing but the condition
// that says who follows the health checks.
func sameButStandingBack(a, b *unstructured.Unstructured) bool {
	strip := func(object *unstructured.Unstructured) map[string]any {
		status := copied(object.Object["status"])
		conditions := []map[string]any{}
		for _, row := range rows(object, "status", "conditions") {
			if text(row, "type") != "StandingBack" {
				conditions = append(conditions, row)
			}
		}
		status["conditions"] = conditions
		for field, value := range status {
			if value == nil || reflect.ValueOf(value).IsZero() { // says nothing
				delete(status, field)
			}
		}
		return status
	}
	return equality.Semantic.DeepEqual(strip(a), strip(b))
}
