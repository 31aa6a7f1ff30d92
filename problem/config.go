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

// Failure defines what happens to the events of a status that failed.
type Failure int

const (
	// Retry keeps the events and sends them again with a growing backoff, until they are delivered
	// or the queue is full.
	Retry Failure = iota
	// Discard drops and counts the events.
	Discard
)

// Config configures a client. Defaults are in parentheses.
type Config struct {
	// Source is the name of the daemon in the agent's configuration. Required.
	Source string

	// Socket is the path of the agent's unix socket ([DefaultSocket]). In a pod, mount the folder
	// that contains it, because a restarted agent creates a new socket.
	Socket string
	// Address is a port of the agent on this machine, for example 127.0.0.1:20258. It replaces Socket.
	Address string
	// Dial replaces the connection to the agent, mostly for tests.
	Dial func(ctx context.Context) (net.Conn, error)

	// Token authenticates the source, if the agent requires one.
	Token string
	// TokenFile contains the token. It is read for every status, so that the token can be replaced.
	TokenFile string

	// Heartbeat is how often the conditions are sent while nothing changes (30s). It must be well
	// below the silence timeout in the agent's configuration.
	Heartbeat time.Duration
	// Every is the minimum time between two statuses (1s). Reports in between are sent together.
	Every time.Duration
	// OnFailure defines what happens to events that were not delivered (Retry). Conditions are
	// always sent again in their latest state.
	OnFailure Failure
	// Queue is the maximum number of waiting events (1000). If it is full, the oldest are dropped.
	Queue int

	// Logger receives a message when reporting begins to fail and when it works again. May be nil.
	Logger *slog.Logger
}

// The defaults.
const (
	defaultHeartbeat = 30 * time.Second
	defaultEvery     = time.Second
	defaultQueue     = 1000
)

// complete sets the defaults.
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

// Validate returns everything that is wrong with the config.
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

// isLoopback returns whether the address is on this machine. The token is sent in plain text.
func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// dial returns the function that connects to the agent.
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
