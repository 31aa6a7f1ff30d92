package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/vet"
)

const (
	conditionSetPath = "/validate-autohealer-resourcestack-com-v1alpha1-conditionset"
	conditionSets    = "conditionsets"

	// patience is how long a request waits for the nodes to be known. It is well
	// below the time that the API server waits for an answer.
	patience = time.Second
	// glance is how often it looks whether they are.
	glance = 20 * time.Millisecond
	// retryAfter is when a client should ask again. Clients of Kubernetes do so
	// by themselves.
	retryAfter = 1
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
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Census", c.Census == nil}, {"Sets", c.Sets == nil}, {"Fresh", c.Fresh == nil}, {"Synced", c.Synced == nil}, {"Metrics", c.Metrics == nil}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// ConditionSets answers for ConditionSets.
type ConditionSets struct{ cfg ConditionSetConfig }

// NewConditionSets returns what answers for ConditionSets.
func NewConditionSets(cfg ConditionSetConfig) (*ConditionSets, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the admission of ConditionSets: %w", err)
	}
	return &ConditionSets{cfg: cfg}, nil
}

// Path is where the API server asks.
func (k *ConditionSets) Path() string { return conditionSetPath }

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

// Handle answers the API server.
func (k *ConditionSets) Handle(ctx context.Context, request admission.Request) admission.Response {
	begin := time.Now()
	answer := k.answer(ctx, request)
	k.cfg.Metrics.answered(conditionSets, kindOf(answer), time.Since(begin))
	if !answer.Allowed {
		k.cfg.Logger.Info("policy refused", "conditionset", request.Name, "operation", request.Operation,
			"user", request.UserInfo.Username, "why", answer.Result.Message)
	}
	return answer
}

func kindOf(answer admission.Response) string {
	switch {
	case answer.Allowed && len(answer.Warnings) > 0:
		return "warned"
	case answer.Allowed:
		return "allowed"
	case answer.Result.Code == http.StatusServiceUnavailable:
		return "unready"
	default:
		return "refused"
	}
}

func (k *ConditionSets) answer(ctx context.Context, request admission.Request) admission.Response {
	if request.SubResource != "" {
		return admission.Allowed("") // the spec is not touched
	}
	switch request.Operation {
	case admissionv1.Create:
		return k.changed(ctx, request, nil)
	case admissionv1.Update:
		return k.updated(ctx, request)
	case admissionv1.Delete:
		return deleted(request)
	default:
		return admission.Allowed("")
	}
}

// updated answers for a set that is stored already. What has been wrong with it
// hinders no change of its metadata, or a finalizer could never be removed.
func (k *ConditionSets) updated(ctx context.Context, request admission.Request) admission.Response {
	old, err := read(request.OldObject.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if !sameSpec(request.OldObject.Raw, request.Object.Raw) {
		return k.changed(ctx, request, inForce(old))
	}
	if !onlyAsks(request) {
		return admission.Allowed("")
	}
	// Who applies what is there already, only to see, is told all the same.
	answer := k.changed(ctx, request, inForce(old))
	if !answer.Allowed {
		return admission.Allowed("").WithWarnings(append(answer.Warnings, answer.Result.Message)...)
	}
	return answer
}

// onlyAsks says whether nothing is to be stored.
func onlyAsks(request admission.Request) bool { return request.DryRun != nil && *request.DryRun }

// deleted lets every set go, and says what goes with it.
func deleted(request admission.Request) admission.Response {
	old, err := read(request.OldObject.Raw)
	if err != nil {
		return admission.Allowed("") // what cannot be read should be gone all the more
	}
	if placed := old.Status.Tainted + old.Status.HeldBack; placed > 0 {
		return admission.Allowed("").WithWarnings(fmt.Sprintf("the taint %s of this set will be removed from %s", old.Spec.TaintKey, nodes(placed)))
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
func (k *ConditionSets) changed(ctx context.Context, request admission.Request, before *v1alpha1.ConditionSet) admission.Response {
	set, err := read(request.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	known := set.Spec.DryRun && k.cfg.Census.Ready() || !set.Spec.DryRun && awaited(ctx, k.cfg.Census.Ready)
	verdict, err := k.judge(ctx, vet.Case{Set: set, Before: before, OnlyAsked: onlyAsks(request)}, known)
	if err != nil {
		return unready(err.Error())
	}
	if err := verdict.Err(); err != nil {
		return admission.Denied(err.Error()).WithWarnings(verdict.Warnings...)
	}
	if !known && !set.Spec.DryRun {
		return unready("the controller has just started and does not know the nodes yet, so nobody can tell what this set would do to them")
	}
	return admission.Allowed("").WithWarnings(verdict.Warnings...)
}

// awaited waits for the nodes to be known, for a moment.
func awaited(ctx context.Context, known func() bool) bool {
	if known() {
		return true
	}
	look := time.NewTicker(glance)
	defer look.Stop()
	for end := time.After(patience); ; {
		select {
		case <-look.C:
			if known() {
				return true
			}
		case <-end:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// judge asks vet: first with the sets that are at hand, and before it refuses a
// duplicate with those that there are at this moment. Where the nodes are not known,
// it asks only what can be said without them: a name that looks misspelled may be on a
// node.
func (k *ConditionSets) judge(ctx context.Context, look vet.Case, known bool) (verdict vet.Verdict, _ error) {
	judge := vet.Standing
	if known {
		judge = vet.Judge
		look.Reported = k.cfg.Census.Reported()
		look.Impact = k.cfg.Census.Impact
	}
	for _, sets := range []func(context.Context) ([]*v1alpha1.ConditionSet, error){k.cfg.Sets, k.cfg.Fresh} {
		all, err := sets(ctx)
		if err != nil {
			return verdict, fmt.Errorf("the other sets could not be read: %w", err)
		}
		look.Others = slices.DeleteFunc(slices.Clone(all), func(s *v1alpha1.ConditionSet) bool { return s.Name == look.Set.Name })
		if verdict = judge(look); !slices.ContainsFunc(verdict.Problems, func(p vet.Problem) bool { return p.Reason == vet.Duplicate }) {
			break
		}
	}
	return verdict, nil
}

// unready refuses for now. Clients of Kubernetes try again by themselves.
func unready(why string) admission.Response {
	answer := admission.Errored(http.StatusServiceUnavailable, errors.New(why+"; try again in a moment"))
	answer.Result.Reason = metav1.StatusReasonServiceUnavailable
	answer.Result.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return answer
}

// inForce returns a stored set if the controller follows it as it stands, and
// nothing otherwise: a set of which that is not known is judged like a new one,
// because what it may match now says nothing of what it does.
func inForce(stored *v1alpha1.ConditionSet) *v1alpha1.ConditionSet {
	accepted := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.Accepted)
	if accepted == nil || accepted.Status != metav1.ConditionTrue || accepted.ObservedGeneration != stored.Generation || stored.Spec.DryRun {
		return nil
	}
	return stored
}

// read decodes a set, which succeeds for everything that has the form of an object.
func read(raw []byte) (*v1alpha1.ConditionSet, error) {
	set := &v1alpha1.ConditionSet{}
	if err := json.Unmarshal(raw, set); err != nil {
		return nil, fmt.Errorf("reading the ConditionSet: %w", err)
	}
	return set, nil
}

// sameSpec compares what two objects ask for, field by field as they are written.
func sameSpec(a, b []byte) bool {
	var first, second struct {
		Spec any `json:"spec"`
	}
	if json.Unmarshal(a, &first) != nil || json.Unmarshal(b, &second) != nil {
		return false
	}
	return reflect.DeepEqual(first.Spec, second.Spec)
}
