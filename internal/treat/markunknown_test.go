package treat_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

func TestReadAgentOwnershipRefusesOtherFields(t *testing.T) {
	for name, test := range map[string]struct{ fields, says string }{
		"something beside conditions":      {`{"f:status":{"f:phase":{},"f:conditions":{}}}`, "field manager autohealer-agent owns f:phase of node n"},
		"something beside the status":      {`{"f:metadata":{"f:labels":{"f:a":{}}}}`, "field manager autohealer-agent owns f:metadata of node n"},
		"no JSON":                          {`{`, "reading which fields of node n are autohealer-agent's"},
		"a status that is none":            {`{"f:status":1}`, "reading which fields"},
		"conditions that are none":         {`{"f:status":{"f:conditions":[]}}`, "reading which fields"},
		"a row without a name":             {`{"f:status":{"f:conditions":{"k:x":{}}}}`, "reading which fields"},
		"a row that is none":               {`{"f:status":{"f:conditions":{"k:{\"type\":\"A\"}":1}}}`, "reading which fields"},
		"conditions, as it is meant to be": {`{"f:status":{".":{},"f:conditions":{".":{},"k:{\"type\":\"A\"}":{".":{},"f:type":{}}}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kubelet", Operation: "Update", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{}}}`)},
				{Manager: "another", Operation: "Apply", Subresource: "status"},
				{Manager: treat.AgentFieldManager, Operation: "Apply", Subresource: "status", FieldsV1: metav1.NewFieldsV1(test.fields)},
			}}}
			_, err := treat.ReadAgentOwnership(node)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

func TestAgentConditionsLeavesOutThoseOfOthers(t *testing.T) {
	entry := func(manager string, types ...string) metav1.ManagedFieldsEntry {
		var keys []string
		for _, each := range types {
			keys = append(keys, fmt.Sprintf(`"k:{\"type\":\"%s\"}": {".": {}, "f:status": {}}`, each))
		}
		fields := &metav1.FieldsV1{}
		fields.SetRawBytes(fmt.Appendf(nil, `{"f:status": {"f:conditions": {".": {}, %s}}}`, strings.Join(keys, ", ")))
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: "status", FieldsV1: fields}
	}
	detector, agent := entry("node-problem-detector", "ReadonlyFilesystem"), entry(treat.AgentFieldManager, "KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown")
	for _, entries := range [][]metav1.ManagedFieldsEntry{{detector, agent}, {agent, detector}} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: entries}}
		testkit.Same(t, strings.Join(treat.AgentConditions(node), " "), "KernelDeadlock XfsShutdown", "conditions of the agent alone")
	}
}

// FuzzReadAgentOwnership reads any set of fields. It never writes a condition that is not the agent's, nor
// one of Kubernetes itself.
func FuzzReadAgentOwnership(f *testing.F) {
	f.Add(`{"f:status":{"f:conditions":{"k:{\"type\":\"A\"}":{".":{},"f:type":{},"f:status":{},"f:reason":{}}}}}`)
	f.Add(`{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:type":{},"f:status":{},"f:reason":{}}}}}`)
	f.Add(`{"f:status":{"f:conditions":{".":{},"v:1":{}}}}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, fields string) {
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "A", Status: "True"}, {Type: "Theirs", Status: "True"}, {Type: "Ready", Status: "True"}}}}
		node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: treat.AgentFieldManager, Operation: "Apply", Subresource: "status", FieldsV1: metav1.NewFieldsV1(fields)}}
		owned, err := treat.ReadAgentOwnership(node)
		if err != nil {
			return
		}
		named := strings.Contains(fields, "Theirs") || strings.Contains(fields, `\u`)
		if s := owned.MarkUnknown("x", time.Now()); s != nil && (slices.Contains(s.Turned, "Ready") || !named && slices.Contains(s.Turned, "Theirs")) {
			t.Errorf("%s makes %v Unknown", fields, s.Turned)
		}
	})
}

// agentFixture is a node with an agent on a real API server.
type agentFixture struct {
	*testing.T
	admin  *kubernetes.Clientset
	writer *treat.Writer
	name   string
}

func TestMarkUnknown(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	c := testkit.Value(client.New(cluster.AdminConfig(), client.Options{})).Must(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	for i, test := range []struct {
		name string
		tell func(*agentFixture)
	}{
		{"turns the agent's rows and no others, in one write, and leaves them the agent's", (*agentFixture).turns},
		{"is made on the version that was looked at, or not at all", (*agentFixture).isPrecise},
		{"leaves what others speak for", (*agentFixture).leavesOthers},
		{"leaves what a node-problem-detector keeps that says the same", (*agentFixture).leavesWhoBeats},
		{"turns the conditions of a replaced manager", (*agentFixture).turnsTheReplaced},
		{"writes nothing without conditions of the agent", (*agentFixture).saysNothing},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &agentFixture{T: t, admin: admin, writer: treat.NewWriter(c), name: fmt.Sprintf("n%d", i)}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.name}}
			testkit.Must(t, c.Create(t.Context(), node))
			testkit.Must(t, cluster.SetCondition(t.Context(), a.name, corev1.NodeCondition{Type: "Ready", Status: "True", Reason: "KubeletReady"}))
			test.tell(a)
		})
	}
}

// applies makes a manager apply conditions, written as type=status/reason.
func (a *agentFixture) applies(manager string, force bool, rows ...string) error {
	a.Helper()
	var conditions []map[string]any
	for _, row := range rows {
		kind, rest, _ := strings.Cut(row, "=")
		status, reason, _ := strings.Cut(rest, "/")
		conditions = append(conditions, map[string]any{
			"type": kind, "status": status, "reason": reason, "message": "as " + manager + " says", "lastTransitionTime": "2026-11-15T12:00:00Z", "lastHeartbeatTime": "2026-11-15T12:00:00Z",
		})
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "status": map[string]any{"conditions": conditions}})
	testkit.Must(a, err)
	_, err = a.admin.CoreV1().Nodes().Patch(a.Context(), a.name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager, Force: &force}, "status")
	return err
}

// rows returns the conditions of the node, as type=status/reason.
func (a *agentFixture) rows() (rows []string, node *corev1.Node) {
	a.Helper()
	node = testkit.Value(a.writer.Fetch(a.Context(), a.name)).Must(a)
	for _, c := range node.Status.Conditions {
		rows = append(rows, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	return rows, node
}

func (a *agentFixture) are(want ...string) *corev1.Node {
	a.Helper()
	got, node := a.rows()
	testkit.Equal(a, "the rows are others", want, got)
	return node
}

// silence prepares the write.
func (a *agentFixture) silence(node *corev1.Node) *treat.MarkUnknown {
	a.Helper()
	owned := testkit.Value(treat.ReadAgentOwnership(node)).Must(a)
	if !owned.Last.IsZero() && time.Since(owned.Last) > time.Minute {
		a.Errorf("the agent wrote last at %v", owned.Last)
	}
	return owned.MarkUnknown("It is silent.", time.Now())
}

const agentManager = treat.AgentFieldManager

func (a *agentFixture) turns() {
	testkit.Must(a, a.applies(agentManager, false, "A=True/Bad", "B=False/Good", "C=Unknown/TimedOut"))
	before := a.are("Ready=True/KubeletReady", "A=True/Bad", "B=False/Good", "C=Unknown/TimedOut")
	s := a.silence(before)
	if s == nil || !slices.Equal(s.Turned, []corev1.NodeConditionType{"A", "B"}) {
		a.Fatalf("it would turn %+v", s)
	}
	testkit.Must(a, a.writer.ApplyUnknown(a.Context(), s))
	after := a.are("Ready=True/KubeletReady", "A=Unknown/"+triage.AgentSilent, "B=Unknown/"+triage.AgentSilent, "C=Unknown/TimedOut")
	testkit.Equal(a, "Ready is another", before.Status.Conditions[0], after.Status.Conditions[0])
	testkit.Equal(a, "a row that was Unknown is another", before.Status.Conditions[3], after.Status.Conditions[3])
	row := after.Status.Conditions[1]
	if row.Message != "It is silent. Until then it was True (Bad)." || time.Since(row.LastTransitionTime.Time) > time.Minute || !row.LastHeartbeatTime.Equal(&before.Status.Conditions[1].LastHeartbeatTime) {
		a.Errorf("the row is %+v", row)
	}
	if owners := len(after.ManagedFields); owners != len(before.ManagedFields) {
		a.Errorf("%d managers where there were %d", owners, len(before.ManagedFields))
	}
	if again := a.silence(after); again != nil {
		a.Errorf("it would turn %v once more", again.Turned)
	}
	// The agent is back, has one condition less, and needs no force.
	testkit.Must(a, a.applies(agentManager, false, "A=True/Bad", "C=False/Good"))
	a.are("Ready=True/KubeletReady", "A=True/Bad", "C=False/Good")
}

func (a *agentFixture) isPrecise() {
	testkit.Must(a, a.applies(agentManager, false, "A=True/Bad"))
	_, node := a.rows()
	s := a.silence(node)
	testkit.Must(a, a.applies(agentManager, false, "A=False/Good")) // the agent returns in time
	if err := a.writer.ApplyUnknown(a.Context(), s); !apierrors.IsConflict(err) || treat.Classify(err) != treat.Stale {
		a.Errorf("a write for another version: %v", err)
	}
	a.are("Ready=True/KubeletReady", "A=False/Good")
}

func (a *agentFixture) leavesOthers() {
	testkit.Must(a, a.applies(agentManager, false, "A=True/Bad", "B=True/Bad", "C=True/Bad", "D=True/Bad", "E=True/Bad"))
	testkit.Must(a, a.applies("old-agent", true, "A=False/Theirs", "B=True/Bad")) // A is taken over, B is shared
	_, err := a.admin.CoreV1().Nodes().Patch(a.Context(), a.name, types.StrategicMergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"D","message":"a note"},{"type":"E","status":"False"}]}}`), metav1.PatchOptions{FieldManager: "kubectl"}, "status")
	testkit.Must(a, err)
	_, node := a.rows()
	s := a.silence(node)
	if s == nil || !slices.Equal(s.Turned, []corev1.NodeConditionType{"C", "D"}) {
		a.Fatalf("it would turn %+v", s)
	}
	testkit.Must(a, a.writer.ApplyUnknown(a.Context(), s))
	node = a.are("Ready=True/KubeletReady", "A=False/Theirs", "B=True/Bad", "C=Unknown/"+triage.AgentSilent, "D=Unknown/"+triage.AgentSilent, "E=False/Bad")
	if got := node.Status.Conditions[4].Message; got != "a note" {
		a.Errorf("another manager's annotation became %q", got)
	}
	testkit.Must(a, a.applies("old-agent", false, "A=True/Theirs", "B=True/Bad")) // it owns what it did before
	testkit.Must(a, a.applies(agentManager, false, "C=True/Bad"))                 // and so does the agent
}

// patches makes a manager write a condition as node-problem-detector does.
func (a *agentFixture) patches(manager, kind, status, reason, at string) {
	a.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":%q,"message":"so it is","lastTransitionTime":"2026-11-15T11:00:00Z","lastHeartbeatTime":%q}]}}`, kind, status, reason, at)
	_, err := a.admin.CoreV1().Nodes().Patch(a.Context(), a.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: manager}, "status")
	testkit.Must(a, err)
}

func (a *agentFixture) leavesWhoBeats() {
	testkit.Must(a, a.applies(agentManager, false, "A=False/Good", "B=False/Good"))
	a.patches("node-problem-detector", "A", "False", "Good", "2026-11-15T12:05:00Z")
	_, node := a.rows()
	s := a.silence(node)
	if s == nil || !slices.Equal(s.Turned, []corev1.NodeConditionType{"B"}) {
		a.Fatalf("it would turn %+v", s)
	}
	testkit.Must(a, a.writer.ApplyUnknown(a.Context(), s))
	a.are("Ready=True/KubeletReady", "A=False/Good", "B=Unknown/"+triage.AgentSilent)
}

func (a *agentFixture) turnsTheReplaced() {
	a.patches("node-problem-detector", "A", "False", "Good", "2026-11-15T11:55:00Z")
	testkit.Must(a, a.applies(agentManager, true, "A=False/Good"))
	_, node := a.rows()
	s := a.silence(node)
	if s == nil || len(s.Turned) != 1 {
		a.Fatalf("it would turn %+v", s)
	}
	testkit.Must(a, a.writer.ApplyUnknown(a.Context(), s))
	node = a.are("A=Unknown/"+triage.AgentSilent, "Ready=True/KubeletReady")
	if row := node.Status.Conditions[0]; !strings.HasPrefix(row.Message, "It is silent.") || time.Since(row.LastTransitionTime.Time) > time.Minute {
		a.Errorf("the row is %+v", row)
	}
	testkit.Must(a, a.applies(agentManager, false, "A=False/Good")) // the agent is back and needs no force
	a.are("A=False/Good", "Ready=True/KubeletReady")
	a.patches("node-problem-detector", "A", "True", "Bad", "2026-11-15T12:05:00Z") // the other manager, too
	_, node = a.rows()
	if s := a.silence(node); s != nil {
		a.Errorf("it would turn %v", s.Turned)
	}
}

func (a *agentFixture) saysNothing() {
	_, node := a.rows()
	if s := a.silence(node); s != nil {
		a.Errorf("it would turn %v", s.Turned)
	}
	testkit.Must(a, a.applies("other", false, "A=True/Bad"))
	_, node = a.rows()
	if s := a.silence(node); s != nil {
		a.Errorf("it would turn %v", s.Turned)
	}
}
