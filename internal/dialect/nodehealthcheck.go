package dialect

import (
	"fmt"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// NodeHealthCheck turns conditions over time into remediation: when any of them
// has stood for long enough, and not too many nodes are sick, the steps are
// tried one after the other.
type NodeHealthCheck struct {
	Name     string
	Selector triage.Selector

	// UnhealthyConditions are the signs of sickness, any one of which is
	// enough; none means Ready False or Unknown for 300s.
	UnhealthyConditions []UnhealthyCondition

	// MaxUnhealthy and MinHealthy bound how many of the selected nodes may be
	// sick while something new is begun. One of them may be given; neither
	// means [DefaultMaxUnhealthy]. Shares are rounded up, as this kind's
	// contract has it.
	MaxUnhealthy string
	MinHealthy   string
	// StormCooldown is for how long no more may be sick than that before anything
	// new is begun, once more were; empty means not at all.
	StormCooldown string

	Steps []RemediationStep
	// HealthyDelay is how long a node must have been healthy before its remediation
	// is taken back; empty means not at all, and less than nothing until somebody
	// confirms by hand that it is.
	HealthyDelay string
	// Hold, when not empty, says why nothing new may begin.
	Hold string
}

// UnhealthyCondition is one sign of sickness.
type UnhealthyCondition struct {
	Type     string
	Status   string // True, False or Unknown in any letter case
	Duration string // how long it must have stood
}

// RemediationStep is one remediation that is tried.
type RemediationStep struct {
	Template string // whatever the one who carries it out finds the template by
	// Timeout is how long it may take before the next step is tried, at least a
	// minute; empty means for ever.
	Timeout string
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
			Condition: f.text(path+"type", u.Type, "want a condition type such as Ready"),
			Status:    f.status(path+"status", u.Status),
			For:       f.duration(path+"duration", u.Duration),
		}
		k := key{signal.Condition, signal.Status}
		if named[k] {
			f.refuse(path+"type", u.Type, fmt.Sprintf("%s=%s is named twice", k.condition, k.status))
		}
		named[k] = true
		when.Signals = append(when.Signals, signal)
	}
	ladder := c.ladder(&f)
	bound := triage.Bound{Gate: c.gate(&f), Cooldown: f.duration("spec.stormCooldownDuration", or(c.StormCooldown, "0s"))}
	recovery := c.recovery(&f)
	return f.rule(triage.Rule{
		ID:       triage.RuleID{Kind: triage.NodeHealthCheck, Name: f.text("metadata.name", c.Name, "a health check needs a name")},
		Who:      c.Selector,
		When:     when,
		Bound:    bound,
		Response: triage.Response{Ladder: ladder},
		Recovery: recovery,
		Hold:     c.Hold,
	})
}

func (c NodeHealthCheck) gate(f *fields) *triage.Limit {
	var gate *triage.Limit
	switch {
	case c.MinHealthy == "":
		gate = f.limit("spec.maxUnhealthy", or(c.MaxUnhealthy, DefaultMaxUnhealthy))
	case c.MaxUnhealthy == "":
		gate = f.limit("spec.minHealthy", c.MinHealthy)
		gate.Healthy = true
	default:
		f.refuse("spec.minHealthy", c.MinHealthy, "give either minHealthy or maxUnhealthy, not both")
		return nil
	}
	gate.RoundUp = gate.Percent
	return gate
}

func (c NodeHealthCheck) recovery(f *fields) triage.Recovery {
	delay, err := time.ParseDuration(or(c.HealthyDelay, "0s"))
	if err != nil {
		f.refuse("spec.healthyDelay", c.HealthyDelay, "want a duration such as 300s or 5m, or a negative one to wait until somebody confirms")
	}
	if delay < 0 {
		return triage.Recovery{ByHand: true}
	}
	return triage.Recovery{Delay: delay}
}

// shortestTimeout is what a remediation gets at least, as this kind's contract has it.
const shortestTimeout = time.Minute

func (c NodeHealthCheck) ladder(f *fields) []triage.Step {
	if len(c.Steps) == 0 {
		f.refuse("spec.remediationTemplate", "", "want a template, here or in spec.escalatingRemediations")
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
			Timeout: f.duration(path+"timeout", or(s.Timeout, "0s")),
		}
		if s.Timeout != "" && step.Timeout < shortestTimeout {
			f.refuse(path+"timeout", s.Timeout, "want at least a minute, such as 1m or 10m")
		}
		ladder = append(ladder, step)
	}
	return ladder
}
