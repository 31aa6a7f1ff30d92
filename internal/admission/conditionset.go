package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

const (
	conditionSetPath = "/validate-autohealer-resourcestack-com-v1alpha1-conditionset"
	conditionSets    = "conditionsets"
)

// ImpactSource returns facts about the nodes.
type ImpactSource interface {
	Ready() bool
	Reported() []string
	Impact(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error)
}

// ConditionSetConfig configures the validation of ConditionSets.
type ConditionSetConfig struct {
	Nodes ImpactSource
	// Sets returns all sets, including those in ConfigMaps, from a cache. It must not
	// call the API server, because the request waits for it.
	Sets func(context.Context) ([]*v1alpha1.ConditionSet, error)
	// Fresh returns the sets from the API server. It is called before a duplicate is
	// rejected, because the other set may just have been changed or deleted.
	Fresh   func(context.Context) ([]*v1alpha1.ConditionSet, error)
	Synced  func() bool
	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate returns all missing fields.
func (c ConditionSetConfig) Validate() error {
	return required.Fields{
		"Nodes": c.Nodes == nil, "Sets": c.Sets == nil, "Fresh": c.Fresh == nil, "Synced": c.Synced == nil,
		"Metrics": c.Metrics == nil, "Logger": c.Logger == nil,
	}.Check()
}

// ConditionSets validates ConditionSets.
type ConditionSets struct {
	handler[v1alpha1.ConditionSet]
	cfg ConditionSetConfig
}

// NewConditionSets returns the handler for ConditionSets.
func NewConditionSets(cfg ConditionSetConfig) (*ConditionSets, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the admission of ConditionSets: %w", err)
	}
	k := &ConditionSets{cfg: cfg}
	k.handler = handler[v1alpha1.ConditionSet]{path: conditionSetPath, resource: conditionSets, object: "conditionset", validator: k, same: sameSpec, sizes: sizesOfSet, metrics: cfg.Metrics, logger: cfg.Logger}
	return k, nil
}

func sizesOfSet(set *v1alpha1.ConditionSet) []size {
	return []size{{"spec.conditions", len(set.Spec.Conditions), 32}, selectorSize("spec.selector", set.Spec.Selector)}
}

// Ready returns why the handler cannot validate yet.
func (k *ConditionSets) Ready() error {
	if !k.cfg.Nodes.Ready() {
		return errors.New("the nodes are not known yet")
	}
	if !k.cfg.Synced() {
		return errors.New("the ConditionSets are not known yet")
	}
	return nil
}

// deleted allows every deletion and warns of the taints that will be removed.
func (k *ConditionSets) deleted(ctx context.Context, stored *v1alpha1.ConditionSet) admission.Response {
	others, err := k.cfg.Sets(ctx)
	isCopied := err == nil && slices.ContainsFunc(others, func(other *v1alpha1.ConditionSet) bool { return validate.IsCopy(other, stored) })
	if isCopied { // it takes over the taints
		return admission.Allowed("")
	}
	if placed := stored.Status.Tainted + stored.Status.HeldBack; placed > 0 {
		return admission.Allowed("").WithWarnings(fmt.Sprintf("the taint %s of this set will be removed from %s", versionInForce(stored).Spec.TaintKey, nodes(placed)))
	}
	return admission.Allowed("")
}

func nodes(n int32) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// changed validates a set that is new or has a new spec.
func (k *ConditionSets) changed(ctx context.Context, set, stored *v1alpha1.ConditionSet, onlyAsked bool) admission.Response {
	known := set.Spec.Observes() && k.cfg.Nodes.Ready() || !set.Spec.Observes() && waitUntil(ctx, k.cfg.Nodes.Ready)
	verdict, err := k.verdict(ctx, validate.Case{Set: set, Before: inForce(stored), Stored: stored, PreviewOnly: onlyAsked}, known)
	if err != nil {
		return notReady(err.Error())
	}
	answer := responseOf(verdict)
	if answer.Allowed && !known && !set.Spec.Observes() {
		return notReady("the controller has just started and does not know the nodes yet, so it cannot determine the impact of this set")
	}
	return answer
}

// verdict validates with the cached sets first. It repeats that with fresh sets before it
// rejects a duplicate. If the nodes are unknown, it runs only the checks that do not need
// them: a name that looks misspelled may exist on a node.
func (k *ConditionSets) verdict(ctx context.Context, input validate.Case, known bool) (verdict validate.Verdict, _ error) {
	check := validate.StoredConditionSet
	if known {
		check = validate.ConditionSet
		input.Reported = k.cfg.Nodes.Reported()
		input.Impact = k.cfg.Nodes.Impact
	}
	for _, sets := range []func(context.Context) ([]*v1alpha1.ConditionSet, error){k.cfg.Sets, k.cfg.Fresh} {
		all, err := sets(ctx)
		if err != nil {
			return verdict, fmt.Errorf("the other sets could not be read: %w", err)
		}
		input.Others = nil
		for _, s := range all {
			if s.Name == input.Set.Name {
				continue
			}
			other := versionInForce(s)
			input.Others = append(input.Others, other)
			if input.Stored == nil && validate.IsCopy(other, input.Set) { // it takes over, so its impact is not new
				input.Before = other
			}
		}
		if verdict = check(input); !slices.ContainsFunc(verdict.Problems, func(p validate.Problem) bool { return p.Reason == validate.Duplicate }) {
			break
		}
	}
	return verdict, nil
}

// inForce returns the version of a stored set that the controller applies, nil for none. Any
// other set is validated like a new one, because it has no effect yet.
func inForce(stored *v1alpha1.ConditionSet) *v1alpha1.ConditionSet {
	if stored == nil || stored.Spec.Observes() {
		return nil
	}
	accepted := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.Accepted)
	if accepted != nil && accepted.Status == metav1.ConditionTrue && accepted.ObservedGeneration == stored.Generation {
		return stored
	}
	if version := versionInForce(stored); version != stored && !version.Spec.Observes() {
		return version
	}
	return nil
}

// versionInForce returns the accepted version of a set whose newest version the controller has
// refused, otherwise the newest version.
func versionInForce(stored *v1alpha1.ConditionSet) *v1alpha1.ConditionSet {
	accepted := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.Accepted)
	if accepted == nil || accepted.Status != metav1.ConditionFalse || accepted.ObservedGeneration != stored.Generation || stored.Status.AcceptedSpec == "" {
		return stored
	}
	spec, err := format.DecodeSpec[v1alpha1.ConditionSetSpec](stored.Status.AcceptedSpec)
	if err != nil || spec.Unreadable != "" {
		return stored
	}
	version := stored.DeepCopy()
	version.Spec = spec
	return version
}
