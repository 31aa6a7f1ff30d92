package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// agentManager is the field manager of the agents.
	agentManager = "autohealer-agent"
	// leaseLasts is the duration of the Leases in these tests. Agents renew ten times as
	// often, so the Lease does not expire on two busy cores.
	leaseLasts = 5 * time.Second
)

// agent is a simulated agent: it reports conditions, and renews its Lease.
type agent struct {
	w    *scope
	node string
	stop func()
}

// agentOn starts to renew the Lease of a node's agent.
func (w *scope) agentOn(node string) *agent {
	w.t.Helper()
	a := &agent{w: w, node: node}
	found := testkit.Value(w.get(w.t.Context(), node)).Must(w.t)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: install.Namespace, Name: "autohealer-agent-" + node, Labels: map[string]string{"app.kubernetes.io/name": "autohealer-agent"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: found.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("pod-1"), LeaseDurationSeconds: new(int32(leaseLasts / time.Second)), RenewTime: new(metav1.NowMicro())},
	}
	if err := w.api.Create(w.t.Context(), lease); !apierrors.IsAlreadyExists(err) {
		testkit.Must(w.t, err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for ctx.Err() == nil {
			patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			_ = w.api.Patch(ctx, lease.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))) // it fails in an outage
			select {
			case <-time.After(leaseLasts / 10):
			case <-ctx.Done():
			}
		}
	})
	var once sync.Once
	a.stop = func() { once.Do(func() { cancel(); renewing.Wait() }) }
	w.t.Cleanup(a.stop)
	return a
}

// says applies the agent's conditions, without force.
func (a *agent) says(rows map[string]corev1.ConditionStatus) {
	a.w.t.Helper()
	var conditions []map[string]any
	for kind, status := range rows {
		conditions = append(conditions, map[string]any{"type": kind, "status": status, "reason": "TestSaysSo", "message": "set by the agent", "lastTransitionTime": metav1.Now()})
	}
	body := testkit.Value(json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "status": map[string]any{"conditions": conditions}})).Must(a.w.t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node}}
	testkit.Must(a.w.t, a.w.api.Status().Patch(a.w.t.Context(), node, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(agentManager)))
}

// is returns an error unless a condition of a node has this status and reason.
func (w *scope) is(node, kind string, status corev1.ConditionStatus, reason string) error {
	found, err := w.get(w.t.Context(), node)
	if err != nil {
		return err
	}
	for _, c := range found.Status.Conditions {
		if string(c.Type) == kind {
			if c.Status != status || c.Reason != reason {
				return fmt.Errorf("%s of %s is %s (%s: %s)", kind, node, c.Status, c.Reason, c.Message)
			}
			return nil
		}
	}
	return fmt.Errorf("%s has no %s", node, kind)
}

func (w *scope) isSilent(node string, kinds ...string) {
	w.t.Helper()
	for _, kind := range kinds {
		w.eventually(kind+" of "+node, func() error { return w.is(node, kind, corev1.ConditionUnknown, "AgentSilent") })
	}
}

// ours returns the controller's writes to a node.
func (w *scope) ours(node string) (changes []testbed.Change) {
	w.t.Helper()
	for _, c := range w.recording() {
		if c.Name == node && c.Author.User == install.User {
			changes = append(changes, c)
		}
	}
	return changes
}

// TestSilentAgents simulates agents with their real rights, against the controller's own
// binary.
func TestSilentAgents(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t)
	w := fixture.scope(t, "mute")
	nodes := w.createNodes(testbed.Nodes{Count: 5})
	w.setCondition(nodes[0], "Unhealthy", corev1.ConditionFalse) // not a condition of the agent
	first := w.start(install.Options{Args: install.Elected()})
	healthy := map[string]corev1.ConditionStatus{"KernelDeadlock": corev1.ConditionFalse, "Disk": corev1.ConditionTrue}
	all := w // its agents outlive a part
	agents := make([]*agent, 4)
	for i := range agents {
		agents[i] = w.agentOn(nodes[i])
		agents[i].says(healthy)
	}
	w.metric(first, `autohealer_agents{state="alive"} 4`)

	w.run("an agent that stops is marked silent in one write, and returns", func(w *scope) {
		agents[0].stop()
		w.isSilent(nodes[0], "KernelDeadlock", "Disk")
		w.metric(first, `autohealer_agents{state="silent"} 1`)
		testkit.Must(w.t, w.is(nodes[0], "Unhealthy", corev1.ConditionFalse, "TestSaysSo"))
		testkit.Must(w.t, w.is(nodes[1], "Disk", corev1.ConditionTrue, "TestSaysSo"))
		if made := w.ours(nodes[0]); len(made) != 1 {
			w.t.Errorf("it took %d writes", len(made))
		}
		w.tells(nodes[0], "AgentSilent", "Disk, KernelDeadlock")
		agents[0] = all.agentOn(nodes[0])
		agents[0].says(healthy) // needs no force
		testkit.Must(w.t, w.is(nodes[0], "Disk", corev1.ConditionTrue, "TestSaysSo"))
		w.tells(nodes[0], "AgentHeard", "renews Lease")
		w.metric(first, `autohealer_agents{state="alive"} 4`)
	})
	w.run("an agent that runs but cannot renew is marked silent once", func(w *scope) {
		agents[1].stop()
		w.isSilent(nodes[1], "KernelDeadlock", "Disk")
		w.tells(nodes[1], "AgentSilent", "by pod-1. Look for its pod (kubectl get pods -A --field-selector spec.nodeName="+nodes[1]+")")
		agents[1].says(healthy)
		w.tells(nodes[1], "AgentHeard", "does not renew Lease")
		w.metric(first, `autohealer_agents{state="alive"} 4`)
		time.Sleep(2 * leaseLasts) //nolint:forbidigo // enough time to be marked silent again
		testkit.Must(w.t, w.is(nodes[1], "Disk", corev1.ConditionTrue, "TestSaysSo"))
		if made := w.ours(nodes[1]); len(made) != 1 {
			w.t.Errorf("it took %d writes", len(made))
		}
		agents[1] = all.agentOn(nodes[1])
	})
	w.run("a deleted node has no agent", func(w *scope) {
		agents[3].stop()
		testkit.Must(w.t, w.api.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodes[3]}}))
		testkit.Must(w.t, w.api.Delete(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "autohealer-agent-" + nodes[3]}}))
		w.metric(first, `autohealer_agents{state="alive"} 3`)
	})
	w.run("a new leader observes the Leases itself", func(w *scope) {
		second := w.start(install.Options{Args: install.Elected()})
		agents[1].stop()
		w.kill(first)
		w.expireLease()
		w.isSilent(nodes[1], "KernelDeadlock", "Disk")
		w.metric(second, `autohealer_agents{state="silent"} 1`)
		w.metric(second, `autohealer_agents{state="alive"} 2`)
		w.kill(second)
		agents[1] = all.agentOn(nodes[1])
		agents[1].says(healthy)
	})
	w.run("an outage marks no agent silent", func(w *scope) {
		controller := w.start(install.Options{Args: []string{alone}})
		w.metric(controller, `autohealer_agents{state="alive"} 3`)
		before := len(w.ours(nodes[0])) + len(w.ours(nodes[1])) + len(w.ours(nodes[2]))
		said := func(words string) int {
			text := testkit.Value(controller.Log()).Must(w.t)
			return strings.Count(text, words)
		}
		for outage := range 2 {
			testkit.Must(w.t, w.APIServer.Kill())
			time.Sleep(3 * leaseLasts) //nolint:forbidigo // no agent can renew, and nothing else happens
			w.restart(w.APIServer)
			w.eventually("the Leases to be observed", func() error {
				if said("can list the Leases of agents again") != outage+1 {
					return errors.New("they are not observed")
				}
				return nil
			})
		}
		agents[2].stop()
		w.isSilent(nodes[2], "KernelDeadlock", "Disk") // except an agent that is silent afterwards
		if after := len(w.ours(nodes[0])) + len(w.ours(nodes[1])) + len(w.ours(nodes[2])); after != before+1 {
			w.t.Errorf("%d writes, want one\n%s", after-before, w.LogTail())
		}
		for _, node := range nodes[:2] {
			testkit.Must(w.t, w.is(node, "Disk", corev1.ConditionTrue, "TestSaysSo"))
		}
		if made := w.ours(nodes[4]); len(made) > 0 {
			w.t.Errorf("a node without an agent was written to: %v", made)
		}
		// An API server that has just restarted may report for a moment that the role does
		// not exist.
		if n := said("cannot list the Leases of agents, so no agent is considered silent until"); n != 2 {
			w.t.Errorf("two outages were logged %d times", n)
		}
	})
}

// tells waits for an Event about a node.
func (w *scope) tells(node, reason, says string) {
	w.t.Helper()
	w.eventually("Event "+reason+" about "+node, func() error {
		found, err := w.events(w.t.Context(), node, reason)
		if err != nil {
			return err
		}
		if len(found) != 1 || !strings.Contains(found[0].Note, says) {
			return fmt.Errorf("there are %d: %+v", len(found), found)
		}
		return nil
	})
}
