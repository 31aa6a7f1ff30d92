package admission

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// maxBody is how large a request may be. The API server sends two versions of an
	// object, and etcd stores no object of more than 1.5 MiB.
	maxBody = 2*1536<<10 + 64<<10
	// maxInFlight is how many bytes of requests are read and judged at a time. To decode
	// and judge a request takes up to 25 times its size.
	maxInFlight = 2 * maxBody
	// minCharge is what the smallest request counts as, so that no more than 32 are
	// judged at a time.
	minCharge = maxInFlight / 32
	// maxQueued is how long a request waits for its turn. The API server waits for no
	// answer for longer than five seconds.
	maxQueued = 2 * time.Second
)

// limiter lets only so much through at a time that any number of requests, of any
// client, fits into the memory of the controller.
type limiter struct {
	handler  http.Handler
	inFlight *semaphore.Weighted
	metrics  *Metrics
}

// ServeHTTP takes the room that a request needs before its body is read.
func (l *limiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > maxBody {
		l.metrics.rejected("too_large")
		// The rest is not read.
		w.Header().Set("Connection", "close")
		http.Error(w, fmt.Sprintf("the request has %d bytes, and at most %d are read", r.ContentLength, maxBody), http.StatusRequestEntityTooLarge)
		return
	}
	charge := max(r.ContentLength, minCharge)
	if r.ContentLength < 0 { // it does not say
		charge = maxBody
	}
	queued, cancel := context.WithTimeout(r.Context(), maxQueued)
	defer cancel()
	if l.inFlight.Acquire(queued, charge) != nil {
		l.metrics.rejected("busy")
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests are being judged; try again in a moment", http.StatusTooManyRequests)
		return
	}
	defer l.inFlight.Release(charge)
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	l.handler.ServeHTTP(w, r)
}
