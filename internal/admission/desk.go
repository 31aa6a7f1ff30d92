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
	// patience is how long a request waits for the nodes to be known. It is well
	// below the time that the API server waits for an answer.
	patience = time.Second
	// glance is how often it looks whether they are.
	glance = 20 * time.Millisecond
	// retryAfter is when a client should ask again. Clients of Kubernetes do so
	// by themselves.
	retryAfter = 1
)

// desk is where the API server asks about one kind of policies, of type T. What all
// kinds have in common is done here.
type desk[T any] struct {
	path     string
	resource string // as metrics name it
	object   string // as logs name one of them
	judge    judge[T]
	// same says whether two versions ask for the same, as they are written.
	same func(a, b []byte) bool
	// sizes are what is counted of a policy before it is judged.
	sizes   func(*T) []size
	metrics *Metrics
	logger  *slog.Logger
}

// judge is what differs from kind to kind.
type judge[T any] interface {
	// changed answers for a policy that is new, or whose spec is. Of a new one nothing
	// is stored. If it is only asked about, nothing will be.
	changed(ctx context.Context, policy, stored *T, onlyAsked bool) admission.Response
	// deleted answers for one that is to go.
	deleted(ctx context.Context, stored *T) admission.Response
}

// Path is where the API server asks.
func (d *desk[T]) Path() string { return d.path }

// Handle answers the API server.
func (d *desk[T]) Handle(ctx context.Context, request admission.Request) admission.Response {
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

func (d *desk[T]) answer(ctx context.Context, request admission.Request) admission.Response {
	if request.SubResource != "" {
		return admission.Allowed("") // the spec is not touched
	}
	switch request.Operation {
	case admissionv1.Create:
		return d.changed(ctx, request, nil)
	case admissionv1.Update:
		return d.updated(ctx, request)
	case admissionv1.Delete:
		stored, err := read[T](request.OldObject.Raw)
		if err != nil {
			return admission.Allowed("") // what cannot be read should be gone all the more
		}
		return d.judge.deleted(ctx, stored)
	default:
		return admission.Allowed("")
	}
}

// updated answers for a policy that is stored already. What has been wrong with it
// hinders no change of its metadata, or a finalizer could never be removed.
func (d *desk[T]) updated(ctx context.Context, request admission.Request) admission.Response {
	stored, err := read[T](request.OldObject.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if !d.same(request.OldObject.Raw, request.Object.Raw) {
		return d.changed(ctx, request, stored)
	}
	if !onlyAsks(request) {
		return admission.Allowed("")
	}
	// Who applies what is there already, only to see, is told all the same.
	answer := d.changed(ctx, request, stored)
	if !answer.Allowed {
		return admission.Allowed("").WithWarnings(append(answer.Warnings, answer.Result.Message)...)
	}
	return answer
}

func (d *desk[T]) changed(ctx context.Context, request admission.Request, stored *T) admission.Response {
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
		stored = nil // it was stored before the schema knew better, and is judged no more
	}
	return d.judge.changed(ctx, policy, stored, onlyAsks(request))
}

// size is how much there is of something in a policy, and how much the schema allows.
// The API server asks about nothing that is larger, but other clients that reach the port
// can, and a judgement holds every condition against every node.
type size struct {
	field       string
	count, most int
}

// maxSelectorValues is how many labels and values a selector may name. The schema does
// not say.
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

// onlyAsks says whether nothing is to be stored.
func onlyAsks(request admission.Request) bool { return request.DryRun != nil && *request.DryRun }

// read decodes a policy, which succeeds for everything that has the form of an object.
func read[T any](raw []byte) (*T, error) {
	policy := new(T)
	if err := json.Unmarshal(raw, policy); err != nil {
		return nil, fmt.Errorf("reading the %s: %w", reflect.TypeFor[T]().Name(), err)
	}
	return policy, nil
}

// sameSpec compares what two objects ask for, field by field as they are written.
func sameSpec(a, b []byte) bool {
	return sameAt[struct {
		Spec any `json:"spec"`
	}](a, b)
}

// sameAt compares the parts of two objects that a type has, field by field as they are
// written.
func sameAt[T any](a, b []byte) bool {
	var first, second T
	if json.Unmarshal(a, &first) != nil || json.Unmarshal(b, &second) != nil {
		return false
	}
	return reflect.DeepEqual(first, second)
}

// told answers with a verdict.
func told(verdict validate.Verdict) admission.Response {
	if err := verdict.Err(); err != nil {
		return admission.Denied(err.Error()).WithWarnings(verdict.Warnings...)
	}
	return admission.Allowed("").WithWarnings(verdict.Warnings...)
}

// unready refuses for now. Clients of Kubernetes try again by themselves.
func unready(why string) admission.Response {
	answer := admission.Errored(http.StatusServiceUnavailable, errors.New(why+"; try again in a moment"))
	answer.Result.Reason = metav1.StatusReasonServiceUnavailable
	answer.Result.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return answer
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

// part is something that a configuration must have.
type part struct {
	name    string
	missing bool
}

// complete says everything that is missing.
func complete(parts ...part) error {
	var errs []error
	for _, p := range parts {
		if p.missing {
			errs = append(errs, errors.New(p.name+" is missing"))
		}
	}
	return errors.Join(errs...)
}
