package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/vet"
)

const (
	healthCheckPath = "/validate-remediation-medik8s-io-v1alpha1-nodehealthcheck"
	healthChecks    = "nodehealthchecks"

	// lookingAround is how long templates and remediations may be looked for. Together
	// with patience it is well below the time that the API server waits.
	lookingAround = 2 * time.Second
)

// Surveyor is what is known of the nodes.
type Surveyor interface {
	Ready() bool
	Reported() []string
	Survey(rule triage.Rule, others ...triage.Selector) (triage.Survey, error)
}

// HealthCheckConfig is what is known when a NodeHealthCheck is judged.
type HealthCheckConfig struct {
	Census Surveyor
	// Checks returns the health checks that are stored, perhaps as they were a moment
	// ago. Nobody is refused because of others, so an error only costs a warning.
	Checks func(context.Context) ([]*v1alpha1.NodeHealthCheck, error)
	// Template reads a template.
	Template func(context.Context, remediation.Template) (*unstructured.Unstructured, error)
	// Remediation reads a remediation that a status names.
	Remediation func(context.Context, corev1.ObjectReference) (metav1.Object, error)
	Metrics     *Metrics
	Logger      *slog.Logger
}

// Validate says everything that is missing.
func (c HealthCheckConfig) Validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Census", c.Census == nil}, {"Checks", c.Checks == nil}, {"Template", c.Template == nil}, {"Remediation", c.Remediation == nil},
		{"Metrics", c.Metrics == nil}, {"Logger", c.Logger == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// HealthChecks answers for NodeHealthChecks.
type HealthChecks struct{ cfg HealthCheckConfig }

// NewHealthChecks returns what answers for NodeHealthChecks.
func NewHealthChecks(cfg HealthCheckConfig) (*HealthChecks, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the admission of NodeHealthChecks: %w", err)
	}
	return &HealthChecks{cfg: cfg}, nil
}

// Path is where the API server asks.
func (k *HealthChecks) Path() string { return healthCheckPath }

// Ready says what is still missing for a verdict. That the other health checks are
// known is no part of it: where their CRD is not installed, nobody asks.
func (k *HealthChecks) Ready() error {
	if !k.cfg.Census.Ready() {
		return errors.New("the nodes are not known yet")
	}
	return nil
}

// Handle answers the API server.
func (k *HealthChecks) Handle(ctx context.Context, request admission.Request) admission.Response {
	begin := time.Now()
	answer := k.answer(ctx, request)
	k.cfg.Metrics.answered(healthChecks, kindOf(answer), time.Since(begin))
	if !answer.Allowed {
		k.cfg.Logger.Info("policy refused", "nodehealthcheck", request.Name, "operation", request.Operation,
			"user", request.UserInfo.Username, "why", answer.Result.Message)
	}
	return answer
}

func (k *HealthChecks) answer(ctx context.Context, request admission.Request) admission.Response {
	if request.SubResource != "" {
		return admission.Allowed("") // the spec is not touched
	}
	switch request.Operation {
	case admissionv1.Create:
		return k.changed(ctx, request, nil)
	case admissionv1.Update:
		return k.updated(ctx, request)
	case admissionv1.Delete:
		return k.deleted(ctx, request)
	default:
		return admission.Allowed("")
	}
}

// updated answers for a health check that is stored already. What has been wrong
// with it hinders no change of its metadata.
func (k *HealthChecks) updated(ctx context.Context, request admission.Request) admission.Response {
	old, err := readCheck(request.OldObject.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if !sameSpec(request.OldObject.Raw, request.Object.Raw) {
		return k.changed(ctx, request, old)
	}
	if request.DryRun == nil || !*request.DryRun {
		return admission.Allowed("")
	}
	// Who applies what is there already, only to see, is told all the same.
	answer := k.changed(ctx, request, old)
	if !answer.Allowed {
		return admission.Allowed("").WithWarnings(append(answer.Warnings, answer.Result.Message)...)
	}
	return answer
}

// deleted lets a health check go that has nothing under way.
func (k *HealthChecks) deleted(ctx context.Context, request admission.Request) admission.Response {
	old, err := readCheck(request.OldObject.Raw)
	if err != nil {
		return admission.Allowed("") // what cannot be read should be gone all the more
	}
	ctx, cancel := context.WithTimeout(ctx, lookingAround)
	defer cancel()
	return told(vet.JudgeHealthCheckDeletion(old, k.underWay(ctx)))
}

// changed answers for a health check that is new, or whose spec is. One that is
// paused begins nothing, so nobody waits for the nodes to be known.
func (k *HealthChecks) changed(ctx context.Context, request admission.Request, stored *v1alpha1.NodeHealthCheck) admission.Response {
	check, err := readCheck(request.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	paused := len(check.Spec.PauseRequests) > 0
	known := paused && k.cfg.Census.Ready() || !paused && awaited(ctx, k.cfg.Census.Ready)
	answer := told(k.judge(ctx, check, stored, known))
	if answer.Allowed && !known && !paused {
		return unready("the controller has just started and does not know the nodes yet, so nobody can tell what this health check would do to them")
	}
	return answer
}

func told(verdict vet.Verdict) admission.Response {
	if err := verdict.Err(); err != nil {
		return admission.Denied(err.Error()).WithWarnings(verdict.Warnings...)
	}
	return admission.Allowed("").WithWarnings(verdict.Warnings...)
}

// judge asks vet, with all that can be found out in time.
func (k *HealthChecks) judge(ctx context.Context, check, stored *v1alpha1.NodeHealthCheck, known bool) vet.Verdict {
	ctx, cancel := context.WithTimeout(ctx, lookingAround)
	defer cancel()
	look := vet.HealthCase{
		Check: check, Stored: stored,
		Template: func(template remediation.Template) (*unstructured.Unstructured, error) {
			return k.cfg.Template(ctx, template)
		},
		UnderWay: k.underWay(ctx),
	}
	var unread []string
	if known {
		all, err := k.cfg.Checks(ctx)
		if err != nil {
			unread = []string{fmt.Sprintf("spec.selector: the other health checks could not be read (%v), so nobody knows whether they choose the same nodes", err)}
		}
		look.Others = slices.DeleteFunc(slices.Clone(all), func(c *v1alpha1.NodeHealthCheck) bool { return c.Name == check.Name })
		look.Reported = append([]string{}, k.cfg.Census.Reported()...) // nil would say that nobody knows
		look.Survey = k.cfg.Census.Survey
	}
	verdict := vet.JudgeHealthCheck(look)
	verdict.Warnings = append(verdict.Warnings, unread...)
	return verdict
}

// underWay returns what says whether a remediation is: whether it is there, is still
// the one that was meant, and is not on its way out. If that cannot be found out, it
// is. One whose kind is gone is gone too.
func (k *HealthChecks) underWay(ctx context.Context) func(corev1.ObjectReference) bool {
	return func(ref corev1.ObjectReference) bool {
		object, err := k.cfg.Remediation(ctx, ref)
		switch {
		case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
			return false
		case err != nil:
			return true
		}
		return object.GetDeletionTimestamp() == nil && (ref.UID == "" || ref.UID == object.GetUID())
	}
}

// readCheck decodes a health check, which succeeds for everything that has the form
// of an object.
func readCheck(raw []byte) (*v1alpha1.NodeHealthCheck, error) {
	check := &v1alpha1.NodeHealthCheck{}
	if err := json.Unmarshal(raw, check); err != nil {
		return nil, fmt.Errorf("reading the NodeHealthCheck: %w", err)
	}
	return check, nil
}
