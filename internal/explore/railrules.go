package explore

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/nodepause"
)

// These checks say what Guardrails, pauses and windows allow, from the objects of the API alone. They share
// no code with the core.

// start is a treatment of a node that a replica has begun, and since when the node was unhealthy.
type start struct {
	node          string
	since, sentAt time.Time
	requests      int // those that the API server has not rejected
}

// startOf returns the treatment that a request begins.
func (c *cluster) startOf(r *request) (s start, begins bool) {
	check, starts := c.startsRemediation(r)
	node, _ := c.model.objects[objectKey{kind: "Node", name: r.key.name}].(*corev1.Node)
	if !starts || node == nil || c.model.objects[r.key] != nil { // the object exists: an earlier answer was lost
		return s, false
	}
	return start{node.Name, transitionOf(node, check.Condition), time.Now(), 1}, true
}

// noteStart remembers the requests of a treatment.
func (c *cluster) noteStart(r *request) {
	s, begins := c.startOf(r)
	if !begins || c.scenario.Rails == (Rails{}) {
		return
	}
	if at := slices.IndexFunc(c.starts, s.isSame); at >= 0 {
		c.starts[at].requests++
	} else {
		c.starts = append(c.starts, s)
	}
}

// noteRejection remembers that a request begins nothing: the treatment gives its place in the pace back.
func (c *cluster) noteRejection(r *request) {
	if _, starts := c.startsRemediation(r); !starts {
		return
	}
	for i := range slices.Backward(c.starts) {
		if s := &c.starts[i]; s.node == r.key.name {
			s.requests = max(0, s.requests-1)
			return
		}
	}
}

func (s start) isSame(other start) bool { return s.node == other.node && s.since.Equal(other.since) }

// transitionOf returns when a condition got its status.
func transitionOf(node *corev1.Node, condition string) (at time.Time) {
	for _, c := range node.Status.Conditions {
		if string(c.Type) == condition {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// hasEverything reports whether a replica has received every change that decides something.
func (c *cluster) hasEverything(r *replica) bool {
	for _, kind := range c.streamKinds() {
		if s := r.streams[kind]; s.needsList || slices.ContainsFunc(s.events, event.decides) {
			return false
		}
	}
	return true
}

// decides reports whether a change can decide whether something starts. A Lease of the controller, a
// heartbeat and the record of an attempt cannot: the replica that starts a treatment has just written them.
func (e event) decides() bool {
	before, _ := e.before.(*corev1.Node)
	after, _ := e.after.(*corev1.Node)
	if before == nil || after == nil {
		return e.key.kind != "Lease"
	}
	return !equality.Semantic.DeepEqual(before.Spec, after.Spec) || !equality.Semantic.DeepEqual(before.Status, after.Status) || !pausedUntil(before).Equal(pausedUntil(after))
}

// added returns the effects of the taints of sets that are in after and not in before. A weaker taint
// that takes the place of a stronger one of the same set does not count.
func (s *Scenario) added(before *corev1.Node, after []corev1.Taint) (effects []corev1.TaintEffect) {
	for _, t := range after {
		at := slices.IndexFunc(s.Sets, func(set Set) bool { return set.key() == t.Key && t.Value == "" })
		if at < 0 {
			continue
		}
		had := effectsOf(before, s.Sets[at])
		if !slices.Contains(had, t.Effect) && !slices.Contains(had, corev1.TaintEffectNoExecute) {
			effects = append(effects, t.Effect)
		}
	}
	return effects
}

// begins returns the node on which a request begins something: a remediation, or taints. isDisruptive says
// that it is a remediation or NoExecute.
func (c *cluster) begins(r *request) (node *corev1.Node, isDisruptive bool) {
	known, _ := c.model.objects[objectKey{kind: "Node", name: r.key.name}].(*corev1.Node)
	if _, begins := c.startOf(r); begins {
		return known, true
	}
	if known == nil || r.key.kind != "Node" || r.verb != "patches" {
		return nil, false
	}
	var patch struct {
		Spec struct{ Taints []corev1.Taint } `json:"spec"`
	}
	if json.Unmarshal(r.patch, &patch) != nil {
		return nil, false
	}
	effects := c.scenario.added(known, patch.Spec.Taints)
	if len(effects) == 0 {
		return nil, false
	}
	return known, slices.Contains(effects, corev1.TaintEffectNoExecute)
}

// mode returns the mode of the Guardrails.
func (c *cluster) mode() v1alpha1.Mode {
	if guardrails, is := c.model.objects[guardrailsKey].(*v1alpha1.Guardrails); is {
		return guardrails.Spec.Mode
	}
	return v1alpha1.Enforce
}

// checkMode checks that a replica that has received every change begins nothing in another mode than
// Enforce.
func checkMode(c *cluster, r *request) string {
	if node, _ := c.begins(r); node != nil && c.mode() != v1alpha1.Enforce && c.hasEverything(r.replica) {
		return fmt.Sprintf("%s, and the mode of the Guardrails is %s", r.label, c.mode())
	}
	return ""
}

// pausedUntil returns until when a user has paused a node, zero for no pause.
func pausedUntil(node *corev1.Node) time.Time {
	until, _ := time.Parse(time.RFC3339, strings.TrimPrefix(node.Annotations[nodepause.Annotation], "until="))
	return until
}

// checkPausedNode checks that no remediation of a paused node begins. A replica looks at the node
// immediately before.
func checkPausedNode(c *cluster, r *request) string {
	if s, begins := c.startOf(r); begins {
		node, _ := c.model.objects[objectKey{kind: "Node", name: s.node}].(*corev1.Node)
		if until := pausedUntil(node); time.Now().Before(until) {
			return fmt.Sprintf("%s, and the node is paused until %s", r.label, until)
		}
	}
	return ""
}

// checkCordon checks that no remediation of a cordoned node begins.
func checkCordon(c *cluster, r *request) string {
	if s, begins := c.startOf(r); begins {
		if node, _ := c.model.objects[objectKey{kind: "Node", name: s.node}].(*corev1.Node); node.Spec.Unschedulable {
			return r.label + ", and a user has cordoned the node"
		}
	}
	return ""
}

// checkPausedTaint checks that a paused node gets no taint. A write names the version of the node.
func checkPausedTaint(c *cluster, r *request, ch change) string {
	before, _ := ch.before.(*corev1.Node)
	after, _ := ch.after.(*corev1.Node)
	if r == nil || before == nil || after == nil || len(c.scenario.added(before, after.Spec.Taints)) == 0 {
		return ""
	}
	if until := pausedUntil(before); time.Now().Before(until) {
		return fmt.Sprintf("%s gets a taint, and it is paused until %s", before.Name, until)
	}
	return ""
}

// checkWindow checks that a remediation begins while the window of its check is open.
func checkWindow(c *cluster, r *request) string {
	check, _ := c.startsRemediation(r)
	if _, begins := c.startOf(r); begins && check.IsWindowed && inWindow(time.Now()) >= windowLength {
		return fmt.Sprintf("%s at %s, and the window of %s is closed", r.label, time.Now().UTC().Format(time.TimeOnly), check.Name)
	}
	return ""
}

// checkPace counts the treatments that began within the period of the pace. A treatment begins after its
// node became unhealthy, and before the request is sent.
func checkPace(c *cluster, r *request) string {
	s, begins := c.startOf(r)
	counts := func(other start) bool { return other.requests > 0 }
	if !begins || c.scenario.Rails.Pace == 0 || slices.ContainsFunc(c.starts, func(other start) bool { return s.isSame(other) && counts(other) }) {
		return ""
	}
	var recent []string
	for _, other := range append(slices.Clone(c.starts), s) {
		if counts(other) && s.sentAt.Sub(other.since) < pacePeriod {
			recent = append(recent, other.node)
		}
	}
	if len(recent) > c.scenario.Rails.Pace && s.sentAt.Sub(s.since) < pacePeriod {
		return fmt.Sprintf("treatments of %s began within %s, and at most %d may", strings.Join(recent, ", "), pacePeriod, c.scenario.Rails.Pace)
	}
	return ""
}

// recorded is an attempt as a node has it.
type recorded struct {
	Policy string
	Began  time.Time
	Node   string
}

// attemptsOn returns the attempts of a node within the window.
func attemptsOn(node client.Object) (within []recorded) {
	var all struct{ Attempts []recorded }
	if text := node.GetAnnotations()[attempts.Annotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			panic(err)
		}
	}
	return slices.DeleteFunc(all.Attempts, func(a recorded) bool { return time.Since(a.Began) >= attemptsWindow })
}

// checkAttempt checks that a node has the record of a treatment that begins, and counts its treatments.
func checkAttempt(c *cluster, r *request) string {
	s, begins := c.startOf(r)
	if !begins || c.scenario.Rails == (Rails{}) {
		return ""
	}
	check, _ := c.startsRemediation(r)
	is := func(a recorded) bool {
		return a.Node == "" && a.Policy == "NodeHealthCheck/"+check.Name && !a.Began.Before(s.since)
	}
	if !slices.ContainsFunc(attemptsOn(c.model.objects[objectKey{kind: "Node", name: s.node}]), is) {
		return r.label + ", and the node has no record of the attempt"
	}
	return ""
}

// checkAttempts counts the treatments of a node.
func checkAttempts(c *cluster, r *request) string {
	s, begins := c.startOf(r)
	if !begins || c.scenario.Rails.Attempts == 0 || slices.ContainsFunc(c.starts, s.isSame) {
		return ""
	}
	count := 1
	for _, other := range c.starts {
		if other.node == s.node && time.Since(other.sentAt) < attemptsWindow {
			count++
		}
	}
	if count > c.scenario.Rails.Attempts {
		return fmt.Sprintf("%s, the treatment number %d of the node, and at most %d may begin", r.label, count, c.scenario.Rails.Attempts)
	}
	return ""
}

// checkRecord checks that a replica removes no attempt, unless the node has as many newer ones as count.
func checkRecord(c *cluster, r *request, ch change) string {
	if r == nil || ch.key.kind != "Node" || ch.before == nil || ch.after == nil {
		return ""
	}
	for _, a := range attemptsOn(ch.before) {
		if after, _ := ch.after.(*corev1.Node); !slices.Contains(attemptsOn(after), a) && !c.isGivenUp(after) {
			return fmt.Sprintf("%s removes the attempt of %s on %s", r.replica.name, a.Began, ch.key.name)
		}
	}
	return ""
}

// isGivenUp reports whether a node has as many attempts as allowed.
func (c *cluster) isGivenUp(node *corev1.Node) bool {
	return c.scenario.Rails.Attempts > 0 && len(attemptsOn(node)) >= c.scenario.Rails.Attempts
}

// inZone returns the nodes of a zone that are in treatment.
func (c *cluster) inZone(zone string) (names []string) {
	for _, node := range c.nodes() {
		if node.Labels[corev1.LabelTopologyZone] == zone && slices.Contains(c.inTreatment(), node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}

// checkZone counts the nodes of each zone that are in treatment after a write of a replica.
func checkZone(c *cluster, r *request, ch change) string {
	if r == nil || ch.after == nil || c.scenario.Rails.InZone == 0 {
		return ""
	}
	for _, n := range c.scenario.Nodes {
		if treated := c.inZone(n.Zone); len(treated) > c.scenario.Rails.InZone {
			return fmt.Sprintf("%s of zone %s are in treatment, and at most %d may be", strings.Join(treated, ", "), n.Zone, c.scenario.Rails.InZone)
		}
	}
	return ""
}

// open returns the nodes that are open to new pods and not in treatment.
func (c *cluster) open() (names []string) {
	treated := c.inTreatment()
	for _, node := range c.nodes() {
		if len(node.Spec.Taints) == 0 && !node.Spec.Unschedulable && !slices.Contains(treated, node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}

// checkLast checks that a write of a replica leaves an open node.
func checkLast(c *cluster, r *request, ch change) string {
	if r == nil || ch.after == nil || !c.scenario.Rails.Last || len(c.open()) > 0 {
		return ""
	}
	before, _ := ch.before.(*corev1.Node)
	isRemediation := ch.key.kind == rebootKind.Kind && ch.before == nil
	if isRemediation || before != nil && len(before.Spec.Taints) == 0 {
		return "no node is open, the last one was " + ch.key.name
	}
	return ""
}

// failedTogether returns the nodes of a zone that probably failed by a common cause, none if there is no
// sign of it.
func (c *cluster) failedTogether(zone string) []string {
	var conditions []string
	for _, check := range c.scenario.Checks {
		conditions = append(conditions, check.Condition)
	}
	for _, set := range c.scenario.Sets {
		if set.Effect == corev1.TaintEffectNoExecute {
			conditions = append(conditions, set.Condition)
		}
	}
	all := 0
	failed := map[string][]time.Time{}
	for _, node := range c.nodes() {
		if node.Labels[corev1.LabelTopologyZone] != zone {
			continue
		}
		all++
		for _, condition := range conditions {
			if isTrue(node, condition) {
				failed[node.Name] = append(failed[node.Name], transitionOf(node, condition))
			}
		}
	}
	needed := max(c.scenario.Rails.Together, all/2+1)
	for _, times := range failed {
		for _, first := range times {
			var ends []time.Time // when each node failed
			together := map[string]bool{}
			for name, others := range failed {
				others = slices.DeleteFunc(slices.Clone(others), func(at time.Time) bool { return at.Before(first) || at.Sub(first) > failureWindow })
				if len(others) > 0 {
					ends, together[name] = append(ends, slices.MinFunc(others, time.Time.Compare)), true
				}
			}
			if c.scenario.Rails.Together == 0 || len(ends) < needed {
				continue
			}
			slices.SortFunc(ends, time.Time.Compare)
			if !c.scenario.Rails.LongestHold || time.Since(ends[needed-1]) < longestHold {
				return slices.Sorted(maps.Keys(together))
			}
		}
	}
	return nil
}

// checkTogether checks that a replica that has received every change begins nothing disruptive in a zone
// whose nodes failed together.
func checkTogether(c *cluster, r *request) string {
	node, isDisruptive := c.begins(r)
	if !isDisruptive || !c.hasEverything(r.replica) {
		return ""
	}
	zone := node.Labels[corev1.LabelTopologyZone]
	if failed := c.failedTogether(zone); len(failed) > 0 {
		return fmt.Sprintf("%s, and %s of zone %s failed together", r.label, strings.Join(failed, ", "), zone)
	}
	return ""
}

// isHeld reports whether the Guardrails hold disruptive steps on a node of a quiet cluster: nothing happens
// for longer than a pause, a closed window and the period of the pace last.
func (c *cluster) isHeld(node *corev1.Node) bool {
	rails, zone := c.scenario.Rails, node.Labels[corev1.LabelTopologyZone]
	isCordoned := node.Spec.Unschedulable && c.model.objects[rebootOf(node.Name)] == nil
	return c.mode() != v1alpha1.Enforce || isCordoned || c.isLast(node) || len(c.failedTogether(zone)) > 0 || !slices.Contains(c.inTreatment(), node.Name) &&
		(isFull(c.inTreatment(), rails.InTreatment) || isFull(c.inZone(zone), rails.InZone))
}

// isLast reports whether a node is the last open one.
func (c *cluster) isLast(node *corev1.Node) bool {
	return c.scenario.Rails.Last && slices.Equal(c.open(), []string{node.Name})
}

// checkPauses checks that no pause is left whose time has passed.
func checkPauses(c *cluster) string {
	for _, node := range c.nodes() {
		if until := pausedUntil(node); !until.IsZero() && until.Before(time.Now()) {
			return fmt.Sprintf("%s has the annotation of a pause until %s", node.Name, until)
		}
	}
	return ""
}
