package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/problem"
)

// listen starts a fake agent and returns the statuses that it receives.
func listen(t *testing.T, socket string) <-chan problem.Status {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan problem.Status, 1000)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status problem.Status
		if err := json.NewDecoder(r.Body).Decode(&status); err != nil {
			t.Error(err)
		}
		received <- status
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return received
}

func TestDiskWatchReportsTheLists(t *testing.T) {
	folder := t.TempDir()
	list, socket := filepath.Join(folder, "sda.badblocks"), filepath.Join(folder, "s")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(list+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(list+"~", list); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	received := listen(t, socket)
	ended := make(chan error)
	go func() {
		ended <- run(t.Context(), []string{"--socket=" + socket, "--every=10ms", "--heartbeat=50ms", filepath.Join(folder, "*.badblocks")})
	}()
	until := func(what string, is func(problem.Status) bool) {
		t.Helper()
		for patience := time.After(20 * time.Second); ; {
			select {
			case status := <-received:
				if status.Source == "disk-watch" && is(status) {
					return
				}
			case err := <-ended:
				t.Fatalf("it has ended: %v", err)
			case <-patience:
				t.Fatalf("it was not told %s", what)
			}
		}
	}
	is := func(status problem.ConditionStatus) func(problem.Status) bool {
		return func(s problem.Status) bool { return len(s.Conditions) == 1 && s.Conditions[0].Status == status }
	}
	until("that all is well", is(problem.False))
	events := 0
	told := func(status problem.ConditionStatus, n int) func(problem.Status) bool {
		return func(s problem.Status) bool { events += len(s.Events); return is(status)(s) && events == n }
	}
	write("17 99\n")
	until("a bad block, and that it is not many", told(problem.False, 1))
	write("17 99\n4711 1\n")
	until("that they are too many", told(problem.True, 2))
	write("17 99\n")
	until("that all is well again", is(problem.False))
	other := filepath.Join(folder, "md0.badblocks") // which comes before the other
	if err := os.WriteFile(other, []byte("1 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	until("which disk it is", func(s problem.Status) bool {
		return len(s.Events) == 1 && s.Events[0].Message == "3 more bad sectors in "+other+", 3 in all"
	})
	if err := errors.Join(os.Remove(list), os.Remove(other)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "badblocks") {
		t.Errorf("when it cannot look it ends with %v", err)
	}
}

func TestEachGrownListIsReportedByName(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after []disk
		want          []string
	}{
		{"nothing is new", []disk{{"sda", 8}, {"sdb", 1}}, []disk{{"sda", 8}, {"sdb", 1}}, nil},
		{"the first list grows", []disk{{"sda", 8}, {"sdb", 1}}, []disk{{"sda", 10}, {"sdb", 1}}, []string{"2 more bad sectors in sda, 10 in all"}},
		{"one grows while another shrinks", []disk{{"sda", 8}, {"sdb", 0}}, []disk{{"sda", 0}, {"sdb", 1}}, []string{"1 more bad sectors in sdb, 1 in all"}},
		{"both grow", []disk{{"sda", 0}, {"sdb", 0}}, []disk{{"sda", 8}, {"sdb", 1}}, []string{"8 more bad sectors in sda, 8 in all", "1 more bad sectors in sdb, 1 in all"}},
		{"a disk comes", []disk{{"sda", 8}}, []disk{{"sda", 8}, {"sdb", 1}}, []string{"1 more bad sectors in sdb, 1 in all"}},
		{"a disk goes", []disk{{"sda", 8}, {"sdb", 1}}, []disk{{"sdb", 1}}, nil},
		{"first look", nil, []disk{{"sda", 8}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := grown(test.before, test.after); !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestInvalidArgumentsAreErrors(t *testing.T) {
	for _, args := range [][]string{{}, {"--every=0s", "x"}, {"--address=10.0.0.1:1", "x"}, {"--no-such-flag"}, {"/no/such/list"}} {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		if err := run(ctx, args); err == nil || ctx.Err() != nil {
			t.Errorf("%q: %v", args, err)
		}
		stop()
	}
}
