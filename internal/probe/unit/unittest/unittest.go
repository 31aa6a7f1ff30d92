// Package unittest provides a fake systemd for tests: its own message bus (dbus-daemon) with a
// server that has the names and types of systemd's interface.
//
// It does not run units. A real systemd would take over the cgroups of the test machine, and with
// them the processes of other users.
package unittest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/resourcestack/autohealer/internal/probe/unit"
)

// Unit is the state that the fake systemd returns for a unit.
type Unit struct {
	Load, Active     string
	Started, Changed time.Time
	Restarts         uint32
	Job              uint32
}

// Systemd runs until the test ends.
type Systemd struct {
	socket string
	bus    *dbus.Conn

	mu        sync.Mutex
	units     map[string]Unit
	paths     map[dbus.ObjectPath]string
	restarted []string
}

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// Start starts the bus and the fake systemd.
func Start(tb testing.TB) *Systemd {
	tb.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		tb.Fatal("there is no dbus-daemon: apt-get install -y --no-install-recommends dbus-daemon")
	}
	folder, err := os.MkdirTemp("", "bus-") // the path of a socket has no room for the name of a test
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(folder) })
	s := &Systemd{socket: filepath.Join(folder, "bus"), units: map[string]Unit{}, paths: map[dbus.ObjectPath]string{}}
	settings := filepath.Join(folder, "bus.conf")
	if err := os.WriteFile(settings, fmt.Appendf(nil, busConfig, s.socket), 0o600); err != nil {
		tb.Fatal(err)
	}
	daemon := exec.Command("dbus-daemon", "--config-file="+settings, "--nofork", "--nopidfile", "--print-address")
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // even if the test is killed
	out, err := daemon.StdoutPipe()
	if err == nil {
		err = daemon.Start()
	}
	if err != nil {
		tb.Fatalf("starting dbus-daemon: %v", err)
	}
	tb.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it listens once it has printed its address
		tb.Fatalf("waiting for dbus-daemon: %v", err)
	}
	if s.bus, err = dbus.Connect("unix:path=" + s.socket); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.bus.Close() })
	if err := s.bus.Export(manager{s}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"); err != nil {
		tb.Fatal(err)
	}
	if _, err := s.bus.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil {
		tb.Fatal(err)
	}
	return s
}

// Config connects to this systemd only.
func (s *Systemd) Config() unit.Config {
	return unit.Config{Bus: s.socket, Private: s.socket + ".none"}
}

// Set sets the state of a unit.
func (s *Systemd) Set(name string, u Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.units[name] = u
}

// Restarted returns the restarted units in order.
func (s *Systemd) Restarted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.restarted...)
}

// manager is the object of systemd itself.
type manager struct{ *Systemd }

// LoadUnit finds a unit. Like systemd, it succeeds for units that do not exist.
func (m manager) LoadUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := dbus.ObjectPath(fmt.Sprintf("/org/freedesktop/systemd1/unit/u%x", name))
	m.paths[path] = name
	if err := m.bus.Export(object{m.Systemd, name}, path, "org.freedesktop.DBus.Properties"); err != nil {
		return "", dbus.MakeFailedError(err)
	}
	return path, nil
}

// RestartUnit records the restart of a unit.
func (m manager) RestartUnit(name, mode string) (dbus.ObjectPath, *dbus.Error) {
	m.mu.Lock()
	_, known := m.units[name]
	if known && mode == "replace" {
		m.restarted = append(m.restarted, name)
	}
	m.mu.Unlock()
	if !known {
		return "", dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not found."})
	}
	return "/org/freedesktop/systemd1/job/1", nil
}

// object is the object of a unit.
type object struct {
	*Systemd

	name string
}

// GetAll returns the properties of an interface of the unit.
func (o object) GetAll(of string) (map[string]dbus.Variant, *dbus.Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	u, known := o.units[o.name]
	if !known {
		u = Unit{Load: "not-found", Active: "inactive"}
	}
	if of == "org.freedesktop.systemd1.Service" {
		return map[string]dbus.Variant{"NRestarts": dbus.MakeVariant(u.Restarts)}, nil
	}
	job := struct {
		Number uint32
		Path   dbus.ObjectPath
	}{u.Job, "/"}
	return map[string]dbus.Variant{
		"Id": dbus.MakeVariant(o.name), "LoadState": dbus.MakeVariant(u.Load), "ActiveState": dbus.MakeVariant(u.Active),
		"InactiveExitTimestamp": dbus.MakeVariant(micros(u.Started)), "StateChangeTimestamp": dbus.MakeVariant(micros(u.Changed)),
		"Job": dbus.MakeVariant(job),
	}, nil
}

func micros(at time.Time) uint64 {
	if at.IsZero() {
		return 0
	}
	return uint64(at.UnixMicro()) //nolint:gosec // no test is before 1970
}
