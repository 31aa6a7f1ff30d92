package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// fakeAPI is an API server with the node worker-1 that accepts and records everything.
type fakeAPI struct {
	*httptest.Server
	mu     sync.Mutex
	labels string // of the node; while empty, the node cannot be read
	stall  bool   // the next apply is not answered
	asked  []string
	rows   []string // of each apply: "type=status", sorted by type
}

func newEar(tb testing.TB) *fakeAPI {
	tb.Helper()
	e := &fakeAPI{labels: "{}"}
	e.Server = httptest.NewServer(e)
	tb.Cleanup(e.Close)
	return e
}

func (e *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, r.Method+" "+r.URL.Path)
	if e.stall && strings.HasSuffix(r.URL.Path, "/status") {
		e.stall = false
		e.mu.Unlock()
		<-r.Context().Done()
		e.mu.Lock()
		return
	}
	if strings.Contains(r.URL.Path, "/nodes/") && !strings.Contains(r.URL.Path, "/nodes/worker-1") {
		http.Error(w, "no such node", http.StatusNotFound)
		return
	}
	if r.Method == http.MethodGet && e.labels == "" {
		http.Error(w, "away", http.StatusInternalServerError)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/status") {
		var node struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if err := json.Unmarshal(body, &node); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var rows []string
		for _, c := range node.Status.Conditions {
			rows = append(rows, c.Type+"="+c.Status)
		}
		e.rows = append(e.rows, strings.Join(rows, " "))
	}
	fmt.Fprintf(w, `{"metadata":{"name":"worker-1","uid":"u","resourceVersion":"1","labels":%s}}`, e.labels)
}

// requests counts the requests that contain a text.
func (e *fakeAPI) requests(what string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, asked := range e.asked {
		if strings.Contains(asked, what) {
			n++
		}
	}
	return n
}

// appliedRows returns the rows of each apply.
func (e *fakeAPI) appliedRows() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.rows...)
}

func (e *fakeAPI) args() []string {
	return []string{"--hostname-override=worker-1", "--apiserver-override=" + e.URL + "?inClusterConfig=false"}
}

func TestWrongNodeNameMakesTheAgentUnhealthy(t *testing.T) {
	e, s := newEar(t), newScene(t)
	p := start(t, append(append(s.args(), e.args()...), "--hostname-override=worker-2")...)
	p.waitFor("an unhealthy agent", func() bool {
		code, body := get(t, p.statusURL+"/healthz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "the cluster has no node worker-2: set NODE_NAME or --hostname-override")
	})
}

func TestFindingsAreReported(t *testing.T) {
	e, s := newEar(t), newScene(t)
	p := start(t, append(s.args(), e.args()...)...)
	p.waitFor("the first row", func() bool { return len(e.appliedRows()) == 1 })
	s.log.write(oom, hung)
	p.waitFor("the change", func() bool { return len(e.appliedRows()) == 2 })
	testkit.NoDiff(t, cmp.Diff([]string{"KernelDeadlock=False", "KernelDeadlock=True"}, e.appliedRows()), "the applied rows")
	p.waitFor("the problem and the change as Events", func() bool { return e.requests("POST /api/v1/namespaces/default/events") == 2 })
	p.waitFor("the Lease", func() bool {
		return e.requests("PATCH /apis/coordination.k8s.io/v1/namespaces/autohealer-system/leases/autohealer-agent-worker-1") == 1
	})
	p.waitFor("the metrics", func() bool { return p.metric("autohealer_agent_events_sent_total") == "2" })
	for metric, want := range map[string]string{
		`autohealer_agent_requests_total{request="conditions",result="ok"}`: "2",
		`autohealer_agent_requests_total{request="lease",result="ok"}`:      "1",
		`autohealer_agent_conditions_pending`:                               "0",
		`autohealer_agent_events_taken_total`:                               "2",
		`autohealer_agent_events_queued`:                                    "0",
	} {
		testkit.Same(t, p.metric(metric), want, "%s", metric)
	}
	lint(t, p)
	testkit.Between(t, p.stop(), 0, 3*time.Second, "the time to stop")
}

// An apply removes missing rows. A partial apply at each restart would remove the other rows for a moment.
func TestConditionsAreReportedTogether(t *testing.T) {
	e, s := newEar(t), newScene(t)
	e.mu.Lock()
	e.labels = ""
	e.mu.Unlock()
	folder := t.TempDir()
	gpu := filepath.Join(folder, "gpu.json")
	put(t, gpu, strings.ReplaceAll(kernelMonitor(filepath.Join(folder, "gpu.log"), `"nodeSelector": "gpu=true",`), "KernelDeadlock", "GPUHung"))
	p := start(t, append(append(s.args(), e.args()...), "--config.system-log-monitor="+gpu)...)
	p.waitFor("a read of the labels", func() bool { return e.requests("GET /api/v1/nodes/worker-1") > 1 })
	rows := e.appliedRows()
	testkit.Check(t, len(rows) == 0, "the applied rows are %q", rows)
	e.mu.Lock()
	e.labels = `{"gpu":"true"}`
	e.mu.Unlock()
	p.waitFor("the rows", func() bool { return len(e.appliedRows()) > 0 })
	testkit.NoDiff(t, cmp.Diff([]string{"GPUHung=False KernelDeadlock=False"}, e.appliedRows()), "the applied rows")
}

func TestReportingFlags(t *testing.T) {
	for _, c := range []struct {
		flags        string
		rows, events bool
		where        string // namespace of Events
		lease        bool
	}{
		{"--enable-k8s-exporter=false", false, false, "", false},
		{"--k8s-exporter-write-events=false", true, false, "", true},
		{"--k8s-exporter-update-node-conditions=false", false, true, "default", true},
		{"--event-namespace=kube-system --lease-namespace=", true, true, "kube-system", false},
	} {
		t.Run(c.flags, func(t *testing.T) {
			t.Parallel()
			e, s := newEar(t), newScene(t)
			p := start(t, append(append(s.args(), e.args()...), strings.Fields(c.flags)...)...)
			s.log.write(oom, hung)
			p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
			p.waitFor("what is to be reported", func() bool {
				return (e.requests("/status") > 0) == c.rows && (e.requests("POST ") == 2) == c.events && (e.requests("/leases/") > 0) == c.lease
			})
			p.stop() // sends everything that is pending
			testkit.Same(t, e.requests("/status") > 0, c.rows, "conditions are reported")
			got := e.requests("POST /api/v1/namespaces/" + c.where + "/events")
			testkit.Check(t, got == e.requests("POST ") && (got == 2) == c.events, "%d Events are reported, and %d in all", got, e.requests("POST "))
			testkit.Same(t, e.requests("/leases/") > 0, c.lease, "a Lease is kept")
			testkit.Check(t, c.flags != "--enable-k8s-exporter=false" || e.requests("/") == 0, "the requests are %q", e.asked)
		})
	}
}

func TestPendingReportsAreSentAtTheEnd(t *testing.T) {
	e, s := newEar(t), newScene(t)
	e.mu.Lock()
	e.stall = true
	e.mu.Unlock()
	p := start(t, append(s.args(), e.args()...)...)
	p.waitFor("the first row", func() bool { return e.requests("/status") == 1 })
	s.log.write(hung)
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	p.stop()
	rows := e.appliedRows()
	testkit.Check(t, len(rows) != 0 && rows[len(rows)-1] == "KernelDeadlock=True", "the applied rows are %q", rows)
	testkit.Same(t, e.requests("POST "), 1, "sent Events")
}

func TestAgentRunsWithoutAnAPIServer(t *testing.T) {
	s := newScene(t)
	p := start(t, s.args()...)
	p.waitFor("a condition", p.is("KernelDeadlock", "False", "KernelHasNoDeadlock"))
	testkit.Same(t, p.logged("nothing is reported", "--kubeconfig"), 1, "log lines of the warning")
	testkit.Same(t, p.metric("autohealer_agent_events_taken_total"), "none", "the metric of reports")
	// A configured API server that cannot be found is an error.
	p = start(t, append(newScene(t).args(), "--kubeconfig=/nowhere/config")...)
	<-p.ended
	testkit.Check(t, p.logged("/nowhere/config") != 0 && p.command.ProcessState.ExitCode() == 1, "the exit code is %d", p.command.ProcessState.ExitCode())
}

func TestReporterStateIsRestored(t *testing.T) {
	folder := t.TempDir()
	state := report.State{Taken: map[string][]string{"A": {"npd"}}, Yielded: map[string]string{"B": "other"}}
	for round := range 2 {
		var log bytes.Buffer
		a := testkit.Value(newAgent(options{stateDir: folder}, none, slog.New(slog.NewTextHandler(&log, nil)))).Must(t)
		if round == 0 {
			a.state.KeepNote(`{"new":1}`) // written by a newer agent
			a.reports.restore()
			a.reports.save(state)
		} else if note := a.state.Note(); !strings.Contains(note, `"new":1`) {
			t.Errorf("a field of a newer agent is lost: %s", note)
		} else if diff := cmp.Diff(state, a.reports.restore()); diff != "" {
			t.Error(diff)
		}
		a.state.KeepNote(map[int]string{0: a.state.Note(), 1: "[nonsense"}[round])
		if round == 1 {
			diff := cmp.Diff(report.State{}, a.reports.restore())
			testkit.Check(t, diff == "" && strings.Contains(log.String(), "starting without it"), "after an unreadable state: %s\n%s", diff, log.String())
		}
		testkit.Must(t, a.state.Close())
	}
}

// lastRow is an API that keeps the last reported row.
type lastRow struct {
	mu   sync.Mutex
	text string
}

func (l *lastRow) Do(_ context.Context, r kubeapi.Request) (kubeapi.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Method == http.MethodPatch {
		l.text = string(r.Body)
	}
	return kubeapi.Answer{Body: []byte(`{"metadata":{"uid":"u","resourceVersion":"1"}}`)}, nil
}

// Several monitors may report one condition at any time.
func TestTheLastStateOfManyMonitorsIsReported(t *testing.T) {
	for round := range 50 {
		a, api := inside(t), &lastRow{}
		a.reports.log = slog.New(slowLog{})
		a.reports.reporter = testkit.Value(report.New(report.Config{API: api, Node: "n"})).Must(t)
		a.reports.reporter.Complete()
		var monitors sync.WaitGroup
		for m := range 4 {
			monitors.Go(func() {
				a.handleReport(strconv.Itoa(m), finding.Report{Conditions: []finding.Condition{{
					Type: "Shared", Status: catalog.True, Reason: fmt.Sprint("SaidBy", m), Since: time.Unix(int64(100-m), 0),
				}}})
			})
		}
		monitors.Wait()
		a.reports.start(t.Context())() // sends pending reports
		want := a.reports.aggregate.Conditions()[0].Reason
		testkit.Require(t, strings.Contains(api.text, want), "round %d: the condition is %s, and the API server has %s", round, want, api.text)
	}
}

// slowLog is a log handler that takes its time.
type slowLog struct{ slog.Handler }

func (slowLog) Handle(context.Context, slog.Record) error {
	<-time.After(rand.N(200 * time.Microsecond))
	return nil
}

func (d slowLog) Enabled(context.Context, slog.Level) bool { return true }
func (d slowLog) WithAttrs([]slog.Attr) slog.Handler       { return d }

func TestManifestArgumentsAreValid(t *testing.T) {
	for _, variant := range []string{"install", "extras/unprivileged-agent"} {
		text := testkit.Value(os.ReadFile("../../deploy/" + variant + ".yaml")).Must(t)
		_, after, found := strings.Cut(string(text), "# Source: autohealer/templates/agent/agent.yaml\napiVersion: apps/v1\n")
		after, _, _ = strings.Cut(after, "\n---\n")
		var daemons appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte("apiVersion: apps/v1\n"+after), &daemons); err != nil || !found || daemons.Kind != "DaemonSet" {
			t.Fatalf("%s: %s, %v", variant, daemons.Kind, err)
		}
		container := daemons.Spec.Template.Spec.Containers[0]
		o, err := parse(container.Args, none, io.Discard)
		testkit.Require(t, err == nil, "%s: %v", variant, err)
		testkit.Check(t, len(o.ignored) == 0 && o.reporting.leases == defaultLeaseNamespace && o.reporting.enable, "%s: %+v", variant, o)
		for _, file := range o.files() {
			testkit.Same(t, filepath.Dir(file.Path), "/config", "%s: the mounted folder of %s", variant, file.Path)
		}
		ports := map[string]int32{}
		for _, p := range container.Ports {
			ports[p.Name] = p.ContainerPort
		}
		testkit.Check(t, int(ports["status"]) == o.port && int(ports["metrics"]) == o.prometheusPort,
			"%s: the ports are %d and %d, and the manifest has %v", variant, o.port, o.prometheusPort, ports)
		testkit.Contains(t, fmt.Sprint(container.VolumeMounts), o.stateDir, "%s: the mounts contain the folder of the state", variant)
	}
}
