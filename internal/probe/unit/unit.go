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

// Where systemd answers: on the bus of the system, and, to root alone, by itself.
const (
	busSocket     = "/run/dbus/system_bus_socket"
	privateSocket = "/run/systemd/private"
)

// Config says how systemd is reached.
type Config struct {
	// Bus is the socket of the message bus. Empty means that of the system.
	Bus string
	// Private is systemd's own socket, which is asked if there is no bus. Empty means
	// that of the system's systemd.
	Private string
}

// Manager is the systemd of a machine. It may be asked by several at once.
type Manager struct{ cfg Config }

// New makes a Manager. Nobody is asked yet.
func New(cfg Config) *Manager {
	if cfg.Bus == "" {
		cfg.Bus = busSocket
	}
	if cfg.Private == "" {
		cfg.Private = privateSocket
	}
	return &Manager{cfg}
}

// ErrNoSystemd says that there is no systemd to ask.
var ErrNoSystemd = errors.New("there is no systemd to ask")

// Name completes the name of a service: "kubelet" is kubelet.service.
func Name(short string) string {
	if strings.Contains(short, ".") {
		return short
	}
	return short + ".service"
}

// Look asks how a unit is.
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

// Restart has systemd stop and start a unit, and does not wait until that is done.
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

// ask opens a connection for one question.
func (m *Manager) ask(ctx context.Context, question func(*conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	systemd, err := m.connect(ctx)
	if err != nil {
		return timely(ctx, err)
	}
	defer systemd.Close()
	return timely(ctx, question(systemd))
}

// timely prefers the context's word: what breaks when it ends is broken by it.
func timely(ctx context.Context, err error) error {
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

// dial connects to a socket, on which a bus wants to be greeted.
func dial(ctx context.Context, socket string, bus bool) (*conn, error) {
	var dialer net.Dialer
	plain, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	// The end of ctx closes the connection, also under a handshake that nobody answers.
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

// load finds the object of a unit, also of one that does not run.
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

// Unit is how a unit of systemd is.
type Unit struct {
	Name string
	// Load is "loaded", or why it is not: "not-found", "masked".
	Load string
	// Active is "active", "inactive", "failed", or on the way: "activating",
	// "deactivating", "reloading".
	Active string
	// Busy says that something is about to be done with it, or is being done.
	Busy bool
	// Started is when systemd last began to start it; zero if it never did.
	Started time.Time
	// Changed is when its state changed last; zero if it never did.
	Changed time.Time
	// Restarts is how often systemd has restarted it by itself since somebody started it.
	Restarts int
}

// Known says whether there is such a unit.
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
	// A job is its number and its object; number 0 is none.
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

// time reads microseconds since 1970.
func (p properties) time(name string) time.Time {
	micros, _ := p[name].Value().(uint64)
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(micros)) //nolint:gosec // a time of systemd's is far below the limit
}
