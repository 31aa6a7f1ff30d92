package report_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// fixture is a real API server with a Node for one test.
type fixture struct {
	testing.TB
	cluster *testbed.Cluster
	admin   *kubernetes.Clientset
	node    string
	config  *rest.Config
}

// agent is a reporter that runs against the real API server.
type agent struct {
	*report.Reporter
	log  *testkit.Log
	stop func()
}

func (w *fixture) agent(shape func(*report.Config), first ...finding.Condition) *agent {
	w.Helper()
	client := testkit.Value(kubeapi.New(kubeapi.Access{Server: w.config.Host, CA: w.config.CAData, Token: w.config.BearerToken}, "autohealer-agent/test")).Must(w)
	a := &agent{log: &testkit.Log{}}
	cfg := report.Config{
		API: client, Node: w.node, Holder: "pod-1", LeaseNamespace: "autohealer-system", LookEvery: 500 * time.Millisecond,
		Logger: a.log.Logger(),
	}
	if shape != nil {
		shape(&cfg)
	}
	a.Reporter = testkit.Value(report.New(cfg)).Must(w)
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	a.stop = sync.OnceFunc(func() { cancel(); <-done })
	w.Cleanup(a.stop)
	a.Take(finding.Report{Source: "kernel-monitor", Conditions: first})
	a.Complete()
	w.until("the first write", func() bool { return !a.Counts().Pending })
	return a
}

func (w *fixture) until(what string, ok func() bool) {
	w.Helper()
	testkit.Eventually(w, what, func() error {
		if !ok() {
			return fmt.Errorf("the node has %v", w.get().Status.Conditions)
		}
		return nil
	})
}

func (w *fixture) get() *corev1.Node {
	w.Helper()
	node := testkit.Value(w.admin.CoreV1().Nodes().Get(w.Context(), w.node, metav1.GetOptions{})).Must(w)
	return node
}

func (w *fixture) condition(kind string) *corev1.NodeCondition {
	w.Helper()
	for _, c := range w.get().Status.Conditions {
		if string(c.Type) == kind {
			return &c
		}
	}
	return nil
}

// merge patches the status as a kubelet or node-problem-detector does.
func (w *fixture) merge(manager string, conditions ...corev1.NodeCondition) {
	w.Helper()
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	testkit.Must(w, err)
	_, err = w.admin.CoreV1().Nodes().Patch(w.Context(), w.node, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: manager}, "status")
	testkit.Must(w, err)
}

// apply applies conditions with force.
func (w *fixture) apply(manager string, rows ...map[string]string) {
	w.Helper()
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]string{"name": w.node}, "status": map[string]any{"conditions": rows}})
	testkit.Must(w, err)
	force := true
	_, err = w.admin.CoreV1().Nodes().Patch(w.Context(), w.node, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager, Force: &force}, "status")
	testkit.Must(w, err)
}

// owned returns the conditions in which a manager owns a field.
func (w *fixture) owned(manager string) string {
	w.Helper()
	var found []string
	for _, entry := range w.get().ManagedFields {
		if entry.Manager == manager && entry.FieldsV1 != nil {
			found = append(found, entry.FieldsV1.GetRawString())
		}
	}
	return strings.Join(found, "\n")
}

func is(kind string, status catalog.Status, reason string) finding.Condition {
	return finding.Condition{Type: kind, Status: status, Reason: reason, Message: "100% " + reason, Since: time.Now().Add(-time.Hour)}
}

func npd(status corev1.ConditionStatus, reason string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: "KernelDeadlock", Status: status, Reason: reason, Message: "100% " + reason,
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.NewTime(time.Now().Add(-24 * time.Hour))}
}

func TestOnTheRealAPIServer(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	admin := testkit.Value(kubernetes.NewForConfig(cluster.AdminConfig())).Must(t)
	for _, name := range []string{"autohealer-system", "elsewhere"} {
		testkit.Value(admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})).Must(t)
	}
	nodes := 0
	run := func(name string, play func(w *fixture)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			nodes++
			made := testkit.Value(cluster.CreateNodes(t.Context(), testbed.Nodes{Count: 1, First: nodes})).Must(t)
			play(&fixture{TB: t, cluster: cluster, admin: admin, node: made[0].Name, config: cluster.AdminConfig()})
		})
	}

	run("removes a condition taken over from another manager as a whole", func(w *fixture) {
		w.merge("node-problem-detector", npd(corev1.ConditionFalse, "Old"))
		a := w.agent(nil, is("KernelDeadlock", catalog.True, "Unhealthy"), is("Other", catalog.False, "Fine"))
		w.until("the takeover", func() bool { r := w.condition("KernelDeadlock"); return r != nil && r.Reason == "Unhealthy" })
		a.Take(finding.Report{Gone: []string{"KernelDeadlock"}})
		w.until("it to go", func() bool { return w.condition("KernelDeadlock") == nil })
		if w.condition("Other") == nil || w.condition("Ready") == nil {
			w.Errorf("the node has %v", w.get().Status.Conditions)
		}
	})

	run("removes a taken over condition if the other manager wrote the same values and nothing since", func(w *fixture) {
		old := npd(corev1.ConditionFalse, "Fine")
		old.LastHeartbeatTime = metav1.NewTime(time.Now().Add(-5 * time.Minute))
		w.merge("node-problem-detector", old)
		w.apply("gitops", map[string]string{"type": "Shared", "status": "False"})
		a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"), is("Shared", catalog.False, "Fine"), is("Other", catalog.False, "Fine"))
		testkit.Same(w, a.Counts().TakenOver, 1, "conditions that were taken over")
		a.Take(finding.Report{Gone: []string{"KernelDeadlock", "Shared"}})
		w.until("it to go", func() bool { return w.condition("KernelDeadlock") == nil })
		// The agent takes nothing from a manager that wrote the same values.
		if shared := w.condition("Shared"); shared == nil || shared.Status != corev1.ConditionFalse || w.condition("Other") == nil {
			w.Errorf("the node has %v", w.get().Status.Conditions)
		}
	})
	run("removes a condition that an earlier run took over without saved state", func(w *fixture) {
		w.merge("node-problem-detector", npd(corev1.ConditionFalse, "Old"))
		w.agent(nil, is("KernelDeadlock", catalog.True, "Unhealthy"), is("Other", catalog.False, "Fine")).stop()
		w.agent(nil, is("Other", catalog.False, "Fine"))
		w.until("it to go", func() bool { return w.condition("KernelDeadlock") == nil })
		w.merge("node-problem-detector", npd(corev1.ConditionFalse, "Back"))
		w.agent(nil, is("Other", catalog.True, "Unhealthy"))
		got := w.condition("KernelDeadlock")
		testkit.Check(w, got != nil && got.Reason == "Back", "the condition of a manager that writes it is %v", got)
	})
	run("takes back or removes a yielded condition when the other manager stops applying it", func(w *fixture) {
		a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"), is("Other", catalog.False, "Fine"))
		yield := func() {
			for i := range 2 {
				w.apply("gitops", map[string]string{"type": "KernelDeadlock", "status": "True", "reason": fmt.Sprint("Theirs", i)})
				w.until("the agent to yield or restore it", func() bool { return len(a.Counts().Yielded) == 1 || w.condition("KernelDeadlock").Reason == "Fine" })
			}
			w.until("the yield", func() bool { return !strings.Contains(w.owned(report.FieldManager), "KernelDeadlock") })
		}
		yield()
		w.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		w.until("it to be ours", func() bool {
			got := w.condition("KernelDeadlock")
			return got != nil && got.Reason == "Fine" && len(a.Counts().Yielded) == 0
		})
		yield()
		a.Take(finding.Report{Gone: []string{"KernelDeadlock"}})
		w.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		w.until("it to go", func() bool {
			return w.condition("KernelDeadlock") == nil && w.condition("AutohealerPlaceholder") == nil
		})
		if w.condition("Other") == nil || w.condition("Else") == nil || w.condition("Ready") == nil {
			w.Errorf("the node has %v", w.get().Status.Conditions)
		}
	})
	run("keeps its conditions beside those of the kubelet", func(w *fixture) {
		w.merge("kubelet", corev1.NodeCondition{Type: "Ready", Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "up"})
		a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"), is("ReadonlyFilesystem", catalog.False, "Fine"))
		w.merge("kubelet", corev1.NodeCondition{Type: "Ready", Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "still up"})
		a.Take(finding.Report{Conditions: []finding.Condition{is("KernelDeadlock", catalog.True, "DockerHung")}})
		w.until("the change", func() bool { return w.condition("KernelDeadlock").Status == corev1.ConditionTrue })
		if ready, other := w.condition("Ready"), w.condition("ReadonlyFilesystem"); ready.Message != "still up" || other == nil || other.Status != corev1.ConditionFalse {
			w.Errorf("Ready is %v, ReadonlyFilesystem %v", ready, other)
		}
		deadlock := w.condition("KernelDeadlock")
		if ago := time.Since(deadlock.LastTransitionTime.Time); ago < time.Hour || ago > time.Hour+time.Minute || time.Since(deadlock.LastHeartbeatTime.Time) > time.Minute {
			w.Errorf("its times are %v", deadlock)
		}
		owned := w.owned(report.FieldManager)
		testkit.Check(w, !strings.Contains(owned, "Ready\\\"") && strings.Contains(owned, "ReadonlyFilesystem"), "we own %s", owned)
		c := a.Counts()
		testkit.Check(w, c.TakenOver+c.Restored == 0, "%+v", c)
	})
	run("writes nothing while nothing changes", func(w *fixture) {
		a := w.agent(nil, is("KernelDeadlock", catalog.False, ""), finding.Condition{Type: "Empty", Status: catalog.True, Since: time.Now(), Message: "\xff%d\x00"})
		version := w.get().ResourceVersion
		read := report.Outcome{Kind: "read", Result: "ok"}
		seen := a.Counts().Requests[read]
		w.until("three reads", func() bool { return a.Counts().Requests[read] >= seen+3 })
		testkit.Same(w, w.get().ResourceVersion, version, "the version of the node: %v\n%s", a.Counts(), a.log)
	})
	run("takes a condition over once and then yields it as a whole", func(w *fixture) {
		w.merge("node-problem-detector", npd(corev1.ConditionFalse, "Fine"))
		a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"), is("Other", catalog.False, "Fine"))
		testkit.Same(w, a.Counts().TakenOver, 1, "conditions that were taken over")
		for range 3 {
			w.merge("node-problem-detector", npd(corev1.ConditionFalse, "Fine"))
		}
		w.until("the yield", func() bool { c := a.Counts(); return len(c.Yielded) == 1 && !c.Pending })
		w.until("that it is no longer ours", func() bool { return !strings.Contains(w.owned(report.FieldManager), "KernelDeadlock") })
		got := w.condition("KernelDeadlock")
		testkit.Check(w, got.Status == corev1.ConditionFalse && got.Reason == "Fine" && got.Message == "100% Fine", "the condition lost fields: %v", got)
		w.merge("node-problem-detector", npd(corev1.ConditionTrue, "Theirs"))
		a.Take(finding.Report{Conditions: []finding.Condition{is("KernelDeadlock", catalog.False, "Ours"), is("Other", catalog.True, "Ours")}})
		w.until("the other condition of the agent", func() bool { return w.condition("Other").Reason == "Ours" })
		got = w.condition("KernelDeadlock")
		testkit.Check(w, got.Reason == "Theirs" && a.Counts().Yielded["KernelDeadlock"] == "node-problem-detector", "the condition is %v", got)
		testkit.Same(w, strings.Count(a.log.String(), "yielded to another manager"), 1, "log lines:\n%s", a.log)
		a.stop()
		// With TakeOver the agent takes it back, and removes it when its monitor goes.
		b := w.agent(func(c *report.Config) { c.TakeOver = true }, is("KernelDeadlock", catalog.False, "Mine"))
		w.until("the condition", func() bool { return w.condition("KernelDeadlock").Reason == "Mine" })
		w.merge("node-problem-detector", npd(corev1.ConditionTrue, "Theirs"))
		w.until("the condition again", func() bool { return w.condition("KernelDeadlock").Reason == "Mine" })
		testkit.Check(w, w.condition("Other") == nil, "the condition of a removed monitor is still there")
		w.until("what was handed over to be let go", func() bool { return !strings.Contains(w.owned(report.HandManager), "KernelDeadlock") })
		_ = b
	})
	// whole returns a condition in which every field differs from the agent's.
	whole := func(reason string) corev1.NodeCondition {
		got := npd(corev1.ConditionTrue, reason)
		got.LastHeartbeatTime = metav1.NewTime(time.Now().Add(-time.Minute))
		return got
	}
	run("yields a condition that another manager patches with all its fields", func(w *fixture) {
		a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"), is("Other", catalog.False, "Fine"))
		w.merge("node-problem-detector", whole("Theirs"))
		w.until("the takeover", func() bool { return w.condition("KernelDeadlock").Reason == "Fine" })
		w.merge("node-problem-detector", whole("TheirsAgain"))
		w.until("the yield", func() bool {
			got := w.condition("KernelDeadlock")
			testkit.Require(w, got != nil && got.Reason == "TheirsAgain" && got.Status == corev1.ConditionTrue, "the yielded condition is %v\n%s", got, a.log)
			return !strings.Contains(w.owned(report.FieldManager), "KernelDeadlock")
		})
		if owned := w.owned(report.HandManager); !strings.Contains(owned, "KernelDeadlock") || strings.Contains(owned, "f:status\":{\"f:conditions\":{\"k:{\\\"type\\\":\\\"KernelDeadlock\\\"}\":{\".\":{},\"f:status") {
			w.Errorf("handed over is %s", owned)
		}
		c := a.Counts()
		testkit.Check(w, c.Restored == 1 && c.TakenOver == 1, "%+v", c)
	})
	run("keeps a condition that another manager patched when its monitor goes", func(w *fixture) {
		a := w.agent(func(c *report.Config) { c.LookEvery = time.Hour }, is("KernelDeadlock", catalog.False, "Fine"), is("Other", catalog.False, "Fine"))
		w.merge("node-problem-detector", whole("Theirs"))
		a.Take(finding.Report{Gone: []string{"KernelDeadlock"}})
		w.until("it to be his", func() bool { return !strings.Contains(w.owned(report.FieldManager), "KernelDeadlock") })
		got := w.condition("KernelDeadlock")
		testkit.Check(w, got != nil && got.Reason == "Theirs" && w.condition("Other") != nil, "the condition is %v", got)
	})
	run("logs a second agent on the same node", func(w *fixture) {
		a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"))
		b := w.agent(nil, is("ReadonlyFilesystem", catalog.False, "Fine"))
		const words = "a second agent writes conditions of this node"
		w.until("both to say so", func() bool { return strings.Contains(a.log.String(), words) && strings.Contains(b.log.String(), words) })
		b.stop()
		w.until("peace", func() bool { return w.condition("KernelDeadlock") != nil && w.condition("ReadonlyFilesystem") == nil })
		testkit.Same(w, strings.Count(a.log.String(), words), 1, "log lines:\n%s", a.log)
	})
	run("removes the conditions of an earlier run if conditions are disabled", func(w *fixture) {
		before := w.get().Status
		w.agent(nil, is("KernelDeadlock", catalog.False, "Fine")).stop()
		w.agent(func(c *report.Config) { c.WithoutConditions = true }, is("KernelDeadlock", catalog.True, "Unhealthy"))
		w.until("it to go", func() bool {
			return w.condition("KernelDeadlock") == nil && w.condition("AutohealerPlaceholder") == nil
		})
		testkit.NoDiff(w, cmp.Diff(before, w.get().Status), "the status does not change")
	})
	run("rewrites a condition after a forced apply of another manager, and yields after the second", func(w *fixture) {
		a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"))
		w.apply("intruder", map[string]string{"type": "KernelDeadlock", "status": "True", "reason": "Theirs"})
		w.until("the restoration", func() bool { return w.condition("KernelDeadlock").Reason == "Fine" && a.Counts().Restored > 0 })
		testkit.Same(w, a.Counts().TakenOver, 1, "conditions that were taken over")
		w.apply("intruder", map[string]string{"type": "KernelDeadlock", "status": "True", "reason": "TheirsAgain"})
		w.until("the yield", func() bool { return a.Counts().Yielded["KernelDeadlock"] == "intruder" && !a.Counts().Pending })
		got := w.condition("KernelDeadlock")
		testkit.Check(w, got.Reason == "TheirsAgain" && got.Message == "100% Fine", "the condition is %v", got)
	})
	run("replaces another manager's reason with an empty reason", func(w *fixture) {
		w.merge("another", npd(corev1.ConditionTrue, "Theirs"))
		w.agent(nil, finding.Condition{Type: "KernelDeadlock", Status: catalog.False, Since: time.Now()})
		got := w.condition("KernelDeadlock")
		testkit.Check(w, got.Reason == "" && got.Message == "" && got.Status == corev1.ConditionFalse, "the condition is %v", got)
	})
	run("removes only the conditions of removed monitors, including those of an earlier run", func(w *fixture) {
		before := w.get().Status
		a := w.agent(nil, is("A", catalog.True, "X"), is("B", catalog.False, "X"), is("C", catalog.False, "X"))
		a.Take(finding.Report{Gone: []string{"B"}})
		w.until("B to go", func() bool { return w.condition("B") == nil })
		diff := cmp.Diff(before.Addresses, w.get().Status.Addresses)
		testkit.Check(w, diff == "" && w.condition("Ready") != nil, "%v", diff)
		a.stop()
		b := w.agent(nil, is("A", catalog.True, "X"))
		if w.condition("C") != nil || w.condition("A") == nil {
			w.Errorf("the node has %v", w.get().Status.Conditions)
		}
		b.stop()
		c := w.agent(nil)
		w.until("A to go", func() bool { return w.condition("A") == nil && w.condition("AutohealerPlaceholder") == nil })
		// The agent leaves status fields without an owner alone, for example those that a kubelet creates.
		diff = cmp.Diff(before, w.get().Status)
		testkit.Check(w, diff == "" && len(before.Conditions) != 0, "%v", diff)
		c.Take(finding.Report{Conditions: []finding.Condition{is("D", catalog.True, "X")}})
		w.until("D", func() bool { return w.condition("D") != nil })
		c.Take(finding.Report{Gone: []string{"D"}})
		w.until("D to go", func() bool { return w.condition("D") == nil && w.condition("AutohealerPlaceholder") == nil })
		testkit.NoDiff(w, cmp.Diff(before, w.get().Status), "the status does not change")
	})
	run("still owns a condition that the controller set to Unknown", func(w *fixture) {
		a := w.agent(nil, is("KernelDeadlock", catalog.True, "DockerHung"))
		w.apply(report.FieldManager, map[string]string{"type": "KernelDeadlock", "status": "Unknown", "reason": "AgentSilent"})
		w.until("the agent's own word", func() bool { return w.condition("KernelDeadlock").Reason == "DockerHung" })
		c := a.Counts()
		testkit.Check(w, c.TakenOver == 0 && len(c.Yielded) == 0, "%+v", c)
	})
	run("stores each event once and unchanged", func(w *fixture) {
		event := finding.Event{ID: "0123456789abcdef0123", Severity: finding.Warn, Time: time.Now(), Reason: "OOMKilling", Message: "100%!s(MISSING) ü"}
		a := w.agent(nil)
		for range 3 {
			a.Take(finding.Report{Source: "kernel-monitor", Events: []finding.Event{event}})
		}
		w.until("three deliveries", func() bool { return a.Counts().EventsSent == 3 })
		list, err := admin.CoreV1().Events("default").List(w.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + w.node})
		testkit.Require(w, err == nil && len(list.Items) == 1, "%v %v", list, err)
		e := list.Items[0]
		if e.Name != w.node+".0123456789abcdef" || e.Message != event.Message || e.Type != "Warning" || e.Source.Component != "kernel-monitor" ||
			e.Source.Host != w.node || e.InvolvedObject.UID != w.get().UID || e.Count != 1 {
			w.Errorf("the event is %+v", e)
		}
	})
	run("raises the count of a repeated event, or creates it again", func(w *fixture) {
		a, sent := w.agent(nil), uint64(0)
		// repeats reports an occurrence, and returns all Events.
		repeats := func() []corev1.Event {
			sent++
			event := finding.Event{ID: fmt.Sprint("repeated-", sent), Time: time.Unix(1e9+int64(sent), 0), Reason: "OOMKilling", Message: "repeated"}
			a.Take(finding.Report{Source: "kernel-monitor", Events: []finding.Event{event}})
			w.until("the delivery", func() bool { return a.Counts().EventsSent == sent })
			list, err := admin.CoreV1().Events("default").List(w.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + w.node})
			testkit.Must(w, err)
			return list.Items
		}
		repeats()
		repeats()
		found := repeats()
		testkit.Require(w, len(found) == 1 && found[0].Count == 3 && found[0].FirstTimestamp.Unix() == 1e9+1 && found[0].LastTimestamp.Unix() == 1e9+3 && found[0].ReportingInstance == w.node, "the events are %v", found)
		testkit.Must(w, admin.CoreV1().Events("default").Delete(w.Context(), found[0].Name, metav1.DeleteOptions{}))
		found = repeats()
		testkit.Check(w, len(found) == 1 && found[0].Count == 1, "after its deletion the events are %v", found)
	})
	run("writes events to the configured namespace", func(w *fixture) {
		a := w.agent(func(c *report.Config) { c.EventNamespace = "elsewhere" })
		a.Take(finding.Report{Source: "x", Events: []finding.Event{{ID: "1", Reason: "R", Message: strings.Repeat("ü", 1000)}}})
		w.until("the delivery", func() bool { return a.Counts().EventsSent == 1 })
		list, err := admin.CoreV1().Events("elsewhere").List(w.Context(), metav1.ListOptions{})
		testkit.Check(w, err == nil && len(list.Items) == 1 && len(list.Items[0].Message) <= 1024, "%v %v", list, err)
	})
	run("creates a Lease that is deleted with the node", func(w *fixture) {
		a := w.agent(nil)
		w.until("the Lease", func() bool { return !a.Counts().LeaseRenewed.IsZero() })
		lease := testkit.Value(admin.CoordinationV1().Leases("autohealer-system").Get(w.Context(), report.LeaseName(w.node), metav1.GetOptions{})).Must(w)
		owner := lease.OwnerReferences
		if len(owner) != 1 || owner[0].Kind != "Node" || owner[0].UID != w.get().UID || *lease.Spec.LeaseDurationSeconds != 360 ||
			*lease.Spec.HolderIdentity != "pod-1" || lease.Labels["app.kubernetes.io/name"] != "autohealer-agent" || time.Since(lease.Spec.RenewTime.Time) > time.Minute {
			w.Errorf("the Lease is %+v", lease)
		}
	})
	run("runs and logs a warning without permission for Leases or without their namespace", func(w *fixture) {
		_, err := admin.RbacV1().ClusterRoles().Create(w.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		}}, metav1.CreateOptions{})
		testkit.Must(w, err)
		if _, err := admin.RbacV1().ClusterRoleBindings().Create(w.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "old"}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "old"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "elsewhere", Name: "npd"}},
		}, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		for namespace, result := range map[string]string{"autohealer-system": "forbidden", "nowhere": "not found"} {
			if w.config = cluster.AdminConfig(); result == "forbidden" {
				w.config = testkit.Value(cluster.ServiceAccountConfig(w.Context(), "elsewhere", "npd")).Must(w)
			}
			a := w.agent(func(c *report.Config) { c.LeaseNamespace = namespace })
			w.until("the refusal", func() bool { return a.Counts().Requests[report.Outcome{Kind: "lease", Result: result}] > 0 })
			a.Take(finding.Report{Source: "x", Conditions: []finding.Condition{is("A", catalog.True, namespace)}, Events: []finding.Event{{ID: namespace, Reason: "R"}}})
			w.until("the rest", func() bool {
				r := w.condition("A")
				return r != nil && r.Reason == namespace && a.Counts().EventsSent == 1
			})
			testkit.Same(w, strings.Count(a.log.String(), "level=WARN"), 1, "warnings:\n%s", a.log)
			a.stop()
		}
	})
	run("survives outages of random length during a flood of events", func(w *fixture) { randomOutages(w) })
}

// randomOutages stops the API server again and again while a hundred thousand log lines match.
// In the end the newest state is written, and every event is sent or counted as dropped.
// REPORT_OUTAGES sets how often; the default is 8.
func randomOutages(w *fixture) {
	outages, lines := 8, 100_000
	if asked, err := strconv.Atoi(os.Getenv("REPORT_OUTAGES")); err == nil {
		outages = asked
	}
	proxy := testkit.Value(w.cluster.Proxy()).Must(w)
	w.config = proxy.Config(w.config)
	a := w.agent(nil, is("KernelDeadlock", catalog.False, "Fine"))
	random := rand.New(rand.NewPCG(7, 7))
	line := 0
	for i := range outages {
		proxy.Partition()
		for range lines / outages {
			line++
			event := finding.Event{ID: fmt.Sprint("flood-", line), Severity: finding.Warn, Time: time.Now(), Reason: fmt.Sprint("Flood", line%3), Message: strconv.Itoa(line)}
			a.Take(finding.Report{Source: "kernel-monitor", Events: []finding.Event{event}})
		}
		change := finding.Event{ID: fmt.Sprint("change-", i), Time: time.Now(), Reason: "DockerHung", Condition: "KernelDeadlock", Message: fmt.Sprint("change ", i)}
		a.Take(finding.Report{Source: "kernel-monitor", Events: []finding.Event{change}, Conditions: []finding.Condition{is("KernelDeadlock", catalog.True, fmt.Sprint("Hung", i))}})
		select {
		case <-time.After(time.Duration(random.IntN(300)) * time.Millisecond):
		case <-w.Context().Done():
		}
		proxy.Heal()
		w.until("the newest state", func() bool { return w.condition("KernelDeadlock").Reason == fmt.Sprint("Hung", i) })
	}
	w.until("the events of all changes", func() bool {
		list, err := w.admin.CoreV1().Events("default").List(w.Context(), metav1.ListOptions{FieldSelector: "reason=DockerHung,involvedObject.name=" + w.node})
		return err == nil && len(list.Items) == outages
	})
	a.stop()
	c := a.Counts()
	var dropped uint64
	for _, n := range c.Dropped {
		dropped += n
	}
	w.Logf("%d outages, %d refused connections; %d events taken: %d sent, %d summed up, %d dropped; requests: %v",
		outages, proxy.Refused(), c.EventsTaken, c.EventsSent, c.EventsSummed, dropped, c.Requests)
	testkit.Same(w, c.EventsTaken, uint64(line+outages), "the events that were taken: %+v", c)
	testkit.Check(w, c.EventsTaken == c.EventsSent+c.EventsSummed+dropped && c.EventsQueued == 0, "not every event is accounted for: %+v", c)
	var lost uint64 // of all kinds: a failed request delays the others
	for outcome, n := range c.Requests {
		if outcome.Result == "unreachable" {
			lost += n
		}
	}
	testkit.Check(w, proxy.Refused() != 0 && lost != 0, "there was no outage")
}
