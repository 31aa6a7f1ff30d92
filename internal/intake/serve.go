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
	// hold is how long a source that floods is kept waiting for an answer, before it is
	// told to come back later. Whoever does not listen to that waits all the same.
	hold = time.Second
	// chill is how long strangers wait for theirs.
	chill = 100 * time.Millisecond
	// spare is how much of what a caller needed for a body is kept for its next one.
	spare = 4 << 10
)

// serve answers one request.
func (in *Intake) serve(w http.ResponseWriter, r *http.Request) {
	at, refusal := in.receive(w, r)
	in.count(at, refusal, time.Now())
	if refusal == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, refusal)
}

// count notes what became of a request, of a stranger if it was at no desk.
func (in *Intake) count(at *desk, refusal *problem.RefusedError, now time.Time) {
	if at == nil {
		in.mu.Lock()
		in.strangers++
		in.mu.Unlock()
		return
	}
	at.mu.Lock()
	news := false
	if refusal == nil {
		at.counts.Accepted++
	} else {
		at.counts.Refused[refusal.Code]++
		news = at.refusals.note(refusal, now)
	}
	at.mu.Unlock()
	if news {
		in.cfg.Logger.Warn("problem reports of a source are refused", "source", at.name, "code", refusal.Code, "err", refusal)
	}
}

// answer writes a refusal.
func answer(w http.ResponseWriter, refusal *problem.RefusedError) {
	text, err := json.Marshal(refusal)
	if err != nil {
		text = []byte("{}") // texts can always be written
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(refusal.Code)
	_, _ = w.Write(append(text, '\n')) // whoever does not wait for it has gone
}

// receive takes a request, and returns at whose desk; nil if nobody knows.
func (in *Intake) receive(w http.ResponseWriter, r *http.Request) (*desk, *problem.RefusedError) {
	c, err := callerOf(r.Context())
	if err != nil {
		return nil, refuse(http.StatusInternalServerError, "", "", "%v", err)
	}
	in.mu.Lock()
	desks := slices.Clone(in.desks)
	in.mu.Unlock()
	at, refusal := identify(claim{at: c.door.at, peer: c.peer, token: bearer(r)}, desks)
	if refusal != nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Connection", "close")
		c.pause(r.Context(), chill)
		return nil, refusal
	}
	if !c.sit(at) {
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "1")
		c.pause(r.Context(), hold)
		return at, refuse(http.StatusTooManyRequests, "", "use one connection for all", "%s has too many connections", at.name)
	}
	if refusal := c.slow(w, r, at); refusal != nil {
		return at, refusal
	}
	switch {
	case r.URL.Path != problem.Path:
		return at, refuse(http.StatusNotFound, "", "POST a status to "+problem.Path, "there is nothing here")
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return at, refuse(http.StatusMethodNotAllowed, "", "POST a status to "+problem.Path, "%s is not how to report", r.Method)
	}
	if refusal := c.read(w, r); refusal != nil {
		return at, refusal
	}
	s, refusal := parse(c.body)
	if refusal != nil {
		return at, refusal
	}
	return at, in.hear(at, &s, time.Now())
}

// slow lets a source wait that reports more than it may.
func (c *caller) slow(w http.ResponseWriter, r *http.Request, at *desk) *problem.RefusedError {
	at.mu.Lock()
	wait, ok := at.bucket.take(time.Now(), hold)
	if wait > 0 {
		at.counts.Slowed++
	}
	rate := at.source.Rate
	at.mu.Unlock()
	c.pause(r.Context(), min(wait, hold))
	if ok {
		return nil
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil((wait - hold).Seconds()))))
	return refuse(http.StatusTooManyRequests, "", "gather what there is to report, and send it together", "that is more than %d statuses and events a second", rate)
}

// read reads the body of a request to where the caller has room for it.
func (c *caller) read(w http.ResponseWriter, r *http.Request) *problem.RefusedError {
	if cap(c.body) > spare {
		c.body = nil
	}
	c.body = c.body[:0]
	if r.ContentLength > problem.MaxBody {
		return oversized(w)
	}
	for limit := problem.MaxBody + 1; ; {
		if len(c.body) == cap(c.body) {
			c.body = slices.Grow(c.body, max(512, min(len(c.body), limit-len(c.body)), int(r.ContentLength)+1-len(c.body)))
		}
		n, err := r.Body.Read(c.body[len(c.body):cap(c.body)])
		c.body = c.body[:len(c.body)+n]
		switch {
		case len(c.body) >= limit:
			return oversized(w)
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return refuse(http.StatusRequestTimeout, "", "send a status at once", "the status did not come within %s", readTimeout)
		case err != nil:
			return refuse(http.StatusBadRequest, "", "send the whole status", "reading the status: %v", err)
		}
	}
}

func oversized(w http.ResponseWriter) *problem.RefusedError {
	w.Header().Set("Connection", "close") // without waiting for the rest
	return refuse(http.StatusRequestEntityTooLarge, "", "send fewer events at once", "the status is longer than %d bytes", problem.MaxBody)
}

// hear takes a statement at a desk, and passes on what is new in it.
func (in *Intake) hear(at *desk, s *statement, now time.Time) *problem.RefusedError {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.closed {
		return refuse(http.StatusUnauthorized, "", "", "%s is heard no longer", at.name)
	}
	was := at.whole.silent
	report, refusal := at.hear(s, now)
	if refusal != nil {
		return refusal
	}
	in.emit(at, report)
	if len(report.Conditions) > 0 {
		in.keep(at, report)
	}
	if was {
		in.cfg.Logger.Info("a source of problem reports is heard again", "source", at.name)
	}
	return nil
}
