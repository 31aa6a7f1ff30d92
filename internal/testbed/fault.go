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

// Fault is an error that a proxy injects into a request.
type Fault struct {
	name   string
	inject func(*injection)
}

// injection is a fault with the request that it affects.
type injection struct {
	w       http.ResponseWriter
	r       *http.Request
	asked   Request
	forward http.Handler    // forwards to the API server
	lifted  <-chan struct{} // closed when the rule is lifted
}

// String returns the name of the fault.
func (f Fault) String() string { return f.name }

// Delay forwards the request after a while, or when the rule is lifted.
func Delay(d time.Duration) Fault {
	return Fault{"delay of " + d.String(), func(s *injection) {
		wait := time.NewTimer(d)
		defer wait.Stop()
		s.holdUntil(wait.C)
	}}
}

// Hold forwards the request when the rule is lifted.
func Hold() Fault {
	return Fault{"hold", func(s *injection) { s.holdUntil(nil) }}
}

// TooManyRequests answers 429 in place of the API server. client-go obeys: it waits that
// long and retries, up to ten times.
func TooManyRequests(retryAfter time.Duration) Fault {
	seconds := int(retryAfter.Round(time.Second).Seconds())
	return answer("429", func(Request) *apierrors.StatusError {
		return apierrors.NewTooManyRequests("the testbed's proxy says so", seconds)
	})
}

// InternalError answers 500 in place of the API server.
func InternalError() Fault {
	return answer("500", func(Request) *apierrors.StatusError {
		return apierrors.NewInternalError(fmt.Errorf("the testbed's proxy says so"))
	})
}

// Conflict answers 409 in place of the API server, as after a faster write of another
// client.
func Conflict() Fault {
	return answer("409", func(r Request) *apierrors.StatusError {
		return apierrors.NewConflict(schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Name,
			fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	})
}

// CutRequest cuts the connection before the API server has seen the request.
func CutRequest() Fault {
	return Fault{"cut before the request", func(*injection) { panic(http.ErrAbortHandler) }}
}

// CutResponse forwards the request and cuts the connection before the response: the write
// has happened, and the client does not know.
func CutResponse() Fault {
	return Fault{"cut before the response", func(s *injection) { s.forward.ServeHTTP(make(cutWriter), s.r) }}
}

// cutWriter cuts the connection when the response starts.
type cutWriter http.Header

func (w cutWriter) Header() http.Header     { return http.Header(w) }
func (cutWriter) Write([]byte) (int, error) { panic(http.ErrAbortHandler) }
func (cutWriter) WriteHeader(code int) {
	if code >= http.StatusOK { // earlier codes are informational
		panic(http.ErrAbortHandler)
	}
}

// answer makes a fault from an API error.
func answer(name string, status func(Request) *apierrors.StatusError) Fault {
	return Fault{name, func(s *injection) {
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

// holdUntil forwards the request at the due time or when the rule is lifted. It gives up
// when the client does.
func (s *injection) holdUntil(due <-chan time.Time) {
	select {
	case <-due:
	case <-s.lifted:
	case <-s.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	s.forward.ServeHTTP(s.w, s.r)
}

// Rule injects a fault into matching requests.
type Rule struct {
	match func(Request) bool
	fault Fault

	mu      sync.Mutex
	left    int // remaining injections; negative without a limit
	numHits int
	moved   chan struct{} // closed, and replaced, at every injection
	lifted  chan struct{} // closed when the rule is lifted
	lift    sync.Once
}

// Hits returns how many requests the rule has affected so far.
func (r *Rule) Hits() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.numHits
}

// Wait waits until the rule has affected n requests.
func (r *Rule) Wait(ctx context.Context, n int) error {
	for {
		r.mu.Lock()
		numHits, moved := r.numHits, r.moved
		r.mu.Unlock()
		if numHits >= n {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d hits of the %s, after %d: %w", n, r.fault, numHits, context.Cause(ctx))
		}
	}
}

// Lift ends the rule. Held requests continue.
func (r *Rule) Lift() { r.lift.Do(func() { close(r.lifted) }) }

// hits reports whether the rule affects the request, and counts it.
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
	r.numHits++
	close(r.moved)
	r.moved = make(chan struct{})
	return true
}
