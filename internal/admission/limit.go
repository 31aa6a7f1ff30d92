package admission

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// maxBody is the largest request. The API server sends two versions of an object, and
	// etcd stores no object of more than 1.5 MiB. maxBody is also how many bytes of large
	// requests are processed at a time: a request needs up to 25 times its size.
	maxBody = 2*1536<<10 + 64<<10
	// maxSmall is the size limit of a small request, which almost all policies are. Up
	// to maxSmallInFlight of them are processed at a time, independent of large ones.
	maxSmall         = 64 << 10
	maxSmallInFlight = 32
	// maxQueued is how long a request waits for its turn, and maxReading how long its
	// body may then take. The API server waits at most five seconds for an answer.
	maxQueued  = 2 * time.Second
	maxReading = time.Second
)

// limiter limits the number of concurrent requests, so that requests of any client fit into
// the controller's memory.
type limiter struct {
	handler      http.Handler
	small, large *semaphore.Weighted
	metrics      *Metrics
}

func newLimiter(handler http.Handler, metrics *Metrics) *limiter {
	return &limiter{handler: handler, small: semaphore.NewWeighted(maxSmallInFlight), large: semaphore.NewWeighted(maxBody), metrics: metrics}
}

// ServeHTTP acquires capacity for a request before it reads the body.
func (l *limiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	turns, weight := l.small, int64(1)
	switch {
	case r.ContentLength < 0: // the API server always sends a length
		l.reject(w, "no_length", http.StatusLengthRequired, "the request has no Content-Length, so that it is unknown whether there is room for it")
		return
	case r.ContentLength > maxBody:
		l.reject(w, "too_large", http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has %d bytes, and at most %d are read", r.ContentLength, maxBody))
		return
	case r.ContentLength > maxSmall:
		turns, weight = l.large, r.ContentLength
	}
	queued, cancel := context.WithTimeout(r.Context(), maxQueued)
	defer cancel()
	if turns.Acquire(queued, weight) != nil {
		w.Header().Set("Retry-After", "1")
		l.reject(w, "busy", http.StatusTooManyRequests, "too many requests are being checked; try again in a moment")
		return
	}
	defer turns.Release(weight)
	body, err := readBody(w, r)
	if err != nil {
		l.reject(w, "slow", http.StatusRequestTimeout, fmt.Sprintf("the body of the request was not sent within %s", maxReading))
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	l.handler.ServeHTTP(w, r)
}

// readBody reads the whole body under a deadline, so that a client cannot hold its turn by
// sending nothing.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	connection := http.NewResponseController(w)
	if err := connection.SetReadDeadline(time.Now().Add(maxReading)); err != nil {
		return nil, err
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, err
	}
	return body, connection.SetReadDeadline(time.Time{}) // the deadline would abort the validation
}

// reject answers a request without validating it. It does not read the rest of the body.
func (l *limiter) reject(w http.ResponseWriter, reason string, status int, text string) {
	l.metrics.rejected(reason)
	w.Header().Set("Connection", "close")
	http.Error(w, text, status)
}
