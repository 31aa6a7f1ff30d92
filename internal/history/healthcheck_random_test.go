package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/naive"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// drawnCheck is a health check that the simulator draws.
type drawnCheck struct {
	signs  map[string]time.Duration // keys like Ready=False
	kinds  []string                 // the kinds of the steps, in order
	most   string                   // maxUnhealthy, as written
	least  string                   // minHealthy, as written
	web    bool                     // only nodes of that pool
	paused bool
	delay  string
	edited time.Time
}

const stepTimeout = time.Minute

func (o drawnCheck) spec() string {
	var conditions, steps []string
	for _, sign := range slices.Sorted(maps.Keys(o.signs)) {
		kind, status, _ := strings.Cut(sign, "=")
		conditions = append(conditions, fmt.Sprintf(`{"type":%q,"status":%q,"duration":%q}`, kind, status, o.signs[sign]))
	}
	for i, kind := range o.kinds {
		ref := map[string]string{"Reboot": rebootRef, "Replace": replaceRef}[kind]
		steps = append(steps, fmt.Sprintf(`{"order":%d,"timeout":%q,"remediationTemplate":%s}`, i, stepTimeout, ref))
	}
	spec := `{"escalatingRemediations":[` + strings.Join(steps, ",") + `],"unhealthyConditions":[` + strings.Join(conditions, ",") + `]}`
	for field, value := range map[string]string{"maxUnhealthy": o.most, "minHealthy": o.least, "healthyDelay": o.delay} {
		if value != "" {
			text, _ := json.Marshal(value) // a string
			spec = with(spec, fmt.Sprintf("%q:%s", field, text))
		}
	}
	if o.web {
		spec = with(spec, `"selector":{"matchLabels":{"pool":"web"}}`)
	}
	if o.paused {
		spec = with(spec, `"pauseRequests":["upgrade"]`)
	}
	return spec
}

// checkSimulator generates histories of health checks without violations. Events happen to
// a cluster, and a simple controller that sees everything at once does one thing at a time.
// It implements the rules a second time, because the checker's rules are under test.
type checkSimulator struct {
	*story
	t             *rapid.T
	orders        map[string]drawnCheck
	serial        int
	clear         bool // no condition is ever Unknown
	medik8sActive bool // medik8s' own controller is active
	saw           map[string]int

	gone           []removedPlace // removed nodes without a replacement
	ignoresRemoved bool           // the controller ignores them once
	wrong          string         // the node of that violation
}

// removedPlace is the place of a removed node.
type removedPlace struct {
	check     string
	made, at  time.Time
	uncertain bool // the checker cannot tell how many places are kept
}

func (s *checkSimulator) live() {
	s.clear = pick(s.t, false, true)
	for range pick(s.t, 4, 5, 3, 6) {
		s.happenNode()
	}
	for _, check := range []string{"x", "y"}[:pick(s.t, 1, 2)] {
		s.happenCheck(check)
	}
	for range pick(s.t, 40, 60, 20) {
		if s.wrong != "" {
			return
		}
		s.happen()
		for range pick(s.t, 100, 0, 1, 2) {
			if !s.step() {
				break
			}
		}
	}
	if s.medik8sActive {
		s.happenMedik8s()
	}
	for s.step() {
	}
	for _, check := range slices.Sorted(maps.Keys(s.orders)) {
		s.writeTrueStatus(check)
	}
}

func (s *checkSimulator) happenNode() {
	s.serial++
	name := fmt.Sprintf("n%d", s.serial)
	s.node(name)
	s.replaces()
	if pick(s.t, 1, 2, 3) == 3 {
		s.label(name, controlPlaneLabel, "")
	}
}

func (s *checkSimulator) happenCheck(name string) {
	o := drawnCheck{
		signs: map[string]time.Duration{pick(s.t, "Ready=False", "Disk=True"): pick(s.t, 0, 5*time.Second, 30*time.Second)},
		kinds: pick(s.t, []string{"Reboot"}, []string{"Reboot", "Replace"}, []string{"Replace", "Reboot"}),
		most:  pick(s.t, "", "2", "1", "60%", "0", "100%"), web: pick(s.t, false, false, true), paused: pick(s.t, false, false, false, true),
		delay: pick(s.t, "", "", "10s", "-1s"), edited: s.now,
	}
	if pick(s.t, false, true) {
		o.signs[pick(s.t, "Ready=Unknown", "Disk=True")] = pick(s.t, 0, 10*time.Second)
	}
	if o.most == "60%" && pick(s.t, false, true) {
		o.most, o.least = "", "40%"
	}
	s.healthCheck(name, o.spec())
	s.annotateCheck(name, acceptImpactAnnotation+"=true") // every version takes force at once
	o.edited = s.now
	s.orders[name] = o
}

func (s *checkSimulator) happenMedik8s() {
	s.medik8sActive = !s.medik8sActive
	holder := ""
	if s.medik8sActive {
		holder = "peer-1"
		s.saw["medik8s active"]++
	}
	s.lease(peer, "theirs", peerLease, holder)
}

func (s *checkSimulator) happen() {
	s.pass(pick(s.t, 3*time.Second, 50*time.Millisecond, 0, 20*time.Second, time.Minute))
	if len(s.nodes) == 0 {
		s.happenNode()
	}
	name := pick(s.t, slices.Sorted(maps.Keys(s.nodes))...)
	switch what := pick(s.t, "condition", "condition", "condition", "condition", "condition", "answer", "answer", "answer",
		"label", "exclude", "node", "gone", "again", "order", "order", "drop", "template", "lock", "confirm", "peer"); what {
	case "condition":
		status := pick(s.t, "False", "True", "False", "Unknown", "Unknown/AgentSilent")
		if s.clear {
			status = strings.ReplaceAll(strings.ReplaceAll(status, "/AgentSilent", ""), "Unknown", "True")
		}
		s.condition(name, pick(s.t, "Ready", "Disk")+"="+status)
	case "answer":
		s.happenAnswer()
	case "label":
		s.label(name, "pool", pick(s.t, "web", "lab"))
	case "exclude":
		s.label(name, excludeLabel, pick(s.t, "true", "false", "false"))
	case "node":
		s.happenNode()
	case "gone":
		s.nodeRemoved(name)
		s.deleteNode(admin, name)
	case "again":
		s.nodeRemoved(name)
		s.deleteNode(admin, name)
		s.node(name)
		s.replaces()
	case "order":
		s.happenCheck(pick(s.t, "x", "y"))
	case "drop":
		if len(s.orders) > 0 && pick(s.t, false, true) {
			check := pick(s.t, slices.Sorted(maps.Keys(s.orders))...)
			s.deleteHealthCheck(admin, check)
			delete(s.orders, check)
			for i, place := range s.gone { // the checker counts them for this version of the object only
				s.gone[i].uncertain = place.uncertain || place.check == check
			}
		}
	case "template":
		kind := pick(s.t, "Reboot", "Replace")
		templates := map[string]string{"Reboot": "quick", "Replace": "all"}
		if s.templates[kind+"RemediationTemplate"] != nil && pick(s.t, false, true) {
			s.deleteTemplate(kind)
			s.pass(2 * DefaultLag)
		} else {
			s.template(kind, templates[kind], pick(s.t, `{"template":{"spec":{"size":42}}}`, `{"template":{"size":41}}`))
		}
	case "lock":
		if !s.ours(name) {
			s.lease(admin, leaseNamespace, leasePrefix+name, "maintenance")
		}
	case "confirm":
		s.confirm(admin, name, true)
	case "peer":
		s.happenMedik8s()
	}
}

// happenAnswer has the remediator act on an object.
func (s *checkSimulator) happenAnswer() {
	if len(s.objects) == 0 {
		return
	}
	kind, node, _ := strings.Cut(pick(s.t, slices.Sorted(maps.Keys(s.objects))...), "Remediation ")
	answers := []string{"heals", "heals", "fails", "succeeds", "replaces", "deletes"}
	if s.ignoresRemoved {
		answers = []string{"replaces", "replaces", "heals", "succeeds"}
	}
	switch pick(s.t, answers...) {
	case "heals":
		if s.nodes[node] != nil {
			s.condition(node, "Ready=True", "Disk=False")
		}
	case "fails":
		s.reports(node, kind, "Succeeded=False")
	case "succeeds":
		s.reports(node, kind, "Succeeded=True", "PermanentNodeDeletionExpected=True")
	case "replaces":
		s.reports(node, kind, "PermanentNodeDeletionExpected=True")
		s.pass(pick(s.t, 2*DefaultLag, 0))
		if s.nodes[node] != nil {
			s.nodeRemoved(node)
			s.deleteNode(remediator, node)
		}
		if others := slices.Sorted(maps.Keys(s.nodes)); len(others) > 0 && pick(s.t, true, false) { // and another node becomes unhealthy
			s.condition(pick(s.t, others...), "Ready=False", "Disk=True")
			s.pass(time.Minute)
		}
	case "deletes":
		s.deleteObject(remediator, node, kind)
		s.makeUncertain()
	}
}

// nodeRemoved stores which places are kept when a node is deleted now. If two objects of a
// health check ask for the removal, the older one may be the cause.
func (s *checkSimulator) nodeRemoved(node string) {
	uid := string(s.nodes[node].UID)
	began := map[string]time.Time{}
	for _, kind := range s.kindsOn(node) {
		check, isThere := s.checkOf(node, kind)
		isMeant := s.says(node, kind, "PermanentNodeDeletionExpected", "True") && s.object(node, kind).GetAnnotations()[nodeUIDAnnotation] == uid
		if made := s.seen(s.object(node, kind)); isThere && isMeant && (began[check].IsZero() || made.Before(began[check])) {
			began[check] = made
		}
	}
	for _, check := range slices.Sorted(maps.Keys(began)) {
		made := began[check]
		isOut := s.medik8sActive || s.orders[check].web && s.nodes[node].Labels["pool"] != "web"
		isReplaced := slices.ContainsFunc(s.made, func(c testbed.Change) bool {
			return c.GVR == testbed.NodesResource && c.Type == watch.Added && c.Time.After(made.Add(-2*DefaultLag))
		})
		s.gone = append(s.gone, removedPlace{check: check, made: made, at: s.now, uncertain: isOut || isReplaced})
	}
}

// replaces adds a Ready node in place of the node whose object was created first. In the
// recording it may replace any removed node.
func (s *checkSimulator) replaces() {
	for i := range s.gone {
		s.gone[i].uncertain = true
	}
	if len(s.gone) > 0 {
		first := slices.MinFunc(s.gone, func(a, b removedPlace) int { return a.made.Compare(b.made) })
		s.gone = slices.Delete(s.gone, slices.Index(s.gone, first), slices.Index(s.gone, first)+1)
		s.saw["replaced"]++
	}
}

// makeUncertain makes the nodes uncertain that were removed a moment ago: the object is
// gone, and the controller may not have seen its status.
func (s *checkSimulator) makeUncertain() {
	for i, place := range s.gone {
		s.gone[i].uncertain = place.uncertain || place.at.After(s.now.Add(-2*DefaultLag))
	}
}

// kept returns how many places a health check keeps, and of how many the checker is sure.
func (s *checkSimulator) kept(check string) (kept, sure int) {
	for _, place := range s.gone {
		if place.check == check && s.now.Before(place.at.Add(15*time.Minute)) {
			kept++
			isKnown := place.at.Before(s.now.Add(-2*DefaultLag)) && s.now.Before(place.at.Add(15*time.Minute-2*DefaultLag))
			sure += one(isKnown && !place.uncertain)
		}
	}
	return kept, sure
}

// ours reports whether a health check holds the Lease of a node.
func (s *checkSimulator) ours(node string) bool {
	l := s.leases[leaseNamespace+"/"+leasePrefix+node]
	return l != nil && strings.HasPrefix(readLease(l).holder, holderPrefix)
}

// step makes the next due write, and reports whether there was one.
func (s *checkSimulator) step() bool {
	if s.medik8sActive || s.wrong != "" {
		return false
	}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		kind, node, _ := strings.Cut(key, "Remediation ")
		if s.isOver(node, kind) {
			s.deleteObject(us, node, kind)
			s.makeUncertain()
			return true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.leases)) {
		node := strings.TrimPrefix(key, leaseNamespace+"/"+leasePrefix)
		if s.ours(node) && len(s.kindsOn(node)) == 0 {
			s.unlock(node)
			return true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(s.nodes)) {
		if _, confirmed := s.nodes[node].Annotations[confirmedAnnotation]; confirmed && len(s.kindsOn(node)) == 0 && pick(s.t, false, true) {
			s.confirm(us, node, false)
			return true
		}
		for _, check := range slices.Sorted(maps.Keys(s.orders)) {
			if s.treat(node, check) {
				return true
			}
		}
	}
	return false
}

// kindsOn returns the kinds of objects that exist for a node with that name.
func (s *checkSimulator) kindsOn(node string) []string {
	var kinds []string
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if kind, of, _ := strings.Cut(key, "Remediation "); of == node {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func (s *checkSimulator) checkOf(node, kind string) (name string, isThere bool) {
	owner := s.object(node, kind).GetOwnerReferences()[0]
	check := s.checks[owner.Name]
	return owner.Name, check != nil && check.GetUID() == owner.UID
}

func (s *checkSimulator) says(node, kind, condition, status string) bool {
	return slices.ContainsFunc(rows(s.object(node, kind), "status", "conditions"), func(row map[string]any) bool {
		return text(row, "type") == condition && text(row, "status") == status
	})
}

// isOver reports whether an object should be deleted.
func (s *checkSimulator) isOver(node, kind string) bool {
	check, isThere := s.checkOf(node, kind)
	n := s.nodes[node]
	isSame := n != nil && s.object(node, kind).GetAnnotations()[nodeUIDAnnotation] == string(n.UID)
	switch {
	case !isThere:
		return true
	case !isSame:
		return !s.says(node, kind, "PermanentNodeDeletionExpected", "True") || s.says(node, kind, "Succeeded", "True")
	case s.orders[check].web && n.Labels["pool"] != "web":
		return true
	}
	v, since := s.judge(n, check)
	_, confirmed := n.Annotations[confirmedAnnotation]
	delay, _ := time.ParseDuration(s.orders[check].delay) // 0 if empty
	switch {
	case v != not:
		return false
	case confirmed || delay == 0:
		return true
	case delay < 0:
		return false
	}
	s.saw["delayed"]++
	return !last(since, s.orders[check].edited).Add(delay).After(s.now)
}

// judge reports whether a node is unhealthy under a health check, and since when it is
// healthy or from when on it was unhealthy for long enough. It reads the whole history of
// the node.
func (s *checkSimulator) judge(node *corev1.Node, check string) (verdict, time.Time) {
	o := s.orders[check]
	var v verdict
	var wellSince, due time.Time
	since := map[string]time.Time{} // by condition
	for _, change := range s.made {
		if change.UID != node.UID || change.GVR != testbed.NodesResource {
			continue
		}
		v, due = not, time.Time{}
		for _, kind := range []string{"Ready", "Disk"} {
			is, wait := s.sign(o, change.Object, kind)
			switch is {
			case not:
				delete(since, kind)
			case unclear: // the clock continues
			case holds:
				if since[kind].IsZero() {
					since[kind] = change.Time
				}
				if at := since[kind].Add(wait); due.IsZero() || at.Before(due) {
					due = at
				}
			}
			v = max(v, is)
		}
		if o.web && change.Object.GetLabels()["pool"] != "web" {
			v = not
		}
		switch {
		case v != not:
			wellSince = time.Time{}
		case wellSince.IsZero():
			wellSince = change.Time
		}
	}
	if v == not {
		return not, wellSince
	}
	return v, due
}

// sign judges a condition of a node.
func (s *checkSimulator) sign(o drawnCheck, node *unstructured.Unstructured, kind string) (verdict, time.Duration) {
	named := slices.ContainsFunc(slices.Collect(maps.Keys(o.signs)), func(sign string) bool { return strings.HasPrefix(sign, kind+"=") })
	for _, row := range rows(node, "status", "conditions") {
		if text(row, "type") != kind || !named {
			continue
		}
		wait, is := o.signs[kind+"="+text(row, "status")]
		switch {
		case text(row, "status") == "Unknown" && (!is || text(row, "reason") == "AgentSilent"):
			return unclear, 0
		case is:
			return holds, wait
		}
	}
	return not, 0
}

// notHealthy counts the unhealthy nodes of a health check.
func (s *checkSimulator) notHealthy(check string) (selected, unwell int) {
	for name, n := range s.nodes {
		if s.orders[check].web && n.Labels["pool"] != "web" {
			continue
		}
		selected++
		v, _ := s.judge(n, check)
		isTreated := slices.ContainsFunc(s.kindsOn(name), func(kind string) bool {
			by, _ := s.checkOf(name, kind)
			return by == check && s.object(name, kind).GetAnnotations()[nodeUIDAnnotation] == string(n.UID)
		})
		unwell += one(v == holds || isTreated)
	}
	return selected, unwell
}

func (s *checkSimulator) bound(check string, selected int) int {
	o := s.orders[check]
	limit, err := limitIn(cmp.Or(o.least, o.most, "49%"))
	if err != nil {
		s.t.Fatal(err)
	}
	limit.RoundUp, limit.Healthy = true, o.least != ""
	return naive.Allows(&limit, selected)
}

// hasTemplates reports whether all templates of a health check exist.
func (s *checkSimulator) hasTemplates(check string) bool {
	return !slices.ContainsFunc(s.orders[check].kinds, func(kind string) bool { return s.templates[kind+"RemediationTemplate"] == nil })
}

// treat starts or continues the treatment of an unhealthy node.
func (s *checkSimulator) treat(node, check string) bool {
	n, o := s.nodes[node], s.orders[check]
	v, due := s.judge(n, check)
	if v != holds || o.web && n.Labels["pool"] != "web" {
		return false
	}
	lease := s.leases[leaseNamespace+"/"+leasePrefix+node]
	isLocked := lease != nil && !s.ours(node) && readLease(lease).held(s.now)
	isBarred := o.paused || n.Labels[excludeLabel] == "true" || !s.hasTemplates(check) || isLocked
	there := s.kindsOn(node)
	if len(there) > 0 {
		return s.nextStep(node, check, there, isBarred)
	}
	selected, unwell := s.notHealthy(check)
	kept, sure := s.kept(check)
	_, controlPlane := n.Labels[controlPlaneLabel]
	isKeptOut := unwell <= s.bound(check, selected) && unwell+kept > s.bound(check, selected+kept)
	isSure := unwell+sure > s.bound(check, selected+sure) && s.isSettled(check)
	switch {
	case due.After(s.now):
		s.saw["not yet"]++
	case isBarred:
		s.saw["barred"]++
	case unwell > s.bound(check, selected):
		s.saw["gate closed"]++
	case isKeptOut && (!s.ignoresRemoved || !isSure):
		s.saw["gate closed by removed nodes"]++
	case controlPlane && s.isControlPlaneBusy():
		s.saw["control plane busy"]++
	default:
		if isKeptOut {
			s.wrong = node
		}
		s.remediate(node, check, o.kinds[0])
		return true
	}
	return false
}

// isSettled reports whether the bound has not changed recently.
func (s *checkSimulator) isSettled(check string) bool {
	recent := s.now.Add(-2 * DefaultLag)
	return s.orders[check].edited.Before(recent) && !slices.ContainsFunc(s.made, func(c testbed.Change) bool {
		return c.GVR == testbed.NodesResource && !c.Time.Before(recent)
	})
}

func (s *checkSimulator) isControlPlaneBusy() bool {
	for _, object := range s.objects {
		if _, is := object.GetLabels()[treatedAsControlPlane]; is {
			return true
		}
	}
	return false
}

// seen returns when an object was created.
func (s *checkSimulator) seen(object *unstructured.Unstructured) time.Time {
	at := slices.IndexFunc(s.made, func(c testbed.Change) bool { return c.UID == object.GetUID() })
	return s.made[at].Time
}

// nextStep starts the next step when it is due.
func (s *checkSimulator) nextStep(node, check string, there []string, isBarred bool) bool {
	o := s.orders[check]
	at := -1
	for _, kind := range there {
		by, isThere := s.checkOf(node, kind)
		made := s.object(node, kind)
		isOfNode := made.GetAnnotations()[nodeUIDAnnotation] == string(s.nodes[node].UID)
		if by != check || !isThere || !isOfNode || !s.seen(made).After(o.edited) {
			return false
		}
		at = max(at, slices.Index(o.kinds, kind))
	}
	object := s.object(node, o.kinds[at])
	failed, succeeded := s.says(node, o.kinds[at], "Succeeded", "False"), s.says(node, o.kinds[at], "Succeeded", "True")
	if !failed && object.GetCreationTimestamp().Add(stepTimeout).After(s.now) || at+1 == len(o.kinds) {
		return false
	}
	if _, timedOut := object.GetAnnotations()[timedOutAnnotation]; !timedOut && !succeeded {
		s.timesOut(node, o.kinds[at])
		return true
	}
	if isBarred {
		return false
	}
	s.remediate(node, check, o.kinds[at+1])
	return true
}

// writeTrueStatus writes the status of a health check if it is out of date.
func (s *checkSimulator) writeTrueStatus(check string) {
	selected, unwell := s.notHealthy(check)
	treated := map[string]bool{}
	for key := range s.objects {
		kind, node, _ := strings.Cut(key, "Remediation ")
		if by, _ := s.checkOf(node, kind); by == check {
			treated[node] = true
		}
	}
	switch o := s.orders[check]; {
	case !s.hasTemplates(check):
		s.writeStatus(check, "Disabled", 0, 0, 0, "Disabled=True")
	case o.paused:
		s.writeStatus(check, "Paused", selected, selected-unwell, len(treated))
	case len(treated) > 0:
		s.writeStatus(check, "Remediating", selected, selected-unwell, len(treated))
	default:
		s.writeStatus(check, "Enabled", selected, selected-unwell, 0)
	}
}

// checkSimulators draws simulators, whose controllers may ignore removed nodes.
func checkSimulators(blind bool) func(testing.TB, *rapid.T, map[string]int) *checkSimulator {
	return func(tb testing.TB, t *rapid.T, saw map[string]int) *checkSimulator {
		tb.Helper()
		return &checkSimulator{story: newCheckStory(tb), t: t, orders: map[string]drawnCheck{}, saw: saw, ignoresRemoved: blind}
	}
}

func TestRandomPermittedRemediationsHaveNoViolation(t *testing.T) {
	runRandom(t, checkSimulators(false), func(t *rapid.T, s *checkSimulator, saw map[string]int) {
		report := s.isFine(t, checkConfig)
		saw["changes"] += report.Changes
		saw["made"] += report.Remediations
		saw["escalated"] += report.Escalations
		saw["deleted"] += report.Releases
		saw["noted"] += report.Notes
		saw["leased"] += report.Leases
		saw["statuses"] += report.CheckStatuses
		saw["confirmed"] += report.Confirmations
	}, "made", "escalated", "deleted", "noted", "leased", "statuses", "confirmed", "delayed", "not yet", "barred", "gate closed", "control plane busy", "medik8s active",
		"replaced", "gate closed by removed nodes")
}

// A controller without other errors removes nodes one after the other.
func TestRandomRemediationsThatIgnoreRemovedNodesAreCaught(t *testing.T) {
	runRandom(t, checkSimulators(true), func(t *rapid.T, s *checkSimulator, saw map[string]int) {
		if s.wrong == "" {
			return
		}
		saw["forgot"]++
		cfg := checkConfig
		cfg.Unfinished = true
		report, err := Check(s.made, cfg)
		caught := slices.ContainsFunc(report.Violations, func(v Violation) bool {
			return v.Kind == GateIgnored && v.Node == s.wrong && strings.Contains(v.Text, "not replaced yet")
		})
		if err != nil || !caught || len(report.Violations) != 1 {
			t.Fatalf("%v %s\n%s", err, report, s)
		}
	}, "forgot")
}

// The test falsifies one change of a history without violations. The checker must report
// the right kind.
func TestRandomRemediationsWithOneFalseChangeAreCaught(t *testing.T) {
	runRandom(t, checkSimulators(false), func(t *rapid.T, s *checkSimulator, saw map[string]int) {
		what, want := falsifyCheck(t, s)
		if what == "" {
			return
		}
		saw[what]++
		cfg := checkConfig
		cfg.EndAt = s.now
		cfg.Unfinished = want.kind != WrongEnd
		report, err := Check(s.made, cfg)
		caught := slices.ContainsFunc(report.Violations, func(v Violation) bool {
			return (want.kind == "" || v.Kind == want.kind) && (want.node == "" || v.Node == want.node) && strings.Contains(v.Text, want.text)
		})
		if err != nil || !caught {
			t.Fatalf("%s: want %+v, got %v %s\n%s", what, want, err, report, s)
		}
	}, "blamed", "left over", "untreated", "ended", "misspelt", "unlocked", "fought")
}

type wanted struct {
	kind       Kind
	node, text string
}

// falsifyCheck falsifies one change. It returns how, and the expected violation, empty if
// it changed nothing.
func falsifyCheck(t *rapid.T, s *checkSimulator) (what string, want wanted) {
	what = pick(t, "blamed", "left over", "untreated", "ended", "misspelt", "unlocked", "fought")
	var chances []int
	lost := map[string]bool{}
	unlocked := map[string]time.Time{}
	isTaken := false // the recording does not show how long a place is kept
	for i, change := range s.made {
		isObject := change.GVR.Group == healing.Group && strings.HasSuffix(change.Object.GetKind(), "Remediation")
		made := isObject && change.Type == watch.Added && change.Author == us
		ended := isObject && change.Type == watch.Deleted
		if ended && change.Author != us {
			lost[change.Name] = true
		}
		isTaken = isTaken || isObject && readRemediation(change.Object).deletesNode
		if change.GVR == testbed.LeasesResource && change.Type == watch.Deleted {
			unlocked[change.Name] = change.Time
		}
		isLocked := i > 0 && s.made[i-1].GVR == testbed.LeasesResource && s.made[i-1].Type == watch.Added &&
			unlocked[s.made[i-1].Name].Before(change.Time.Add(-2*DefaultLag)) // else it may have had the previous spec
		switch {
		case what == "blamed" && change.Author != us && change.GVR != testbed.NodesResource && change.GVR != testbed.LeasesResource && !ended, // a deletion may be justified by the state of a moment ago
			what == "left over" && ended && change.Author == us,
			what == "untreated" && made && s.clear && !lost[change.Name] && !isTaken,
			what == "ended" && made,
			what == "misspelt" && made,
			what == "unlocked" && made && isLocked,
			what == "fought" && made:
			chances = append(chances, i)
		}
	}
	if len(chances) == 0 {
		return "", wanted{}
	}
	for j := range s.made { // makes room for a change in between
		s.made[j].ResourceVersion += "0"
	}
	i := pick(t, chances...)
	change := s.made[i]
	want.node = change.Name
	switch what {
	case "blamed":
		s.made[i].Author = us
		want.node = ""
	case "left over":
		s.made = s.made[:i]
		s.now = change.Time.Add(2 * time.Minute)
		want.kind, want.text = WrongEnd, "still exists"
	case "untreated":
		s.made = s.made[:i]
		s.now = change.Time.Add(2 * time.Minute)
		want.kind = WrongEnd
	case "ended":
		gone := change
		gone.Type, gone.ResourceVersion = watch.Deleted, strings.TrimSuffix(change.ResourceVersion, "0")+"1"
		gone.Time = change.Time.Add(3 * DefaultLag) // when the earlier state no longer justifies it
		s.made = append(s.made[:i+1:i+1], gone)
		want.kind, want.text = Unjustified, "but the node is unhealthy"
	case "misspelt":
		object := change.Object.DeepCopy()
		s.made[i].Object = object
		pick(t,
			annotation(templateNameAnnotation, "other"),
			annotation(nodeUIDAnnotation, ""),
			func(o *unstructured.Unstructured) { o.SetLabels(nil) },
			func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) },
			func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"size": int64(7)} },
		)(object)
		// A change without its marker is judged by other rules: as another step, it may
		// also be too soon.
		s.made = s.made[:i+1]
	case "unlocked":
		s.made = append(s.made[:i-1:i-1], change)
		want.kind, want.text = Unjustified, "Lease"
	case "fought":
		s.made = append(s.made[:i:i], s.activateMedik8s(i, change)...)
		want.kind = Conflicting
	}
	return what, want
}

// activateMedik8s has medik8s' own controller start long before a change, and renew its
// Lease just before.
func (s *checkSimulator) activateMedik8s(i int, change testbed.Change) []testbed.Change {
	come := s.fresh(testbed.LeasesResource.GroupVersion().WithKind("Lease"), "elsewhere", peerLease)
	come.Object["spec"] = map[string]any{"holderIdentity": "peer-2", "leaseDurationSeconds": int64(60), "renewTime": "2026-03-01T12:00:00Z"}
	lease := testbed.Change{
		Type: watch.Added, GVR: testbed.LeasesResource, Namespace: "elsewhere", Name: peerLease, UID: come.GetUID(),
		ResourceVersion: strings.TrimSuffix(s.made[i-1].ResourceVersion, "0") + "1", Object: come, Author: peer, Time: s.made[i-1].Time,
	}
	change.Time = last(change.Time, lease.Time.Add(2*DefaultLag))
	return []testbed.Change{lease, change}
}
