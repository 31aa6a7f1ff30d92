package problem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// gather is how long the first of several waits for the others.
	gather = 10 * time.Millisecond
	// patience is how long the agent may take to answer.
	patience = 10 * time.Second
	// farewell is how long what is left may take at the end.
	farewell = 2 * time.Second
	// The waits after failures.
	firstWait, longestWait = 500 * time.Millisecond, 30 * time.Second
)

// Client tells the agent what a daemon has found. All methods may be called by several
// at once, and none but Run waits for anything.
type Client struct {
	cfg  Config
	http *http.Client
	wake chan struct{}

	mu      sync.Mutex // of what follows
	outbox  outbox
	began   time.Time
	started time.Time // when the first news came since the last status
	sent    time.Time // when the last status was, whatever became of it
	barred  time.Time // until when nothing is sent, after a failure
	wait    time.Duration
	err     error // why the last status did not get there
	counts  Counts
}

// Counts are what became of what the client was told.
type Counts struct {
	// Statuses that got there, heartbeats among them, and those that did not.
	Delivered, Failed uint64
	// Events that got there; for which there was no room, or that were discarded; and
	// that the agent did not take.
	EventsDelivered, EventsDropped, EventsRefused uint64
	// Waiting is how many events are on their way or wait for it.
	Waiting int
}

// New returns a client, which sends nothing before [Client.Run] is called.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.complete()
	dial := cfg.dial()
	transport := &http.Transport{
		// One connection is enough, and a source does not have many.
		MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, IdleConnTimeout: 2*cfg.Heartbeat + time.Minute, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	return &Client{
		cfg: cfg, wake: make(chan struct{}, 1), outbox: outbox{room: cfg.Queue},
		http: &http.Client{Transport: transport, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Report tells of something that has happened. Without a timestamp it was now, without
// a severity it is a warning. An error is a mistake of the caller, and nothing is told;
// a message that is too long is cut.
func (c *Client) Report(e Event) error {
	if e.Severity == "" {
		e.Severity = Warn
	}
	if e.Severity != Info && e.Severity != Warn {
		return fmt.Errorf("the severity %q: write %q or %q", e.Severity, Info, Warn)
	}
	if !IsReason(e.Reason) {
		return badReason(e.Reason)
	}
	if e.Timestamp.IsZero() {
		e.Timestamp = time.Now()
	}
	e.Message = Cut(e.Message)
	c.mu.Lock()
	c.outbox.report(e)
	c.noteNews()
	c.mu.Unlock()
	c.rouse()
	return nil
}

// SetCondition tells how a condition stands; set again as it stands already, it costs
// nothing. Without a transition it has changed now, if it has. An error is a mistake of
// the caller, and nothing is told; a message that is too long is cut.
func (c *Client) SetCondition(condition Condition) error {
	if condition.Type == "" {
		return errors.New("the condition has no Type: write one of the catalogue, such as DiskBadBlock")
	}
	if !IsReason(condition.Reason) {
		return badReason(condition.Reason)
	}
	condition.Message = Cut(condition.Message)
	c.mu.Lock()
	c.outbox.set(condition, time.Now().Round(0))
	c.noteNews()
	c.mu.Unlock()
	c.rouse()
	return nil
}

func badReason(reason string) error {
	return fmt.Errorf("the reason %q: write CamelCase such as BadBlocksFound, %d letters and digits at most", reason, MaxReason)
}

// Counts returns what became of what the client was told so far.
func (c *Client) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	counts.EventsDelivered, counts.EventsDropped, counts.EventsRefused = c.outbox.delivered, c.outbox.dropped, c.outbox.refused
	counts.Waiting = len(c.outbox.events) + len(c.outbox.flying)
	return counts
}

// Err says why the last status did not get there, nil if it did. An error of the
// agent's own is a [*RefusedError].
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Run tells the agent until ctx ends, and then what is left, for a moment. It is called
// once.
func (c *Client) Run(ctx context.Context) {
	defer c.http.CloseIdleConnections()
	c.mu.Lock()
	c.began = time.Now()
	c.mu.Unlock()
	timer := time.NewTimer(gather)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			c.sayGoodbye(context.WithoutCancel(ctx))
			return
		case <-c.wake:
		case <-timer.C:
			if now := time.Now(); !now.Before(c.due()) {
				c.send(ctx)
			}
		}
		timer.Reset(time.Until(c.due()))
	}
}

// sayGoodbye tells what has not been told, one status after the other, for as long as
// there is time for it.
func (c *Client) sayGoodbye(ctx context.Context) {
	end := time.Now().Add(farewell)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for {
		c.mu.Lock()
		left, from := c.outbox.news, later(c.barred, time.Now())
		c.mu.Unlock()
		if !left || !from.Before(end) {
			return
		}
		<-time.After(time.Until(from)) // after a failure
		c.send(ctx)
	}
}

func (c *Client) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // it is awake already
	}
}

// noteNews notes since when there is something to be told.
func (c *Client) noteNews() {
	if c.outbox.news && c.started.IsZero() {
		c.started = time.Now()
	}
}

// due is when the next status is sent.
func (c *Client) due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := c.began.Add(gather)
	if !c.sent.IsZero() {
		due = c.sent.Add(c.cfg.Heartbeat)
	}
	if c.outbox.news {
		if first := later(c.started.Add(gather), c.sent.Add(c.cfg.Every)); first.Before(due) {
			due = first
		}
	}
	return later(due, c.barred)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// send sends one status, and notes what became of it.
func (c *Client) send(ctx context.Context) {
	c.mu.Lock()
	now := time.Now()
	c.sent, c.started = now, time.Time{}
	status, body, err := c.load(now)
	c.noteNews()
	c.mu.Unlock()
	var after time.Duration
	if err == nil {
		after, err = c.post(ctx, body)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(status, err, after, time.Now())
	c.noteNews()
}

// load makes the next status, no larger than the agent takes.
func (c *Client) load(now time.Time) (Status, []byte, error) {
	for most := MaxEvents; ; most /= 2 {
		status := c.outbox.load(c.cfg.Source, most, now)
		body, err := json.Marshal(status)
		if err == nil && len(body) > MaxBody && most > 0 {
			c.outbox.back()
			continue
		}
		return status, body, err
	}
}

// post sends a status. Beside an error there is for how long the agent wants to be left
// alone, zero if it does not say.
func (c *Client) post(ctx context.Context, body []byte) (time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://autohealer"+Path, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("making a request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	token := c.cfg.Token
	if c.cfg.TokenFile != "" {
		if token, err = readToken(c.cfg.TokenFile); err != nil {
			return 0, err
		}
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, fmt.Errorf("reporting to the agent: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return 0, fmt.Errorf("reading the agent's answer: %w", err)
	}
	if response.StatusCode/100 == 2 {
		return 0, nil
	}
	refusal := &RefusedError{Code: response.StatusCode}
	if json.Unmarshal(answer, refusal) != nil || refusal.Problem == "" {
		refusal.Problem = "the agent answers " + response.Status
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil {
		seconds = 0 // it does not say
	}
	return time.Duration(seconds) * time.Second, refusal
}

// readToken reads the file of a token. A pipe would be waited for.
func readToken(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("reading the token in %s: it is no ordinary file", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, 4<<10))
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// settle notes what became of a status.
func (c *Client) settle(status Status, err error, after time.Duration, now time.Time) {
	refusal, ok := errors.AsType[*RefusedError](err)
	switch {
	case err == nil:
		c.counts.Delivered++
		c.outbox.land()
		c.wait, c.barred = 0, time.Time{}
	case ok && c.putRight(status, refusal, now):
		c.counts.Failed++
		c.outbox.back()
		c.barred = now.Add(max(after, c.cfg.Every))
	default:
		c.counts.Failed++
		switch {
		case ok && !mayPass(refusal):
			c.outbox.withdraw(-1)
		case c.cfg.OnFailure == Retry:
			c.outbox.back()
		default:
			c.outbox.lose()
		}
		c.wait = min(max(2*c.wait, firstWait), longestWait, max(c.cfg.Heartbeat, firstWait))
		// Not all clients of an agent that comes back are to come at once.
		c.barred = now.Add(max(after, c.wait/2+rand.N(c.wait/2)))
	}
	c.tell(err)
}

// tell logs when reports begin to fail, and when they do no longer.
func (c *Client) tell(err error) {
	switch {
	case err != nil && (c.err == nil || kind(c.err) != kind(err)):
		c.cfg.Logger.Warn("a report does not get to the agent", "source", c.cfg.Source, "err", err)
	case err == nil && c.err != nil:
		c.cfg.Logger.Info("reports get to the agent again", "source", c.cfg.Source)
	}
	c.err = err
}

// kind is what makes an error another one: a refusal may name the time.
func kind(err error) string {
	if refusal, ok := errors.AsType[*RefusedError](err); ok {
		return strconv.Itoa(refusal.Code)
	}
	return err.Error()
}

// putRight does something about a part of a status that the agent does not take, so that
// the rest may get there. It says whether it could.
func (c *Client) putRight(status Status, refusal *RefusedError, now time.Time) bool {
	list, place := part(refusal.Field)
	switch {
	case refusal.Code == http.StatusTooEarly && c.outbox.restamp(now.Round(0)):
		return true // somebody has set the clock back, or the daemon cannot read it
	case list == "events" && place < len(status.Events):
		c.outbox.withdraw(place)
		return true
	case list == "conditions" && place < len(status.Conditions):
		told := c.outbox.find(status.Conditions[place])
		switch {
		case told == nil: // it has been set anew
		case refusal.Code == http.StatusConflict && !told.Transition.After(now):
			// Somebody has set the clock back: it has changed, and now is when.
			told.Transition = now.Round(0)
		default:
			told.banished = now.Add(banishment)
		}
		return true
	}
	return false
}

// mayPass says whether the same status may be taken later.
func mayPass(refusal *RefusedError) bool {
	switch refusal.Code {
	case http.StatusTooManyRequests, http.StatusTooEarly, http.StatusRequestTimeout,
		http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound: // or whoever answers is not set up yet
		return true
	}
	return refusal.Code >= http.StatusInternalServerError
}

// part reads the beginning of a field: events[3].reason is the fourth of the events.
func part(field string) (list string, place int) {
	list, rest, ok := strings.Cut(field, "[")
	number, _, closed := strings.Cut(rest, "]")
	place, err := strconv.Atoi(number)
	if !ok || !closed || err != nil || place < 0 {
		return "", 0
	}
	return list, place
}
