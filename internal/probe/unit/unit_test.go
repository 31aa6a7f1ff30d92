package unit_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/unit"
	"github.com/resourcestack/autohealer/internal/probe/unit/unittest"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestLookReturnsTheState(t *testing.T) {
	systemd := unittest.Start(t)
	started := time.UnixMicro(1_700_000_000_000_001)
	changed := started.Add(time.Second)
	systemd.Set("kubelet.service", unittest.Unit{Load: "loaded", Active: "active", Started: started, Changed: changed, Restarts: 3})
	systemd.Set("slow.service", unittest.Unit{Load: "loaded", Active: "active", Job: 17})
	systemd.Set("leaving.service", unittest.Unit{Load: "loaded", Active: "deactivating"})
	for name, want := range map[string]unit.Unit{
		"kubelet":         {Name: "kubelet.service", Load: "loaded", Active: "active", Started: started, Changed: changed, Restarts: 3},
		"kubelet.service": {Name: "kubelet.service", Load: "loaded", Active: "active", Started: started, Changed: changed, Restarts: 3},
		"slow":            {Name: "slow.service", Load: "loaded", Active: "active", Busy: true},
		"leaving":         {Name: "leaving.service", Load: "loaded", Active: "deactivating", Busy: true},
		"missing":         {Name: "missing.service", Load: "not-found", Active: "inactive"},
	} {
		got, err := unit.New(systemd.Config()).Look(t.Context(), name)
		if err != nil || !got.Started.Equal(want.Started) || !got.Changed.Equal(want.Changed) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
		got.Started, got.Changed, want.Started, want.Changed = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		if got != want || got.Known() != (want.Load == "loaded") {
			t.Errorf("%s: %+v; want %+v", name, got, want)
		}
	}
}

func TestRestart(t *testing.T) {
	systemd := unittest.Start(t)
	systemd.Set("kubelet.service", unittest.Unit{Load: "loaded", Active: "active"})
	m := unit.New(systemd.Config())
	testkit.Must(t, m.Restart(t.Context(), "kubelet"))
	if got := strings.Join(systemd.Restarted(), " "); got != "kubelet.service" {
		t.Errorf("systemd was asked to restart %q", got)
	}
	err := m.Restart(t.Context(), "missing")
	if err == nil || !strings.Contains(err.Error(), "missing.service") {
		t.Errorf("a unit that is not there: %v", err)
	}
}

func TestNoSystemdIsAnError(t *testing.T) {
	folder := t.TempDir()
	m := unit.New(unit.Config{Bus: filepath.Join(folder, "bus"), Private: filepath.Join(folder, "private")})
	_, err := m.Look(t.Context(), "kubelet")
	if !errors.Is(err, unit.ErrNoSystemd) || !strings.Contains(err.Error(), "kubelet.service") {
		t.Errorf("%v", err)
	}
}

// A server that accepts and never answers, or answers nonsense, does not block the caller.
func TestASystemdThatHangsDoesNotBlock(t *testing.T) {
	for name, behave := range map[string]func(net.Conn){
		"silent":   func(net.Conn) {},
		"nonsense": func(c net.Conn) { _, _ = c.Write([]byte("what?\r\n")) },
		"half":     func(c net.Conn) { _, _ = c.Write([]byte("REJECTED EXTERNAL\r\nOK 1234\r\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "bus")
			listener, err := net.Listen("unix", socket)
			testkit.Must(t, err)
			defer listener.Close()
			go func() {
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					behave(c)
					t.Cleanup(func() { c.Close() })
				}
			}()
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			began := time.Now()
			if _, err := unit.New(unit.Config{Bus: socket, Private: socket + "-"}).Look(ctx, "kubelet"); err == nil {
				t.Error("there was an answer without a systemd")
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %s", took)
			}
			for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; <-time.After(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines are left of %d", runtime.NumGoroutine(), before)
				}
			}
		})
	}
}
