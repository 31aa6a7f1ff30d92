package nodehealthcheck

import (
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Remediations knows the remediation objects and their templates.
type Remediations interface {
	// ObjectsOf returns the objects of a rule by node.
	ObjectsOf(rule triage.RuleID) map[string][]remediation.Object
	// TemplateProblem returns what is wrong with the templates of a ladder, empty for
	// nothing. disabled is the condition reason for it, empty if the problem is about to
	// pass.
	TemplateProblem(ladder []remediation.Template) (problem, disabled string)
	// ControlPlaneProblem returns why control-plane nodes must wait, empty for nothing.
	ControlPlaneProblem() string
	// ForeignLease says which other component holds the Lease of a node, empty for none.
	ForeignLease(now time.Time, node string) string
	// ReferencesChanged tells that the policy may reference other templates.
	ReferencesChanged()
	// ReobserveRule reobserves every node with an object of the rule.
	ReobserveRule(now time.Time, rule triage.RuleID)
}

// The treatment with remediation objects calls the methods below.

// Requests reports whether the rule is of a health check.
func (h *Policy) Requests(rule triage.RuleID) bool { return rule.Kind == policykind.NodeHealthCheck }

// Request returns what the rule of a health check asks for.
func (h *Policy) Request(rule triage.RuleID) *remediation.Request {
	c := h.checkOf(rule)
	if c == nil {
		return nil
	}
	return &remediation.Request{
		Owner:      remediation.Owner{Kind: remediation.CheckKind, Name: rule.Name, UID: c.object.UID},
		Generation: c.object.Generation, Ladder: c.ladder, Rule: c.rule,
	}
}

// MayRequest reports true: health checks treat every node with a remediation object.
func (*Policy) MayRequest(*engine.Node, triage.RuleID) bool { return true }

// RuleOf returns the rule of the health check that owns an object.
func (*Policy) RuleOf(owner remediation.Owner) triage.RuleID {
	if owner.Kind != remediation.CheckKind {
		return triage.RuleID{}
	}
	return checkRule(owner.Name)
}

// IsDeferring reports whether another controller follows the health checks.
func (h *Policy) IsDeferring() bool { return h.deferring }

// ReadsConfirmations reports whether there are health checks.
func (h *Policy) ReadsConfirmations() bool { return len(h.known) > 0 }

// References yields the kinds that health checks name, in spec and status. An earlier
// leader may have created objects from templates that are no longer in the spec, and those of the version
// that it followed last decide whether that version stays in force.
func (h *Policy) References() iter.Seq[schema.GroupVersionKind] {
	return func(yield func(schema.GroupVersionKind) bool) {
		for _, c := range h.known {
			specs := []remediationv1alpha1.NodeHealthCheckSpec{c.object.Spec}
			if accepted, err := format.DecodeSpec[remediationv1alpha1.NodeHealthCheckSpec](c.status.Stored.AcceptedSpec); err == nil && !c.isFollowed() {
				specs = append(specs, accepted)
			}
			for _, spec := range specs {
				for i := range spec.EscalatingRemediations {
					if !remediation.YieldKinds(spec.EscalatingRemediations[i].RemediationTemplate, yield) {
						return
					}
				}
				if ref := spec.RemediationTemplate; ref != nil && !remediation.YieldKinds(*ref, yield) {
					return
				}
			}
			for _, t := range c.ladder { // the version in force may not be the newest
				if !yield(t.GroupVersionKind) || !yield(t.ObjectKind()) {
					return
				}
			}
			for _, node := range c.object.Status.UnhealthyNodes {
				for _, r := range node.Remediations {
					if gvk := r.Resource.GroupVersionKind(); gvk.Kind != "" && gvk.Group != "" && !yield(gvk) {
						return
					}
				}
			}
		}
	}
}

// TemplatesChanged marks the rules of health checks as outdated.
func (h *Policy) TemplatesChanged() { h.changed = true }
