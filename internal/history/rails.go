package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/naive"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// railState is the history of Guardrails, and of what they count.
type railState struct {
	object   *unstructured.Unstructured // nil if it does not exist
	valid    *rails                     // the last valid version of the object, nil for none
	defaults *rails                     // in force without an object, nil if they are unknown
	versions []railVersion              // the newest is last
	deleted  []deletedNode              // within the lag and the delay
	starts   []time.Time                // of treatments, within the period of the pace
}

// newRailState returns the state before there is an object.
func newRailState(cfg Config) (s railState) {
	if cfg.DefaultMode != "" {
		s.defaults = defaultRails(cfg.DefaultMode)
		s.versions = []railVersion{{s.defaults, time.Time{}}}
	}
	return s
}

// mayHold reports whether Guardrails, or the defaults of deleted ones, may hold a step back.
func (s *railState) mayHold() bool {
	if len(s.versions) == 0 {
		return false
	}
	last := s.versions[len(s.versions)-1].rails
	return last == nil || !last.isRoomy()
}

// railVersion has the limits from a time on, nil for none.
type railVersion struct {
	rails *rails
	from  time.Time
}

// rails are parsed Guardrails.
type rails struct {
	held                       map[v1alpha1.Stage]string // why a stage may start nothing
	inTreatment, unschedulable naive.Limit
	topology                   []share
	pace                       naive.Limit
	atLeast                    int // of the pace
	period                     time.Duration
	attempts                   int // of maxAttempts, 0 for any number
	window                     time.Duration
	failure                    *failureRail // nil for none
	released                   time.Time    // until when correlated failures hold nothing
	respect                    v1alpha1.Respect
}

// share is a limit on the nodes with the same value of a label.
type share struct {
	key   string
	limit naive.Limit
}

// deletedNode is a node that a writer may not know to be gone.
type deletedNode struct {
	object *unstructured.Unstructured
	at     time.Time
}

// nodeRails is the history of a node under Guardrails.
type nodeRails struct {
	closedSince time.Time // by other clients, without interruption
	lastOpen    time.Time // when it last was Ready, open to new pods and not in treatment
	lastStep    time.Time // when it last had a remediation or a mark of ours
	// work is since when others work on it, without interruption.
	work         [kindsOfWork]time.Time
	pauseChanged time.Time
	relabelled   time.Time // when its labels or its image last changed
}

// The stages of Guardrails.
const (
	taints       v1alpha1.Stage = "Taint"
	remediations v1alpha1.Stage = "Remediate"
	repairs      v1alpha1.Stage = "Repair"
)

// railStep is what a write of ours starts on a node.
type railStep struct {
	stage  v1alpha1.Stage
	what   string
	treats bool // it starts a treatment, which the pace counts
	enters bool // the node was not in treatment before
	closes bool // no taint of ours closed the node before
	evicts bool // it places NoExecute
	acts   bool // it is a step of a remediation or of a repair
	forces bool // it ends a drain

	hadStep bool                       // a remediation or a mark of ours may have been on the node before
	object  *remediationObject         // that we created
	node    *unstructured.Unstructured // before the write; nil if we did not write to the node
}

// The prefixes of taints that close a node for a while. All other taints of other clients
// dedicate a node to certain pods.
var temporaryTaints = []string{"node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", "ToBeDeletedByClusterAutoscaler"}

func (r *replay) railsChanged(change testbed.Change) {
	if ours, proved := r.authorOf(change, r.rails.object); ours && proved {
		r.report.RailStatuses++
		judgeStatusWrite("Guardrails", r.rails.object, change, func(kind Kind, text string) { r.addCheckViolation(kind, "", "", text) })
	}
	r.rails.object = change.Object
	if isDeleted(change) {
		r.rails.object, r.rails.valid = nil, nil
		r.rails.versions = append(r.rails.versions, railVersion{r.rails.defaults, r.at.Time})
		return
	}
	next, err := readRails(change.Object.Object["spec"])
	switch base := cmp.Or(r.rails.valid, r.rails.defaults); {
	case err == nil:
		r.rails.valid = next
	case base == nil:
		return
	default: // the last valid version stays in force
		next = base
	}
	next = new(*next)
	// An invalid version can pause everything, too.
	if mode, _, _ := unstructured.NestedString(change.Object.Object, "spec", "mode"); mode == string(v1alpha1.Paused) || isPaused(change.Object) {
		next.held = heldBy(v1alpha1.Paused, nil)
	}
	next.released = releasedUntil(change.Object)
	if at := len(r.rails.versions) - 1; at < 0 || !reflect.DeepEqual(r.rails.versions[at].rails, next) {
		r.rails.versions = append(r.rails.versions, railVersion{next, r.at.Time})
	}
}

// allNodes is a limit of 100%. If both limits on nodes are, the last open node is not protected.
var allNodes = naive.Limit{Number: 100, Percent: true}

func (l *rails) protectsLast() bool { return l.inTreatment != allNodes || l.unschedulable != allNodes }

// isRoomy reports whether the rails hold nothing in a test cluster.
func (l *rails) isRoomy() bool {
	isOften := l.attempts == 0 || l.attempts >= 1000
	return len(l.held) == 0 && !l.protectsLast() && len(l.topology) == 0 && l.pace == allNodes && isOften && l.failure == nil
}

// defaultRails returns the limits of a cluster without Guardrails.
func defaultRails(mode v1alpha1.Mode) *rails {
	half := naive.Limit{Number: 49, Percent: true}
	return &rails{
		held: heldBy(mode, nil), inTreatment: half, unschedulable: half, topology: []share{{corev1.LabelTopologyZone, half}},
		pace: naive.Limit{Number: 10, Percent: true}, atLeast: 2, period: time.Minute, attempts: 3, window: 24 * time.Hour,
		failure: &failureRail{naive.Limit{Number: 50, Percent: true}, 3, 5 * time.Minute, []string{
			corev1.LabelTopologyZone, poolLabel, "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool",
			corev1.LabelInstanceTypeStable, imageKey,
		}, 0},
	}
}

// heldBy says by stage why nothing may start. Without a list all stages act in mode Enforce.
func heldBy(mode v1alpha1.Mode, enforce []v1alpha1.Stage) map[v1alpha1.Stage]string {
	held := map[v1alpha1.Stage]string{}
	for _, stage := range []v1alpha1.Stage{taints, remediations, repairs} {
		switch {
		case mode != v1alpha1.Enforce && mode != "":
			held[stage] = "the mode is " + string(mode)
		case enforce != nil && !slices.Contains(enforce, stage):
			held[stage] = "enforce does not list " + string(stage)
		}
	}
	return held
}

// readRails parses the stored spec, in which the API server has set all defaults.
func readRails(spec any) (*rails, error) {
	s, err := decoded[v1alpha1.GuardrailsSpec](spec)
	if err != nil {
		return nil, err
	}
	if s.Unreadable != "" {
		return nil, errors.New(s.Unreadable)
	}
	read := &rails{held: heldBy(s.Mode, s.Enforce), respect: s.Respect}
	limit := func(value *intstr.IntOrString) (l naive.Limit) {
		if value == nil {
			err = errors.New("a limit is missing")
			return l
		}
		l, problem := limitIn(value.String())
		if problem != nil {
			err = problem
		}
		return l
	}
	read.inTreatment, read.unschedulable, read.pace = limit(s.MaxInTreatment), limit(s.MaxUnschedulable), limit(s.Pace.Max)
	for _, t := range s.Topology {
		read.topology = append(read.topology, share{t.Key, limit(t.Max)})
	}
	if s.Pace.AtLeast != nil && read.pace.Percent && read.pace.Number > 0 {
		read.atLeast = int(*s.Pace.AtLeast)
	}
	failure, problem := readFailures(s.CorrelatedFailure)
	if read.failure = failure; errors.Join(err, problem) != nil {
		return nil, errors.Join(err, problem)
	}
	if read.period, err = duration(s.Pace.Period); err != nil || s.MaxAttempts.Limit == 0 {
		return read, err
	}
	read.attempts = int(s.MaxAttempts.Limit)
	read.window, err = duration(s.MaxAttempts.Window)
	return read, err
}

// railViews returns the Guardrails that may be in a writer's cache, the newest first. It
// returns none if the writer may know of no Guardrails.
func (r *replay) railViews() (views []*rails) {
	for _, v := range slices.Backward(r.rails.versions) {
		if v.rails == nil {
			return nil
		}
		views = append(views, v.rails)
		if v.from.Before(r.horizon()) {
			return views
		}
	}
	return nil
}

// ---- nodes

// beforeRails stores whether a node was open until now.
func (r *replay) beforeRails(n *node) {
	if n.object == nil {
		return
	}
	if r.isOpen(n) {
		n.lastOpen = r.at.Time
	}
	if r.hasStep(n) {
		n.lastStep = r.at.Time
	}
}

// removeFromRails stores that a node is deleted.
func (r *replay) removeFromRails(n *node) {
	oldest := r.at.Time.Add(-max(r.cfg.Lag, r.cfg.Delay))
	r.rails.deleted = slices.DeleteFunc(r.rails.deleted, func(d deletedNode) bool { return d.at.Before(oldest) })
	r.rails.deleted = append(r.rails.deleted, deletedNode{n.object, r.at.Time})
}

// closedByOthers reports whether another client has closed the node to new pods for a while.
func (f *facts) closedByOthers() bool {
	if f.object == nil {
		return false
	}
	cordoned, _, _ := unstructured.NestedBool(f.object.Object, "spec", "unschedulable")
	return cordoned || slices.ContainsFunc(f.taints, func(t taint) bool {
		isTemporary := func(prefix string) bool { return strings.HasPrefix(t.key, prefix) }
		return strength[t.effect] >= strength[noSchedule] && !f.record.owns(t) && slices.ContainsFunc(temporaryTaints, isTemporary)
	})
}

// closedByUs reports whether a taint of ours closes the node to new pods.
func (f *facts) closedByUs() bool {
	return slices.ContainsFunc(f.taints, func(t taint) bool { return strength[t.effect] >= strength[noSchedule] && f.record.owns(t) })
}

// isOpen reports whether a node is Ready, open to new pods and not in treatment.
func (r *replay) isOpen(n *node) bool {
	isTainted := func(t taint) bool { return strength[t.effect] >= strength[noSchedule] }
	return n.isReady() && !n.closedByOthers() && !slices.ContainsFunc(n.taints, isTainted) && !r.isTreated(n)
}

// isTreated reports whether a node certainly is in a disruptive treatment of ours: by the
// NoExecute taint of a set that selects it, by a remediation object, or by a mark.
func (r *replay) isTreated(n *node) bool {
	for name := range n.carried {
		if s := r.sets[name]; s != nil && s.rule.placesTaints() && s.rule.selects(n.labels) && n.carries(name, noExecute) {
			return true
		}
	}
	isRemedy := func(o *remediationObject) bool {
		return (o.check != "" && r.check(o.check).object != nil || o.policy != "" && r.repairs.policies[o.policy] != nil) && o.isOf(n) && !o.deleting
	}
	if slices.ContainsFunc(r.health.onNode[n.name], isRemedy) {
		return true
	}
	isMarked := func(m *claimState) bool { return m.markedByUs && m.mark.NodeUID == n.uid }
	return n.providerID() != "" && slices.ContainsFunc(r.repairs.byID[n.providerID()], isMarked)
}

// unreplaced counts the deleted nodes that certainly are not replaced yet.
func (r *replay) unreplaced() (gone int) {
	for name := range r.repairs.pools {
		_, ofPool := r.taken(name)
		gone += ofPool
	}
	for _, h := range r.health.checks {
		gone += r.surelyGone(h)
	}
	return gone
}

// mostNodes returns how many nodes with a property the writer may know at most.
func (r *replay) mostNodes(has func(labels map[string]string) bool) (most int) {
	for _, n := range r.nodes {
		most += one(has(n.labels))
	}
	for _, d := range r.rails.deleted {
		most += one(r.recent(d.at) && has(d.object.GetLabels()))
	}
	return most
}

// ---- our writes

// judgeStep judges a step of ours by Guardrails, after it is counted. Every version that the
// writer may have known must forbid it.
func (r *replay) judgeStep(n *node, s railStep) {
	if s.treats {
		r.rails.starts = append(r.rails.starts, r.at.Time)
	}
	views := r.railViews()
	if r.nodes[n.name] != n {
		return
	}
	if why := r.paused(n, s); why != "" {
		r.addCheckViolation(RailIgnored, n.name, "", fmt.Sprintf("we %s, but %s", s.what, why))
		return
	}
	if len(views) == 0 {
		return
	}
	r.report.Railed++
	why := ""
	for _, view := range views {
		objection := r.railAgainst(n, s, view)
		if objection == "" {
			return
		}
		if why == "" {
			why = objection // of the newest version
		}
	}
	r.addCheckViolation(RailIgnored, n.name, "", fmt.Sprintf("we %s, but %s", s.what, why))
}

// railAgainst returns which limit a step exceeds.
func (r *replay) railAgainst(n *node, s railStep, view *rails) string {
	if why := view.held[s.stage]; why != "" {
		return why
	}
	if s.acts {
		if why := r.othersWork(n, s, view.respect); why != "" {
			return why
		}
	}
	if s.acts || s.evicts {
		if why := r.failedTogether(n, s, view); why != "" {
			return why
		}
	}
	if view.protectsLast() && (s.enters || s.closes) {
		if why := r.lastOpenNode(n); why != "" {
			return why
		}
	}
	if s.closes {
		if why := r.maxUnschedulable(view); why != "" {
			return why
		}
	}
	if s.enters {
		if why := r.maxInTreatment(n, view); why != "" {
			return why
		}
	}
	if s.treats && view.attempts > 0 {
		if why := r.tooOften(n, view); why != "" {
			return why
		}
	}
	if s.treats && view.pace != allNodes {
		return r.tooFast(view)
	}
	return ""
}

// lastOpenNode judges whether the node was the last open node, also within the lag.
func (r *replay) lastOpenNode(n *node) string {
	if !n.lastOpen.Equal(r.at.Time) {
		return "" // it was not open before the write
	}
	for _, other := range r.nodes {
		if other != n && (r.isOpen(other) || r.recent(other.lastOpen) && !other.closedByUs() && !r.isTreated(other)) {
			return ""
		}
	}
	return "it was the last node that is Ready and schedulable"
}

func (r *replay) maxUnschedulable(view *rails) string {
	closed := 0
	for _, n := range r.nodes {
		closed += one(n.closedByUs() || settled(n.closedSince, r.horizon()))
	}
	all := r.mostNodes(func(map[string]string) bool { return true })
	r.notePeak("maxUnschedulable", closed)
	if most := naive.Allows(&view.unschedulable, all); closed > most {
		return fmt.Sprintf("%d of %d nodes are closed to new pods, maxUnschedulable is %d", closed, all, most)
	}
	return ""
}

func (r *replay) maxInTreatment(n *node, view *rails) string {
	treated := map[types.UID]*node{}
	for _, other := range r.nodes {
		if r.isTreated(other) {
			treated[other.uid] = other
		}
	}
	gone := r.unreplaced()
	all := r.mostNodes(func(map[string]string) bool { return true })
	r.notePeak("maxInTreatment", len(treated)+gone)
	most := naive.Allows(&view.inTreatment, all)
	if view.inTreatment == allNodes {
		most += gone // all nodes, also those that are gone
	}
	if len(treated)+gone > most {
		return fmt.Sprintf("%d of %d nodes are in treatment or not replaced yet, maxInTreatment is %d", len(treated)+gone, all, most)
	}
	for _, t := range view.topology {
		if why := r.maxInDomain(n, t, treated); why != "" {
			return why
		}
	}
	return ""
}

// maxInDomain judges the nodes with the same value of a label. It does not count deleted
// nodes: the recording does not show which of them are replaced.
func (r *replay) maxInDomain(n *node, t share, treated map[types.UID]*node) string {
	value, has := n.labels[t.key]
	isOf := func(labels map[string]string) bool {
		v, has := labels[t.key]
		return has && v == value
	}
	another := r.mostNodes(func(labels map[string]string) bool {
		v, has := labels[t.key]
		return has && v != value
	})
	if !has || another == 0 {
		return "" // a label with a single value is ignored
	}
	count := 0
	for _, other := range treated {
		count += one(isOf(other.labels))
	}
	all := r.mostNodes(isOf)
	r.notePeak("topology "+t.key+"="+value, count)
	if most := naive.Allows(&t.limit, all); count > most {
		return fmt.Sprintf("%d of %d nodes with %s=%s are in treatment, topology allows %d", count, all, t.key, value, most)
	}
	return ""
}

// tooFast judges the pace. A treatment counts from its decision, and its write may arrive
// after Config.Delay. So writes count within a shorter period.
func (r *replay) tooFast(view *rails) string {
	within := view.period - r.cfg.Delay
	if within <= 0 {
		return ""
	}
	begun := 0
	for _, at := range r.rails.starts {
		begun += one(r.at.Time.Sub(at) < within)
	}
	r.notePeak("pace", begun)
	all := r.mostNodes(func(map[string]string) bool { return true })
	if most := max(view.atLeast, naive.Allows(&view.pace, all)); begun > most {
		return fmt.Sprintf("%d treatments began within %s, pace allows %d in %s", begun, within, most, view.period)
	}
	return ""
}

func (r *replay) notePeak(rail string, count int) {
	name := "Guardrails/" + rail
	r.report.Peak[name] = max(r.report.Peak[name], count)
}

// judgeTaintSteps judges the taints of a write to a node by Guardrails, after the write is
// counted. One write is one step.
func (r *replay) judgeTaintSteps(w *nodeWrite) {
	s := railStep{stage: taints, node: w.before}
	var placed []string
	for _, d := range w.placed {
		if adjusts := slices.ContainsFunc(w.removed, func(e setTaint) bool { return e.set == d.set && strength[e.effect] >= strength[d.effect] }); adjusts {
			continue // an edited set, or less than before
		}
		placed = append(placed, d.String())
		s.evicts = s.evicts || d.effect == noExecute && !w.evicted[d.set.name]
		s.enters = s.enters || d.effect == noExecute && !w.wasTreated
		s.closes = s.closes || strength[d.effect] >= strength[noSchedule] && !w.wasClosed
	}
	if len(placed) > 0 {
		s.what = "placed the taint " + strings.Join(slices.Compact(slices.Sorted(slices.Values(placed))), " and ")
		r.judgeStep(w.node, s)
	}
}

// judgeObjectStep judges a remediation object that we created by Guardrails. Only the first
// object of a node begins a treatment.
func (r *replay) judgeObjectStep(o *remediationObject, wasTreated, hadStep bool) {
	n := r.nodes[o.node]
	if n == nil || !o.isOf(n) {
		return
	}
	isOther := func(other *remediationObject) bool {
		return other != o && other.check == o.check && other.policy == o.policy && other.isOf(n)
	}
	s := railStep{stage: remediations, what: "created " + o.String(), enters: !wasTreated, acts: true, hadStep: hadStep, object: o}
	switch at, _ := r.check(o.check).valid.stepOf(o); {
	case o.policy != "":
		s.stage, s.treats = repairs, true
	default:
		s.treats = at == 0 && !slices.ContainsFunc(r.health.onNode[o.node], isOther)
	}
	r.judgeStep(n, s)
}

// railPeaks returns the maxima of the rails, for a report.
func (r Report) railPeaks() (peaks []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Peak)) {
		if rail, is := strings.CutPrefix(name, "Guardrails/"); is {
			peaks = append(peaks, fmt.Sprintf("%s %d", rail, r.Peak[name]))
		}
	}
	return peaks
}
