package nodehealthcheck

import (
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestStatusDelay(t *testing.T) {
	for _, test := range []struct {
		name   string
		nodes  int
		change func(*check)
		later  time.Duration
	}{
		{name: "with no node named it is not put off"},
		{name: "it is put off for every node", nodes: 50, later: time.Second},
		{name: "nodes that are not listed do not count", nodes: 10_000, later: 4 * time.Second},
		{name: "a new generation is not put off", nodes: 50, change: func(c *check) { c.object.Generation++ }},
		{name: "a storm is not put off", nodes: 50, change: func(c *check) { c.storm.isOn = true }},
		{name: "nor is its end", nodes: 50, change: func(c *check) { c.storm = storm{isOn: true, isCooling: true} }},
		{name: "nor is what disables the health check", nodes: 50, change: func(c *check) { c.disabled = remediationv1alpha1.ReasonInvalid }},
		{name: "a storm that is told is no reason to hurry", nodes: 50, later: time.Second, change: func(c *check) {
			c.storm.isOn = true
			c.status.Stored.Conditions = []metav1.Condition{{Type: remediationv1alpha1.StormActive, Status: metav1.ConditionTrue}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &check{object: &remediationv1alpha1.NodeHealthCheck{}, nodes: map[string]triage.Reason{}}
			for i := range test.nodes {
				c.nodes[strconv.Itoa(i)] = triage.Reason{}
			}
			if test.change != nil {
				test.change(c)
			}
			if got := c.statusDelay(); got != test.later {
				t.Errorf("it is put off by %s, want %s", got, test.later)
			}
		})
	}
}
