package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// count counts the matching requests, and holds none of them.
func (o proxy) count(match func(*heldRequest) bool) *atomic.Int64 {
	var seen atomic.Int64
	o.hold(func(l *heldRequest) bool {
		if match(l) {
			seen.Add(1)
		}
		return false
	}, 0)
	return &seen
}

// retriesRarely checks that a refused write was tried at once and then rarely: NoExecute and
// its fallback, for every node, and again every few seconds at most.
func (w *scope) retriesRarely(tries *atomic.Int64, nodes int, since time.Time) {
	w.t.Helper()
	const seldom = 2 * time.Second
	limit := 2 * nodes * (1 + int(time.Since(since)/seldom))
	if got := int(tries.Load()); got > limit {
		w.t.Errorf("%d nodes were written %d times in %s, want at most %d", nodes, got, time.Since(since).Round(time.Second), limit)
	}
}

// reportsRefusal waits until an Event and the status report a refused write. There must be
// one Event.
func (w *scope) reportsRefusal(reason, node string, parts ...string) {
	w.t.Helper()
	w.tellsOf(node, reason, parts...)
	w.tellsOf(w.name+"-set", reason, append(parts, node)...)
	events := testkit.Value(w.events(w.t.Context(), node, reason)).Must(w.t)
	reported := 0
	for _, e := range events {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(e.Note, part) }) {
			reported++
		}
	}
	if reported != 1 {
		w.t.Errorf("%d Events about %s say %q, want 1", reported, node, parts)
	}
}

func (w *scope) refusals(c *install.Controller) float64 {
	w.t.Helper()
	return value(w.t, w.scrape(c), `autohealer_writes_total{outcome="refused",resource="nodes"}`)
}

// withdrawPatch withdraws the controllers' right to patch nodes, and returns a function
// that restores it.
func (w *scope) withdrawPatch() (giveBack func()) {
	w.t.Helper()
	role := &rbacv1.ClusterRole{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: install.Account}, role))
	return w.withdraw(role, &role.Rules, authorizationv1.ResourceAttributes{Verb: "patch", Resource: "nodes"})
}

// withdraw removes a right from the rules of a role, and returns a function that restores
// it.
func (w *scope) withdraw(role client.Object, rules *[]rbacv1.PolicyRule, right authorizationv1.ResourceAttributes) (giveBack func()) {
	w.t.Helper()
	before := *rules
	*rules = slices.Clone(before)
	at := slices.IndexFunc(before, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, right.Resource) })
	(*rules)[at].Verbs = slices.DeleteFunc(slices.Clone(before[at].Verbs), func(verb string) bool { return verb == right.Verb })
	if len((*rules)[at].Verbs) == 0 {
		*rules = slices.Delete(*rules, at, at+1)
	}
	set := func(allowed bool) {
		w.t.Helper()
		testkit.Must(w.t, w.api.Update(w.t.Context(), role))
		w.eventually("a change of rights", func() error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: install.User, ResourceAttributes: &right,
			}}
			if err := w.api.Create(w.t.Context(), review); err != nil {
				return err
			}
			if review.Status.Allowed != allowed {
				return fmt.Errorf("allowed: %t", review.Status.Allowed)
			}
			return nil
		})
	}
	set(false)
	return func() {
		*rules = before
		set(true)
	}
}

func testForbidden(w *scope) {
	const count = 4
	p := w.newProxy(w.name)
	nodes := w.createNodes(testbed.Nodes{Count: count})
	w.createSet("set", evict(intstr.FromInt32(1)))
	controller := w.start(install.Options{Args: p.Args(alone)})
	w.hasStatus("set", isAccepted(metav1.ConditionTrue, "Followed"))
	giveBack := w.withdrawPatch()
	tries, pages, since := p.count(changesNode), p.count(updatesLedger), time.Now()
	w.makeUnhealthy(nodes)
	for _, node := range nodes {
		w.reportsRefusal("FailedPlaceTaint", node, "could not be placed", "forbidden")
	}
	w.hasStatus("set", saysOf(nodes[0], "FellBack", "not written yet", "forbidden"))
	if got := w.refusals(controller); got < count || got > float64(tries.Load()) {
		w.t.Errorf("%v of %d writes are counted as refused", got, tries.Load())
	}
	w.retriesRarely(tries, count, since)
	giveBack()
	w.counts(w.key("set"), 1, count-1)
	w.retriesRarely(tries, count, since)
	w.retriesRarely(pages, count, since)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 1, Fallbacks: count - 1})
}

// refuse has the API server refuse a change to the taints of a node, with a reason, until
// the returned function is called.
func (w *scope) refuse(node, rule string, reason metav1.StatusReason) (allow func()) {
	w.t.Helper()
	const old, now = "(has(oldObject.spec.taints) ? oldObject.spec.taints : [])", "(has(object.spec.taints) ? object.spec.taints : [])"
	meta := metav1.ObjectMeta{Name: w.name + "-spares-" + node}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
			},
			ResourceNames: []string{node},
		}}},
		Validations: []admissionv1.Validation{{
			Expression: strings.NewReplacer("OLD", old, "NEW", now).Replace(rule), Reason: &reason, Message: "hands off " + node,
		}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	// attempt tries the refused change in dry run.
	attempt := func() error {
		found, err := w.get(w.t.Context(), node)
		if err != nil {
			return err
		}
		found.Spec.Taints = []corev1.Taint{{Key: "example.com/attempt", Effect: corev1.TaintEffectNoExecute}}
		return w.api.Update(w.t.Context(), found, client.DryRunAll)
	}
	testkit.Must(w.t, w.api.Create(w.t.Context(), policy))
	testkit.Must(w.t, w.api.Create(w.t.Context(), binding))
	w.eventually("the admission policy to be in force", func() error {
		if err := attempt(); apierrors.ReasonForError(err) != reason {
			return fmt.Errorf("the answer is %w", errors.Join(err, errors.New("not a refusal")))
		}
		return nil
	})
	return func() {
		w.t.Helper()
		testkit.Must(w.t, w.api.Delete(w.t.Context(), binding))
		testkit.Must(w.t, w.api.Delete(w.t.Context(), policy))
		w.eventually("the admission policy to be removed", attempt)
	}
}

const (
	noEviction = "!NEW.exists(t, t.effect == 'NoExecute')"
	noChange   = "NEW == OLD"
)

// Only NoExecute is refused: NoSchedule replaces it, and the slot goes to the next node.
func testRefusedEviction(w *scope) {
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 3})
	w.createSet("set", evict(intstr.FromInt32(1)))
	controller := w.start(install.Options{Args: p.Args(alone)})
	allow := w.refuse(w.node(1), noEviction, metav1.StatusReasonInvalid)
	tries, since := p.count(changesNodeOf(w.node(1))), time.Now()
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(1), noSchedule(w.key("set")))
	w.reportsRefusal("FailedPlaceTaint", w.node(1), "could not be placed", "hands off "+w.node(1))
	w.hasStatus("set", saysOf(w.node(1), "FellBack", "could not be placed", "hands off "+w.node(1)))
	if w.refusals(controller) == 0 {
		w.t.Error("no refused write is counted")
	}
	log := testkit.Value(controller.Log()).Must(w.t)
	if strings.Contains(log, "no write to the node fails any more") {
		w.t.Errorf("the fallback NoSchedule is reported as success:\n%s", log)
	}
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(2), noExecute(w.key("set")))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionFalse)
	w.has(w.node(2))
	allow()
	w.has(w.node(1), noExecute(w.key("set")))
	w.retriesRarely(tries, 1, since)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 2, Fallbacks: 1})
}

// The node cannot be changed at all: no taint is added or removed.
func testFrozen(w *scope) {
	p := w.newProxy(w.name)
	w.createNodes(testbed.Nodes{Count: 3})
	w.createSet("set", evict(intstr.FromInt32(1)))
	w.start(install.Options{Args: p.Args(alone)})
	thaw := w.refuse(w.node(1), noChange, metav1.StatusReasonForbidden)
	tries, since := p.count(changesNodeOf(w.node(1))), time.Now()
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionTrue)
	w.reportsRefusal("FailedPlaceTaint", w.node(1), "could not be placed", "hands off "+w.node(1))
	w.setCondition(w.node(2), "Unhealthy", corev1.ConditionTrue)
	w.has(w.node(2), noExecute(w.key("set")))
	w.hasStatus("set", saysOf(w.node(1), "FellBack", "not written yet", "hands off "+w.node(1)))
	w.hasNow(w.node(1))
	thaw()
	w.has(w.node(1), noSchedule(w.key("set")))

	thaw = w.refuse(w.node(1), noChange, metav1.StatusReasonForbidden)
	w.setCondition(w.node(1), "Unhealthy", corev1.ConditionFalse)
	w.reportsRefusal("FailedRemoveTaint", w.node(1), noSchedule(w.key("set"))+" could not be removed", "hands off "+w.node(1))
	thaw()
	w.has(w.node(1))
	w.retriesRarely(tries, 1, since)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 1, Fallbacks: 1, Removals: 1})
}
