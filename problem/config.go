package problem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Failure is what becomes of the events of a status that did not get there.
type Failure int

const (
	// Retry keeps them and sends them again, later and later, until they get there or
	// the queue is full.
	Retry Failure = iota
	// Discard drops and counts them.
	Discard
)

// Config of a client. What is left empty has the value that its comment names.
type Config struct {
	// Source is the daemon's name, as the agent is configured to know it. Required.
	Source string

	// Socket is the path of the agent's unix socket ([DefaultSocket]). In a pod, mount the
	// folder that it is in: an agent that is started again makes a new socket.
	Socket string
	// Address is a port of the agent on this machine, such as 127.0.0.1:20258, instead of
	// a socket.
	Address string
	// Dial replaces the way to the agent altogether, mostly for tests.
	Dial func(ctx context.Context) (net.Conn, error)

	// Token by which the agent knows the source, if it is known by one.
	Token string
	// TokenFile holds the token instead. It is read for every status, so that a token
	// may be replaced.
	TokenFile string

	// Heartbeat is how often the conditions are told while nothing changes (30s). It must
	// be well below the silence that the agent is configured to bear.
	Heartbeat time.Duration
	// Every is how far apart statuses are at least (1s): what comes meanwhile goes together.
	Every time.Duration
	// OnFailure says what becomes of events that did not get there (Retry). Conditions
	// are always told again, as they are by then.
	OnFailure Failure
	// Queue is how many events wait at most (1000). The oldest have to go first.
	Queue int

	// Logger is told when reports do not get there, and when they do again. May be nil.
	Logger *slog.Logger
}

// What is taken where a Config does not say.
const (
	defaultHeartbeat = 30 * time.Second
	defaultEvery     = time.Second
	defaultQueue     = 1000
)

// complete fills in what the config does not say.
func (c Config) complete() Config {
	if c.Socket == "" {
		c.Socket = DefaultSocket
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Every == 0 {
		c.Every = defaultEvery
	}
	if c.Queue == 0 {
		c.Queue = defaultQueue
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate says all that is wrong with the config.
func (c Config) Validate() error {
	var wrong []error
	if c.Source == "" {
		wrong = append(wrong, errors.New("there is no Source: write the name under which the agent knows the daemon"))
	}
	if c.Socket != "" && c.Address != "" {
		wrong = append(wrong, errors.New("there are both Socket and Address: leave one"))
	}
	if c.Token != "" && c.TokenFile != "" {
		wrong = append(wrong, errors.New("there are both Token and TokenFile: leave one"))
	}
	if c.Address != "" && !isLoopback(c.Address) {
		wrong = append(wrong, fmt.Errorf("the Address %q is not one of this machine: write 127.0.0.1 or [::1] and a port", c.Address))
	}
	if c.Heartbeat < 0 || c.Every < 0 || c.Queue < 0 {
		wrong = append(wrong, errors.New("one of Heartbeat, Every and Queue is negative: leave out what is to have its default"))
	}
	return errors.Join(wrong...)
}

// isLoopback says whether nobody but this machine hears what is sent there: the token
// goes in the open.
func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// dial returns the way to the agent.
func (c Config) dial() func(ctx context.Context) (net.Conn, error) {
	if c.Dial != nil {
		return c.Dial
	}
	network, address := "unix", c.Socket
	if c.Address != "" {
		network, address = "tcp", c.Address
	}
	var dialer net.Dialer
	return func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, network, address) }
}
