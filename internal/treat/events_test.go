package treat_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// outcomes counts the outcomes of Events.
type outcomes struct {
	mu     sync.Mutex
	counts map[string]int
}

func newOutcomes() *outcomes { return &outcomes{counts: map[string]int{}} }

func (o *outcomes) add(outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[outcome]++
}

func (o *outcomes) of(outcome string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[outcome]
}

// await waits until an outcome was counted this often.
func (o *outcomes) await(t *testing.T, outcome string, want int) {
	t.Helper()
	testkit.Eventually(t, "Events that are "+outcome, func() error {
		if got := o.of(outcome); got < want {
			return fmt.Errorf("there are %d, want %d", got, want)
		}
		return nil
	})
}

// runWriter runs an EventWriter while say runs, and until this many Events have an outcome.
func runWriter(t *testing.T, c client.Client, outcome string, want int, say func(*treat.EventWriter)) {
	t.Helper()
	seen := newOutcomes()
	writer := treat.NewEventWriter(c, "me", seen.add)
	say(writer)
	ctx, cancel := context.WithCancel(t.Context())
	var loop sync.WaitGroup
	loop.Go(func() {
		if err := writer.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	seen.await(t, outcome, want)
	cancel()
	loop.Wait()
}

func TestEventWriter(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	c := testkit.Value(client.New(cluster.AdminConfig(), client.Options{})).Must(t)
	rule := triage.RuleID{Kind: policykind.ConditionSet, Name: "deadlock"}
	word := func(node string) treat.Event {
		return treat.Event{
			Node:   &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "node-uid"}},
			Policy: treat.AboutSet(&v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{Name: "deadlock", UID: "set-uid"}}),
			Reason: triage.Reason{Code: triage.Tainted, Rule: rule, Condition: "KernelDeadlock", Status: triage.True, Key: "example.com/k", Effect: triage.NoExecute},
		}
	}
	about := func(t *testing.T, kind, name string) []eventsv1.Event {
		t.Helper()
		var list, found eventsv1.EventList
		testkit.Must(t, c.List(t.Context(), &list))
		for _, e := range list.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name {
				found.Items = append(found.Items, e)
			}
		}
		return found.Items
	}

	t.Run("refers_to_the_ConfigMap_of_a_set", func(t *testing.T) {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "policies", UID: "map-uid"}, Data: map[string]string{"sets.yaml": `
type: ConditionSets
conditionSets:
- {type: T, effect: NoExecute, taintKey: example.com/k, conditions: [{ConditionType: C, conditionStatus: true}]}`}}
		version := testkit.Value(configmaps.Read(m)).Must(t)
		written := word("worker-9")
		written.Policy = treat.AboutSet(version.Sets[0].ConditionSet)
		runWriter(t, c, "written", 4, func(a *treat.EventWriter) {
			a.Write(treat.Event{Policy: treat.AboutConfigMap(m), EventReason: treat.Accepted, Message: "good"})
			a.Write(treat.Event{Policy: treat.AboutConfigMap(m), EventReason: treat.NotAccepted, Failure: "bad"})
			a.Write(written)
		})
		type line struct{ kind, reason, note, in string }
		found := map[line]bool{}
		for _, e := range about(t, "ConfigMap", "policies") {
			if e.Regarding.UID != "map-uid" || e.Regarding.Namespace != "kube-system" || e.Regarding.APIVersion != "v1" {
				t.Errorf("the Event is about %+v", e.Regarding)
			}
			found[line{e.Type, e.Reason, e.Note, e.Namespace}] = true
		}
		want := map[line]bool{
			{"Normal", "Accepted", "good", "kube-system"}:                                 true,
			{"Warning", "NotAccepted", "bad", "kube-system"}:                              true,
			{"Warning", "Tainted", "worker-9: " + written.Reason.String(), "kube-system"}: true,
		}
		testkit.Check(t, maps.Equal(found, want), "the Events are %v, want %v", found, want)
		if onNode := about(t, "Node", "worker-9"); len(onNode) != 1 || onNode[0].Namespace != "default" || onNode[0].Related.Kind != "ConfigMap" {
			t.Errorf("the node's Events are %+v", onNode)
		}
	})

	t.Run("writes_every_change_to_the_node_and_the_set", func(t *testing.T) {
		runWriter(t, c, "written", 4, func(a *treat.EventWriter) {
			a.Write(word("worker-1"))
			a.Write(word("worker-1")) // the same may happen again within a second
		})
		onNode, onSet := about(t, "Node", "worker-1"), about(t, "ConditionSet", "deadlock")
		testkit.Require(t, len(onNode) == 2 && len(onSet) == 2, "%d on the node and %d on the set, want 2 each", len(onNode), len(onSet))
		want := word("worker-1").Reason.String()
		if got := onNode[0]; got.Note != want || got.Reason != "Tainted" || got.Type != corev1.EventTypeWarning || got.Regarding.UID != "node-uid" {
			t.Errorf("the node's Event is %+v", got)
		}
		if got := onSet[0].Note; got != "worker-1: "+word("worker-1").Reason.Sentence() { // the set need not name itself
			t.Errorf("the set is told %q", got)
		}
	})
	t.Run("writes_to_the_NodeClaim_and_its_NodePool", func(t *testing.T) {
		also := word("worker-17")
		also.EventReason, also.Message = treat.NodeRepaired, "deleted"
		also.Policy = nil
		also.Related = []*corev1.ObjectReference{
			treat.AboutNodePool(&metav1.ObjectMeta{Name: "default", UID: "pool-uid"}), treat.AboutNodeClaim(&metav1.ObjectMeta{Name: "default-x", UID: "claim-uid"}),
		}
		runWriter(t, c, "written", 4, func(a *treat.EventWriter) {
			a.Write(also)
			a.Write(treat.Event{EventReason: treat.PoolHeld, Message: "held", Related: also.Related[:1]})
		})
		if got := about(t, "Node", "worker-17"); len(got) != 1 || got[0].Related != nil {
			t.Errorf("the node's Events are %+v", got)
		}
		claim := about(t, "NodeClaim", "default-x")
		if len(claim) != 1 || claim[0].Regarding.UID != "claim-uid" || claim[0].Regarding.APIVersion != "karpenter.sh/v1" || claim[0].Related == nil || claim[0].Related.Name != "worker-17" {
			t.Errorf("the claim's Events are %+v", claim)
		}
		notes := map[string]string{}
		for _, e := range about(t, "NodePool", "default") {
			notes[e.Reason] = e.Note
		}
		if want := map[string]string{"NodeRepair": "worker-17: deleted: " + also.Reason.String(), "NodePoolHeld": "held"}; !maps.Equal(notes, want) {
			t.Errorf("the pool is told %v, want %v", notes, want)
		}
	})
	t.Run("writes_to_the_node_only_when_the_set_is_deleted", func(t *testing.T) {
		gone := word("worker-2")
		gone.Policy, gone.Reason = treat.AboutSet(nil), triage.Reason{Code: triage.RuleGone, Rule: rule}
		runWriter(t, c, "written", 1, func(a *treat.EventWriter) { a.Write(gone) })
		if got := about(t, "Node", "worker-2"); len(got) != 1 || got[0].Type != corev1.EventTypeNormal || got[0].Action != "RemoveTaint" {
			t.Errorf("Events: %+v", got)
		}
	})
	t.Run("a_new_leader_repeats_no_report_of_a_state", func(t *testing.T) {
		check := treat.AboutCheck(&metav1.ObjectMeta{Name: "repeated", UID: "repeated-uid"})
		disabled := treat.Event{Policy: check, EventReason: treat.Disabled, Message: "Invalid: there is no template since 10:00"}
		again := disabled
		again.AfterStart, again.Message = true, "Invalid: there is no template since 11:00"
		other := again
		other.Message = "Invalid: the bound is wrong"
		for _, leader := range []struct {
			events []treat.Event
			want   int
		}{{[]treat.Event{disabled}, 1}, {[]treat.Event{again}, 1}, {[]treat.Event{again, other}, 2}, {[]treat.Event{disabled}, 3}} {
			runWriter(t, c, "written", len(leader.events), func(a *treat.EventWriter) {
				for _, e := range leader.events {
					a.Write(e)
				}
			})
			testkit.Same(t, len(about(t, "NodeHealthCheck", "repeated")), leader.want, "Events")
		}
	})
	t.Run("reports_failures", func(t *testing.T) {
		trouble := word("worker-3")
		trouble.Failure = "could not be placed: forbidden"
		runWriter(t, c, "written", 2, func(a *treat.EventWriter) { a.Write(trouble) })
		if got := about(t, "Node", "worker-3"); len(got) != 1 || got[0].Reason != "FailedPlaceTaint" || !strings.HasSuffix(got[0].Note, trouble.Failure) {
			t.Errorf("Events: %+v", got)
		}
	})
	t.Run("reports_failures_of_a_removal", func(t *testing.T) {
		trouble := word("worker-6")
		trouble.Reason, trouble.Failure = triage.Reason{Code: triage.Recovered, Rule: rule}, "could not be removed: forbidden"
		runWriter(t, c, "written", 2, func(a *treat.EventWriter) { a.Write(trouble) })
		if got := about(t, "Node", "worker-6"); len(got) != 1 || got[0].Reason != "FailedRemoveTaint" || got[0].Type != corev1.EventTypeWarning || got[0].Action != "RemoveTaint" {
			t.Errorf("Events: %+v", got)
		}
	})
	t.Run("uses_the_known_reasons_for_health_checks", func(t *testing.T) {
		check := treat.AboutCheck(&metav1.ObjectMeta{Name: "workers", UID: "check-uid", ResourceVersion: "7"})
		type line struct{ kind, reason, action string }
		want := []line{
			{"Normal", "Accepted", "Evaluate"},
			{"Warning", "NotAccepted", "Evaluate"},
			{"Warning", "Held", "Evaluate"},
			{"Warning", "NotSaved", "Evaluate"},
			{"Warning", "LabelMissing", "Evaluate"},
			{"Warning", "MirrorNameTaken", "Evaluate"},
			{"Warning", "RecordUnreadable", "Evaluate"},
			{"Warning", "PauseUnreadable", "Evaluate"},
			{"Warning", "AttemptsUnreadable", "Evaluate"},
			{"Warning", "GivenUp", "Evaluate"},
			{"Normal", "DetectedUnhealthy", "Evaluate"},
			{"Normal", "RemediationCreated", "CreateRemediation"},
			{"Warning", "RemediationSkipped", "CreateRemediation"},
			{"Normal", "RemediationRemoved", "RemoveRemediation"},
			{"Warning", "NoTemplateLeft", "Evaluate"},
			{"Warning", "InvalidNodeLabel", "Evaluate"},
			{"Warning", "Disabled", "Evaluate"},
			{"Normal", "Enabled", "Evaluate"},
			{"Warning", "StormRecoveryStarted", "Evaluate"},
			{"Warning", "StormRecoveryCooldownStarted", "Evaluate"},
			{"Normal", "StormRecoveryEnded", "Evaluate"},
		}
		runWriter(t, c, "written", len(want), func(a *treat.EventWriter) {
			for what := treat.Accepted; what <= treat.StormRecoveryEnded; what++ {
				a.Write(treat.Event{Policy: check, EventReason: what, Message: want[what-treat.Accepted].reason})
			}
		})
		found := map[string]line{} // by note
		for _, e := range about(t, "NodeHealthCheck", "workers") {
			found[e.Note] = line{e.Type, e.Reason, e.Action}
			if e.Regarding.UID != "check-uid" || e.Regarding.APIVersion != "remediation.medik8s.io/v1alpha1" || e.Related != nil || e.Namespace != "default" {
				t.Errorf("the Event is %+v", e)
			}
		}
		for _, w := range want {
			if got := found[w.reason]; got != w {
				t.Errorf("the Event is %+v, want %+v", got, w)
			}
		}
	})
	t.Run("uses_the_known_reasons_for_repair_blocks", func(t *testing.T) {
		pool := treat.AboutNodePool(&metav1.ObjectMeta{Name: "blocks", UID: "pool-uid", ResourceVersion: "7"})
		want := map[treat.EventReason]string{
			treat.RepairBlockRefused: "Warning RepairBlockRefused", treat.RepairSchemaLost: "Warning RepairSchemaLost",
			treat.RepairBlockVanished: "Warning RepairBlockVanished", treat.RepairBlockRestored: "Normal RepairBlockRestored",
		}
		runWriter(t, c, "written", len(want), func(a *treat.EventWriter) {
			for what, words := range want {
				a.Write(treat.Event{Policy: pool, EventReason: what, Message: words})
			}
		})
		found := about(t, "NodePool", "blocks")
		testkit.Check(t, len(found) == len(want), "there are %d Events", len(found))
		for _, e := range found {
			if e.Note != e.Type+" "+e.Reason || e.Regarding.UID != "pool-uid" || e.Regarding.APIVersion != "karpenter.sh/v1" || e.Namespace != "default" {
				t.Errorf("the Event is %+v", e)
			}
		}
	})
	t.Run("uses_the_known_reasons_for_repairs", func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-8", UID: "node-uid"}}
		pool := treat.AboutNodePool(&metav1.ObjectMeta{Name: "workers", UID: "pool-uid"})
		want := map[treat.EventReason]string{
			treat.RepairPending: "Normal NodeRepairPending Evaluate", treat.RepairBlocked: "Warning NodeRepairBlocked DeleteNodeClaim",
			treat.NodeRepaired: "Warning NodeRepair DeleteNodeClaim", treat.TerminationCancelled: "Normal NodeRepairCancelled KeepNodeClaim",
			treat.ReadyTimeoutRecovery: "Warning NodeReadyTimeoutRecovery DeleteNodeClaim",
			treat.PoolHeld:             "Warning NodePoolHeld Evaluate", treat.PoolReleased: "Normal NodePoolReleased Evaluate",
		}
		runWriter(t, c, "written", 2*len(want), func(a *treat.EventWriter) {
			for what, words := range want {
				a.Write(treat.Event{Node: node, Related: []*corev1.ObjectReference{pool}, EventReason: what, Message: words})
			}
		})
		for kind, name := range map[string]string{"Node": "worker-8", "NodePool": "workers"} {
			found := about(t, kind, name)
			testkit.Check(t, len(found) == len(want), "there are %d Events on the %s", len(found), kind)
			for _, e := range found {
				if is := e.Type + " " + e.Reason + " " + e.Action; !strings.Contains(e.Note, is) {
					t.Errorf("the %s's Event is %q, and says %q", kind, is, e.Note)
				}
			}
		}
	})
	t.Run("writes_a_remediation_to_the_node_and_the_check", func(t *testing.T) {
		treated := treat.Event{
			Node:        &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-7", UID: "node-uid"}},
			Policy:      treat.AboutCheck(&metav1.ObjectMeta{Name: "one", UID: "check-uid"}),
			EventReason: treat.RemediationCreated,
			Message:     "RebootRemediation default/worker-7",
			Reason: triage.Reason{
				Code: triage.Treating, Rule: triage.RuleID{Kind: policykind.NodeHealthCheck, Name: "one"}, Condition: "Ready", Status: triage.Unknown,
				Step: 1, Steps: 2, Action: triage.Remediate,
			},
		}
		failed := treated
		failed.Failure = "forbidden"
		runWriter(t, c, "written", 4, func(a *treat.EventWriter) {
			a.Write(treated)
			a.Write(failed)
		})
		onNode, onCheck := about(t, "Node", "worker-7"), about(t, "NodeHealthCheck", "one")
		testkit.Require(t, len(onNode) == 2 && len(onCheck) == 2, "%d on the node and %d on the check, want 2 each", len(onNode), len(onCheck))
		made := treated.Message + ": " + treated.Reason.String()
		ofCheck := "worker-7: " + treated.Message + ": " + treated.Reason.Sentence()
		for i, want := range []struct{ kind, reason, note, ofCheck string }{
			{"Normal", "RemediationCreated", made, ofCheck},
			{"Warning", "FailedCreateRemediation", made + ": forbidden", ofCheck + ": forbidden"},
		} {
			if got := onNode[i]; got.Type != want.kind || got.Reason != want.reason || got.Note != want.note || got.Related.Kind != "NodeHealthCheck" || got.Action != "CreateRemediation" {
				t.Errorf("the node's Event is %+v, want %+v", got, want)
			}
			if got := onCheck[i]; got.Note != want.ofCheck || got.Related.Name != "worker-7" || got.Related.UID != "node-uid" {
				t.Errorf("the check's Event is %+v, want %+v", got, want)
			}
		}
	})
	t.Run("stores_an_Event_that_a_previous_process_stored_once", func(t *testing.T) {
		first, second := word("worker-19"), word("worker-19")
		first.Policy, second.Policy, first.ID, second.ID = nil, nil, "one", "two"
		first.MayExist = true
		again := first
		again.MayExist = false // this process has published it and then another
		runWriter(t, c, "written", 4, func(a *treat.EventWriter) {
			a.Write(first)
			a.Write(first)
			a.Write(second)
			a.Write(again)
		})
		testkit.Same(t, len(about(t, "Node", "worker-19")), 3, "Events")
	})
	t.Run("names_the_policy_and_its_toleration_in_Events_of_repairs", func(t *testing.T) {
		since := time.Now().Add(-5 * time.Minute)
		repaired := treat.Event{
			Node:        &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-18", UID: "node-uid"}},
			Policy:      treat.AboutPolicy(&v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: "gpu", UID: "policy-uid"}}),
			EventReason: treat.NodeRepaired,
			Message:     "Deleting NodeClaim a-72lh5 by force",
			Reason: triage.Reason{
				Code: triage.Treating, Action: triage.Terminate, Rule: triage.RuleID{Kind: policykind.Repair, Name: "RepairPolicy/gpu/a"}, Condition: "BadDisk", Status: triage.True,
				Detail: "Broken: no answer", Since: since, Eligible: since.Add(5 * time.Minute),
			},
		}
		pending := repaired
		pending.EventReason, pending.Message, pending.Reason.Code = treat.RepairPending, "", triage.Pending
		pending.Reason.Rule.Name = "NodePool/a"
		runWriter(t, c, "written", 4, func(a *treat.EventWriter) {
			a.Write(repaired)
			a.Write(pending)
		})
		var notes []string
		for _, e := range append(about(t, "Node", "worker-18"), about(t, "RepairPolicy", "gpu")...) {
			notes = append(notes, e.Note)
		}
		at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
		testkit.Equal(t, "notes", []string{
			"Deleting NodeClaim a-72lh5 by force: BadDisk=True (Broken: no answer) for 5m, tolerated 5m by RepairPolicy gpu",
			"BadDisk=True (Broken: no answer) since " + at(since) + ", tolerated 5m by spec.repair of NodePool a: the node is repaired at " + at(since.Add(5*time.Minute)) + " if it stays so",
			"worker-18: Deleting NodeClaim a-72lh5 by force: BadDisk=True (Broken: no answer) for 5m, tolerated 5m by this policy",
			"worker-18: BadDisk=True (Broken: no answer) since " + at(since) + ", tolerated 5m by this policy: the node is repaired at " + at(since.Add(5*time.Minute)) + " if it stays so",
		}, notes)
	})
	t.Run("accepts_names_and_notes_of_any_length", func(t *testing.T) {
		name := strings.Repeat(strings.Repeat("a", 62)+".", 3) + strings.Repeat("b", 10) + "." + strings.Repeat("c", 50)
		long := word(name)
		long.Failure = strings.Repeat("ü", 2000)
		runWriter(t, c, "written", 2, func(a *treat.EventWriter) { a.Write(long) })
		if got := about(t, "Node", name); len(got) != 1 || !strings.HasSuffix(got[0].Note, "...") || strings.ContainsRune(got[0].Note, '\uFFFD') {
			t.Errorf("Events: %+v", got)
		}
	})
	t.Run("counts_refused_Events", func(t *testing.T) {
		config := testkit.Value(cluster.ServiceAccountConfig(t.Context(), "default", "unprivileged")).Must(t)
		powerless := testkit.Value(client.New(config, client.Options{})).Must(t)
		runWriter(t, powerless, "refused", 2, func(a *treat.EventWriter) { a.Write(word("worker-4")) })
	})
	t.Run("counts_dropped_Events_without_blocking", func(t *testing.T) {
		seen := newOutcomes()
		never := treat.NewEventWriter(c, "me", seen.add)
		for range 3000 {
			never.Write(word("worker-5"))
		}
		if got := seen.of("dropped"); got != 2*3000-4096 {
			t.Errorf("%d were dropped", got)
		}
	})
}
