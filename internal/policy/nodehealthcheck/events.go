package nodehealthcheck

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// publishEvent publishes an Event about a health check and a node, which may be nil.
func (h *Policy) publishEvent(c *check, node *corev1.Node, what treat.EventReason, reason triage.Reason, message string) {
	h.host.PublishEvent(checkRule(c.object.Name), node, what, reason, message)
}

// Planned reports that a node is unhealthy and, if it is not treated, why: once per
// reason. A cause that affects all nodes is reported on the health check only.
func (h *Policy) Planned(state *engine.Node, plan triage.Plan) {
	for _, is := range plan.Findings {
		c := h.checkOf(is.Rule)
		if c == nil || c.isNew() { // the state of a new check lasts only a moment
			continue
		}
		was := state.Reported[is.Rule].Code
		waits := is.Code.IsWait()
		if !waits && is.Code != triage.Treating && is.Code != triage.Exhausted {
			if was != 0 && is.Code != triage.Recovering && is.Code != triage.Unclear {
				delete(state.Reported, is.Rule) // report it again when it starts again
			}
			continue
		}
		if is.Code == was {
			continue
		}
		state.NoteReported(is.Rule, engine.Report{Code: is.Code})
		if was == 0 {
			h.publishEvent(c, state.Object, treat.DetectedUnhealthy, is, "")
			if value, labelled := state.Object.Labels[remediation.ExcludeLabel]; labelled && value != remediation.ExcludeValue {
				h.publishEvent(c, state.Object, treat.InvalidNodeLabel, is, fmt.Sprintf("label %s is %q and has no effect; the value %q excludes the node from remediation", remediation.ExcludeLabel, value, remediation.ExcludeValue))
			}
		}
		switch {
		case is.Code == triage.Exhausted:
			h.publishEvent(c, state.Object, treat.NoTemplateLeft, is, "")
		case is.Code == triage.GateClosed || is.Code == triage.CoolingDown || is.Code == triage.OnHold || is.Code == triage.OutsideWindow:
			if c.skipped != is.Code {
				c.skipped = is.Code
				is.Besides = "" // the Event is about all nodes
				h.publishEvent(c, nil, treat.RemediationSkipped, is, "")
			}
		case is.Code == triage.GivenUp:
			h.publishEvent(c, state.Object, treat.GivenUp, is, "")
		case is.Code == triage.Retrying: // the refusal has been reported
		case waits:
			h.publishEvent(c, state.Object, treat.RemediationSkipped, is, "")
		default:
			c.skipped = 0
		}
	}
}
