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

	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
)

// termination is how the claim of a node was marked, and what came of it.
type termination struct {
	claim, node string
	rule        string    // by its mark
	since       time.Time // when it was decided, by its mark

	marked, spared, deleted time.Time // zero for never
	deadline                string    // that stood on it when it was deleted
	nodeGone, claimGone     time.Time
}

// account is what was done about the nodes of a pool, as it was recorded.
type account struct {
	terminations []*termination // in the order of their marks
	others       []*termination // of claims that somebody else has deleted, in that order
	peak         int            // most nodes in repair at once: marked, or gone and not replaced
	made         int            // claims
	// disrupted is how many claims were there at once that were marked or being deleted,
	// as Karpenter counts for its budgets.
	disrupted int
	wrongs    []string // what must never be, whatever the test
	moments   []string // whenever the number of nodes in repair has changed
}

// of returns the ending of a node, nil if it had none.
func (a *account) of(node string) *termination {
	for _, e := range append(a.terminations, a.others...) {
		if e.node == node {
			return e
		}
	}
	return nil
}

// mark is the note on a claim that is about to go.
type mark struct {
	Rule    string
	Node    string
	NodeUID types.UID
	Since   time.Time
}

// accountBuilder reads a recording.
type accountBuilder struct {
	account
	ledger       string // as it is
	claims       map[types.UID]*unstructured.Unstructured
	terminations map[types.UID]*termination // by claim
	inTreatment  map[types.UID]*termination // by node
	gone         int                        // nodes that were in care, and are not there any more
	fresh        map[types.UID]bool         // nodes that came since the first mark, and whether they were ever Ready
}

// account reads what was recorded of the pool so far, and says what must never be.
func (p *pool) account() *account {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	recording, err := p.RecordingOf(ctx, func(c testbed.Change) bool {
		switch c.GVR {
		case karpenter.ClaimsResource, testbed.NodesResource:
			return c.Object.GetLabels()[testbed.PoolLabel] == p.name
		case karpenter.PoolsResource:
			return c.Name == p.name
		case history.ConfigMapsResource:
			return c.Name == ledgerName
		default:
			return false
		}
	})
	p.must(err)
	b := &accountBuilder{
		claims: map[types.UID]*unstructured.Unstructured{}, terminations: map[types.UID]*termination{},
		inTreatment: map[types.UID]*termination{}, fresh: map[types.UID]bool{},
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
				b.wrong(change, "nobody has asked us to change a NodePool")
			}
		case history.ConfigMapsResource:
			text, _ := json.Marshal(change.Object.Object["data"])
			b.ledger = string(text)
		}
		if count := len(b.inTreatment) + max(0, b.gone-b.ready()); count != inRepair {
			inRepair = count
			b.peak = max(b.peak, count)
			b.moments = append(b.moments, fmt.Sprintf("%s: %d in repair (%s of %s)", change.Time.Format(time.StampMilli), count, change.Type, change.Name))
		}
		b.disrupted = max(b.disrupted, b.disrupting())
	}
	for _, wrong := range b.wrongs {
		p.t.Errorf("pool %s: %s", p.name, wrong)
	}
	return &b.account
}

func isOurs(change testbed.Change) bool { return change.Author.User == install.User }

func (b *accountBuilder) wrong(change testbed.Change, format string, args ...any) {
	b.wrongs = append(b.wrongs, fmt.Sprintf("%s of %s %s by %s: ", change.Type, change.GVR.Resource, change.Name, change.Author)+fmt.Sprintf(format, args...))
}

func (b *accountBuilder) ready() (count int) {
	for _, isReady := range b.fresh {
		if isReady {
			count++
		}
	}
	return count
}

// disrupting counts the claims that are marked or being deleted, and whose machine is
// there.
func (b *accountBuilder) disrupting() (count int) {
	for _, claim := range b.claims {
		isGoing := claim.GetAnnotations()[markAnnotation] != "" || claim.GetDeletionTimestamp() != nil
		if isGoing && karpenter.Condition(claim, "InstanceTerminating").Status != metav1.ConditionTrue {
			count++
		}
	}
	return count
}

// claim takes in a change of a claim. Only the system that is tried marks claims, so a
// mark is known without its author.
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
		b.spare(change, e)
	case was != is:
		b.wrong(change, "the mark is another: %s", is)
	case isDeleting && isOurs(change) && e == nil:
		b.wrong(change, "it was deleted without a mark")
	case isDeleting && (e == nil || !isOurs(change)):
		node, _, _ := unstructured.NestedString(now.Object, "status", "nodeName")
		b.others = append(b.others, &termination{claim: change.Name, node: node, deleted: change.Time})
	case isDeleting:
		e.deleted, e.deadline = change.Time, now.GetAnnotations()[deadlineAnnotation]
	case isOurs(change):
		b.wrong(change, "it is neither marked nor spared nor deleted")
	}
}

func (b *accountBuilder) mark(change testbed.Change, text string) {
	var m mark
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		b.wrong(change, "its mark cannot be read: %v", err)
	}
	if change.Object.GetDeletionTimestamp() != nil {
		b.wrong(change, "it was marked when it was being deleted already")
	}
	if !strings.Contains(b.ledger, change.Name) {
		b.wrong(change, "it was marked before the ledger named it: %s", b.ledger)
	}
	if old := b.terminations[change.UID]; old != nil && old.spared.IsZero() {
		b.wrong(change, "it was marked twice")
	}
	e := &termination{claim: change.Name, node: m.Node, rule: m.Rule, since: m.Since, marked: change.Time}
	b.account.terminations = append(b.account.terminations, e)
	b.terminations[change.UID], b.inTreatment[m.NodeUID] = e, e
}

func (b *accountBuilder) spare(change testbed.Change, e *termination) {
	if change.Object.GetDeletionTimestamp() != nil {
		b.wrong(change, "it was spared when it was being deleted already")
	}
	e.spared = change.Time
	for uid, other := range b.inTreatment {
		if other == e {
			delete(b.inTreatment, uid)
		}
	}
}

// node takes in a change of a node.
func (b *accountBuilder) node(change testbed.Change) {
	switch e := b.inTreatment[change.UID]; {
	case change.Type == watch.Deleted && e != nil:
		e.nodeGone = change.Time
		delete(b.inTreatment, change.UID)
		b.gone++
	case change.Type == watch.Added && len(b.account.terminations) > 0:
		b.fresh[change.UID] = false
	case change.Type == watch.Modified:
		if wasReady, isFresh := b.fresh[change.UID]; isFresh && !wasReady {
			b.fresh[change.UID] = isReady(change.Object)
		}
	}
}

// isReady says whether a node is Ready, without startup taints.
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

// repaired waits until so many nodes of the pool have been terminated by us and are gone,
// and the Deployment is whole again. It returns what was done.
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
			p.t.Errorf("%s is gone, but was not marked and deleted by us: %+v", node, e)
		}
	}
	return a
}

// forgotten waits until the ledger names no claim that is gone: whoever comes next would
// keep its place.
func (p *pool) forgotten(a *account) {
	p.t.Helper()
	p.eventually("a ledger without what is over", func(ctx context.Context) error {
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

// untouched says that nobody has marked or deleted the claims of nodes.
func (p *pool) untouched(a *account, nodes ...string) {
	p.t.Helper()
	for _, node := range nodes {
		if e := a.of(node); e != nil {
			p.t.Errorf("%s was not to be touched: %+v", node, e)
		}
	}
}

// atMost says that no more nodes were in repair at once, and that as many were.
func (a *account) atMost(t *testing.T, bound int) {
	t.Helper()
	t.Logf("%d terminations, at most %d at once", len(a.terminations), a.peak)
	if a.peak > bound {
		t.Errorf("%d nodes were in repair at once, at most %d may be:\n%s", a.peak, bound, strings.Join(a.moments, "\n"))
	}
}

// judge holds everything that happened in the cluster against the laws of the house.
func (w *fixture) judge(t *testing.T, repairs history.Repairs, atLeast history.Counts) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	recording, err := w.Recording(ctx)
	if err != nil {
		t.Fatal(err)
	}
	report := history.Require(t, recording, history.Config{
		Us:           history.User(install.User),
		Remediation:  remedies,
		Repairs:      repairs,
		FieldManager: "autohealer-controller",
		Ledger:       types.NamespacedName{Namespace: install.Namespace, Name: ledgerName},
		Lag:          slow,
		AnyTurn:      true,
	}, atLeast)
	t.Logf("%d moments: %d claims marked, %d spared, %d deleted, %d statuses, at most %v at once", report.Moments,
		report.Marks, report.Spares, report.Terminations, report.PolicyStatuses, report.Peak)
}
