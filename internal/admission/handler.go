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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/internal/validate"
)

const (
	// waitTimeout is how long a request waits until the nodes are known. It is well below
	// the timeout of the API server.
	waitTimeout = time.Second
	// pollInterval is the polling interval while a request waits.
	pollInterval = 20 * time.Millisecond
	// retryAfter is after how many seconds a client should retry. Kubernetes clients do
	// so automatically.
	retryAfter = 1
)

// handler handles the admission requests for one kind of policy, of type T. It contains what
// all kinds have in common.
type handler[T any] struct {
	path      string
	resource  string // label value in metrics
	object    string // key in logs
	validator validator[T]
	// same reports whether the validated parts of two versions are equal.
	same func(a, b []byte) bool
	// sizes returns the sizes to check before the validation.
	sizes   func(*T) []size
	metrics *Metrics
	logger  *slog.Logger
}

// validator contains what differs between the kinds.
type validator[T any] interface {
	// changed validates a policy that is new or has a new spec. stored is nil for a new
	// policy. onlyAsked is true for a dry run of the API server.
	changed(ctx context.Context, policy, stored *T, onlyAsked bool) admission.Response
	// deleted validates a deletion.
	deleted(ctx context.Context, stored *T) admission.Response
}

// Path is the URL path of the webhook.
func (d *handler[T]) Path() string { return d.path }

// Handle answers an admission request.
func (d *handler[T]) Handle(ctx context.Context, request admission.Request) admission.Response {
	begin := time.Now()
	answer := d.answer(ctx, request)
	d.metrics.answered(d.resource, kindOf(answer), time.Since(begin))
	if !answer.Allowed {
		d.logger.Info("policy refused", d.object, request.Name, "operation", request.Operation,
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

func (d *handler[T]) answer(ctx context.Context, request admission.Request) admission.Response {
	if request.SubResource != "" {
		return admission.Allowed("") // subresources do not change the spec
	}
	switch request.Operation {
	case admissionv1.Create:
		return d.changed(ctx, request, nil)
	case admissionv1.Update:
		return d.updated(ctx, request)
	case admissionv1.Delete:
		stored, err := read[T](request.OldObject.Raw)
		if err != nil {
			return admission.Allowed("") // allow the user to delete an unreadable policy
		}
		return d.validator.deleted(ctx, stored)
	default:
		return admission.Allowed("")
	}
}

// updated validates a change of a stored policy. Existing problems do not block a change
// of metadata, because otherwise a finalizer could never be removed.
func (d *handler[T]) updated(ctx context.Context, request admission.Request) admission.Response {
	stored, err := read[T](request.OldObject.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if !d.same(request.OldObject.Raw, request.Object.Raw) {
		return d.changed(ctx, request, stored)
	}
	if !isDryRun(request) {
		return admission.Allowed("")
	}
	// A dry run without a change still returns the problems, as warnings.
	answer := d.changed(ctx, request, stored)
	if !answer.Allowed {
		return admission.Allowed("").WithWarnings(append(answer.Warnings, answer.Result.Message)...)
	}
	return answer
}

func (d *handler[T]) changed(ctx context.Context, request admission.Request, stored *T) admission.Response {
	policy, err := read[T](request.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	isTooLarge := func(s size) bool { return s.count > s.most }
	sizes := d.sizes(policy)
	if at := slices.IndexFunc(sizes, isTooLarge); at >= 0 {
		return admission.Denied(fmt.Sprintf("%s: there are %d, want at most %d", sizes[at].field, sizes[at].count, sizes[at].most))
	}
	if stored != nil && slices.ContainsFunc(d.sizes(stored), isTooLarge) {
		stored = nil // stored under an older schema; too large to compare with
	}
	return d.validator.changed(ctx, policy, stored, isDryRun(request))
}

// size is the number of entries in a field, and the maximum in the schema. The API server
// never sends larger objects, but other clients of the port can. Validation compares every
// condition with every node, so its cost grows with the size.
type size struct {
	field       string
	count, most int
}

// maxSelectorValues is how many labels and values a selector may have. The schema has no
// such limit.
const maxSelectorValues = 1000

func selectorSize(field string, selector *metav1.LabelSelector) size {
	s := size{field: field, most: maxSelectorValues}
	if selector == nil {
		return s
	}
	s.count = len(selector.MatchLabels) + len(selector.MatchExpressions)
	for i := range selector.MatchExpressions {
		s.count += len(selector.MatchExpressions[i].Values)
	}
	return s
}

// isDryRun reports whether the request is a dry run.
func isDryRun(request admission.Request) bool { return request.DryRun != nil && *request.DryRun }

// read decodes a policy. It succeeds for every JSON object.
func read[T any](raw []byte) (*T, error) {
	policy := new(T)
	if err := json.Unmarshal(raw, policy); err != nil {
		return nil, fmt.Errorf("reading the %s: %w", reflect.TypeFor[T]().Name(), err)
	}
	return policy, nil
}

// sameSpec reports whether the specs of two objects are equal as JSON.
func sameSpec(a, b []byte) bool {
	return sameAt[struct {
		Spec any `json:"spec"`
	}](a, b)
}

// sameAt reports whether the fields of T are equal as JSON in two objects.
func sameAt[T any](a, b []byte) bool {
	var first, second T
	if json.Unmarshal(a, &first) != nil || json.Unmarshal(b, &second) != nil {
		return false
	}
	return reflect.DeepEqual(first, second)
}

// responseOf converts a verdict to a response.
func responseOf(verdict validate.Verdict) admission.Response {
	if err := verdict.Err(); err != nil {
		return admission.Denied(err.Error()).WithWarnings(validate.Lines(verdict.Warnings)...)
	}
	return admission.Allowed("").WithWarnings(validate.Lines(verdict.Warnings)...)
}

// notReady rejects the request for now. Kubernetes clients retry automatically.
func notReady(why string) admission.Response {
	answer := admission.Errored(http.StatusServiceUnavailable, errors.New(why+"; try again in a moment"))
	answer.Result.Reason = metav1.StatusReasonServiceUnavailable
	answer.Result.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return answer
}

// waitUntil waits a short time until the nodes are known.
func waitUntil(ctx context.Context, known func() bool) bool {
	if known() {
		return true
	}
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	for end := time.After(waitTimeout); ; {
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
