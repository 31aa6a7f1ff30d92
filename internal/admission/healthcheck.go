package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

const (
	healthCheckPath = "/validate-remediation-medik8s-io-v1alpha1-nodehealthcheck"
	healthChecks    = "nodehealthchecks"

	// readTimeout is the timeout for reading templates and remediations. Together with
	// patience it is well below the timeout of the API server.
	readTimeout = 2 * time.Second
)

// SurveySource returns facts about the nodes.
type SurveySource interface {
	Ready() bool
	Reported() []string
	Survey(rule triage.Rule, others ...triage.Selector) (triage.Survey, error)
}

// HealthCheckConfig configures the validation of NodeHealthChecks.
type HealthCheckConfig struct {
	Nodes SurveySource
	// Checks returns the stored health checks from a cache. No health check is rejected
	// because of others, so an error only causes a warning.
	Checks func(context.Context) ([]*v1alpha1.NodeHealthCheck, error)
	// Template reads a template.
	Template func(context.Context, remediation.Template) (*unstructured.Unstructured, error)
	// Remediation reads a remediation that a status refers to.
	Remediation func(context.Context, corev1.ObjectReference) (metav1.Object, error)
	Metrics     *Metrics
	Logger      *slog.Logger
}

// Validate returns all missing fields.
func (c HealthCheckConfig) Validate() error {
	return required.Fields{
		"Nodes": c.Nodes == nil, "Checks": c.Checks == nil, "Template": c.Template == nil, "Remediation": c.Remediation == nil,
		"Metrics": c.Metrics == nil, "Logger": c.Logger == nil,
	}.Check()
}

// HealthChecks validates NodeHealthChecks.
type HealthChecks struct {
	handler[v1alpha1.NodeHealthCheck]
	cfg HealthCheckConfig
}

// NewHealthChecks returns the handler for NodeHealthChecks.
func NewHealthChecks(cfg HealthCheckConfig) (*HealthChecks, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the admission of NodeHealthChecks: %w", err)
	}
	k := &HealthChecks{cfg: cfg}
	k.handler = handler[v1alpha1.NodeHealthCheck]{path: healthCheckPath, resource: healthChecks, object: "nodehealthcheck", validator: k, same: sameSpec, sizes: sizesOfCheck, metrics: cfg.Metrics, logger: cfg.Logger}
	return k, nil
}

func sizesOfCheck(check *v1alpha1.NodeHealthCheck) []size {
	return []size{
		{"spec.unhealthyConditions", len(check.Spec.UnhealthyConditions), 64},
		{"spec.escalatingRemediations", len(check.Spec.EscalatingRemediations), 16},
		selectorSize("spec.selector", check.Spec.Selector),
	}
}

// Ready returns why the handler cannot validate yet. It does not wait for the other health
// checks: without their CRD there are no requests.
func (k *HealthChecks) Ready() error {
	if !k.cfg.Nodes.Ready() {
		return errors.New("the nodes are not known yet")
	}
	return nil
}

// deleted allows the deletion of a health check without remediations in progress.
func (k *HealthChecks) deleted(ctx context.Context, stored *v1alpha1.NodeHealthCheck) admission.Response {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return responseOf(validate.HealthCheckDeletion(stored, k.underWay(ctx)))
}

// changed validates a health check that is new or has a new spec. A paused health check
// starts no remediation, so it does not wait until the nodes are known.
func (k *HealthChecks) changed(ctx context.Context, check, stored *v1alpha1.NodeHealthCheck, _ bool) admission.Response {
	paused := len(check.Spec.PauseRequests) > 0
	known := paused && k.cfg.Nodes.Ready() || !paused && waitUntil(ctx, k.cfg.Nodes.Ready)
	answer := responseOf(k.verdict(ctx, check, stored, known))
	if answer.Allowed && !known && !paused {
		return notReady("the controller has just started and does not know the nodes yet, so it cannot determine the impact of this health check")
	}
	return answer
}

// verdict validates with all data that can be read in time.
func (k *HealthChecks) verdict(ctx context.Context, check, stored *v1alpha1.NodeHealthCheck, known bool) validate.Verdict {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	input := validate.HealthCase{
		Check: check, Stored: stored,
		Template: func(template remediation.Template) (*unstructured.Unstructured, error) {
			return k.cfg.Template(ctx, template)
		},
		UnderWay: k.underWay(ctx),
	}
	var unread []validate.Problem
	if known {
		all, err := k.cfg.Checks(ctx)
		if err != nil {
			unread = []validate.Problem{{Field: "spec.selector", Text: fmt.Sprintf("the other health checks could not be read (%v), so overlapping selectors cannot be detected", err)}}
		}
		input.Others = slices.DeleteFunc(slices.Clone(all), func(c *v1alpha1.NodeHealthCheck) bool { return c.Name == check.Name })
		input.Reported = append([]string{}, k.cfg.Nodes.Reported()...) // nil would mean unknown
		input.Survey = k.cfg.Nodes.Survey
	}
	verdict := validate.HealthCheck(input)
	verdict.Warnings = append(verdict.Warnings, unread...)
	return verdict
}

// underWay returns a function that reports whether a remediation is in progress: it exists
// with the same UID and is not being deleted. It returns true if the remediation cannot be
// read, and false if the kind no longer exists.
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
