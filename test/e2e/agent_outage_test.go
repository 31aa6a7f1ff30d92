package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// outage is a way in which the API server becomes unavailable. The returned function ends
// the outage.
type outage struct {
	name  string
	begin func(*testing.T, *testbed.Cluster, *testbed.Proxy) (end func())
}

func everything(testbed.Request) bool { return true }

// failing is an outage in which every request fails with a fault.
func failing(fault testbed.Fault) outage {
	return outage{fault.String(), func(_ *testing.T, _ *testbed.Cluster, p *testbed.Proxy) func() {
		return p.Inject(everything, fault, 0).Lift
	}}
}

var outages = []outage{
	{"partition", func(_ *testing.T, _ *testbed.Cluster, p *testbed.Proxy) func() {
		p.Partition()
		return p.Heal
	}},
	{"standstill", func(t *testing.T, c *testbed.Cluster, _ *testbed.Proxy) func() {
		t.Helper()
		testkit.Must(t, c.APIServer.Pause())
		return func() {
			testkit.Must(t, c.APIServer.Resume())
		}
	}},
	failing(testbed.CutRequest()),
	failing(testbed.CutResponse()),
	failing(testbed.InternalError()),
	failing(testbed.TooManyRequests(time.Second)),
	failing(testbed.Hold()), // late responses
}

// crash kills the API server. It is rare, because a restart takes seconds.
var crash = outage{"crash", func(t *testing.T, c *testbed.Cluster, _ *testbed.Proxy) func() {
	t.Helper()
	testkit.Must(t, c.APIServer.Kill())
	return func() {
		testkit.Must(t, c.APIServer.Restart(context.WithoutCancel(t.Context())))
	}
}}

// asked returns a number from the environment.
func asked(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// TestAnAgentInOutages makes the API server unavailable again and again, in every possible
// way, while an agent reads lines that all match. At the end the API server has the newest
// state, and every line is in an Event or in a counter of dropped lines. AGENT_OUTAGES is
// the number of outages (50), AGENT_OUTAGE_LINES the number of lines (100,000),
// AGENT_OUTAGE_LONGEST the longest outage in milliseconds (200). Every twelfth outage takes
// one to three seconds, so that the agent's backoff grows. AGENT_OUTAGE_SEED is the random
// seed.
func TestAnAgentInOutages(t *testing.T) {
	t.Parallel()
	many, lines, longest, seed := asked("AGENT_OUTAGES", 50), asked("AGENT_OUTAGE_LINES", 100_000), asked("AGENT_OUTAGE_LONGEST", 200), asked("AGENT_OUTAGE_SEED", 7)
	t.Logf("%d outages of up to %d ms, %d lines, seed %d", many, longest, lines, seed)
	random := rand.New(rand.NewPCG(uint64(seed), 7))
	w := newFixture(t).scope(t, "outages")
	proxy := testkit.Value(w.Proxy()).Must(w.t)
	l := w.startLogAgent(w.agents(1)[0], func(o *install.AgentOptions) { o.Through = proxy })
	l.becomes(w, corev1.ConditionFalse, "100% well")

	began, written, saw := time.Now(), 0, map[string]int{}
	status, message := corev1.ConditionFalse, ""
	for i := range many {
		kind := outages[random.IntN(len(outages))]
		if i%(many/3+1) == many/6 {
			kind = crash
		}
		away, long := time.Duration(random.IntN(longest))*time.Millisecond, i%12 == 7
		if long {
			away = time.Second + time.Duration(random.IntN(2000))*time.Millisecond
			saw["long"]++
		}
		saw[kind.name]++
		before := l.comes(w, "an answer", func(f agentMetrics) bool { return f.results("ok") > 0 })
		end := kind.begin(t, w.Cluster, proxy)
		left := time.After(away)
		status, message = corev1.ConditionTrue, fmt.Sprintf("docker hangs 100%%d of %d", i)
		if i%2 == 1 {
			status, message = corev1.ConditionFalse, fmt.Sprintf("docker goes on %d", i)
		}
		text := []string{message}
		for range lines/many - 1 {
			text = append(text, fmt.Sprintf("%s 100%%s %d", problems[random.IntN(len(problems))], written+len(text)))
		}
		l.writes(w, text...)
		written += len(text)
		<-left
		if kind.name != "hold" && kind.name != "standstill" { // the agent does not notice these until its timeout
			l.comes(w, "what the "+kind.name+" does", func(f agentMetrics) bool {
				return f.failures() > before.failures()+map[bool]int{true: 1}[long] // a longer wait has more than one failure
			})
		}
		end()
		l.comes(w, "a response after the "+kind.name, func(f agentMetrics) bool {
			return f["last_answer_timestamp_seconds"] > before["last_answer_timestamp_seconds"]
		})
	}
	stormy := time.Since(began)
	f := l.comes(w, "all reports to arrive", func(f agentMetrics) bool { return f.sum("events_taken_total") == written && idle(f) })

	expected := "100% well" // the message of a rule that clears
	if status == corev1.ConditionTrue {
		expected = message
	}
	l.becomes(w, status, expected)
	reported, events := l.reported(w)
	kept := sumOf(reported)
	sent, summed, dropped := f.sum("events_sent_total"), f.sum("events_summed_total"), f.sum("dropped_total")
	t.Logf("%v in %s and %s more; %d lines: %d Events for %d, %d dropped; the agent reports %d sent, %d aggregated; %d requests failed: %v",
		saw, stormy.Round(time.Millisecond), (time.Since(began) - stormy).Round(time.Millisecond), written, events, kept, dropped, sent, summed, f.failures(), f)
	testkit.Check(t, kept+dropped == written && kept == sent+summed && events <= sent, "not every line is accounted for: %v", reported)
	// A flood of problems does not drop a change of a condition.
	if changes := reported["DockerHung"] + reported["KernelHasNoDeadlock"]; changes != many {
		t.Errorf("of %d changes %d are reported: %v", many, changes, reported)
	}
	testkit.Check(t, many < 12 || saw["long"] != 0, "every outage was over before the agent had to wait longer")
	if f.failures() < many/2 {
		t.Errorf("%d requests failed in %d outages", f.failures(), many)
	}
	if n := l.said(w, "level=ERROR"); n > 0 {
		t.Errorf("%d errors are logged", n)
	}
	if text, err := l.Log(); err != nil || strings.Contains(text, "DATA RACE") {
		t.Errorf("the log: %v", err)
	}
}
