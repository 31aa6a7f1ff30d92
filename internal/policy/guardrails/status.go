package guardrails

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

var guardrailsType = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Guardrails"}

// statusDelay is the additional interval between two writes of the numbers, which change with
// every unhealthy node.
const statusDelay = 2 * time.Second

// railNames are the fields of the spec.
var railNames = map[triage.Code]string{
	triage.MaxInTreatment: "maxInTreatment", triage.MaxUnschedulable: "maxUnschedulable", triage.MaxInTopology: "topology", triage.Paced: "pace",
	triage.OnHold: "mode", triage.LastNode: "lastNode", triage.CorrelatedFailed: "correlatedFailure",
	triage.GivenUp: "maxAttempts", triage.Vetoed: "respect",
}

// WriteStatuses updates the status and the metrics.
func (p *Policy) WriteStatuses(ctx context.Context, now time.Time) {
	use := p.host.Core().RailUse()
	p.metrics.set(use)
	if !use.Next.IsZero() {
		p.host.Statuses().ScheduleAt(use.Next)
	}
	if p.object == nil {
		return
	}
	delay := statusDelay
	if p.status.Stored.ObservedGeneration != p.object.Generation {
		delay = 0
	}
	p.status.Update(ctx, now, p.host.Statuses(), status.Write[v1alpha1.GuardrailsStatus]{
		Resource: "guardrails/status", Kind: "guardrails", Name: p.object.Name,
		Status: func() v1alpha1.GuardrailsStatus { return p.statusOf(use) },
		Send:   treat.StatusOf[v1alpha1.GuardrailsStatus](p.host.Writer(), guardrailsType, p.object.UID),
		Delay:  delay,
	})
}

func (p *Policy) statusOf(use triage.RailUse) v1alpha1.GuardrailsStatus {
	s := v1alpha1.GuardrailsStatus{
		ObservedGeneration: p.object.Generation, Mode: v1alpha1.Mode(p.rails.Mode),
		Nodes: status.Count(use.Nodes), Unhealthy: status.Count(use.Unhealthy), InTreatment: status.Count(use.InTreatment),
		Unschedulable: status.Count(use.Unschedulable), Held: status.Count(use.Held), GivenUp: status.Count(use.GivenUp),
		Rails: []v1alpha1.RailStatus{}, AcceptedSpec: p.accepted, Conditions: slices.Clone(p.status.Stored.Conditions),
	}
	for _, rail := range use.Rails[:min(len(use.Rails), v1alpha1.MaxListedRails)] {
		s.Rails = append(s.Rails, v1alpha1.RailStatus{
			Name: railNames[rail.Rail], Domain: rail.Domain, Limit: status.Count(rail.Limit), Used: status.Count(rail.Used), Held: status.Count(rail.Held),
		})
	}
	accepted := metav1.Condition{
		Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, Reason: "Followed", Message: "this version is in force", ObservedGeneration: p.object.Generation,
	}
	if p.problem != "" {
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, "Invalid", p.problem
	}
	ready := accepted
	ready.Type = v1alpha1.Ready
	switch {
	case p.problem != "":
	case p.released != "":
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Invalid", p.released
	default:
		ready.Message = p.sentence(use)
	}
	meta.SetStatusCondition(&s.Conditions, accepted)
	meta.SetStatusCondition(&s.Conditions, ready)
	return s
}

// sentence says what the guardrails hold back.
func (p *Policy) sentence(use triage.RailUse) string {
	var held []string
	for _, rail := range use.Rails {
		if rail.Held == 0 || rail.Rail == triage.OnHold {
			continue
		}
		name := railNames[rail.Rail]
		if rail.Domain != "" {
			name += " " + rail.Domain
		}
		if rail.HasLimit() {
			name += fmt.Sprintf(" (%d of %d)", rail.Used, rail.Limit)
		}
		verb := "holds"
		if rail.Rail == triage.GivenUp {
			verb = "has given up"
		}
		held = append(held, fmt.Sprintf("%s %s %d", name, verb, rail.Held))
	}
	switch {
	case p.rails.Mode != string(v1alpha1.Enforce):
		return "mode " + p.rails.Mode + ": nothing new starts"
	case len(p.rails.Core.Hold) > 0:
		for _, stage := range slices.Sorted(maps.Keys(p.rails.Core.Hold)) {
			held = append(held, "nothing new starts in "+string(stage))
		}
	case len(held) == 0:
		return "nothing is held back"
	}
	return strings.Join(held, ", ")
}
