package pools

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// termination is the recorded history of a marked or deleted claim.
type termination struct {
	claim, node string
	rule        string    // from its mark
	since       time.Time // the time of the decision, from its mark

	marked, unmarked, deleted time.Time // zero if it did not happen
	deadline                  string    // the deadline at its deletion
	nodeGone, claimGone       time.Time
}

// account is the recorded history of the repairs in a pool.
type account struct {
	terminations []*termination // in the order of their marks
	others       []*termination // of claims that another client deleted, in that order
	peak         int            // maximum of nodes in repair at once: marked, or gone and not replaced
	made         int            // number of created claims
	// disrupted is the maximum of claims at once that were marked or being deleted, as
	// Karpenter counts for its budgets.
	disrupted    int
	violations   []string // broken rules that hold in every test
	countChanges []string // every change of the number of nodes in repair
}

// of returns the termination of a node, nil if it had none.
func (a *account) of(node string) *termination {
	for _, e := range append(a.terminations, a.others...) {
		if e.node == node {
			return e
		}
	}
	return nil
}

// mark is the annotation on a claim that is to be deleted.
type mark struct {
	Rule    string
	Node    string
	NodeUID types.UID
	Since   time.Time
}

// accountBuilder reads a recording.
type accountBuilder struct {
	account
	ledger       string // its current content
	claims       map[types.UID]*unstructured.Unstructured
	terminations map[types.UID]*termination // by claim
	inTreatment  map[types.UID]*termination // by node
	gone         int                        // nodes that were in repair and are deleted
	nodes        map[types.UID]*poolNode
}

type poolNode struct {
	created  time.Time // in whole seconds
	wasReady bool
}

// account reads the recording of the pool so far, and fails the test for every broken rule.
func (p *pool) account() *account {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), maxWait)
	defer cancel()
	recording, err := p.RecordingOf(ctx, func(c testbed.Change) bool {
		switch c.GVR {
		case karpenter.ClaimsResource:
			return c.Object.GetLabels()[testbed.PoolLabel] == p.name && !p.surplus[c.Name]
		case testbed.NodesResource:
			return c.Object.GetLabels()[testbed.PoolLabel] == p.name
		case karpenter.PoolsResource:
			return c.Name == p.name
		case history.ConfigMapsResource:
			return c.Name == ledgerName
		default:
			return false
		}
	})
	testkit.Must(p.t, err)
	b := &accountBuilder{
		claims: map[types.UID]*unstructured.Unstructured{}, terminations: map[types.UID]*termination{},
		inTreatment: map[types.UID]*termination{}, nodes: map[types.UID]*poolNode{},
	}
	inRepair := 0
	for _, change := range recording {
		switch change.GVR {
		case karpenter.ClaimsResource:
			b.claim(change)
		case testbed.NodesResource:
			b.node(change)
		case karpenter.PoolsResource:
			if isOurs(change) && !p.restores {
				b.wrong(change, "the controller changed a NodePool without being configured to")
			}
		case history.ConfigMapsResource:
			text, _ := json.Marshal(change.Object.Object["data"])
			b.ledger = string(text)
		}
		if count := len(b.inTreatment) + max(0, b.gone-b.replacements()); count != inRepair {
			inRepair = count
			b.peak = max(b.peak, count)
			b.countChanges = append(b.countChanges, fmt.Sprintf("%s: %d in repair (%s of %s)", change.Time.Format(time.StampMilli), count, change.Type, change.Name))
		}
		b.disrupted = max(b.disrupted, b.disrupting())
	}
	for _, wrong := range b.violations {
		p.t.Errorf("pool %s: %s", p.name, wrong)
	}
	return &b.account
}

func isOurs(change testbed.Change) bool { return change.Author.User == install.User }

func (b *accountBuilder) wrong(change testbed.Change, format string, args ...any) {
	b.violations = append(b.violations, fmt.Sprintf("%s of %s %s by %s: ", change.Type, change.GVR.Resource, change.Name, change.Author)+fmt.Sprintf(format, args...))
}

// replacements counts the nodes that were ready once and were created after the first
// decision. The mark tells the time of the decision, and is written later. Creation times
// have whole seconds.
func (b *accountBuilder) replacements() (count int) {
	for _, n := range b.nodes {
		if n.wasReady && len(b.account.terminations) > 0 && !n.created.Before(b.account.terminations[0].since.Truncate(time.Second)) {
			count++
		}
	}
	return count
}

// disrupting counts the claims that are marked or being deleted, and whose machine exists.
func (b *accountBuilder) disrupting() (count int) {
	for _, claim := range b.claims {
		isGoing := claim.GetAnnotations()[markAnnotation] != "" || claim.GetDeletionTimestamp() != nil
		if isGoing && karpenter.Condition(claim, "InstanceTerminating").Status != metav1.ConditionTrue {
			count++
		}
	}
	return count
}

// claim handles a change of a claim. Only the controller marks claims, so a mark proves its
// author.
func (b *accountBuilder) claim(change testbed.Change) {
	before, now := b.claims[change.UID], change.Object
	b.claims[change.UID] = now
	e := b.terminations[change.UID]
	switch change.Type {
	case watch.Added:
		b.made++
		return
	case watch.Deleted:
		delete(b.claims, change.UID)
		if e != nil {
			e.claimGone = change.Time
		}
		return
	}
	was, is := before.GetAnnotations()[markAnnotation], now.GetAnnotations()[markAnnotation]
	isDeleting := before.GetDeletionTimestamp() == nil && now.GetDeletionTimestamp() != nil
	switch {
	case was == "" && is != "":
		b.mark(change, is)
	case was != "" && is == "":
		b.cancel(change, e)
	case was != is:
		b.wrong(change, "the mark changed: %s", is)
	case isDeleting && isOurs(change) && e == nil:
		b.wrong(change, "the claim was deleted without a mark")
	case isDeleting && (e == nil || !isOurs(change)):
		node, _, _ := unstructured.NestedString(now.Object, "status", "nodeName")
		b.others = append(b.others, &termination{claim: change.Name, node: node, deleted: change.Time})
	case isDeleting:
		e.deleted, e.deadline = change.Time, now.GetAnnotations()[deadlineAnnotation]
	case isOurs(change) && e == nil && before.GetDeletionTimestamp() != nil && before.GetAnnotations()[deadlineAnnotation] != now.GetAnnotations()[deadlineAnnotation]:
		other := slices.IndexFunc(b.others, func(o *termination) bool { return o.claim == change.Name })
		b.others[other].deadline = now.GetAnnotations()[deadlineAnnotation] // the drain that another client began is ended by force
	case isOurs(change) && e != nil && !e.deleted.IsZero() && e.deadline != now.GetAnnotations()[deadlineAnnotation]:
		e.deadline = now.GetAnnotations()[deadlineAnnotation] // its drain is ended by force
	case isOurs(change):
		b.wrong(change, "the claim is neither marked nor unmarked nor deleted")
	}
}

func (b *accountBuilder) mark(change testbed.Change, text string) {
	var m mark
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		b.wrong(change, "the mark cannot be read: %v", err)
	}
	if change.Object.GetDeletionTimestamp() != nil {
		b.wrong(change, "the claim was marked during its deletion")
	}
	if !strings.Contains(b.ledger, change.Name) {
		b.wrong(change, "the claim was marked before the ledger named it: %s", b.ledger)
	}
	if old := b.terminations[change.UID]; old != nil && old.unmarked.IsZero() {
		b.wrong(change, "the claim was marked twice")
	}
	e := &termination{claim: change.Name, node: m.Node, rule: m.Rule, since: m.Since, marked: change.Time}
	b.account.terminations = append(b.account.terminations, e)
	b.terminations[change.UID], b.inTreatment[m.NodeUID] = e, e
}

func (b *accountBuilder) cancel(change testbed.Change, e *termination) {
	if change.Object.GetDeletionTimestamp() != nil {
		b.wrong(change, "the mark was removed during the deletion")
	}
	e.unmarked = change.Time
	for uid, other := range b.inTreatment {
		if other == e {
			delete(b.inTreatment, uid)
		}
	}
}

// node handles a change of a node.
func (b *accountBuilder) node(change testbed.Change) {
	switch e := b.inTreatment[change.UID]; {
	case change.Type == watch.Deleted && e != nil:
		e.nodeGone = change.Time
		delete(b.inTreatment, change.UID)
		b.gone++
	case change.Type != watch.Deleted:
		n := b.nodes[change.UID]
		if n == nil {
			n = &poolNode{created: change.Object.GetCreationTimestamp().Time}
			b.nodes[change.UID] = n
		}
		n.wasReady = n.wasReady || isReady(change.Object)
	}
}

// isReady reports whether a node is Ready, without startup taints.
func isReady(node *unstructured.Unstructured) bool {
	var n corev1.Node
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(node.Object, &n); err != nil {
		return false
	}
	isStarting := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpenter.StartupTaint.Key })
	return !isStarting && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// repaired waits until the controller has terminated these nodes, and the Deployment has
// all pods again. It returns the account.
func (p *pool) repaired(nodes ...string) *account {
	p.t.Helper()
	p.gone(nodes...)
	p.whole()
	p.eventually("claims gone", func(ctx context.Context) error {
		claims, err := p.karpenter.Claims(ctx, p.name)
		for i := range claims {
			if claims[i].GetDeletionTimestamp() != nil && claims[i].GetAnnotations()[markAnnotation] != "" {
				return fmt.Errorf("%s is there", claims[i].GetName())
			}
		}
		return err
	})
	a := p.account()
	p.forgotten(a)
	for _, node := range nodes {
		if e := a.of(node); e == nil || e.marked.IsZero() || e.deleted.IsZero() {
			p.t.Errorf("%s is gone, but the controller did not mark and delete it: %+v", node, e)
		}
	}
	return a
}

// forgotten waits until the ledger names no deleted claim. Otherwise the next controller
// would count its node as in repair.
func (p *pool) forgotten(a *account) {
	p.t.Helper()
	p.eventually("a ledger without deleted claims", func(ctx context.Context) error {
		page := &corev1.ConfigMap{}
		if err := p.api.Get(ctx, types.NamespacedName{Namespace: install.Namespace, Name: ledgerName}, page); err != nil {
			return err
		}
		for _, e := range a.terminations {
			if text := fmt.Sprint(page.Data); !e.claimGone.IsZero() && strings.Contains(text, "NodeClaim.karpenter.sh /"+e.claim+`"`) {
				return fmt.Errorf("%s is there: %s", e.claim, text)
			}
		}
		return nil
	})
}

// untouched fails the test if any client marked or deleted the claims of these nodes.
func (p *pool) untouched(a *account, nodes ...string) {
	p.t.Helper()
	for _, node := range nodes {
		if e := a.of(node); e != nil {
			p.t.Errorf("%s was marked or deleted: %+v", node, e)
		}
	}
}

// atMost fails the test unless the maximum of nodes in repair at once equals the bound.
func (a *account) atMost(t *testing.T, bound int) {
	t.Helper()
	t.Logf("%d claims, %d terminations, at most %d at once", a.made, len(a.terminations), a.peak)
	if a.peak > bound {
		t.Errorf("%d nodes were in repair at once, at most %d may be:\n%s", a.peak, bound, strings.Join(a.countChanges, "\n"))
	}
}

// judge fails the test if the recording of the cluster has a violation.
func (w *fixture) judge(t *testing.T, repairs history.Repairs, atLeast history.Counts) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	recording, err := w.Recording(ctx)
	testkit.Must(t, err)
	report := history.Require(t, recording, history.Config{
		Us:           history.User(install.User),
		Remediation:  remediations,
		DefaultMode:  v1alpha1.Enforce,
		Repairs:      repairs,
		FieldManager: "autohealer-controller",
		Ledger:       types.NamespacedName{Namespace: install.Namespace, Name: ledgerName},
		Lag:          slow,
		AnyTurn:      true,
	}, atLeast)
	t.Logf("%d changes: %d claims marked, %d unmarked, %d deleted, %d statuses, at most %v at once", report.Changes,
		report.Marks, report.Unmarks, report.Terminations, report.PolicyStatuses, report.Peak)
}
