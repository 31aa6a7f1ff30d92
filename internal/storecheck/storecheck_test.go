package storecheck_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/storecheck"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// discard is a logger without output.
var discard = slog.New(slog.DiscardHandler)

func TestRun(t *testing.T) {
	down := errors.New("down")
	for _, c := range []struct {
		name     string
		seen     string // by watches
		versions []any  // results of reads in order; the last one repeats
		restored bool
		within   time.Duration // time after the last version can be read
	}{
		{name: "growing versions", versions: []any{"1", "5", "5", "10"}},
		{name: "a version that goes backwards", versions: []any{"9", "10", "9"}, restored: true, within: 15 * time.Second},
		{name: "a version that goes backwards during an outage", versions: []any{"10", down, down, down, "9"}, restored: true, within: 10 * time.Second},
		{name: "a version below that of watches", seen: "10", versions: []any{"5", down, "9"}, restored: true, within: 10 * time.Second},
		{name: "an outage without a restore", versions: []any{"10", down, "11"}},
		{name: "versions that cannot be compared", versions: []any{"b", "a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began, reads := time.Now(), 0
				err := storecheck.Run(ctx, func(context.Context) (string, error) {
					at := min(reads, len(c.versions)-1)
					reads++
					if err, failed := c.versions[at].(error); failed {
						return "", err
					}
					return c.versions[at].(string), nil
				}, func() string {
					if reads == 0 {
						return ""
					}
					return c.seen
				}, discard)
				if !c.restored {
					testkit.Check(t, err == nil && reads >= len(c.versions), "after %d reads: %v", reads, err)
					return
				}
				testkit.Check(t, errors.Is(err, storecheck.ErrRestored) && strings.Contains(err.Error(), "was 10 and is 9"), "the error is %v", err)
				if took := time.Since(began); took > c.within {
					t.Errorf("it took %s, want %s at most", took, c.within)
				}
			})
		})
	}
}

func TestRestoredEtcdIsDetected(t *testing.T) {
	c := testbed.New(t, testbed.Config{})
	restore, err := c.Backup(t.Context())
	testkit.Must(t, err)
	nodes, err := nodewatch.New(c.AdminConfig())
	testkit.Must(t, err)
	before, err := nodes.Version(t.Context())
	testkit.Require(t, err == nil && before != "", "the version is %q (%v)", before, err)
	if _, err := c.CreateNodes(t.Context(), testbed.Nodes{Count: 20}); err != nil {
		t.Fatal(err)
	}
	looked := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() {
		done <- storecheck.Run(t.Context(), func(ctx context.Context) (string, error) {
			version, err := nodes.Version(ctx)
			if err == nil {
				looked <- struct{}{}
			}
			return version, err
		}, nodes.Seen, discard)
	}()
	<-looked // the version that the restore loses
	testkit.Must(t, restore(t.Context()))
	began := time.Now()
	if err := <-done; !errors.Is(err, storecheck.ErrRestored) {
		t.Errorf("the error is %v", err)
	}
	t.Logf("noticed %s after the API server was ready", time.Since(began).Round(time.Millisecond))
}
