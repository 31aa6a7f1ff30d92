package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// state is the current state of the cluster, as the watcher sees it.
type state struct {
	nodes        map[string]*corev1.Node
	pods         map[types.UID]*corev1.Pod // of the workloads
	deployments  map[string]*appsv1.Deployment
	sets         map[string]*v1alpha1.ConditionSet
	checks       map[string]*remediationv1alpha1.NodeHealthCheck
	remediations map[types.UID]*metav1.PartialObjectMetadata
	policies     map[string]*v1alpha1.RepairPolicy
	claims       map[string]*karpenter.NodeClaim
	guardrails   *v1alpha1.Guardrails // nil if there are none
	events       map[eventKey]int     // number of Events

	maxTainted       map[string]int // most nodes at once with the NoExecute taint, by set
	remediationCount int            // since the start
	left, arrived    map[string]int // pods by node, since the last printed move
}

// eventKey is the reason of an Event and the name of its object.
type eventKey struct{ about, reason string }

func newState() state {
	return state{
		nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{},
		deployments: map[string]*appsv1.Deployment{}, sets: map[string]*v1alpha1.ConditionSet{},
		checks: map[string]*remediationv1alpha1.NodeHealthCheck{}, remediations: map[types.UID]*metav1.PartialObjectMetadata{},
		policies: map[string]*v1alpha1.RepairPolicy{}, claims: map[string]*karpenter.NodeClaim{},
		events: map[eventKey]int{}, maxTainted: map[string]int{}, left: map[string]int{}, arrived: map[string]int{},
	}
}

// update stores or deletes an object by its name.
func update[T object](known map[string]T, was, is T) {
	var none T
	if is == none {
		delete(known, was.GetName())
		return
	}
	known[is.GetName()] = is
}

// object is an object from a watch, nil if it does not exist.
type object interface {
	comparable
	metav1.Object
}

func (s *state) setRemediation(was, is *metav1.PartialObjectMetadata) {
	if is == nil {
		delete(s.remediations, was.UID)
		return
	}
	if s.remediations[is.UID] == nil {
		s.remediationCount++
	}
	s.remediations[is.UID] = is
}

// inTreatment returns the nodes with a remediation, sorted.
func (s *state) inTreatment() []string {
	nodes := make([]string, 0, len(s.remediations))
	for _, object := range s.remediations {
		nodes = append(nodes, nodeOf(object))
	}
	slices.Sort(nodes)
	return nodes
}

// nodeOf returns the node of a remediation.
func nodeOf(object *metav1.PartialObjectMetadata) string {
	return object.Annotations[remediation.NodeNameAnnotation]
}

// setPod stores a pod, and counts it if it left or started on a node.
func (s *state) setPod(was, is *corev1.Pod) {
	pod := cmp.Or(is, was)
	if pod.Namespace != "default" || len(pod.OwnerReferences) == 0 {
		return
	}
	known := s.pods[pod.UID] // a deletion carries the last state of the pod
	before, after := known != nil && runs(known), is != nil && runs(is)
	switch {
	case before && !after:
		s.left[pod.Spec.NodeName]++
	case !before && after:
		s.arrived[pod.Spec.NodeName]++
	}
	if is == nil {
		delete(s.pods, pod.UID)
		return
	}
	s.pods[pod.UID] = is
}

func runs(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
}

// runningPods counts running pods. all is true if they are as many as the Deployments want
// and no pod is terminating.
func (s *state) runningPods() (running int, all bool) {
	wanted := 0
	for _, d := range s.deployments {
		if d.Namespace == "default" && d.Spec.Replicas != nil {
			wanted += int(*d.Spec.Replicas)
		}
	}
	for _, pod := range s.pods {
		if runs(pod) {
			running++
		}
	}
	return running, running == wanted && len(s.pods) == wanted
}

// takeMoves describes which pods left and started since the last call. It returns an empty
// string while pods are moving.
func (s *state) takeMoves() string {
	if _, all := s.runningPods(); !all || len(s.left)+len(s.arrived) == 0 {
		return ""
	}
	var parts []string
	if len(s.left) > 0 {
		parts = append(parts, fmt.Sprintf("%d left %s", total(s.left), nodeCounts(s.left)))
	}
	if len(s.arrived) > 0 {
		parts = append(parts, fmt.Sprintf("%d started on %s", total(s.arrived), nodeCounts(s.arrived)))
	}
	s.left, s.arrived = map[string]int{}, map[string]int{}
	return strings.Join(parts, ", ")
}

func total(byNode map[string]int) (sum int) {
	for _, n := range byNode {
		sum += n
	}
	return sum
}

// nodeCounts joins node names, with their number of pods if it is above one.
func nodeCounts(byNode map[string]int) string {
	names := make([]string, 0, len(byNode))
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		text := displayName(name)
		if n := byNode[name]; n > 1 && len(byNode) > 1 {
			text = fmt.Sprintf("%s(%d)", text, n)
		}
		names = append(names, text)
	}
	return joinNames(names)
}

// podsOn returns the pods on a node, including terminating ones.
func (s *state) podsOn(node string) []types.UID {
	var uids []types.UID
	for uid, pod := range s.pods {
		if pod.Spec.NodeName == node {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// nodesWithTaint returns the nodes with a taint of Autohealer, sorted. Taints that the demo
// sets as a user have a value.
func (s *state) nodesWithTaint(key string, effect corev1.TaintEffect) []string {
	var names []string
	for name, node := range s.nodes {
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect && t.Value == "" }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// exceeded returns an error if more nodes have the NoExecute taint of a set than it allows.
func (s *state) exceeded() error {
	for name, set := range s.sets {
		n := len(s.nodesWithTaint(set.Spec.TaintKey, corev1.TaintEffectNoExecute))
		s.maxTainted[name] = max(s.maxTainted[name], n)
		if limit := set.Status.MaxTainted; limit != nil && n > int(*limit) {
			return fmt.Errorf("%d nodes carry the NoExecute taint of ConditionSet %s at once, at most %d may", n, name, *limit)
		}
	}
	return nil
}

// missing evaluates all expectations.
func (s *state) missing(expectations []expectation) (all []string) {
	for _, expect := range expectations {
		if missing := expect(s); missing != "" {
			all = append(all, missing)
		}
	}
	return all
}

// taintChanges describes how taints changed. A new effect is one change, not a removal and
// an addition.
func taintChanges(was, is []corev1.Taint) (changes []string) {
	gone, come := difference(is, was), difference(was, is)
	for _, new := range come {
		i := slices.IndexFunc(gone, func(old corev1.Taint) bool { return old.Key == new.Key && old.Value == new.Value })
		if i < 0 {
			changes = append(changes, "taint "+new.ToString())
			continue
		}
		changes = append(changes, fmt.Sprintf("taint %s, was %s", new.ToString(), gone[i].Effect))
		gone = slices.Delete(gone, i, i+1)
	}
	for _, old := range gone {
		changes = append(changes, "taint "+old.ToString()+" is gone")
	}
	return changes
}

// difference returns the taints of b that are not in a.
func difference(a, b []corev1.Taint) (missing []corev1.Taint) {
	for _, t := range b {
		if !slices.ContainsFunc(a, func(o corev1.Taint) bool { return o.ToString() == t.ToString() }) {
			missing = append(missing, t)
		}
	}
	return missing
}

// conditionChanges describes the conditions whose status changed.
func conditionChanges(was, is *corev1.Node) (changes []string) {
	for _, after := range is.Status.Conditions {
		if !slices.ContainsFunc(was.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == after.Type && c.Status == after.Status }) {
			changes = append(changes, fmt.Sprintf("%s=%s", after.Type, after.Status))
		}
	}
	return changes
}

// policyChange describes a user's change of a policy.
func policyChange[T object](noun string, was, is T) string {
	var none T
	switch {
	case was == none:
		return "the " + noun + " is new"
	case is == none:
		return "the " + noun + " is gone"
	case was.GetGeneration() != is.GetGeneration():
		return "the " + noun + " was changed"
	}
	return ""
}

// setSummary describes the status of a ConditionSet.
func setSummary(set *v1alpha1.ConditionSet) string {
	status := set.Status
	text := fmt.Sprintf("%d matched, %d tainted", status.Matched, status.Tainted)
	if status.MaxTainted != nil {
		text += fmt.Sprintf(" (at most %d of %d)", *status.MaxTainted, status.Selected)
	}
	if status.HeldBack > 0 {
		text += fmt.Sprintf(", %d held back", status.HeldBack)
	}
	return text
}

// railsSummary describes the status of the Guardrails.
func railsSummary(rails *v1alpha1.Guardrails) string {
	ready := meta.FindStatusCondition(rails.Status.Conditions, v1alpha1.Ready)
	if ready == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s", rails.Status.Mode, ready.Message)
}

// countsChanged reports whether the counts of a set changed. An additional or deleted node
// alone is no change.
func countsChanged(was, is *v1alpha1.ConditionSet) bool {
	a, b := was.Status, is.Status
	return a.Matched != b.Matched || a.Tainted != b.Tainted || a.HeldBack != b.HeldBack ||
		a.Selected == b.Selected && setSummary(was) != setSummary(is)
}

// checkSummary describes the status of a health check.
func checkSummary(check *remediationv1alpha1.NodeHealthCheck) string {
	status := check.Status
	if status.ObservedNodes == nil || status.HealthyNodes == nil || status.InTreatment == nil {
		return ""
	}
	return fmt.Sprintf("%s: %d of %d nodes healthy, %d in treatment", status.Phase, *status.HealthyNodes, *status.ObservedNodes, *status.InTreatment)
}

// unhealthySummary describes the part of a health check's status that healthy nodes do not
// change.
func unhealthySummary(check *remediationv1alpha1.NodeHealthCheck) string {
	status := check.Status
	if status.ObservedNodes == nil || status.HealthyNodes == nil || status.InTreatment == nil {
		return ""
	}
	return fmt.Sprintf("%s: %d unhealthy, %d in treatment", status.Phase, *status.ObservedNodes-*status.HealthyNodes, *status.InTreatment)
}

// isStatusOnly reports whether a reason of a health check has no Event.
func isStatusOnly(reason string) bool { return reason == "Pending" || reason == "Recovering" }

// listsUnhealthy reports whether a health check lists a node with this reason.
func listsUnhealthy(check *remediationv1alpha1.NodeHealthCheck, node remediationv1alpha1.UnhealthyNode) bool {
	return slices.ContainsFunc(check.Status.UnhealthyNodes, func(n remediationv1alpha1.UnhealthyNode) bool {
		return n.Name == node.Name && n.Reason == node.Reason
	})
}

// hasEvent reports whether a reason of a set has an Event. Other reasons are only in the
// status.
func hasEvent(reason string) bool {
	return slices.Contains([]string{"Tainted", "FellBack", "Recovered", "Deselected", "RuleGone"}, reason)
}

// listsMatched reports whether a set lists a node with this reason.
func listsMatched(set *v1alpha1.ConditionSet, node v1alpha1.MatchedNode) bool {
	return slices.ContainsFunc(set.Status.Nodes, func(n v1alpha1.MatchedNode) bool { return n.Name == node.Name && n.Reason == node.Reason })
}

func accepted(set *v1alpha1.ConditionSet) bool {
	return set != nil && meta.IsStatusConditionTrue(set.Status.Conditions, v1alpha1.Accepted)
}
