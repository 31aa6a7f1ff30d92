package pools

import (
	"errors"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestAttempts has a pool in which a detector flags every new node. Nothing is replaced before the
// Guardrails enforce repairs. After three replacements the controller gives up, although it is killed
// in between.
func TestAttempts(t *testing.T) {
	t.Parallel()
	w := newFixture(t, karpenter.Config{})
	patch := func(spec string) {
		testkit.Value(w.Kubectl(t.Context(), "patch", "guardrails", v1alpha1.GuardrailsName, "--type=merge", "-p", `{"spec":`+spec+`}`)).Must(t)
	}
	patch(`{"maxAttempts":{"limit":3,"window":"24h"},"enforce":["Taint","Remediate"]}`)
	c := w.Start(t, install.Options{Args: []string{alone}})
	p := w.createFilledPool(t, karpenter.Pool{Name: "flagged", Spec: object{"repair": repair("1s"), "disruption": budgets("100%")}}, 1)
	for try := range 3 {
		bad := p.names()
		p.makeUnhealthy(bad...)
		if try == 0 {
			p.hasStatus("nodepool-flagged", func(s v1alpha1.RepairPolicyStatus) error {
				if len(s.UnhealthyNodes) != 1 || !strings.Contains(s.UnhealthyNodes[0].Message, "Guardrails cluster does not enforce Repair") {
					return errors.New("the unhealthy node is not held by enforce")
				}
				return nil
			})
			patch(`{"enforce":["Repair"]}`)
		}
		p.gone(bad...)
		if try == 1 {
			testkit.Must(t, c.Kill())
			c = w.Start(t, install.Options{Args: []string{alone}})
		}
		p.fills(1)
	}
	last := p.first().Name
	p.makeUnhealthy(last)
	const words = "held by maxAttempts of Guardrails: 3 treatments of this node, or of nodes that it replaces, began within 24h0m0s, at most 3 may"
	p.hasEvent("Node", last, "GivenUp", words)
	p.measures(c, `autohealer_guardrail_held{domain="",rail="maxAttempts"}`, "1")
	testkit.Same(t, len(p.account().terminations), 3, "replacements")
	w.judge(t, history.Repairs{}, history.Counts{Marks: 3, Terminations: 3})
}
