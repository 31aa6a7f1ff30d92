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
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

const (
	conditionSetPath = "/validate-autohealer-resourcestack-com-v1alpha1-conditionset"
	conditionSets    = "conditionsets"
)

// Census is what is known of the nodes.
type Census interface {
	Ready() bool
	Reported() []string
	Impact(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error)
}

// ConditionSetConfig is what is known when a ConditionSet is judged.
type ConditionSetConfig struct {
	Census Census
	// Sets returns all sets, those in ConfigMaps among them, perhaps as they were a
	// moment ago. It must not ask the API server: somebody waits.
	Sets func(context.Context) ([]*v1alpha1.ConditionSet, error)
	// Fresh returns the sets as they are now. It is asked before a duplicate is
	// refused: the other may just have been changed or deleted.
	Fresh   func(context.Context) ([]*v1alpha1.ConditionSet, error)
	Synced  func() bool
	Metrics *Metrics
	Logger  *slog.Logger
}

// Validate says everything that is missing.
func (c ConditionSetConfig) Validate() error {
	return complete(
		part{"Census", c.Census == nil}, part{"Sets", c.Sets == nil}, part{"Fresh", c.Fresh == nil},
		part{"Synced", c.Synced == nil}, part{"Metrics", c.Metrics == nil}, part{"Logger", c.Logger == nil},
	)
}

// ConditionSets answers for ConditionSets.
type ConditionSets struct {
	desk[v1alpha1.ConditionSet]
	cfg ConditionSetConfig
}

// NewConditionSets returns what answers for ConditionSets.
func NewConditionSets(cfg ConditionSetConfig) (*ConditionSets, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the admission of ConditionSets: %w", err)
	}
	k := &ConditionSets{cfg: cfg}
	k.desk = desk[v1alpha1.ConditionSet]{path: conditionSetPath, resource: conditionSets, object: "conditionset", judge: k, same: sameSpec, sizes: sizesOfSet, metrics: cfg.Metrics, logger: cfg.Logger}
	return k, nil
}

func sizesOfSet(set *v1alpha1.ConditionSet) []size {
	return []size{{"spec.conditions", len(set.Spec.Conditions), 32}, selectorSize("spec.selector", set.Spec.Selector)}
}

// Ready says what is still missing for a verdict.
func (k *ConditionSets) Ready() error {
	if !k.cfg.Census.Ready() {
		return errors.New("the nodes are not known yet")
	}
	if !k.cfg.Synced() {
		return errors.New("the ConditionSets are not known yet")
	}
	return nil
}

// deleted lets every set go, and says what goes with it.
func (k *ConditionSets) deleted(_ context.Context, stored *v1alpha1.ConditionSet) admission.Response {
	if placed := stored.Status.Tainted + stored.Status.HeldBack; placed > 0 {
		return admission.Allowed("").WithWarnings(fmt.Sprintf("the taint %s of this set will be removed from %s", stored.Spec.TaintKey, nodes(placed)))
	}
	return admission.Allowed("")
}

func nodes(n int32) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// changed answers for a set that is new, or whose spec is.
func (k *ConditionSets) changed(ctx context.Context, set, stored *v1alpha1.ConditionSet, onlyAsked bool) admission.Response {
	known := set.Spec.DryRun && k.cfg.Census.Ready() || !set.Spec.DryRun && awaited(ctx, k.cfg.Census.Ready)
	verdict, err := k.verdict(ctx, validate.Case{Set: set, Before: inForce(stored), Stored: stored, OnlyAsked: onlyAsked}, known)
	if err != nil {
		return unready(err.Error())
	}
	answer := told(verdict)
	if answer.Allowed && !known && !set.Spec.DryRun {
		return unready("the controller has just started and does not know the nodes yet, so nobody can tell what this set would do to them")
	}
	return answer
}

// verdict asks vet: first with the sets that are at hand, and before it refuses a
// duplicate with those that there are at this moment. Where the nodes are not known,
// it asks only what can be said without them: a name that looks misspelled may be on a
// node.
func (k *ConditionSets) verdict(ctx context.Context, look validate.Case, known bool) (verdict validate.Verdict, _ error) {
	judge := validate.Standing
	if known {
		judge = validate.Judge
		look.Reported = k.cfg.Census.Reported()
		look.Impact = k.cfg.Census.Impact
	}
	for _, sets := range []func(context.Context) ([]*v1alpha1.ConditionSet, error){k.cfg.Sets, k.cfg.Fresh} {
		all, err := sets(ctx)
		if err != nil {
			return verdict, fmt.Errorf("the other sets could not be read: %w", err)
		}
		look.Others = slices.DeleteFunc(slices.Clone(all), func(s *v1alpha1.ConditionSet) bool { return s.Name == look.Set.Name })
		if verdict = judge(look); !slices.ContainsFunc(verdict.Problems, func(p validate.Problem) bool { return p.Reason == validate.Duplicate }) {
			break
		}
	}
	return verdict, nil
}

// inForce returns a stored set if the controller follows it as it stands, and
// nothing otherwise: a set of which that is not known is judged like a new one,
// because what it may match now says nothing of what it does.
func inForce(stored *v1alpha1.ConditionSet) *v1alpha1.ConditionSet {
	if stored == nil {
		return nil
	}
	accepted := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.Accepted)
	if accepted == nil || accepted.Status != metav1.ConditionTrue || accepted.ObservedGeneration != stored.Generation || stored.Spec.DryRun {
		return nil
	}
	return stored
}
