package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// events returns the Events about an object that have a reason.
func (w *fixture) events(ctx context.Context, about, reason string) ([]eventsv1.Event, error) {
	var list eventsv1.EventList
	if err := w.api.List(ctx, &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.Name != about || e.Reason != reason }), nil
}

// tellsOf waits for an Event about an object with all of these parts, and returns its note.
func (w *scope) tellsOf(about, reason string, parts ...string) (note string) {
	w.t.Helper()
	w.eventually("an Event "+reason+" about "+about, func() error {
		events, err := w.events(w.t.Context(), about, reason)
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range events {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(e.Note, part) }) {
				note = e.Note
				return nil
			}
			notes = append(notes, e.Note)
		}
		return fmt.Errorf("the Events say %q, none of them %q", notes, parts)
	})
	return note
}

func testObservability(w *scope) {
	const many = 30
	nodes := w.createNodes(testbed.Nodes{Count: many})
	w.createSet("set", evict(intstr.FromString("50%")), func(s *v1alpha1.ConditionSetSpec) { s.Type = "TooMuch" })
	for _, node := range nodes {
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	}
	status := w.hasStatus("set", func(s v1alpha1.ConditionSetStatus) error {
		if s.Matched != many || s.Tainted != many/2 || s.HeldBack != many/2 {
			return fmt.Errorf("%d matched, %d tainted, %d held back", s.Matched, s.Tainted, s.HeldBack)
		}
		return nil
	})
	if len(status.Nodes) != v1alpha1.MaxListedNodes {
		w.t.Errorf("the status names %d nodes, want %d of %d", len(status.Nodes), v1alpha1.MaxListedNodes, many)
	}

	w.run("in columns", func(w *scope) {
		out := testkit.Value(w.Kubectl(w.t.Context(), "get", "conditionsets", w.name+"-set")).Must(w.t)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		header := strings.Fields(lines[0])
		if reason := "15 nodes with NoSchedule instead of NoExecute: at most 15 of 30 nodes may have NoExecute; 15 nodes tainted"; !strings.Contains(out, reason) {
			w.t.Errorf("the reason is not %q in:\n%s", reason, out)
		}
		row := strings.Fields(lines[len(lines)-1])
		for column, want := range map[string]string{"EFFECT": "NoExecute", "MATCHED": "30", "ACCEPTED": "True", "AGE": ""} {
			at := slices.Index(header, column)
			if at < 0 || at >= len(row) || want != "" && row[at] != want {
				w.t.Errorf("column %s is not %q in:\n%s", column, want, out)
			}
		}
	})

	w.run("in Events with the text of the status", func(w *scope) {
		node := status.Nodes[0]
		if node.Reason != "Tainted" {
			w.t.Fatalf("the first node of the status is %s: %s", node.Reason, node.Message)
		}
		told := withReason(node.Message)
		if note := w.tellsOf(node.Name, "Tainted"); note != "ConditionSet/"+w.name+"-set: "+told {
			w.t.Errorf("the Event about the node says %q, the status %q", note, node.Message)
		}
		w.tellsOf(w.name+"-set", "Tainted", node.Name+": "+told)

		w.setCondition(node.Name, "Unhealthy", corev1.ConditionFalse)
		gone := w.tellsOf(node.Name, "Recovered", "ConditionSet/"+w.name+"-set")
		w.tellsOf(w.name+"-set", "Recovered", node.Name+": "+strings.TrimPrefix(gone, "ConditionSet/"+w.name+"-set: "))
	})

	w.run("in an Event for every change", func(w *scope) {
		node := w.createNodes(testbed.Nodes{Count: 1, First: many + 1, Conditions: []corev1.NodeCondition{
			{Type: "Flaky", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))},
		}})[0]
		w.createSet("flaky", on("Flaky"))
		first := strings.TrimPrefix(w.tellsOf(node, "Tainted"), "ConditionSet/"+w.name+"-flaky: ")
		w.setCondition(node, "Flaky", corev1.ConditionFalse)
		w.has(node)
		w.setCondition(node, "Flaky", corev1.ConditionTrue)
		second := w.hasStatus("flaky", func(s v1alpha1.ConditionSetStatus) error {
			if err := saysOf(node, "Tainted")(s); err != nil {
				return err
			}
			// a status may also mention a taint while it is being written
			if said := s.Nodes[0].Message; strings.HasPrefix(said, first) || strings.HasSuffix(said, "being written") {
				return fmt.Errorf("the status does not mention a second taint: %s", said)
			}
			return nil
		}).Nodes[0].Message
		w.tellsOf(node, "Tainted", withReason(second))
		w.tellsOf(w.name+"-flaky", "Tainted", withReason(second))
	})
}

// withReason adds to a text of a status what only Events say: the reason of the condition.
func withReason(message string) string {
	return strings.Replace(message, "=True", "=True (TestSaysSo)", 1)
}

func testMetrics(w *scope, controller *install.Controller) {
	const writes = `autohealer_writes_total{outcome="made",resource="nodes"}`
	set := w.name + "-set"
	text := w.scrape(controller)
	if strings.Contains(text, set) {
		w.t.Errorf("metrics have %s, which does not exist yet", set)
	}
	before := value(w.t, text, writes)
	nodes := w.createNodes(testbed.Nodes{Count: 3})
	w.createSet("set", evict(intstr.FromInt32(1)))
	for _, node := range nodes {
		w.setCondition(node, "Unhealthy", corev1.ConditionTrue)
	}
	w.counts(w.key("set"), 1, 2)
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse)
	w.counts(w.key("set"), 1, 1)
	w.hasStatus("set", func(s v1alpha1.ConditionSetStatus) error {
		if s.Matched != 2 || s.HeldBack != 1 {
			return fmt.Errorf("%d matched, %d held back", s.Matched, s.HeldBack)
		}
		return nil
	})
	text = w.scrape(controller)
	for _, line := range []string{
		`autohealer_build_info{version="dev"} 1`,
		`autohealer_policy_nodes{policy="SET",policy_kind="ConditionSet",state="Healthy"} 1`,
		`autohealer_policy_nodes{policy="SET",policy_kind="ConditionSet",state="Tainted"} 1`,
		`autohealer_policy_nodes{policy="SET",policy_kind="ConditionSet",state="FellBack"} 1`,
		`autohealer_policy_ready{policy="SET",policy_kind="ConditionSet"} 1`,
		`autohealer_taints_placed_total{effect="NoExecute",policy="SET",policy_kind="ConditionSet"} 2`,
		`autohealer_taints_placed_total{effect="NoSchedule",policy="SET",policy_kind="ConditionSet"} 2`,
		`autohealer_taints_removed_total{effect="NoExecute",policy="SET",policy_kind="ConditionSet"} 1`,
		`autohealer_taints_removed_total{effect="NoSchedule",policy="SET",policy_kind="ConditionSet"} 1`,
		`autohealer_policy_start_duration_seconds_count{policy="SET",policy_kind="ConditionSet"} 4`,
	} {
		if line = strings.ReplaceAll(line, "SET", set); !strings.Contains(text, line+"\n") {
			w.t.Errorf("metrics do not say %s", line)
		}
	}
	if made := value(w.t, text, writes) - before; made < 5 {
		w.t.Errorf("%v writes to nodes are counted, want at least 5", made)
	}
	w.deleteSet("set")
	w.counts(w.key("set"), 0, 0)
	w.eventually("the metrics of a set to be removed", func() error {
		if text := w.scrape(controller); strings.Contains(text, `autohealer_policy_nodes{policy="`+set) {
			return fmt.Errorf("metrics still have %s", set)
		}
		return nil
	})
	w.deleteNodes()
}

func (w *scope) scrape(c *install.Controller) (text string) {
	w.t.Helper()
	// A controller that has just started serves them shortly after.
	w.eventually("the metrics", func() (err error) {
		text, err = install.Scrape(w.t, c.Metrics)
		return err
	})
	return text
}

// value returns the sample with that name and labels. It is missing before the first count.
func value(t *testing.T, text, sample string) float64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if number, found := strings.CutPrefix(line, sample+" "); found {
			return testkit.Value(strconv.ParseFloat(strings.TrimSpace(number), 64)).Must(t)
		}
	}
	return 0
}
