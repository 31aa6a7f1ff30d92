package history

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

var (
	karpenter = testbed.Author{User: "karpenter", UserAgent: "karpenter/v1", Verb: "patch"}
	repairCfg = Config{Us: User("us"), Ledger: ledgerName, Remediation: checkConfig.Remediation, Repairs: Repairs{ReadyTimeout: 10 * time.Minute}}
)

// A block that tolerates a bad disk for a minute, and the name of its rule.
const (
	badDisk  = `{"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"1m"}]},"disruption":{"budgets":[{"nodes":"50%"}]}}`
	onPool   = "Repair/NodePool/blue"
	timedOut = "ReadyTimeout/blue"
)

// repairStory is a story about nodes with NodeClaims. The claim of node n1 is c-n1.
type repairStory struct {
	*checkStory
	pools, policies, claims map[string]*unstructured.Unstructured
	entries                 []grant // the entries of the ledger
	skipsLedger             bool
}

func newRepairStory(tb testing.TB) *repairStory {
	tb.Helper()
	return &repairStory{
		checkStory: newCheckStory(tb), pools: map[string]*unstructured.Unstructured{},
		policies: map[string]*unstructured.Unstructured{}, claims: map[string]*unstructured.Unstructured{},
	}
}

// fiveClaims returns a story with a pool of five nodes, of which one may be in repair.
func fiveClaims(tb testing.TB) *repairStory {
	tb.Helper()
	s := newRepairStory(tb)
	s.pool("blue", badDisk)
	s.readyNodes("blue", "n1", "n2", "n3", "n4", "n5")
	s.pass(time.Hour)
	return s
}

// write creates an object, or changes its spec, which is JSON.
func (s *repairStory) write(author testbed.Author, known map[string]*unstructured.Unstructured, kind, name, spec string) {
	s.tb.Helper()
	gvr := map[string]struct {
		resource   string
		apiVersion string
	}{"NodePool": {"nodepools", "karpenter.sh/v1"}, "RepairPolicy": {"repairpolicies", policyAPIVersion}}[kind]
	object, change := known[name], watch.Modified
	if object == nil {
		object, change = s.fresh(PoolsResource.GroupVersion().WithKind(kind), "", name), watch.Added
		object.SetAPIVersion(gvr.apiVersion)
		known[name] = object
	}
	object.Object["spec"] = fieldsOf(s.tb, spec)
	resource := PoolsResource
	if kind == policyKind {
		resource = PoliciesResource
	}
	s.record(change, resource, author, object)
}

func (s *repairStory) pool(name, spec string) {
	s.tb.Helper()
	s.write(admin, s.pools, "NodePool", name, spec)
}

// changeTemplate has Karpenter record a changed template of a pool.
func (s *repairStory) changeTemplate(name, template string) {
	s.tb.Helper()
	annotated(map[string]string{templateAnnotation: template})(s.pools[name])
	s.record(watch.Modified, PoolsResource, karpenter, s.pools[name])
}

func (s *repairStory) policy(name, spec string) {
	s.tb.Helper()
	s.write(admin, s.policies, policyKind, name, spec)
}

func (s *repairStory) deletePool(author testbed.Author, name string) {
	s.tb.Helper()
	s.record(watch.Deleted, PoolsResource, author, s.pools[name])
	delete(s.pools, name)
}

func (s *repairStory) deletePolicy(author testbed.Author, name string) {
	s.tb.Helper()
	s.record(watch.Deleted, PoliciesResource, author, s.policies[name])
	delete(s.policies, name)
}

// claim adds a claim of a pool, with the provider ID of a node.
func (s *repairStory) claim(pool, name, node string) {
	s.tb.Helper()
	object := s.fresh(ClaimsResource.GroupVersion().WithKind("NodeClaim"), "", name)
	object.SetLabels(map[string]string{poolLabel: pool})
	if of := s.pools[pool]; of != nil && of.GetAnnotations()[templateAnnotation] != "" {
		object.SetAnnotations(map[string]string{templateAnnotation: of.GetAnnotations()[templateAnnotation]})
	}
	object.SetFinalizers([]string{"karpenter.sh/termination"})
	object.Object["spec"] = map[string]any{"startupTaints": []any{map[string]any{"key": "example.com/starting", "effect": "NoSchedule"}}}
	object.Object["status"] = map[string]any{"providerID": "kwok://" + node}
	s.claims[name] = object
	s.record(watch.Added, ClaimsResource, karpenter, object)
}

// startingNodes adds nodes with claims that have just started.
func (s *repairStory) startingNodes(pool string, names ...string) {
	s.tb.Helper()
	for _, name := range names {
		s.claim(pool, "c-"+name, name)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, UID: types.UID(fmt.Sprintf("uid-%s-%d", name, s.version)), Labels: map[string]string{"pool": "web", poolLabel: pool},
				Annotations: map[string]string{}, CreationTimestamp: metav1.NewTime(s.now.Truncate(time.Second)),
			},
			Spec: corev1.NodeSpec{ProviderID: "kwok://" + name, Taints: []corev1.Taint{{Key: "example.com/starting", Effect: "NoSchedule"}}},
		}
		s.nodes[name] = node
		s.recordNode(watch.Added, karpenter, node)
	}
}

// readyNodes adds nodes with claims that are ready for work.
func (s *repairStory) readyNodes(pool string, names ...string) {
	s.tb.Helper()
	s.startingNodes(pool, names...)
	for _, name := range names {
		s.condition(name, "Ready=True")
		s.edit(karpenter, name, func(n *corev1.Node) {
			n.Spec.Taints = nil
			n.Labels[initializedLabel] = "true"
		})
		s.setClaimCondition("c-"+name, "Initialized=True")
	}
}

// changeClaim has an author change a claim.
func (s *repairStory) changeClaim(author testbed.Author, name string, change func(*unstructured.Unstructured)) {
	s.tb.Helper()
	object := s.claims[name].DeepCopy()
	change(object)
	s.claims[name] = object
	s.record(watch.Modified, ClaimsResource, author, object)
}

// setClaimCondition has Karpenter set a condition of a claim.
func (s *repairStory) setClaimCondition(name, condition string) {
	s.tb.Helper()
	s.changeClaim(karpenter, name, func(o *unstructured.Unstructured) { setCondition(o, condition) })
}

func setCondition(o *unstructured.Unstructured, condition string) {
	var kind, status string
	for i := range condition {
		if condition[i] == '=' {
			kind, status = condition[:i], condition[i+1:]
		}
	}
	list := []any{}
	for _, row := range rows(o, "status", "conditions") {
		if text(row, "type") != kind {
			list = append(list, any(row))
		}
	}
	o.Object["status"].(map[string]any)["conditions"] = append(list, map[string]any{"type": kind, "status": status, "reason": "Drifted"})
}

func annotated(annotations map[string]string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		all := map[string]string{}
		for key, value := range o.GetAnnotations() {
			all[key] = value
		}
		for key, value := range annotations {
			all[key] = value
			if value == "" {
				delete(all, key)
			}
		}
		o.SetAnnotations(all)
		if len(all) == 0 {
			unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
		}
	}
}

func (s *repairStory) markFor(node, rule string) string {
	uid := types.UID("uid-of-nobody")
	if n := s.nodes[node]; n != nil {
		uid = n.UID
	}
	text, _ := json.Marshal(map[string]any{"rule": rule, "node": node, "nodeUID": uid, "since": s.now.UTC()}) // plain values
	return string(text)
}

// marks marks the claim of a node as we do, with an optional deadline.
func (s *repairStory) marks(node, rule string, deadline ...time.Time) {
	s.tb.Helper()
	s.marksAs(us, node, rule, deadline...)
}

func (s *repairStory) marksAs(author testbed.Author, node, rule string, deadline ...time.Time) {
	s.tb.Helper()
	if n := s.nodes[node]; n != nil && !s.skipsLedger {
		s.entries = append(s.entries, grant{rule, node, string(n.UID), s.versionOf("c-" + node), claimInLedger + "c-" + node})
		s.enter(s.entries...)
	}
	written := map[string]string{markAnnotation: s.markFor(node, rule)}
	if len(deadline) > 0 {
		written[deadlineAnnotation] = deadline[0].UTC().Format(time.RFC3339)
	}
	s.changeClaim(author, "c-"+node, annotated(written))
}

// versionOf returns the last recorded version of a claim.
func (s *repairStory) versionOf(claim string) string {
	for i := len(s.made) - 1; i >= 0; i-- {
		if c := s.made[i]; c.GVR == ClaimsResource && c.Name == claim {
			return c.ResourceVersion
		}
	}
	return ""
}

// deletes starts the deletion of a claim.
func (s *repairStory) deletes(author testbed.Author, node string) {
	s.tb.Helper()
	author.Verb = "delete"
	s.changeClaim(author, "c-"+node, func(o *unstructured.Unstructured) {
		o.SetDeletionTimestamp(new(metav1.NewTime(s.now.Truncate(time.Second))))
		o.SetDeletionGracePeriodSeconds(new(int64))
	})
}

// marksAndDeletes marks and deletes a claim by force.
func (s *repairStory) marksAndDeletes(node, rule string) {
	s.tb.Helper()
	s.marks(node, rule, s.now)
	s.deletes(us, node)
}

// unmarks removes the mark again.
func (s *repairStory) unmarks(node string) {
	s.tb.Helper()
	s.changeClaim(us, "c-"+node, annotated(map[string]string{markAnnotation: "", deadlineAnnotation: ""}))
}

// finishDeletion has Karpenter finish the deletion of a claim.
func (s *repairStory) finishDeletion(node string) {
	s.tb.Helper()
	s.deleteNode(karpenter, node)
	s.deleteAtOnce(karpenter, node)
}

func (s *repairStory) deleteAtOnce(author testbed.Author, node string) {
	s.tb.Helper()
	s.record(watch.Deleted, ClaimsResource, author, s.claims["c-"+node])
	delete(s.claims, "c-"+node)
}

// breakDisks makes the disks of nodes bad for as long as the block tolerates.
func (s *repairStory) breakDisks(names ...string) {
	s.tb.Helper()
	for _, name := range names {
		s.condition(name, "Disk=True")
	}
	s.pass(time.Minute)
}
