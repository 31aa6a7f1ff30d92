package explore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Node is a node at the start of a run.
type Node struct {
	Name         string
	ControlPlane bool
	Zone         string
	True         []string // conditions that are True; all others of the scenario are False
	Fixed        bool     // other components do not change the node
}

// Set is a condition set with one condition.
type Set struct {
	Name, Condition string
	Effect          corev1.TaintEffect
	Max             int // nodes with NoExecute
}

// key returns the key of the set's taint.
func (s Set) key() string { return "example.com/" + s.Name }

// Check is a NodeHealthCheck with one condition.
type Check struct {
	Name, Condition string
	MaxUnhealthy    int
	// IsWindowed lets remediations begin in even minutes only.
	IsWindowed bool
}

const checkKind = remediation.CheckKind

// Scenario is a small cluster and what other components may change in it.
type Scenario struct {
	Name   string
	Nodes  []Node
	Sets   []Set
	Checks []Check
	Rails  Rails
	// Heartbeats lets nodes get a new version without a change that counts, while a write to
	// the node is on its way.
	Heartbeats bool
	// Late lets nodes report a problem late: the condition has changed a minute ago.
	Late bool
	// Replaces lets a node be deleted and created again with the same name.
	Replaces bool
	// Others lets other components place a taint with the key of a set, and delete remediation
	// objects.
	Others bool
	// Switches lets a user change the mode of the Guardrails.
	Switches bool
	// Pauses lets a user pause a node for a minute.
	Pauses bool
	// Cordons lets a user cordon a node.
	Cordons bool

	rules []triage.Rule
}

// compile compiles the sets.
func (s *Scenario) compile() error {
	s.rules = nil
	for _, set := range s.Sets {
		rule, err := observe.ConditionSet(&v1alpha1.ConditionSet{
			ObjectMeta: metav1.ObjectMeta{Name: set.Name},
			Spec: v1alpha1.ConditionSetSpec{
				Type: set.Condition, Effect: set.Effect, TaintKey: set.key(), MaxUnhealthy: new(intstr.FromInt32(int32(set.Max))),
				Conditions: map[string]v1alpha1.SetCondition{set.Condition: {Status: "true"}},
			},
		})
		if err != nil {
			return fmt.Errorf("compiling set %s: %w", set.Name, err)
		}
		s.rules = append(s.rules, rule)
	}
	return nil
}

// conditions returns the conditions that policies read.
func (s *Scenario) conditions() (types []string) {
	for _, set := range s.Sets {
		types = append(types, set.Condition)
	}
	for _, check := range s.Checks {
		types = append(types, check.Condition)
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// populate stores the objects that exist at the start.
func (s *Scenario) populate(m *model) {
	for _, n := range s.Nodes {
		mustStore(m, s.node(n))
	}
	if s.Rails != (Rails{}) {
		mustStore(m, s.Rails.object())
	}
	for _, check := range s.Checks {
		windows := map[string]string{}
		if check.IsWindowed {
			windows[v1alpha1.WindowsAnnotation] = "*/2 * * * * for 1m"
		}
		mustStore(m, &remediationv1alpha1.NodeHealthCheck{
			TypeMeta:   metav1.TypeMeta{APIVersion: remediation.CheckAPIVersion, Kind: checkKind},
			ObjectMeta: metav1.ObjectMeta{Name: check.Name, Annotations: windows},
			Spec: remediationv1alpha1.NodeHealthCheckSpec{
				UnhealthyConditions: []remediationv1alpha1.UnhealthyCondition{{Type: corev1.NodeConditionType(check.Condition), Status: corev1.ConditionTrue, Duration: "0s"}},
				MaxUnhealthy:        new(intstr.FromInt32(int32(check.MaxUnhealthy))),
				RemediationTemplate: &corev1.ObjectReference{APIVersion: templateKind.GroupVersion().String(), Kind: templateKind.Kind, Namespace: rebootNamespace, Name: template.GetName()},
			},
		})
	}
}

// node returns a node with its conditions.
func (s *Scenario) node(n Node) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{}}}
	if n.ControlPlane {
		node.Labels["node-role.kubernetes.io/control-plane"] = ""
	}
	if n.Zone != "" {
		node.Labels[corev1.LabelTopologyZone] = n.Zone
	}
	types := s.conditions()
	if s.Rails.Last {
		types = append(types, string(corev1.NodeReady))
	}
	for _, condition := range types {
		status := corev1.ConditionFalse
		if slices.Contains(n.True, condition) || condition == string(corev1.NodeReady) {
			status = corev1.ConditionTrue
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(condition), Status: status, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second)),
		})
	}
	return node
}

func mustStore(m *model, object client.Object) {
	if _, err := m.create(object); err != nil {
		panic(err)
	}
}

// changes returns what other components may change now.
func (s *Scenario) changes(c *cluster) (changes []string) {
	changes = append(changes, s.modeChanges(c.model)...)
	untouched := map[string]bool{} // kinds of nodes of which one was not changed yet
	for _, n := range s.Nodes {
		key := objectKey{kind: "Node", name: n.Name}
		node, _ := c.model.objects[key].(*corev1.Node)
		if n.Fixed {
			continue
		}
		if c.model.latest[key] == 1 { // nodes that are alike differ by name only: one stands for all
			like := fmt.Sprint(n.ControlPlane, n.Zone, n.True)
			if untouched[like] {
				continue
			}
			untouched[like] = true
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				continue
			}
			status := corev1.ConditionTrue
			if condition.Status == status {
				status = corev1.ConditionFalse
			}
			changes = append(changes, fmt.Sprintf("%s reports %s=%s", n.Name, condition.Type, status))
			if s.Late && status == corev1.ConditionTrue {
				changes = append(changes, fmt.Sprintf("%s reports %s=%s since a minute", n.Name, condition.Type, status))
			}
		}
		if s.Heartbeats && c.isWritten(key) {
			changes = append(changes, n.Name+" sends a heartbeat")
		}
		if s.Replaces {
			changes = append(changes, n.Name+" is replaced")
		}
		if s.Pauses {
			changes = append(changes, pauseChange(node))
		}
		if s.Cordons {
			changes = append(changes, cordonChange(node))
		}
		if s.Others {
			changes = append(changes, s.othersChange(c, node)...)
		}
	}
	return changes
}

// isWritten reports whether a write to an object is on its way.
func (c *cluster) isWritten(key objectKey) bool {
	is := func(r *request) bool { return r.key == key }
	return slices.ContainsFunc(c.waiting, is) || slices.ContainsFunc(c.orphans, is)
}

// othersChange returns what other components may do with a node and its objects.
func (s *Scenario) othersChange(c *cluster, node *corev1.Node) (changes []string) {
	for _, set := range s.Sets {
		if set.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if len(node.Spec.Taints) > 0 && slices.ContainsFunc(node.Spec.Taints, isOthers) {
			changes = append(changes, node.Name+" loses the taint of another component")
			continue
		}
		changes = append(changes, node.Name+" gets a taint of another component with another key")
		if !hasTaint(node, set.key(), "") {
			changes = append(changes, node.Name+" gets a taint of another component with the key of the set")
		}
	}
	if c.model.objects[rebootOf(node.Name)] != nil {
		changes = append(changes, "a user deletes the Reboot of "+node.Name)
	}
	return changes
}

// rebootOf returns the key of a node's remediation object.
func rebootOf(node string) objectKey { return objectKey{rebootKind.Kind, rebootNamespace, node} }

// othersValue is the value of taints that other components place.
const othersValue = "other"

func isOthers(t corev1.Taint) bool { return t.Value == othersValue }

// hasTaint reports whether a node has a NoExecute taint with this key and value.
func hasTaint(node *corev1.Node, key, value string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == key && t.Value == value && t.Effect == corev1.TaintEffectNoExecute
	})
}

// heartbeatAnnotation changes with every heartbeat. The controller does not read it.
const heartbeatAnnotation = "example.com/heartbeat"

// apply makes a change of another component.
func (s *Scenario) apply(m *model, text string) bool {
	if node, is := strings.CutPrefix(text, "a user deletes the Reboot of "); is {
		_, err := m.delete(rebootOf(node), client.Preconditions{})
		return err == nil
	}
	if mode, is := strings.CutPrefix(text, modeChange); is {
		return setMode(m, v1alpha1.Mode(mode))
	}
	name, what, _ := strings.Cut(text, " ")
	key := objectKey{kind: "Node", name: name}
	before, _ := m.objects[key].(*corev1.Node)
	if before == nil {
		return false
	}
	after := before.DeepCopy()
	switch what {
	case "is replaced":
		return s.replaceNode(m, key)
	case isPausedByUser, isNotPaused:
		setPause(after, what == isPausedByUser)
	case isCordoned, isUncordoned:
		after.Spec.Unschedulable = what == isCordoned
	case "sends a heartbeat":
		if after.Annotations == nil {
			after.Annotations = map[string]string{}
		}
		flip := map[string]string{"": "1", "1": "2", "2": "1"}
		after.Annotations[heartbeatAnnotation] = flip[after.Annotations[heartbeatAnnotation]]
	case "gets a taint of another component with the key of the set":
		after.Spec.Taints = append(after.Spec.Taints, corev1.Taint{Key: s.Sets[0].key(), Value: othersValue, Effect: corev1.TaintEffectNoExecute})
	case "gets a taint of another component with another key":
		after.Spec.Taints = append(after.Spec.Taints, corev1.Taint{Key: "example.com/theirs", Value: othersValue, Effect: corev1.TaintEffectNoExecute})
	case "loses the taint of another component":
		after.Spec.Taints = slices.DeleteFunc(after.Spec.Taints, isOthers)
	default:
		what, isLate := strings.CutSuffix(strings.TrimPrefix(what, "reports "), " since a minute")
		condition, status, _ := strings.Cut(what, "=")
		at := time.Now()
		if isLate {
			at = at.Add(-time.Minute)
		}
		setCondition(after, condition, corev1.ConditionStatus(status), at)
	}
	_, err := m.replace(key, before, after)
	return err == nil
}

func setCondition(node *corev1.Node, condition string, status corev1.ConditionStatus, at time.Time) {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; string(c.Type) == condition {
			c.Status, c.LastTransitionTime = status, metav1.NewTime(at.Truncate(time.Second))
		}
	}
}

// replaceNode deletes a node, its Lease with it, and creates a healthy node of the same name.
func (s *Scenario) replaceNode(m *model, key objectKey) bool {
	if _, err := m.delete(key, client.Preconditions{}); err != nil {
		return false
	}
	lease := objectKey{"Lease", "medik8s-leases", "node-" + key.name}
	if m.objects[lease] != nil {
		if _, err := m.delete(lease, client.Preconditions{}); err != nil {
			return false
		}
	}
	at := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == key.name })
	mustStore(m, s.node(Node{Name: key.name, ControlPlane: s.Nodes[at].ControlPlane, Zone: s.Nodes[at].Zone}))
	return true
}
