package conditionset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// becomes delivers a newer version of a node.
func (c *fixture) becomes(name string, change func(*corev1.Node)) {
	c.t.Helper()
	node := c.nodes[name].Object.DeepCopy()
	node.ResourceVersion += "1"
	change(node)
	c.upsertNode(node)
	c.reportUnowned(time.Now())
}

// unclear returns the Events about unclear ownership, by node.
func (c *fixture) unclear() map[string]string {
	c.t.Helper()
	told := map[string]string{}
	for _, event := range c.events {
		if event.EventReason == treat.OwnershipUnclear {
			if event.Policy == nil || event.Policy.Name != "disk" || told[event.Node.Name] != "" {
				c.t.Errorf("an Event about no set, or a second one: %+v", event)
			}
			told[event.Node.Name] = event.Message
		}
	}
	return told
}

func TestATaintOfUnclearOwnershipIsReported(t *testing.T) {
	const key = "example.com/disk"
	for name, lose := range map[string]func(*corev1.Node){
		"the record is removed":    func(n *corev1.Node) { delete(n.Annotations, ownership.Annotation) },
		"the record is unreadable": func(n *corev1.Node) { n.Annotations[ownership.Annotation] = "?" },
		"the value is overwritten": func(n *corev1.Node) { n.Spec.Taints[0].Value = "theirs" },
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.makeUnhealthy(10)
				set := setNamed("disk", func(s *v1alpha1.ConditionSet) {
					s.Spec.TaintKey, s.Spec.Effect = key, corev1.TaintEffectNoExecute
					s.Spec.MaxUnhealthy = &intstr.IntOrString{Type: intstr.String, StrVal: "40%"}
					s.Annotations = accepting
				})
				c.vets(set)
				c.is("disk", followed)
				c.loaded = true
				c.core.Loaded(time.Now())
				carried := map[string]bool{}
				for _, g := range c.core.Grants() {
					c.carries(c.nodes[g.Node].Object, "disk", key, corev1.TaintEffectNoExecute)
					carried[g.Node] = true
				}
				if c.reportUnowned(time.Now()); len(carried) != 4 || len(c.unclear()) != 0 {
					t.Fatalf("%d nodes have the taint, and %v was reported", len(carried), c.unclear())
				}
				condition := func() *metav1.Condition {
					counts, _ := c.core.Population(setRule("disk"))
					c.known["disk"].status.Stored = c.statusOf(c.known["disk"], counts)
					return meta.FindStatusCondition(c.known["disk"].status.Stored.Conditions, v1alpha1.OwnershipUnclear)
				}
				if is := condition(); is != nil {
					t.Errorf("the status says %+v", is)
				}

				c.known["disk"].status.Stale = false
				for node := range carried {
					c.becomes(node, lose)
				}
				if counts, _ := c.core.Population(setRule("disk")); counts.Pooled != 4 || counts.Foreign != 4 || counts.Cap != 4 {
					t.Errorf("the bound counts %d of %d, %d of them foreign", counts.Pooled, counts.Cap, counts.Foreign)
				}
				for node := range c.nodes {
					plan, _ := c.core.Plan(node)
					for _, wanted := range plan.Taints {
						if wanted.Effect == triage.NoExecute {
							t.Errorf("%s is to get NoExecute: %s", node, wanted.Reason)
						}
					}
				}
				told := c.unclear()
				for node := range carried {
					if want := fmt.Sprintf("kubectl taint node %s %s:NoExecute-", node, key); !strings.Contains(told[node], want) || !strings.Contains(told[node], "ConditionSet disk") {
						t.Errorf("of %s is reported %q, want the set and %q", node, told[node], want)
					}
				}
				if is := condition(); is == nil || is.Status != metav1.ConditionTrue || !strings.Contains(is.Message, ": 4 (node-0, ") || !strings.Contains(is.Message, "kubectl taint node node-0 ") {
					t.Errorf("the status says %+v", is)
				}
				if !c.known["disk"].status.Stale {
					t.Error("no status is to be written")
				}

				// The nodes recover: the taints stay, and so does the report.
				for node := range carried {
					c.becomes(node, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
					plan, _ := c.core.Plan(node)
					if change := treat.Prepare(c.nodes[node].Object, plan, time.Now()); change != nil && len(change.Made("9").Spec.Taints) != 1 {
						t.Errorf("the taint of %s is to go", node)
					}
				}
				if is := condition(); is == nil || is.Status != metav1.ConditionTrue {
					t.Errorf("after recovery the status says %+v", is)
				}
				for node := range carried {
					c.becomes(node, func(n *corev1.Node) { n.Spec.Taints = nil })
				}
				if is := condition(); is == nil || is.Status != metav1.ConditionFalse {
					t.Errorf("after the taints are gone the status says %+v", is)
				}
				if len(c.unclear()) != 4 {
					t.Errorf("reported for %d nodes", len(c.unclear()))
				}

				// A taint that returns is reported again, also for a set that is added
				// later.
				c.events = nil
				c.becomes("node-9", func(n *corev1.Node) {
					n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}, {Key: "example.com/other", Effect: corev1.TaintEffectNoExecute}}
				})
				if told := c.unclear(); len(told) != 1 || !strings.Contains(told["node-9"], key+":NoSchedule-") {
					t.Errorf("reported %v", told)
				}
				c.removeNode("node-9")
				c.reportUnowned(time.Now())
				if is := condition(); is.Status != metav1.ConditionFalse {
					t.Errorf("after the node is gone the status says %+v", is)
				}
			})
		})
	}
}
