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
	// gather is how long the first report waits for more, so that they are sent together.
	gather = 10 * time.Millisecond
	// requestTimeout is how long the agent may take to answer.
	requestTimeout = 10 * time.Second
	// flushTimeout is how long Run sends remaining reports after its context has ended.
	flushTimeout = 2 * time.Second
	// The backoff after failures.
	firstWait, longestWait = 500 * time.Millisecond, 30 * time.Second
)

// Client sends the findings of a daemon to the agent. It is safe for concurrent use. Only Run
// blocks.
type Client struct {
	cfg  Config
	http *http.Client
	wake chan struct{}

	mu        sync.Mutex // guards the following fields
	outbox    outbox
	began     time.Time
	started   time.Time // when the first report since the last status was made
	sent      time.Time // when the last status was sent, successfully or not
	notBefore time.Time // nothing is sent before, after a failure
	wait      time.Duration
	err       error // why the last status failed
	counts    Counts
}

// Counts are counters of the client.
type Counts struct {
	// Statuses that were delivered, including heartbeats, and those that failed.
	Delivered, Failed uint64
	// Events that were delivered, that were dropped (queue full, or discarded after a failure), and
	// that the agent refused.
	EventsDelivered, EventsDropped, EventsRefused uint64
	// Waiting is the number of events that are being sent or waiting to be sent.
	Waiting int
}

// New returns a client that sends nothing before [Client.Run] is called.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.complete()
	dial := cfg.dial()
	transport := &http.Transport{
		// One connection is enough, and the agent limits the connections of a source.
		MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, IdleConnTimeout: 2*cfg.Heartbeat + time.Minute, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	return &Client{
		cfg: cfg, wake: make(chan struct{}, 1), outbox: outbox{capacity: cfg.Queue},
		http: &http.Client{Transport: transport, Timeout: requestTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Report reports an event. The default timestamp is now, the default severity is Warn. A message
// that is too long is cut. An error means that the event is invalid and is not reported.
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
	c.wakeUp()
	return nil
}

// SetCondition sets a condition. Setting it to its current state costs nothing. The default
// transition is now if the status changes. A message that is too long is cut. An error means that
// the condition is invalid and is not set.
func (c *Client) SetCondition(condition Condition) error {
	if condition.Type == "" {
		return errors.New("the condition has no Type: write one of the catalogue, for example DiskBadBlock")
	}
	if !IsReason(condition.Reason) {
		return badReason(condition.Reason)
	}
	condition.Message = Cut(condition.Message)
	c.mu.Lock()
	c.outbox.set(condition, time.Now().Round(0))
	c.noteNews()
	c.mu.Unlock()
	c.wakeUp()
	return nil
}

func badReason(reason string) error {
	return fmt.Errorf("the reason %q: write CamelCase like BadBlocksFound, %d letters and digits at most", reason, MaxReason)
}

// Counts returns the counters.
func (c *Client) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	counts.EventsDelivered, counts.EventsDropped, counts.EventsRefused = c.outbox.delivered, c.outbox.dropped, c.outbox.refused
	counts.Waiting = len(c.outbox.events) + len(c.outbox.sending)
	return counts
}

// Err returns why the last status failed, nil if it was delivered. An error that the agent returned
// is a [*RefusedError].
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Run sends reports to the agent until ctx ends, and remaining reports for a short time after. Call
// it once.
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
			c.flush(context.WithoutCancel(ctx))
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

// flush sends the remaining reports for at most flushTimeout.
func (c *Client) flush(ctx context.Context) {
	end := time.Now().Add(flushTimeout)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for {
		c.mu.Lock()
		left, from := c.outbox.news, later(c.notBefore, time.Now())
		c.mu.Unlock()
		if !left || !from.Before(end) {
			return
		}
		<-time.After(time.Until(from)) // the backoff after a failure
		c.send(ctx)
	}
}

func (c *Client) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default: // already woken
	}
}

// noteNews records since when there is something to send.
func (c *Client) noteNews() {
	if c.outbox.news && c.started.IsZero() {
		c.started = time.Now()
	}
}

// due returns when the next status is sent.
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
	return later(due, c.notBefore)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// send sends a status and handles the result.
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

// load builds the next status, no larger than the agent accepts.
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

// post sends a status. With an error it returns the agent's Retry-After, zero if there is none.
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
		seconds = 0 // there is no Retry-After
	}
	return time.Duration(seconds) * time.Second, refusal
}

// readToken reads a token from a file. It does not block on a named pipe.
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

// settle handles the result of a status.
func (c *Client) settle(status Status, err error, after time.Duration, now time.Time) {
	refusal, ok := errors.AsType[*RefusedError](err)
	switch {
	case err == nil:
		c.counts.Delivered++
		c.outbox.land()
		c.wait, c.notBefore = 0, time.Time{}
	case ok && c.repair(status, refusal, now):
		c.counts.Failed++
		c.outbox.back()
		c.notBefore = now.Add(max(after, c.cfg.Every))
	default:
		c.counts.Failed++
		switch {
		case ok && !isTransient(refusal):
			c.outbox.withdraw(-1)
		case c.cfg.OnFailure == Retry:
			c.outbox.back()
		default:
			c.outbox.lose()
		}
		c.wait = min(max(2*c.wait, firstWait), longestWait, max(c.cfg.Heartbeat, firstWait))
		// The jitter keeps the clients of a restarted agent from reconnecting at the same time.
		c.notBefore = now.Add(max(after, c.wait/2+rand.N(c.wait/2)))
	}
	c.logChange(err)
}

// logChange logs when reports begin to fail and when they succeed again.
func (c *Client) logChange(err error) {
	switch {
	case err != nil && (c.err == nil || kind(c.err) != kind(err)):
		c.cfg.Logger.Warn("reporting to the agent fails", "source", c.cfg.Source, "err", err)
	case err == nil && c.err != nil:
		c.cfg.Logger.Info("reporting to the agent works again", "source", c.cfg.Source)
	}
	c.err = err
}

// kind classifies an error. The text of a refusal may contain the time, so it is not compared.
func kind(err error) string {
	if refusal, ok := errors.AsType[*RefusedError](err); ok {
		return strconv.Itoa(refusal.Code)
	}
	return err.Error()
}

// repair handles the part of a status that the agent refused, so that the rest can be delivered. It
// returns whether it could.
func (c *Client) repair(status Status, refusal *RefusedError, now time.Time) bool {
	list, place := part(refusal.Field)
	switch {
	case refusal.Code == http.StatusTooEarly && c.outbox.restamp(now.Round(0)):
		return true // the clock was set back, or the daemon cannot read it
	case list == "events" && place < len(status.Events):
		c.outbox.withdraw(place)
		return true
	case list == "conditions" && place < len(status.Conditions):
		told := c.outbox.find(status.Conditions[place])
		switch {
		case told == nil: // the daemon has set it again
		case refusal.Code == http.StatusConflict && !told.Transition.After(now):
			// The clock was set back. The condition has changed, so its transition is now.
			told.Transition = now.Round(0)
		default:
			told.pausedUntil = now.Add(pauseRefused)
		}
		return true
	}
	return false
}

// isTransient returns whether the agent may accept the same status later.
func isTransient(refusal *RefusedError) bool {
	switch refusal.Code {
	case http.StatusTooManyRequests, http.StatusTooEarly, http.StatusRequestTimeout,
		http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound: // or the agent is not configured yet
		return true
	}
	return refusal.Code >= http.StatusInternalServerError
}

// part parses the beginning of a field path: events[3].reason is in the fourth event.
func part(field string) (list string, place int) {
	list, rest, ok := strings.Cut(field, "[")
	number, _, closed := strings.Cut(rest, "]")
	place, err := strconv.Atoi(number)
	if !ok || !closed || err != nil || place < 0 {
		return "", 0
	}
	return list, place
}
