package unit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// systemd listens on the system bus and, for root only, on its own socket.
const (
	busSocket     = "/run/dbus/system_bus_socket"
	privateSocket = "/run/systemd/private"
)

// Config configures how to reach systemd.
type Config struct {
	// Bus is the socket of the message bus. The default is the system bus.
	Bus string
	// Private is systemd's own socket, used if there is no bus. It has a default too.
	Private string
}

// Manager is the systemd of a machine. It is safe for concurrent use.
type Manager struct{ cfg Config }

// New returns a Manager. It does not connect yet.
func New(cfg Config) *Manager {
	if cfg.Bus == "" {
		cfg.Bus = busSocket
	}
	if cfg.Private == "" {
		cfg.Private = privateSocket
	}
	return &Manager{cfg}
}

// ErrNoSystemd means that systemd is not reachable because it has no socket.
var ErrNoSystemd = errors.New("there is no systemd to ask")

// Name completes the name of a service: "kubelet" becomes "kubelet.service".
func Name(short string) string {
	if strings.Contains(short, ".") {
		return short
	}
	return short + ".service"
}

// Look returns the state of a unit.
func (m *Manager) Look(ctx context.Context, name string) (Unit, error) {
	name = Name(name)
	var u Unit
	err := m.ask(ctx, func(systemd *conn) error {
		path, err := systemd.load(ctx, name)
		if err != nil {
			return err
		}
		u, err = systemd.properties(ctx, name, path)
		return err
	})
	if err != nil {
		return Unit{}, fmt.Errorf("asking systemd for %s: %w", name, err)
	}
	return u, nil
}

// Restart makes systemd restart a unit. It does not wait for the restart to complete.
func (m *Manager) Restart(ctx context.Context, name string) error {
	name = Name(name)
	err := m.ask(ctx, func(systemd *conn) error {
		return systemd.manager().CallWithContext(ctx, "org.freedesktop.systemd1.Manager.RestartUnit", 0, name, "replace").Err
	})
	if err != nil {
		return fmt.Errorf("having systemd restart %s: %w", name, err)
	}
	return nil
}

// conn is an open connection to systemd.
type conn struct{ *dbus.Conn }

// ask opens a connection for a single question.
func (m *Manager) ask(ctx context.Context, question func(*conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	systemd, err := m.connect(ctx)
	if err != nil {
		return preferContext(ctx, err)
	}
	defer systemd.Close()
	return preferContext(ctx, question(systemd))
}

// preferContext returns the context's error if the context has ended, because it caused the other
// error.
func preferContext(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (m *Manager) connect(ctx context.Context) (*conn, error) {
	systemd, err := dial(ctx, m.cfg.Bus, true)
	if err == nil {
		return systemd, nil
	}
	private, otherwise := dial(ctx, m.cfg.Private, false)
	if otherwise == nil {
		return private, nil
	}
	if errors.Is(err, fs.ErrNotExist) && errors.Is(otherwise, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: neither %s nor %s is here", ErrNoSystemd, m.cfg.Bus, m.cfg.Private)
	}
	return nil, errors.Join(err, otherwise)
}

// dial connects to a socket. A bus needs a Hello message.
func dial(ctx context.Context, socket string, bus bool) (*conn, error) {
	var dialer net.Dialer
	plain, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	// The end of ctx closes the connection, even during a handshake without an answer.
	c, err := dbus.NewConn(plain, dbus.WithContext(ctx))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to %s: %w", socket, err), plain.Close())
	}
	if err = c.Auth(nil); err == nil && bus {
		err = c.Hello()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("greeting %s: %w", socket, err), c.Close())
	}
	return &conn{c}, nil
}

func (c *conn) manager() dbus.BusObject {
	return c.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
}

// load returns the object of a unit, also of a unit that is not running.
func (c *conn) load(ctx context.Context, name string) (dbus.ObjectPath, error) {
	var path dbus.ObjectPath
	err := c.manager().CallWithContext(ctx, "org.freedesktop.systemd1.Manager.LoadUnit", 0, name).Store(&path)
	return path, err
}

func (c *conn) properties(ctx context.Context, name string, path dbus.ObjectPath) (Unit, error) {
	all := func(of string) (properties, error) {
		p := properties{}
		err := c.Object("org.freedesktop.systemd1", path).
			CallWithContext(ctx, "org.freedesktop.DBus.Properties.GetAll", 0, "org.freedesktop.systemd1."+of).Store(&p)
		return p, err
	}
	p, err := all("Unit")
	if err != nil {
		return Unit{}, err
	}
	u := p.unit(name)
	if strings.HasSuffix(name, ".service") {
		service, err := all("Service")
		if err != nil {
			return Unit{}, err
		}
		restarts, _ := service["NRestarts"].Value().(uint32)
		u.Restarts = int(restarts)
	}
	return u, nil
}

// Unit is the state of a systemd unit.
type Unit struct {
	Name string
	// Load is "loaded", or why it is not: "not-found", "masked".
	Load string
	// Active is "active", "inactive", "failed", or a transition: "activating", "deactivating",
	// "reloading".
	Active string
	// Busy means that a job for the unit is pending or running.
	Busy bool
	// Started is when systemd last began to start the unit; zero means never.
	Started time.Time
	// Changed is when the state last changed; zero means never.
	Changed time.Time
	// Restarts is how often systemd has restarted the unit automatically since its last manual
	// start.
	Restarts int
}

// Known returns whether the unit exists.
func (u Unit) Known() bool { return u.Load == "loaded" }

type properties map[string]dbus.Variant

func (p properties) unit(name string) Unit {
	u := Unit{
		Name: name, Load: p.text("LoadState"), Active: p.text("ActiveState"),
		Started: p.time("InactiveExitTimestamp"), Changed: p.time("StateChangeTimestamp"),
	}
	switch u.Active {
	case "activating", "deactivating", "reloading":
		u.Busy = true
	}
	// A job is a number and an object. Number 0 means no job.
	if job, ok := p["Job"].Value().([]any); ok && len(job) > 0 {
		number, _ := job[0].(uint32)
		u.Busy = u.Busy || number != 0
	}
	return u
}

func (p properties) text(name string) string {
	text, _ := p[name].Value().(string)
	return text
}

// time converts microseconds since 1970.
func (p properties) time(name string) time.Time {
	micros, _ := p[name].Value().(uint64)
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(micros)) //nolint:gosec // a time of systemd's is far below the limit
}
