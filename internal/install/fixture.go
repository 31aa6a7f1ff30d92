package install

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// Main runs the tests of a package that starts programs, and removes the built programs. It
// returns the exit code. At most parallel tests run at a time; 0 means Go's default. The
// functions run after the tests.
func Main(m *testing.M, parallel int, after ...func() error) int {
	if parallel > 0 {
		// The command line is parsed later, and takes precedence.
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			panic(err)
		}
	}
	log.SetLogger(logr.Discard()) // otherwise the client library complains
	code := m.Run()
	for _, do := range after {
		if err := do(); err != nil {
			code = 1
		}
	}
	Clean()
	return code
}

// Fixture is a cluster with the controller installed, for a test.
type Fixture struct {
	*testbed.Cluster
	API         client.Client // with the rights of an admin
	Controllers []*Controller // in the order of their start
	wait        testkit.Wait
	reported    atomic.Int64 // conditions
}

// NewFixture starts a cluster and installs the controller, with Guardrails that limit as little
// as possible. The client knows the types of Kubernetes and the added ones. The wait applies to
// the methods of the fixture.
func NewFixture(tb testing.TB, wait testkit.Wait, cfg testbed.Config, types ...func(*runtime.Scheme) error) *Fixture {
	tb.Helper()
	// Otherwise a stopping API server waits a minute for its watches to end.
	cfg.Flags.APIServer = append(cfg.Flags.APIServer, "--shutdown-watch-termination-grace-period=1s")
	f := &Fixture{Cluster: testbed.New(tb, cfg), wait: wait}
	f.wait.Explain = f.LogTail
	testkit.Must(tb, Install(tb.Context(), f.Cluster))
	testkit.Must(tb, Unlimit(tb.Context(), f.Cluster))
	scheme := runtime.NewScheme()
	for _, add := range append(types, clientgoscheme.AddToScheme) {
		testkit.Must(tb, add(scheme))
	}
	var err error
	f.API, err = client.New(f.AdminConfig(), client.Options{Scheme: scheme})
	testkit.Must(tb, err)
	return f
}

// Start runs a controller until the end of the test. Its name is the name of its log.
func (f *Fixture) Start(tb testing.TB, o Options) *Controller {
	tb.Helper()
	if o.Name == "" {
		o.Name = fmt.Sprintf("controller-%d", len(f.Controllers)+1)
	}
	c, err := Start(tb.Context(), f.Cluster, o)
	testkit.Must(tb, err)
	f.Controllers = append(f.Controllers, c)
	tb.Cleanup(func() {
		if c.PID() != 0 {
			_ = c.Kill()
		}
	})
	return c
}

// LogTail returns the ends of the logs of the last controllers.
func (f *Fixture) LogTail() string {
	const controllers, lines = 3, 40
	var b strings.Builder
	for _, c := range f.Controllers[max(0, len(f.Controllers)-controllers):] {
		text, err := c.Log()
		if err != nil {
			text = err.Error()
		}
		all := slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(line string) bool {
			return strings.Contains(line, "healthz check failed") || strings.Contains(line, "TLS handshake error")
		})
		fmt.Fprintf(&b, "%s (pid %d):\n\t%s\n", c, c.PID(), strings.Join(all[max(0, len(all)-lines):], "\n\t"))
	}
	return b.String()
}

// Eventually waits until check returns no error. A failure shows the logs of the controllers.
func (f *Fixture) Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	f.wait.Eventually(tb, what, check)
}

// HasMetric waits until the metrics of a program have this line.
func (f *Fixture) HasMetric(tb testing.TB, address, line string) {
	tb.Helper()
	f.Eventually(tb, "metric "+line, func() error {
		page, err := Scrape(tb, address)
		if err != nil {
			return err
		}
		name := line[:strings.IndexAny(line, "{ ")]
		var others []string
		for is := range strings.Lines(page) {
			if is = strings.TrimSpace(is); is == line {
				return nil
			} else if strings.HasPrefix(is, name+"{") || strings.HasPrefix(is, name+" ") {
				others = append(others, is)
			}
		}
		return errors.New("there is only: " + strings.Join(others, ", "))
	})
}

// HasEvent waits until an object has an Event with this reason and these parts of its message. A
// star ends a name of which only the prefix is known.
func (f *Fixture) HasEvent(tb testing.TB, kind, name, reason string, parts ...string) {
	tb.Helper()
	prefix, isPrefix := strings.CutSuffix(name, "*")
	about := client.MatchingFields{"regarding.kind": kind} // Karpenter writes many Events about other kinds
	if !isPrefix {
		about["regarding.name"] = name
	}
	f.Eventually(tb, reason+" about "+kind+" "+name, func() error {
		var list eventsv1.EventList
		if err := f.API.List(tb.Context(), &list, client.InNamespace(metav1.NamespaceDefault), about); err != nil {
			return err
		}
		var others []string
		for _, e := range list.Items {
			if !strings.HasPrefix(e.Regarding.Name, prefix) {
				continue
			}
			lacks := func(part string) bool { return !strings.Contains(e.Note, part) }
			if e.Reason == reason && !slices.ContainsFunc(parts, lacks) {
				return nil
			}
			others = append(others, e.Reason+": "+e.Note)
		}
		return errors.New("there is only: " + strings.Join(others, "; "))
	})
}

// ReportCondition sets a condition of a node, like an agent. It retries while the API server is
// unavailable.
func (f *Fixture) ReportCondition(ctx context.Context, node, condition string, status corev1.ConditionStatus, changes ...func(*corev1.NodeCondition)) error {
	c := corev1.NodeCondition{
		Type: corev1.NodeConditionType(condition), Status: status, Reason: "TestSaysSo",
		// A write without a change returns the resourceVersion of another writer, and could
		// be mistaken for that write.
		Message: fmt.Sprintf("for the %d. time", f.reported.Add(1)),
	}
	for _, change := range changes {
		change(&c)
	}
	var err error
	for range f.wait.Looks(ctx) {
		if err = f.SetCondition(ctx, node, c); err == nil || apierrors.IsNotFound(err) {
			return err
		}
	}
	return err
}

// Scrape returns the metrics of a program. Metrics that break a convention fail the test. The
// metrics of libraries, of node-problem-detector and of medik8s keep their names.
func Scrape(tb testing.TB, address string) (string, error) {
	tb.Helper()
	_, page, err := testkit.Get(tb.Context(), "http://"+address+"/metrics")
	if err != nil {
		return "", err
	}
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	testkit.Check(tb, err == nil, "promlint: %v", err)
	for _, problem := range problems {
		testkit.Check(tb, !strings.HasPrefix(problem.Metric, "autohealer_"), "promlint: %s: %s", problem.Metric, problem.Text)
	}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "autohealer_") {
			testkit.Check(tb, policyLabel.MatchString(line) == strings.Contains(line, `policy_kind="`), "a metric has only one of the labels policy and policy_kind: %s", line)
		}
	}
	return page, nil
}

// policyLabel matches the label with the name of a policy.
var policyLabel = regexp.MustCompile(`[{,]policy="`)
