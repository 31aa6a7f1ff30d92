package check_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// One operation runs the checks of the shipped file for 30 s, each at its interval, on this
// machine's own tables and clock. The fake kubelet and runtime run in this process, so the numbers
// include their work.
func BenchmarkShippedChecks(b *testing.B) {
	const period = 30 * time.Second
	text, err := os.ReadFile("../../../config/health-checks.json")
	testkit.Must(b, err)
	file, _, err := config.Parse("health-checks.json", config.Check, text)
	testkit.Must(b, err)
	kubelet := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer kubelet.Close()
	runtime := listen(b, ready(true, true))
	var round []periodic.Check
	for _, rule := range file.Check.Rules {
		switch rule.Check {
		case config.CheckKubelet:
			rule.Settings.URL = kubelet.URL
		case config.CheckRuntime:
			rule.Settings.Socket = runtime
		}
		rule.Settings.Grace = 0
		examine, err := check.New(rule, check.Node{Getenv: os.Getenv, Repairs: &check.Repairs{}})
		testkit.Must(b, err)
		for range int(period / rule.InvokeInterval) {
			round = append(round, examine)
		}
	}
	if len(round) != 9 {
		b.Fatalf("%d examinations within %s", len(round), period)
	}
	before, ops := used(b), 0
	b.ReportAllocs()
	for b.Loop() {
		ops++
		for _, examine := range round {
			if got := examine(b.Context()); got.Verdict == periodic.Unknown {
				b.Fatalf("%+v", got)
			}
		}
	}
	each := (used(b) - before) / time.Duration(ops)
	b.ReportMetric(float64(each)/float64(time.Millisecond), "cpu-ms/op")
	b.ReportMetric(100*float64(each)/float64(period), "%core")
}

// used returns the CPU time of this process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
