package engine

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A pod that protects its node calls off the treatment until the pod is gone, the node recovers, or
// the guardrails do not respect pods any more.
func TestAPodProtectsItsNode(t *testing.T) {
	open(t, func(c *loopFixture) {
		c.SetRespect(time.Now(), &dialect.Respect{DoNotDisrupt: true})
		testkit.Must(t, c.core.SetRule(time.Now(), triage.Rule{
			ID: triage.RuleID{Kind: "Toy", Name: "drain"}, Stage: "Toy", When: triage.When{Signals: []triage.Signal{{Condition: "Disk", Status: triage.True}}},
			Response: triage.Response{Ladder: []triage.Step{{Action: triage.Drain}}},
		}))
		node := func(version string, status corev1.ConditionStatus) {
			n := named("a", version)
			n.Status.Conditions = []corev1.NodeCondition{{Type: "Disk", Status: status}}
			c.core.Observe(time.Now(), c.upsertNode(n, time.Now()))
		}
		reconcile := func() triage.Plan {
			c.Reobserve(time.Now(), "a")
			plan, _ := c.core.Plan("a")
			c.nodeStates["a"].findings = plan.Findings
			return plan
		}
		protect := func() *protection {
			c.noteProtection(time.Now(), &TaskResult{Task: &Task{Node: c.nodeStates["a"].Object}, protection: protectedBy("default/db-0", "karpenter.sh/do-not-disrupt")})
			return c.protected["a"]
		}
		node("1", corev1.ConditionTrue)
		c.core.Loaded(time.Now())
		testkit.Check(t, reconcile().Treatment != nil, "nothing is planned without a pod")

		p := protect()
		plan := reconcile()
		testkit.Check(t, plan.Treatment == nil && len(plan.Release) == 1 && plan.Reason.Code == triage.Vetoed, "with a pod the plan is %+v", plan)
		due := c.lookAtProtected(t.Context(), time.Now())
		testkit.Same(t, time.Until(due), lookAgain, "the time until the next look")
		c.looked(time.Now(), "a", p, "", errors.New("connection refused"))
		testkit.Check(t, reconcile().Treatment == nil, "an error ends the protection")
		c.looked(time.Now(), "a", p, protectedBy("default/db-1", "karpenter.sh/do-not-disrupt"), nil)
		testkit.Same(t, reconcile().Reason.Other, p.reason, "the reason with another pod")
		c.looked(time.Now(), "a", p, "", nil)
		testkit.Check(t, reconcile().Treatment != nil && len(c.protected) == 0, "the protection stays without a pod")

		for name, end := range map[string]func(){
			"the node recovers":        func() { node("2", corev1.ConditionFalse) },
			"the guardrails change":    func() { c.SetRespect(time.Now(), &dialect.Respect{}) },
			"there are none any more":  func() { c.SetRespect(time.Now(), nil) },
			"another node of its name": func() { c.nodeStates["a"].Object = named("a", "3"); c.nodeStates["a"].Object.UID = "other" },
		} {
			c.SetRespect(time.Now(), &dialect.Respect{DoNotDisrupt: true})
			node("1", corev1.ConditionTrue)
			protect()
			reconcile()
			end()
			reconcile()
			c.lookAtProtected(t.Context(), time.Now())
			testkit.Check(t, len(c.protected) == 0, "the protection stays although %s", name)
		}
	})
}
