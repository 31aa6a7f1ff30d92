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

// sight is what an onlooker knows of a cluster.
type sight struct {
	nodes       map[string]*corev1.Node
	pods        map[types.UID]*corev1.Pod // of the workloads
	deployments map[string]*appsv1.Deployment
	sets        map[string]*v1alpha1.ConditionSet
	checks      map[string]*remediationv1alpha1.NodeHealthCheck
	asked       map[types.UID]*metav1.PartialObjectMetadata // of the remediator
	policies    map[string]*v1alpha1.RepairPolicy
	claims      map[string]*karpenter.NodeClaim
	words       map[word]int // how often an Event has told it

	most          map[string]int // nodes at once with the NoExecute taint of a set
	asks          int            // of the remediator, ever
	left, arrived map[string]int // pods by node, since they were last told
}

// word is a reason that an Event has given about a node, a policy or a pool.
type word struct{ about, reason string }

func newSight() sight {
	return sight{
		nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{},
		deployments: map[string]*appsv1.Deployment{}, sets: map[string]*v1alpha1.ConditionSet{},
		checks: map[string]*remediationv1alpha1.NodeHealthCheck{}, asked: map[types.UID]*metav1.PartialObjectMetadata{},
		policies: map[string]*v1alpha1.RepairPolicy{}, claims: map[string]*karpenter.NodeClaim{},
		words: map[word]int{}, most: map[string]int{}, left: map[string]int{}, arrived: map[string]int{},
	}
}

// update takes in what has become of an object that is known by its name.
func update[T object](known map[string]T, was, is T) {
	var none T
	if is == none {
		delete(known, was.GetName())
		return
	}
	known[is.GetName()] = is
}

// object is one as a watch brings it, nil if there was or is none.
type object interface {
	comparable
	metav1.Object
}

func (s *sight) setRemediation(was, is *metav1.PartialObjectMetadata) {
	if is == nil {
		delete(s.asked, was.UID)
		return
	}
	if s.asked[is.UID] == nil {
		s.asks++
	}
	s.asked[is.UID] = is
}

// inTreatment returns the nodes that the remediator is asked about, sorted.
func (s *sight) inTreatment() []string {
	nodes := make([]string, 0, len(s.asked))
	for _, object := range s.asked {
		nodes = append(nodes, nodeOf(object))
	}
	slices.Sort(nodes)
	return nodes
}

// nodeOf returns the node that a remediation is about.
func nodeOf(object *metav1.PartialObjectMetadata) string {
	return object.Annotations[remediation.NodeNameAnnotation]
}

// setPod keeps where a pod is, and where it goes.
func (s *sight) setPod(was, is *corev1.Pod) {
	pod := cmp.Or(is, was)
	if pod.Namespace != "default" || len(pod.OwnerReferences) == 0 {
		return
	}
	known := s.pods[pod.UID] // what a deletion shows is the pod at its very end
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

// resting counts the pods that run, and says whether they are all there: none on
// its way out, and as many as the Deployments ask for.
func (s *sight) resting() (running int, all bool) {
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

// takeMoves returns where pods have left and where they run since it was last
// asked, nothing as long as some are under way.
func (s *sight) takeMoves() string {
	if _, all := s.resting(); !all || len(s.left)+len(s.arrived) == 0 {
		return ""
	}
	var parts []string
	if len(s.left) > 0 {
		parts = append(parts, fmt.Sprintf("%d left %s", quantity(s.left), places(s.left)))
	}
	if len(s.arrived) > 0 {
		parts = append(parts, fmt.Sprintf("%d started on %s", quantity(s.arrived), places(s.arrived)))
	}
	s.left, s.arrived = map[string]int{}, map[string]int{}
	return strings.Join(parts, ", ")
}

func quantity(byNode map[string]int) (sum int) {
	for _, n := range byNode {
		sum += n
	}
	return sum
}

// places names nodes, each with its number where that says something.
func places(byNode map[string]int) string {
	names := make([]string, 0, len(byNode))
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		told := called(name)
		if n := byNode[name]; n > 1 && len(byNode) > 1 {
			told = fmt.Sprintf("%s(%d)", told, n)
		}
		names = append(names, told)
	}
	return list(names)
}

// podsOn returns the pods on a node, those on their way out among them.
func (s *sight) podsOn(node string) []types.UID {
	var there []types.UID
	for uid, pod := range s.pods {
		if pod.Spec.NodeName == node {
			there = append(there, uid)
		}
	}
	slices.Sort(there)
	return there
}

// carriers returns the nodes that have a taint of Autohealer, sorted. Those that
// somebody put there by hand carry a value in this story.
func (s *sight) carriers(key string, effect corev1.TaintEffect) []string {
	var names []string
	for name, node := range s.nodes {
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect && t.Value == "" }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// exceeded says whether more nodes than a set allows have its NoExecute taint.
func (s *sight) exceeded() error {
	for name, set := range s.sets {
		n := len(s.carriers(set.Spec.TaintKey, corev1.TaintEffectNoExecute))
		s.most[name] = max(s.most[name], n)
		if limit := set.Status.MaxTainted; limit != nil && n > int(*limit) {
			return fmt.Errorf("%d nodes carry the NoExecute taint of ConditionSet %s at once, at most %d may", n, name, *limit)
		}
	}
	return nil
}

// missing asks every look.
func (s *sight) missing(looks []look) (all []string) {
	for _, l := range looks {
		if missing := l(s); missing != "" {
			all = append(all, missing)
		}
	}
	return all
}

// taintChanges tells how taints have changed. One whose effect alone is another
// has not gone and come.
func taintChanges(was, is []corev1.Taint) (changes []string) {
	gone, come := lacking(is, was), lacking(was, is)
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

// lacking returns the taints of b that a has not.
func lacking(a, b []corev1.Taint) (missing []corev1.Taint) {
	for _, t := range b {
		if !slices.ContainsFunc(a, func(o corev1.Taint) bool { return o.ToString() == t.ToString() }) {
			missing = append(missing, t)
		}
	}
	return missing
}

// conditionChanges tells which conditions have another status.
func conditionChanges(was, is *corev1.Node) (changes []string) {
	for _, after := range is.Status.Conditions {
		if !slices.ContainsFunc(was.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == after.Type && c.Status == after.Status }) {
			changes = append(changes, fmt.Sprintf("%s=%s", after.Type, after.Status))
		}
	}
	return changes
}

// policyChange tells what somebody has done to a policy.
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

// counts tells what has come of a set, as its status has it.
func counts(set *v1alpha1.ConditionSet) string {
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

// isNews says whether something has come of a set. A node more or less is none of its
// doing.
func isNews(was, is *v1alpha1.ConditionSet) bool {
	a, b := was.Status, is.Status
	return a.Matched != b.Matched || a.Tainted != b.Tainted || a.HeldBack != b.HeldBack ||
		a.Selected == b.Selected && counts(was) != counts(is)
}

// health tells what has come of a health check, as its status has it.
func health(check *remediationv1alpha1.NodeHealthCheck) string {
	status := check.Status
	if status.ObservedNodes == nil || status.HealthyNodes == nil || status.InTreatment == nil {
		return ""
	}
	return fmt.Sprintf("%s: %d of %d nodes healthy, %d in treatment", status.Phase, *status.HealthyNodes, *status.ObservedNodes, *status.InTreatment)
}

// ailing tells of a health check what does not change when a healthy node comes or goes.
func ailing(check *remediationv1alpha1.NodeHealthCheck) string {
	status := check.Status
	if status.ObservedNodes == nil || status.HealthyNodes == nil || status.InTreatment == nil {
		return ""
	}
	return fmt.Sprintf("%s: %d sick, %d in treatment", status.Phase, *status.ObservedNodes-*status.HealthyNodes, *status.InTreatment)
}

// isQuiet says whether what a health check says of a node is told by no Event.
func isQuiet(reason string) bool { return reason == "Pending" || reason == "Recovering" }

// names says whether a health check has said the same of a node before.
func names(check *remediationv1alpha1.NodeHealthCheck, node remediationv1alpha1.UnhealthyNode) bool {
	return slices.ContainsFunc(check.Status.UnhealthyNodes, func(n remediationv1alpha1.UnhealthyNode) bool {
		return n.Name == node.Name && n.Reason == node.Reason
	})
}

// hasEvent says whether a reason is told by an Event; the others stand in the
// status of the set alone.
func hasEvent(reason string) bool {
	return slices.Contains([]string{"Tainted", "FellBack", "Recovered", "Deselected", "RuleGone"}, reason)
}

// lists says whether a set has said the same of a node before.
func lists(set *v1alpha1.ConditionSet, node v1alpha1.MatchedNode) bool {
	return slices.ContainsFunc(set.Status.Nodes, func(n v1alpha1.MatchedNode) bool { return n.Name == node.Name && n.Reason == node.Reason })
}

func accepted(set *v1alpha1.ConditionSet) bool {
	return set != nil && meta.IsStatusConditionTrue(set.Status.Conditions, v1alpha1.Accepted)
}
