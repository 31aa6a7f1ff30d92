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
		testkit.Check(t, err == nil && got.Started.Equal(want.Started) && got.Changed.Equal(want.Changed), "%s: %+v, %v; want %+v", name, got, err, want)
		got.Started, got.Changed, want.Started, want.Changed = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		testkit.Check(t, got == want && got.Known() == (want.Load == "loaded"), "%s: %+v; want %+v", name, got, want)
	}
}

func TestRestart(t *testing.T) {
	systemd := unittest.Start(t)
	systemd.Set("kubelet.service", unittest.Unit{Load: "loaded", Active: "active"})
	m := unit.New(systemd.Config())
	testkit.Must(t, m.Restart(t.Context(), "kubelet"))
	testkit.Same(t, strings.Join(systemd.Restarted(), " "), "kubelet.service", "restarts of systemd")
	err := m.Restart(t.Context(), "missing")
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "missing.service"), "a unit that is not there: %v", err)
}

func TestNoSystemdIsAnError(t *testing.T) {
	folder := t.TempDir()
	m := unit.New(unit.Config{Bus: filepath.Join(folder, "bus"), Private: filepath.Join(folder, "private")})
	_, err := m.Look(t.Context(), "kubelet")
	testkit.Check(t, errors.Is(err, unit.ErrNoSystemd) && strings.Contains(err.Error(), "kubelet.service"), "%v", err)
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
			listener := testkit.Value(net.Listen("unix", socket)).Must(t)
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
			testkit.Between(t, time.Since(began), 0, 2*time.Second, "the time of the answer")
			for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; <-time.After(5 * time.Millisecond) {
				testkit.Require(t, !time.Now().After(deadline), "%d goroutines are left of %d", runtime.NumGoroutine(), before)
			}
		})
	}
}
