package dialect

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// NodeHealthCheck remediates unhealthy nodes. When any of the conditions has matched long
// enough, and not too many nodes are unhealthy, the steps are tried in order.
type NodeHealthCheck struct {
	Name     string
	Selector triage.Selector

	// UnhealthyConditions are the conditions of an unhealthy node; one match is enough. None
	// means Ready False or Unknown for 300s.
	UnhealthyConditions []UnhealthyCondition

	// MaxUnhealthy and MinHealthy limit how many selected nodes may be unhealthy while new
	// remediations begin. At most one of them may be set; none means [DefaultMaxUnhealthy].
	// Percentages are rounded up, as the NodeHealthCheck API specifies.
	MaxUnhealthy string
	MinHealthy   string
	// StormCooldown is how long the limit must not have been exceeded before new
	// remediations begin again. Empty means zero.
	StormCooldown string

	Steps []RemediationStep
	// HealthyDelay is how long a node must have been healthy before its remediation is
	// removed. Empty means zero. A negative value waits until a user confirms that the node
	// is healthy.
	HealthyDelay string
	// Hold, if not empty, is the reason why nothing new may begin.
	Hold string
	// Windows are when remediations may begin; none means at any time. WindowsPath is where the user
	// writes them.
	Windows     []Window
	WindowsPath string
}

// UnhealthyCondition is a condition of an unhealthy node.
type UnhealthyCondition struct {
	Type     string
	Status   string // True, False or Unknown in any letter case
	Duration string // how long the condition must have matched
}

// RemediationStep is a remediation to try.
type RemediationStep struct {
	Template string // reference by which the controller finds the template
	// Timeout is how long the remediation may take before the next step begins, at least a
	// minute. Empty means no timeout.
	Timeout string
	// Urgent lets the remediation begin outside the windows.
	Urgent bool
}

// Rule compiles the health check.
func (c NodeHealthCheck) Rule() (triage.Rule, error) {
	var f fields
	conditions := c.UnhealthyConditions
	if len(conditions) == 0 {
		conditions = []UnhealthyCondition{
			{Type: triage.Ready, Status: "False", Duration: "300s"},
			{Type: triage.Ready, Status: "Unknown", Duration: "300s"},
		}
	}
	var when triage.When
	type key struct {
		condition string
		status    triage.Status
	}
	named := map[key]bool{}
	for i, u := range conditions {
		path := fmt.Sprintf("spec.unhealthyConditions[%d].", i)
		signal := triage.Signal{
			Condition: f.text(path+"type", u.Type, "want a condition type like Ready"),
			Status:    f.status(path+"status", u.Status),
			For:       f.duration(path+"duration", u.Duration),
		}
		k := key{signal.Condition, signal.Status}
		if named[k] {
			f.fail(path+"type", u.Type, fmt.Sprintf("%s=%s is named twice", k.condition, k.status))
		}
		named[k] = true
		when.Signals = append(when.Signals, signal)
	}
	ladder := c.ladder(&f)
	bound := triage.Bound{Gate: c.gate(&f), Cooldown: f.duration("spec.stormCooldownDuration", orDefault(c.StormCooldown, "0s"))}
	recovery := c.recovery(&f)
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: policykind.NodeHealthCheck, Name: f.text("metadata.name", c.Name, "a health check needs a name")},
		Stage:    policykind.StageRemediate,
		Selector: c.Selector,
		When:     when,
		Bound:    bound,
		Response: triage.Response{Ladder: ladder},
		Recovery: recovery,
		Hold:     c.Hold,
		Window:   f.windows(c.WindowsPath, c.Windows),
	})
}

func (c NodeHealthCheck) gate(f *fields) *triage.Limit {
	var gate *triage.Limit
	switch {
	case c.MinHealthy == "":
		gate = f.limit("spec.maxUnhealthy", orDefault(c.MaxUnhealthy, DefaultMaxUnhealthy))
	case c.MaxUnhealthy == "":
		gate = f.limit("spec.minHealthy", c.MinHealthy)
		gate.Healthy = true
	default:
		f.fail("spec.minHealthy", c.MinHealthy, "give either minHealthy or maxUnhealthy, not both")
		return nil
	}
	gate.RoundUp = gate.Percent
	return gate
}

func (c NodeHealthCheck) recovery(f *fields) triage.Recovery {
	delay, err := time.ParseDuration(orDefault(c.HealthyDelay, "0s"))
	if err != nil {
		f.fail("spec.healthyDelay", c.HealthyDelay, "want a duration like 300s or 5m, or a negative one to wait for a manual confirmation")
	}
	if delay < 0 {
		return triage.Recovery{ByHand: true}
	}
	return triage.Recovery{Delay: delay}
}

// minTimeout is the shortest timeout of a remediation, as the NodeHealthCheck API specifies.
const minTimeout = time.Minute

func (c NodeHealthCheck) ladder(f *fields) []triage.Step {
	if len(c.Steps) == 0 {
		f.fail("spec.remediationTemplate", "", "want a template, here or in spec.escalatingRemediations")
	}
	ladder := make([]triage.Step, 0, len(c.Steps))
	for i, s := range c.Steps {
		path := fmt.Sprintf("spec.escalatingRemediations[%d].", i)
		template := path + "remediationTemplate"
		if len(c.Steps) == 1 && s.Timeout == "" {
			template = "spec.remediationTemplate"
		}
		step := triage.Step{
			Action:  triage.Remediate,
			Ref:     f.text(template, s.Template, "want the name of a template"),
			Timeout: f.duration(path+"timeout", orDefault(s.Timeout, "0s")),
			Urgent:  s.Urgent,
		}
		if s.Timeout != "" && step.Timeout < minTimeout {
			f.fail(path+"timeout", s.Timeout, "want at least a minute, for example 1m or 10m")
		}
		ladder = append(ladder, step)
	}
	return ladder
}
