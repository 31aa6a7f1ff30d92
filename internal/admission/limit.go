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
	// maxBody is how large a request may be. The API server sends two versions of an
	// object, and etcd stores no object of more than 1.5 MiB. That many bytes of large
	// requests are read and judged at a time: to decode and judge a request takes up to
	// 25 times its size.
	maxBody = 2*1536<<10 + 64<<10
	// maxSmall is how large almost all policies are at most. As many small requests are
	// read and judged at a time as maxSmallInFlight says, and large ones do not hold them up.
	maxSmall         = 64 << 10
	maxSmallInFlight = 32
	// maxQueued is how long a request waits for its turn, and maxReading how long its
	// body may take then. The API server waits for no answer for longer than five seconds.
	maxQueued  = 2 * time.Second
	maxReading = time.Second
)

// limiter lets only so much through at a time that any number of requests, of any
// client, fits into the memory of the controller.
type limiter struct {
	handler      http.Handler
	small, large *semaphore.Weighted
	metrics      *Metrics
}

func newLimiter(handler http.Handler, metrics *Metrics) *limiter {
	return &limiter{handler: handler, small: semaphore.NewWeighted(maxSmallInFlight), large: semaphore.NewWeighted(maxBody), metrics: metrics}
}

// ServeHTTP takes the room that a request needs before its body is read.
func (l *limiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	turns, weight := l.small, int64(1)
	switch {
	case r.ContentLength < 0: // the API server always says
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
		l.reject(w, "busy", http.StatusTooManyRequests, "too many requests are being judged; try again in a moment")
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

// readBody reads all of a request at once, so that no client keeps its turn by sending
// nothing.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	connection := http.NewResponseController(w)
	if err := connection.SetReadDeadline(time.Now().Add(maxReading)); err != nil {
		return nil, err
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, err
	}
	return body, connection.SetReadDeadline(time.Time{}) // which would end what is being judged
}

// reject answers a request that is not judged. What is left of its body is not read.
func (l *limiter) reject(w http.ResponseWriter, reason string, status int, text string) {
	l.metrics.rejected(reason)
	w.Header().Set("Connection", "close")
	http.Error(w, text, status)
}
