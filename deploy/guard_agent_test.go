package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// guardedAgent is an agent's reporter that the admission policies bind to its node.
type guardedAgent struct {
	*testing.T
	*report.Reporter
	admin *kubernetes.Clientset
}

func (c cluster) guardedAgent(t *testing.T, lookEvery time.Duration, kinds ...string) *guardedAgent {
	t.Helper()
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), agent, agent, testbed.WithNode(theirs))).Must(t)
	api := testkit.Value(kubeapi.New(kubeapi.Access{Server: config.Host, CA: config.CAData, Token: config.BearerToken}, "autohealer-agent/test")).Must(t)
	admin := testkit.Value(kubernetes.NewForConfig(c.AdminConfig())).Must(t)
	reporter, err := report.New(report.Config{API: api, Node: theirs, Holder: "pod", LeaseNamespace: namespace, LookEvery: lookEvery, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	testkit.Must(t, err)
	w := &guardedAgent{T: t, Reporter: reporter, admin: admin}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { reporter.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	for _, kind := range kinds {
		w.says(kind, "Ours")
	}
	reporter.Complete()
	for _, kind := range kinds {
		w.becomes(kind, "Ours")
	}
	return w
}

func (w *guardedAgent) says(kind, reason string) {
	w.Take(finding.Report{Conditions: []finding.Condition{{Type: kind, Status: catalog.False, Reason: reason, Message: "100% " + reason, Since: time.Now()}}})
}

// patches writes a whole condition like node-problem-detector: it owns the changed fields.
func (w *guardedAgent) patches(kind, reason string) {
	w.Helper()
	body := fmt.Sprintf(`{"status": {"conditions": [{"type": %q, "status": "True", "reason": %[2]q, "message": %[2]q, "lastHeartbeatTime": %[3]q, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`,
		kind, reason, time.Now().Add(-time.Minute).UTC().Format(time.RFC3339))
	testkit.Must(w, patchAs("node-problem-detector", theirs, types.StrategicMergePatchType, body, "status")(w.Context(), w.admin))
}

func (w *guardedAgent) applies(rows ...string) {
	w.Helper()
	testkit.Must(w, applyBody(theirs, "gitops", `"status": {"conditions": [`+strings.Join(rows, ", ")+`]}`)(w.Context(), w.admin))
}

// row returns a condition of the node and whether the agent owns a part of it.
func (w *guardedAgent) row(kind string) (found *corev1.NodeCondition, ours bool) {
	w.Helper()
	node := testkit.Value(w.admin.CoreV1().Nodes().Get(w.Context(), theirs, metav1.GetOptions{})).Must(w)
	for _, condition := range node.Status.Conditions {
		if string(condition.Type) == kind {
			found = &condition
		}
	}
	for _, entry := range node.ManagedFields {
		ours = ours || entry.Manager == report.FieldManager && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), kind)
	}
	return found, ours
}

func (w *guardedAgent) becomes(kind, reason string) {
	w.Helper()
	testkit.Eventually(w.T, kind+" is "+reason, func() error {
		if row, _ := w.row(kind); (row == nil) != (reason == "") || row != nil && row.Reason != reason {
			return fmt.Errorf("it is %v", row)
		}
		return nil
	})
}

// leaves waits until the agent has yielded a complete condition to another writer.
func (w *guardedAgent) leaves(kind, reason string) {
	w.Helper()
	testkit.Eventually(w.T, kind+" is left", func() error {
		row, ours := w.row(kind)
		if row == nil || row.Reason != reason || row.Status == "" || row.LastHeartbeatTime.IsZero() {
			w.Fatalf("%s, which belongs to another writer, is %v", kind, row)
		}
		if ours {
			return errors.New("the agent still owns it")
		}
		return nil
	})
}

func (w *guardedAgent) isNeverRefused() {
	w.Helper()
	for outcome, n := range w.Counts().Requests {
		if outcome.Result == "forbidden" {
			w.Errorf("%d of %s refused", n, outcome.Kind)
		}
	}
}

// yieldsUnderGuard has an agent yield its conditions to other writers. The admission
// policies refuse none of its writes, and no condition of the other writers is lost.
func (c cluster) yieldsUnderGuard(t *testing.T) {
	t.Run("a condition that another writer patches again and again", func(t *testing.T) {
		w := c.guardedAgent(t, 300*time.Millisecond, "CperHardwareErrorFatal", "XfsShutdown")
		w.patches("CperHardwareErrorFatal", "Theirs")
		w.becomes("CperHardwareErrorFatal", "Ours")
		w.patches("CperHardwareErrorFatal", "TheirsAgain")
		w.leaves("CperHardwareErrorFatal", "TheirsAgain")
		w.says("XfsShutdown", "New")
		w.becomes("XfsShutdown", "New")
		w.isNeverRefused()
	})
	t.Run("a condition whose monitor is removed while another writer writes it", func(t *testing.T) {
		w := c.guardedAgent(t, time.Hour, "FrequentKubeletRestart", "XfsShutdown")
		w.patches("FrequentKubeletRestart", "Theirs")
		w.Take(finding.Report{Gone: []string{"FrequentKubeletRestart"}})
		w.leaves("FrequentKubeletRestart", "Theirs")
		w.isNeverRefused()
	})
	t.Run("a condition that the other writer drops, too, after its monitor is removed", func(t *testing.T) {
		w := c.guardedAgent(t, 300*time.Millisecond, "CorruptDockerOverlay2", "XfsShutdown")
		w.applies(`{"type": "CorruptDockerOverlay2", "reason": "Theirs"}`)
		w.becomes("CorruptDockerOverlay2", "Ours")
		w.applies(`{"type": "CorruptDockerOverlay2", "reason": "TheirsAgain"}`)
		w.leaves("CorruptDockerOverlay2", "TheirsAgain")
		w.Take(finding.Report{Gone: []string{"CorruptDockerOverlay2"}})
		w.applies(`{"type": "Else", "status": "True"}`)
		w.becomes("CorruptDockerOverlay2", "")
		w.becomes("AutohealerPlaceholder", "")
		w.isNeverRefused()
	})
}

// staysWithinLimits has an agent find more than it may write. It reports as much as the
// limits allow, and the admission policies refuse none of its writes.
func (c cluster) staysWithinLimits(t *testing.T) {
	const found = report.MostConditions + 20
	w := c.guardedAgent(t, time.Hour)
	var r finding.Report
	for i := range found {
		r.Conditions = append(r.Conditions, finding.Condition{
			Type: fmt.Sprintf("Row%04d", i), Status: catalog.True, Reason: strings.Repeat("R", 1000), Message: strings.Repeat("ü", 5000), Since: time.Now(),
		})
	}
	r.Source = "kubelet" // allowed as the name of a monitor, but not as the source of an Event
	r.Events = []finding.Event{{ID: "1", Severity: finding.Warn, Time: time.Now(), Reason: strings.Repeat("R", 1000), Message: strings.Repeat("ü", 5000)}}
	for n := range uint64(2) { // the second Event raises the count of the first
		w.Take(r)
		testkit.Eventually(t, "all findings within the limits to be written", func() error {
			if counts := w.Counts(); counts.EventsSent != n+1 || counts.Pending || counts.LeaseRenewed.IsZero() {
				return fmt.Errorf("the agent has counted %+v", counts)
			}
			return nil
		})
		r.Conditions, r.Events[0].ID = nil, "2"
	}
	w.isNeverRefused()
	if n := w.Counts().Dropped[report.Drop{Kind: "condition", Why: "too many"}]; n != found-report.MostConditions {
		t.Errorf("%d conditions were counted as too many", n)
	}
	w.becomes("Row0000", strings.Repeat("R", report.LongestReason-len("…"))+"…")
	events, err := w.admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reportingComponent=autohealer-agent/kubelet"})
	if err != nil || len(events.Items) != 1 || events.Items[0].Source.Component != "autohealer-agent/kubelet" || events.Items[0].Count != 2 {
		t.Errorf("the agent's Events are %v, %v", events.Items, err)
	}
}
