package intake

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/problem"
)

const (
	// maxDelay is how long the response to a source that sends too much is delayed, before the
	// source is told to retry later. The delay also slows sources that ignore the response.
	maxDelay = time.Second
	// unauthenticatedDelay is the delay of responses to unauthenticated clients.
	unauthenticatedDelay = 100 * time.Millisecond
	// keptBodySize is the largest body buffer that a connection keeps for its next request.
	keptBodySize = 4 << 10
)

// serve handles one request.
func (in *Intake) serve(w http.ResponseWriter, r *http.Request) {
	src, rejection := in.handle(w, r)
	in.count(src, rejection, time.Now())
	if rejection == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	writeRejection(w, rejection)
}

// count counts the result of a request. Without a source it counts as unauthenticated.
func (in *Intake) count(src *sourceState, rejection *problem.RefusedError, now time.Time) {
	if src == nil {
		in.mu.Lock()
		in.unauthenticated++
		in.mu.Unlock()
		return
	}
	src.mu.Lock()
	news := false
	if rejection == nil {
		src.counts.Accepted++
	} else {
		src.counts.Refused[rejection.Code]++
		news = src.rejections.record(rejection, now)
	}
	src.mu.Unlock()
	if news {
		in.cfg.Logger.Warn("problem reports of a source are rejected", "source", src.name, "code", rejection.Code, "err", rejection)
	}
}

// writeRejection writes a rejection as JSON.
func writeRejection(w http.ResponseWriter, rejection *problem.RefusedError) {
	text, err := json.Marshal(rejection)
	if err != nil {
		text = []byte("{}") // strings can always be encoded
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(rejection.Code)
	_, _ = w.Write(append(text, '\n')) // the client may have closed the connection
}

// handle processes a request, and returns its source, or nil if the client is not
// authenticated.
func (in *Intake) handle(w http.ResponseWriter, r *http.Request) (*sourceState, *problem.RefusedError) {
	c, err := connectionOf(r.Context())
	if err != nil {
		return nil, reject(http.StatusInternalServerError, "", "", "%v", err)
	}
	in.mu.Lock()
	sources := slices.Clone(in.sources)
	in.mu.Unlock()
	src, rejection := identify(credentials{addr: c.listener.addr, peer: c.peer, token: bearerToken(r)}, sources)
	if rejection != nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Connection", "close")
		c.pause(r.Context(), unauthenticatedDelay)
		return nil, rejection
	}
	if !c.assign(src) {
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "1")
		c.pause(r.Context(), maxDelay)
		return src, reject(http.StatusTooManyRequests, "", "use one connection for all", "%s has too many connections", src.name)
	}
	if rejection := c.limitRate(w, r, src); rejection != nil {
		return src, rejection
	}
	switch {
	case r.URL.Path != problem.Path:
		return src, reject(http.StatusNotFound, "", "POST a status to "+problem.Path, "there is nothing here")
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return src, reject(http.StatusMethodNotAllowed, "", "POST a status to "+problem.Path, "%s is not how to report", r.Method)
	}
	if rejection := c.readBody(w, r); rejection != nil {
		return src, rejection
	}
	status, rejection := parse(c.body)
	if rejection != nil {
		return src, rejection
	}
	return src, in.acceptStatus(src, &status, time.Now())
}

// limitRate delays or rejects a source that sends more than its rate.
func (c *connection) limitRate(w http.ResponseWriter, r *http.Request, src *sourceState) *problem.RefusedError {
	src.mu.Lock()
	wait, ok := src.bucket.take(time.Now(), maxDelay)
	if wait > 0 {
		src.counts.Slowed++
	}
	rate := src.source.Rate
	src.mu.Unlock()
	c.pause(r.Context(), min(wait, maxDelay))
	if ok {
		return nil
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil((wait - maxDelay).Seconds()))))
	return reject(http.StatusTooManyRequests, "", "gather what there is to report, and send it together", "that is more than %d statuses and events a second", rate)
}

// readBody reads the body of a request into the buffer of the connection.
func (c *connection) readBody(w http.ResponseWriter, r *http.Request) *problem.RefusedError {
	if cap(c.body) > keptBodySize {
		c.body = nil
	}
	c.body = c.body[:0]
	if r.ContentLength > problem.MaxBody {
		return bodyTooLarge(w)
	}
	for limit := problem.MaxBody + 1; ; {
		if len(c.body) == cap(c.body) {
			c.body = slices.Grow(c.body, max(512, min(len(c.body), limit-len(c.body)), int(r.ContentLength)+1-len(c.body)))
		}
		n, err := r.Body.Read(c.body[len(c.body):cap(c.body)])
		c.body = c.body[:len(c.body)+n]
		switch {
		case len(c.body) >= limit:
			return bodyTooLarge(w)
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return reject(http.StatusRequestTimeout, "", "send a status at once", "the status did not come within %s", readTimeout)
		case err != nil:
			return reject(http.StatusBadRequest, "", "send the whole status", "reading the status: %v", err)
		}
	}
}

func bodyTooLarge(w http.ResponseWriter) *problem.RefusedError {
	w.Header().Set("Connection", "close") // do not wait for the rest of the body
	return reject(http.StatusRequestEntityTooLarge, "", "send fewer events at once", "the status is longer than %d bytes", problem.MaxBody)
}

// acceptStatus applies a status to its source, and emits the new findings.
func (in *Intake) acceptStatus(src *sourceState, status *statusRequest, now time.Time) *problem.RefusedError {
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.removed {
		return reject(http.StatusUnauthorized, "", "", "%s is heard no longer", src.name)
	}
	wasSilent := src.silence.source.silent
	report, rejection := src.accept(status, now)
	if rejection != nil {
		return rejection
	}
	in.emit(src, report)
	if len(report.Conditions) > 0 {
		in.save(src, report)
	}
	if wasSilent {
		in.cfg.Logger.Info("source of problem reports reports again", "source", src.name)
	}
	return nil
}
