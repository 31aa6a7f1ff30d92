package provider_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/provider"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestTheFileOfTheUserIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "statements.yaml")
	writes := func(text string) { testkit.Must(t, os.WriteFile(path, []byte(text), 0o600)) }
	_, err := provider.NewSource(path, slog.New(slog.DiscardHandler))
	testkit.Fails(t, err, "reading statements: open "+path)
	writes("statements: [{type: XidError, status: 'True'}]")
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		source := testkit.Value(provider.NewSource(path, slog.New(slog.NewTextHandler(&log, nil)))).Must(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- source.Run(ctx) }()
		synctest.Wait()
		has := func(condition string) {
			t.Helper()
			latest, _ := source.Latest()
			is := slices.ContainsFunc(latest.Static, func(s dialect.RepairStatement) bool { return s.Type == condition })
			testkit.Check(t, is, "%s is not stated: %v", condition, latest.Static)
		}
		logged := func(text string, times int) {
			t.Helper()
			synctest.Wait()
			testkit.Check(t, strings.Count(log.String(), text) == times, "want %d times %q:\n%s", times, text, &log)
		}
		inForce := func(want float64) {
			t.Helper()
			synctest.Wait()
			testkit.Same(t, testutil.ToFloat64(source.Metrics()), want, "autohealer_repair_statements_in_force")
		}
		has("XidError")
		inForce(1)

		_, changed := source.Latest()
		writes("statements: [{type: DiskBroken, status: 'True'}]")
		<-changed
		has("DiskBroken")

		writes("statements: [{type: DiskBroken, state: 'True'}]")
		time.Sleep(time.Minute) //nolint:forbidigo // advances the clock of the synctest bubble
		has("DiskBroken")
		logged("repair statements not reloaded", 1)
		inForce(0)
		testkit.Must(t, os.Remove(path))
		time.Sleep(time.Minute) //nolint:forbidigo // advances the clock of the synctest bubble
		has("DiskBroken")
		logged("repair statements not reloaded", 2)

		_, changed = source.Latest()
		writes("statements: [{type: FanBroken, status: 'True'}]")
		<-changed
		has("FanBroken")
		inForce(1)
		stop()
		testkit.Must(t, <-ended)
	})
}
