package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Fault is what befalls a request.
type Fault struct {
	name   string
	strike func(*strike)
}

// strike is a fault that meets a request.
type strike struct {
	w       http.ResponseWriter
	r       *http.Request
	asked   Request
	forward http.Handler    // the way to the API server
	lifted  <-chan struct{} // closed when the rule is lifted
}

// String returns the name of the fault.
func (f Fault) String() string { return f.name }

// Delay lets the request through after a while, or when the rule is lifted.
func Delay(d time.Duration) Fault {
	return Fault{"delay of " + d.String(), func(s *strike) {
		wait := time.NewTimer(d)
		defer wait.Stop()
		s.holdUntil(wait.C)
	}}
}

// Hold lets the request through when the rule is lifted, and not before.
func Hold() Fault {
	return Fault{"hold", func(s *strike) { s.holdUntil(nil) }}
}

// TooManyRequests answers 429 in the API server's stead. Mind that client-go
// obeys: it waits that long and tries again, up to ten times.
func TooManyRequests(retryAfter time.Duration) Fault {
	seconds := int(retryAfter.Round(time.Second).Seconds())
	return answer("429", func(Request) *apierrors.StatusError {
		return apierrors.NewTooManyRequests("the testbed's proxy says so", seconds)
	})
}

// InternalError answers 500 in the API server's stead.
func InternalError() Fault {
	return answer("500", func(Request) *apierrors.StatusError {
		return apierrors.NewInternalError(fmt.Errorf("the testbed's proxy says so"))
	})
}

// Conflict answers 409 in the API server's stead, as it would if somebody else
// had been faster.
func Conflict() Fault {
	return answer("409", func(r Request) *apierrors.StatusError {
		return apierrors.NewConflict(schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Name,
			fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	})
}

// CutRequest breaks the request off before the API server has seen it.
func CutRequest() Fault {
	return Fault{"cut before the request", func(*strike) { panic(http.ErrAbortHandler) }}
}

// CutResponse lets the request through and breaks the answer off: what was
// asked for has happened, and the client does not know.
func CutResponse() Fault {
	return Fault{"cut before the response", func(s *strike) { s.forward.ServeHTTP(make(cutWriter), s.r) }}
}

// cutWriter breaks off as soon as it is to pass on an answer.
type cutWriter http.Header

func (w cutWriter) Header() http.Header     { return http.Header(w) }
func (cutWriter) Write([]byte) (int, error) { panic(http.ErrAbortHandler) }
func (cutWriter) WriteHeader(code int) {
	if code >= http.StatusOK { // what comes before is not the answer yet
		panic(http.ErrAbortHandler)
	}
}

// answer makes a fault of an error of the API.
func answer(name string, status func(Request) *apierrors.StatusError) Fault {
	return Fault{name, func(s *strike) {
		body := status(s.asked).Status()
		body.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		s.w.Header().Set("Content-Type", "application/json")
		if body.Details != nil && body.Details.RetryAfterSeconds > 0 {
			s.w.Header().Set("Retry-After", strconv.Itoa(int(body.Details.RetryAfterSeconds)))
		}
		s.w.WriteHeader(int(body.Code))
		_ = json.NewEncoder(s.w).Encode(body)
	}}
}

// holdUntil lets the request through when the time has come or the rule is
// lifted, and gives up when its client does.
func (s *strike) holdUntil(due <-chan time.Time) {
	select {
	case <-due:
	case <-s.lifted:
	case <-s.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	s.forward.ServeHTTP(s.w, s.r)
}

// Rule strikes the requests that match with a fault.
type Rule struct {
	match func(Request) bool
	fault Fault

	mu     sync.Mutex
	left   int // strikes to go; negative when there is no limit
	struck int
	moved  chan struct{} // closed, and replaced, at every strike
	lifted chan struct{} // closed when the rule is lifted
	lift   sync.Once
}

// Struck returns how many requests the rule has struck so far.
func (r *Rule) Struck() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.struck
}

// Wait waits until the rule has struck n requests.
func (r *Rule) Wait(ctx context.Context, n int) error {
	for {
		r.mu.Lock()
		struck, moved := r.struck, r.moved
		r.mu.Unlock()
		if struck >= n {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d strikes of the %s, after %d: %w", n, r.fault, struck, context.Cause(ctx))
		}
	}
}

// Lift ends the rule. Requests that it holds go on their way.
func (r *Rule) Lift() { r.lift.Do(func() { close(r.lifted) }) }

// hits says whether the rule strikes the request, and counts it.
func (r *Rule) hits(asked Request) bool {
	select {
	case <-r.lifted:
		return false
	default:
	}
	if !r.match(asked) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return false
	}
	r.left--
	r.struck++
	close(r.moved)
	r.moved = make(chan struct{})
	return true
}
