package e2e

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// oldRights are the rights of a node-problem-detector, without Leases.
const oldRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: node-problem-detector}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get]}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: node-problem-detector}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: node-problem-detector}
subjects:
- {kind: ServiceAccount, name: node-problem-detector, namespace: autohealer-agent}
`

// TestTheAgentsAccess expires and replaces the credentials of a running agent, and runs an
// agent with the old rights.
func TestTheAgentsAccess(t *testing.T) {
	t.Parallel()
	w := newFixture(t).scope(t, "access")
	nodes := w.agents(2)
	controller := w.start(install.Options{Args: []string{alone}})
	l := w.startLogAgent(nodes[0], nil)
	l.becomes(w, corev1.ConditionFalse, "100% well")
	process, lines := l.PID(), 0
	ca := testkit.Value(os.ReadFile(l.CA)).Must(w.t)

	// away withdraws the agent's access and restores it. The agent must report afterwards
	// what happened in between.
	away := func(w *scope, result string, take, give func(*scope)) {
		w.t.Helper()
		before := l.comes(w, "all reports to arrive", idle)
		take(w)
		lines += 3
		l.writes(w, fmt.Sprintf("docker hangs %d", lines), fmt.Sprintf("IOError %d", lines), fmt.Sprintf("TaskHung %d", lines))
		l.comes(w, "requests with the result "+result, func(f agentMetrics) bool {
			return f.results(result) > before.results(result)+1 && f["events_queued"] > 0 && f["conditions_pending"] == 1
		})
		give(w)
		l.becomes(w, corev1.ConditionTrue, fmt.Sprintf("docker hangs %d", lines))
		f := l.comes(w, "all reports to arrive", func(f agentMetrics) bool { return idle(f) && f.sum("events_taken_total") == lines })
		reported, _ := l.reported(w)
		if sumOf(reported) != lines || f.sum("events_sent_total") != lines || f.sum("dropped_total") != 0 || l.PID() != process {
			w.t.Errorf("of %d lines %v are reported, process %d became %d: %v", lines, reported, process, l.PID(), f)
		}
		lines++
		l.writes(w, "docker goes on now")
		l.becomes(w, corev1.ConditionFalse, "100% well")
	}
	token := func(w *scope, lifetime time.Duration) string {
		w.t.Helper()
		made := testkit.Value(w.PodToken(w.t.Context(), install.AgentAccount, l.Pod, lifetime)).Must(w.t)
		testkit.Must(w.t, l.Mount(l.Token, []byte(made)))
		return made
	}

	w.run("an expired token is replaced", func(w *scope) {
		made := token(w, 3*time.Second)
		l.writes(w, "OOMKilling 100%s") // until it expires
		lines++
		l.comes(w, "its report to arrive", func(f agentMetrics) bool { return f.sum("events_sent_total") == lines })
		away(w, "unauthorized", func(w *scope) { w.isOver(made) }, func(w *scope) { token(w, time.Hour) })
		if n := l.said(w, "cannot report to the api server", "result=unauthorized"); n != 1 {
			w.t.Errorf("it is logged %d times", n)
		}
	})
	w.run("a token file that is empty for a moment is ignored", func(w *scope) {
		was := testkit.Value(os.ReadFile(l.Token)).Must(w.t)
		away(w, "unreachable", func(w *scope) { testkit.Must(w.t, l.Mount(l.Token, nil)) }, func(w *scope) { testkit.Must(w.t, l.Mount(l.Token, was)) })
	})
	w.run("the agent trusts a replaced CA, and no longer the old CA", func(w *scope) {
		other := httptest.NewTLSServer(nil)
		defer other.Close()
		foreign := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})
		away(w, "unreachable", func(w *scope) { testkit.Must(w.t, l.Mount(l.CA, foreign)) }, func(w *scope) { testkit.Must(w.t, l.Mount(l.CA, append(foreign, ca...))) })
		if l.said(w, "cannot report to the api server", "unknown authority") != 1 {
			w.t.Error("the log does not mention the CA")
		}
		testkit.Must(w.t, l.Mount(l.CA, ca))
	})
	w.run("an agent with the rights of a node-problem-detector works, logs it once and is never marked silent", func(w *scope) {
		testkit.Value(w.KubectlApply(w.t.Context(), oldRights)).Must(w.t)
		old := w.startLogAgent(nodes[1], func(o *install.AgentOptions) { o.Account = "node-problem-detector" })
		old.becomes(w, corev1.ConditionFalse, "100% well")
		old.writes(w, "docker hangs 100%", "OOMKilling 100%")
		old.becomes(w, corev1.ConditionTrue, "docker hangs 100%")
		f := old.comes(w, "all reports to arrive", func(f agentMetrics) bool {
			return f.sum("events_sent_total") == 2 && f[`requests_total{request="lease",result="forbidden"}`] > 1
		})
		if n := old.said(w, "level=WARN", "request=lease"); n != 1 || old.said(w, "level=WARN") != 1 || f["lease_renewed_timestamp_seconds"] != 0 {
			w.t.Errorf("it is logged %d times: %v", n, f)
		}
		// Both agents stop, and only one of them has a Lease to miss.
		testkit.Must(w.t, old.Kill())
		testkit.Must(w.t, l.Kill())
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "autohealer-agent-" + l.node}}
		testkit.Must(w.t, w.api.Patch(w.t.Context(), lease, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`))))
		w.isSilent(l.node, "KernelDeadlock")
		w.metric(controller, `autohealer_agents{state="silent"} 1`)
		w.metric(controller, `autohealer_agents{state="alive"} 0`)
		testkit.Must(w.t, w.is(old.node, "KernelDeadlock", corev1.ConditionTrue, "DockerHung"))
		if made := w.ours(old.node); len(made) > 0 {
			w.t.Errorf("the controller wrote to the node: %v", made)
		}
	})
}

// isOver waits until the API server refuses a token.
func (w *scope) isOver(token string) {
	w.t.Helper()
	config := w.AdminConfig()
	config.BearerToken = token
	client := testkit.Value(kubernetes.NewForConfig(config)).Must(w.t)
	w.eventually("the token to expire", func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		if _, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			return errors.Join(errors.New("the token is accepted"), err)
		}
		return nil
	})
}
