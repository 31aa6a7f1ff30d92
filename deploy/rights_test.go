package deploy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// request is a request to the API server.
type request struct {
	verb string
	what string // resource.group/subresource name
	in   string // namespace; empty means none
}

func (r request) String() string {
	text := r.verb + " " + r.what
	if r.in != "" {
		text += " in " + r.in
	}
	return text
}

// attributes returns the request in the form of the API server.
func (r request) attributes() *authorizationv1.ResourceAttributes {
	what, name, _ := strings.Cut(r.what, " ")
	what, subresource, _ := strings.Cut(what, "/")
	resource, group, _ := strings.Cut(what, ".")
	return &authorizationv1.ResourceAttributes{
		Verb: r.verb, Group: group, Resource: resource, Subresource: subresource, Name: name, Namespace: r.in,
	}
}

const (
	sets      = "conditionsets.autohealer.resourcestack.com"
	policies  = "repairpolicies.autohealer.resourcestack.com"
	rails     = "guardrails.autohealer.resourcestack.com"
	checks    = "nodehealthchecks.remediation.medik8s.io"
	leases    = "leases.coordination.k8s.io"
	nodeLocks = "medik8s-leases" // the namespace of the nodes' Leases
	peer      = leases + " e1f13584.medik8s.io"
	template  = "rebootremediationtemplates.example.com"
	remedy    = "rebootremediations.example.com"
	hooks     = "validatingwebhookconfigurations.admissionregistration.k8s.io"
	cert      = "secrets autohealer-webhook-cert"
	revisions = "controllerrevisions.apps"
	claims    = "nodeclaims.karpenter.sh"
	pools     = "nodepools.karpenter.sh"
	crds      = "customresourcedefinitions.apiextensions.k8s.io"
)

var allowed = []request{
	{"get", "nodes n1", ""}, {"list", "nodes", ""}, {"watch", "nodes", ""}, {"patch", "nodes n1", ""}, {"patch", "nodes/status n1", ""},
	{"list", sets, ""}, {"watch", sets, ""},
	{"patch", sets + "/status s1", ""}, {"create", sets, ""}, {"patch", sets + " s1", ""}, {"delete", sets + " s1", ""},
	{"get", checks + " c1", ""}, {"list", checks, ""}, {"watch", checks, ""},
	{"patch", checks + "/status c1", ""},
	{"get", policies + " p1", ""}, {"list", policies, ""}, {"watch", policies, ""}, {"patch", policies + "/status p1", ""},
	{"create", policies, ""}, {"patch", policies + " p1", ""}, {"delete", policies + " p1", ""},
	{"list", rails, ""}, {"watch", rails, ""}, {"patch", rails + "/status cluster", ""},
	{"get", claims + " c1", ""}, {"list", claims, ""}, {"watch", claims, ""}, {"patch", claims + " c1", ""}, {"delete", claims + " c1", ""},
	{"list", pools, ""}, {"watch", pools, ""},
	{"get", crds + " " + pools, ""}, {"list", crds + " " + pools, ""}, {"watch", crds + " " + pools, ""},
	{"get", leases + " node-n1", nodeLocks}, {"list", leases, nodeLocks}, {"watch", leases, nodeLocks},
	{"create", leases, nodeLocks}, {"update", leases + " node-n1", nodeLocks}, {"delete", leases + " node-n1", nodeLocks},
	{"list", peer, ""}, {"watch", peer, ""},
	{"create", "events.events.k8s.io", "default"},
	{"create", "leases.coordination.k8s.io", namespace},
	{"get", "leases.coordination.k8s.io autohealer-controller", namespace},
	{"update", "leases.coordination.k8s.io autohealer-controller", namespace},
	{"get", leases + " autohealer-agent-n1", namespace}, {"list", leases, namespace},
	{"create", "configmaps", namespace},
	{"get", "configmaps autohealer-ledger", namespace},
	{"update", "configmaps autohealer-ledger", namespace},
	{"get", cert, namespace}, {"watch", cert, namespace}, {"update", cert, namespace},
	{"get", hooks + " autohealer", ""}, {"watch", hooks + " autohealer", ""}, {"patch", hooks + " autohealer", ""},
	{"list", "configmaps", namespace}, {"watch", "configmaps", namespace},
	{"list", revisions, namespace}, {"watch", revisions, namespace}, {"create", revisions, namespace}, {"delete", revisions + " r1", namespace},
	{"create", "events.events.k8s.io", namespace},
	{"list", "pods", "default"},
}

var forbidden = []request{
	// Nodes: no creation or deletion, and of the status only the conditions of a silent
	// agent.
	{"create", "nodes", ""}, {"update", "nodes n1", ""}, {"delete", "nodes n1", ""}, {"deletecollection", "nodes", ""},
	{"update", "nodes/status n1", ""}, {"get", "nodes/proxy n1", ""}, {"create", "nodes/proxy n1", ""},
	// It reads these kinds by lists and watches.
	{"get", sets + " s1", ""}, {"get", rails + " cluster", ""}, {"get", pools + " p1", ""}, {"get", peer, "openshift-workload-availability"},
	// Pods: NoExecute evicts pods, and the controller does not. It lists their annotations.
	{"get", "pods p1", "default"}, {"watch", "pods", "default"}, {"get", "pods/log p1", "default"}, {"delete", "pods p1", "default"}, {"create", "pods", namespace}, {"create", "pods/eviction p1", "default"}, {"create", "pods/exec p1", namespace},
	// Its own policies. An admission policy limits it to mirrors.
	{"update", sets + " s1", ""}, {"deletecollection", sets, ""}, {"update", sets + "/status s1", ""},
	{"patch", "customresourcedefinitions.apiextensions.k8s.io " + sets, ""},
	{"create", checks, ""}, {"update", checks + " c1", ""}, {"patch", checks + " c1", ""}, {"delete", checks + " c1", ""},
	{"update", checks + "/status c1", ""}, {"update", checks + "/finalizers c1", ""}, {"patch", "customresourcedefinitions.apiextensions.k8s.io " + checks, ""},
	{"update", policies + " p1", ""}, {"deletecollection", policies, ""},
	{"update", policies + "/status p1", ""}, {"update", policies + "/finalizers p1", ""}, {"patch", crds + " " + policies, ""},
	// The Guardrails limit the controller.
	{"create", rails, ""}, {"update", rails + " cluster", ""}, {"patch", rails + " cluster", ""}, {"delete", rails + " cluster", ""}, {"deletecollection", rails, ""},
	{"update", rails + "/status cluster", ""}, {"update", rails + "/finalizers cluster", ""}, {"patch", crds + " " + rails, ""},
	// Karpenter creates NodeClaims, NodePools and CRDs.
	{"create", claims, ""}, {"update", claims + " c1", ""}, {"deletecollection", claims, ""}, {"patch", claims + "/status c1", ""},
	{"create", pools, ""}, {"update", pools + " p1", ""}, {"delete", pools + " p1", ""}, {"patch", pools + "/status p1", ""}, {"patch", pools + "/scale p1", ""},
	{"patch", crds + " " + claims, ""}, {"list", crds, ""}, {"watch", crds, ""}, {"update", crds + " " + pools, ""}, {"delete", crds + " " + pools, ""}, {"create", crds, ""},
	{"patch", pools + " p1", ""}, {"patch", crds + " " + pools, ""},
	// The Lease of another leader is read and not taken. All other Leases of the cluster
	// are not read.
	{"update", peer, "openshift-workload-availability"}, {"delete", peer, "openshift-workload-availability"}, {"create", leases, "openshift-workload-availability"},
	{"list", leases, ""}, {"watch", leases, ""}, {"get", leases + " n1", "kube-node-lease"},
	{"deletecollection", leases, nodeLocks}, {"patch", leases + " node-n1", nodeLocks}, {"list", "configmaps", nodeLocks},
	// Templates and remediations, before a remediator grants the rights.
	{"get", template + " t1", "default"}, {"create", remedy, "default"},
	// Events in other namespaces, and existing Events.
	{"create", "events.events.k8s.io", ""}, {"create", "events.events.k8s.io", "kube-system"},
	{"create", "events", "default"}, {"create", "events", namespace}, {"patch", "events.events.k8s.io e1", "default"}, {"delete", "events.events.k8s.io e1", "default"}, {"list", "events.events.k8s.io", "default"},
	// Other objects in its namespace, and the same objects in other namespaces.
	{"get", "configmaps other", namespace}, {"update", "configmaps other", namespace}, {"patch", "configmaps other", namespace}, {"delete", "configmaps other", namespace},
	{"list", "configmaps", ""}, {"list", "configmaps", "default"}, {"watch", "configmaps", "kube-system"},
	{"update", revisions + " r1", namespace}, {"patch", revisions + " r1", namespace}, {"deletecollection", revisions, namespace},
	{"list", revisions, "default"}, {"watch", revisions, "default"}, {"watch", revisions, ""}, {"create", revisions, "default"}, {"delete", revisions + " r1", "kube-system"},
	{"delete", "configmaps autohealer-ledger", namespace}, {"update", "configmaps autohealer-ledger", "default"}, {"create", "configmaps", "default"},
	{"update", leases + " autohealer-agent-n1", namespace}, {"patch", leases + " autohealer-agent-n1", namespace}, {"delete", leases + " autohealer-agent-n1", namespace}, {"watch", leases, namespace},
	{"update", "leases.coordination.k8s.io other", namespace}, {"delete", "leases.coordination.k8s.io autohealer-controller", namespace},
	{"get", "leases.coordination.k8s.io autohealer-controller", "kube-system"}, {"update", "leases.coordination.k8s.io n1", "kube-node-lease"},
	{"watch", "secrets", namespace}, {"update", "secrets s1", namespace}, {"list", cert, namespace}, {"delete", cert, namespace}, {"get", cert, "default"}, {"get", cert, "kube-system"},
	{"list", hooks, ""}, {"list", hooks + " autohealer", ""}, {"watch", hooks, ""}, {"create", hooks, ""}, {"delete", hooks + " autohealer", ""}, {"patch", hooks + " other", ""},
	{"patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io autohealer", ""},
	{"get", "secrets s1", namespace}, {"list", "secrets", namespace}, {"list", "secrets", ""}, {"create", "secrets", namespace},
	{"create", "serviceaccounts/token " + account, namespace}, {"update", "deployments.apps " + account, namespace},
	// Escalation of rights.
	{"create", "clusterrolebindings.rbac.authorization.k8s.io", ""}, {"escalate", "clusterroles.rbac.authorization.k8s.io " + account, ""},
	{"bind", "clusterroles.rbac.authorization.k8s.io cluster-admin", ""}, {"impersonate", "users admin", ""}, {"*", "*.*", ""},
}

// givesLeastRights checks the rights of the controller's own token: by access reviews for
// the long lists, and by requests for its most frequent writes.
func (c cluster) givesLeastRights(t *testing.T) {
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), namespace, account)).Must(t)
	controller := clientFor(t, config)
	mayExactly(t, controller, allowed, forbidden)

	nodes := testkit.Value(c.CreateNodes(t.Context(), testbed.Nodes{Count: 1})).Must(t)
	node := nodes[0].Name
	mark := []byte(`{"metadata": {"annotations": {"autohealer.resourcestack.com/record": "{}"}}}`)
	if _, err := controller.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, mark, metav1.PatchOptions{}); err != nil {
		t.Errorf("patching a node: %v", err)
	}
	said := `{"apiVersion": "v1", "kind": "Node", "status": {"conditions": [{"type": "Unhealthy", "status": %q, "reason": "AgentSilent"}]}}`
	admin := clientFor(t, c.AdminConfig())
	testkit.Value(admin.CoreV1().Nodes().Patch(t.Context(), node, types.ApplyPatchType, fmt.Appendf(nil, said, "True"), metav1.PatchOptions{FieldManager: "autohealer-agent"}, "status")).Must(t)
	row := fmt.Appendf(nil, said, "Unknown")
	if _, err := controller.CoreV1().Nodes().Patch(t.Context(), node, types.ApplyPatchType, row, metav1.PatchOptions{FieldManager: "autohealer-agent"}, "status"); err != nil {
		t.Errorf("patching the status of a node: %v", err)
	}
	if err := controller.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting a node: %v", err)
	}

	lease, err := controller.CoordinationV1().Leases(namespace).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	testkit.Must(t, err)
	if _, err := controller.CoordinationV1().Leases(namespace).Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Errorf("renewing the lease: %v", err)
	}
	// A list by name in all namespaces finds the Lease of medik8s' controller.
	if _, err := controller.CoordinationV1().Leases("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=e1f13584.medik8s.io"}); err != nil {
		t.Errorf("listing the lease of medik8s' controller: %v", err)
	}
	for name, mine := range map[string]bool{"autohealer-ledger": true, "other": false} {
		page, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		testkit.Must(t, err)
		if _, err := controller.CoreV1().ConfigMaps(namespace).Update(t.Context(), page, metav1.UpdateOptions{}); apierrors.IsForbidden(err) == mine {
			t.Errorf("updating ConfigMap %s: %v", name, err)
		}
	}
}

// givesJobsLeastRights checks the rights of the Jobs of the chart, which exist while a Job runs.
func (c cluster) givesJobsLeastRights(t *testing.T) {
	manifest := file(t, testkit.Value(helm(t, "", "template", "autohealer", "chart", "--namespace", namespace, "--show-only", "templates/cleanup.yaml", "--show-only", "templates/crds.yaml")).Must(t))
	c.kubectl(t, "apply", "-f", manifest)
	for job, rights := range map[string]struct{ allowed, forbidden []request }{
		"autohealer-cleanup": {[]request{
			{"get", "nodes n1", ""}, {"list", "nodes", ""}, {"patch", "nodes n1", ""}, {"list", claims, ""}, {"patch", claims + " c1", ""},
			{"list", sets, ""}, {"delete", sets + " s1", ""}, {"list", policies, ""}, {"delete", policies + " p1", ""}, {"list", checks, ""},
			{"get", leases + " autohealer-controller", namespace}, {"list", leases, namespace}, {"delete", leases + " l1", namespace}, {"list", leases, nodeLocks}, {"delete", leases + " node-n1", nodeLocks},
			{"get", "configmaps autohealer-ledger", namespace}, {"delete", "configmaps autohealer-ledger", namespace}, {"list", "configmaps", namespace},
			{"list", revisions, namespace}, {"delete", revisions + " r1", namespace},
		}, []request{
			{"watch", "nodes", ""}, {"update", "nodes n1", ""}, {"delete", "nodes n1", ""}, {"patch", "nodes/status n1", ""}, {"get", claims + " c1", ""}, {"delete", claims + " c1", ""}, {"list", pools, ""},
			{"patch", sets + " s1", ""}, {"create", sets, ""}, {"deletecollection", sets, ""}, {"delete", checks + " c1", ""}, {"patch", checks + "/status c1", ""}, {"list", rails, ""}, {"delete", rails + " cluster", ""},
			{"list", leases, ""}, {"delete", leases + " l1", "kube-node-lease"}, {"update", leases + " l1", namespace}, {"create", leases, nodeLocks},
			{"delete", "configmaps other", namespace}, {"list", "configmaps", ""}, {"list", "secrets", namespace}, {"list", "pods", namespace}, {"get", remedy + " n1", "default"}, {"*", "*.*", ""},
		}},
		"autohealer-crds": {[]request{
			{"get", crds + " " + sets, ""}, {"patch", crds + " " + sets, ""}, {"patch", crds + " " + checks, ""}, {"patch", crds + " " + policies, ""}, {"patch", crds + " " + rails, ""}, {"create", crds, ""},
		}, []request{
			{"get", crds + " " + pools, ""}, {"patch", crds + " " + pools, ""}, {"list", crds, ""}, {"update", crds + " " + sets, ""}, {"delete", crds + " " + sets, ""}, {"patch", crds + "/status " + sets, ""},
			{"list", sets, ""}, {"list", "nodes", ""}, {"get", "configmaps c1", namespace}, {"*", "*.*", ""},
		}},
	} {
		config := testkit.Value(c.ServiceAccountConfig(t.Context(), namespace, job)).Must(t)
		client := clientFor(t, config)
		awaitRights(t, client, true, rights.allowed...)
		mayExactly(t, client, nil, rights.forbidden)
	}
	c.kubectl(t, "delete", "--cascade=foreground", "-f", manifest) // no pod may stay
}

// mayExactly checks what a client may do and what not.
func mayExactly(t *testing.T, client kubernetes.Interface, allowed, forbidden []request) {
	t.Helper()
	for answer, requests := range map[bool][]request{true: allowed, false: forbidden} {
		for _, r := range requests {
			if may := mayDo(t, client, r); may != answer {
				t.Errorf("%s: allowed is %v, want %v", r, may, answer)
			}
		}
	}
}

// mayDo asks the API server whether a client may send a request.
func mayDo(t *testing.T, client kubernetes.Interface, r request) bool {
	t.Helper()
	review := testkit.Value(client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: r.attributes()},
	}, metav1.CreateOptions{})).Must(t)
	return review.Status.Allowed
}

// awaitRights waits until a client may send all of these requests, or none of them.
func awaitRights(t *testing.T, client kubernetes.Interface, may bool, requests ...request) {
	t.Helper()
	for _, r := range requests {
		testkit.Eventually(t, r.String(), func() error {
			if mayDo(t, client, r) != may {
				return fmt.Errorf("allowed is %v", !may)
			}
			return nil
		})
	}
}

// givesRightsToRestore grants the controller the rights for --restore-nodepool-schema, and
// withdraws them.
func (c cluster) givesRightsToRestore(t *testing.T) {
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), namespace, account)).Must(t)
	controller := clientFor(t, config)
	requests := []request{{"patch", pools + " p1", ""}, {"patch", crds + " " + pools, ""}}
	awaitRights(t, controller, false, requests...)
	c.kubectl(t, "apply", "--validate=strict", "-f", restoreRights)
	awaitRights(t, controller, true, requests...)
	for _, r := range forbidden {
		if may := mayDo(t, controller, r); may != slices.Contains(requests, r) {
			t.Errorf("%s: allowed is %v", r, may)
		}
	}
	c.kubectl(t, "delete", "-f", restoreRights)
	awaitRights(t, controller, false, requests...)
}

// givesRightsToUsers binds accounts to Kubernetes' own roles view and edit.
func (c cluster) givesRightsToUsers(t *testing.T) {
	var sees, changes []request
	for _, kind := range testkit.Value(deploy.CRDNames()).Must(t) {
		sees = append(sees, request{"list", kind, ""}, request{"get", kind + " a", ""})
		changes = append(changes, request{"create", kind, ""}, request{"patch", kind + " a", ""}, request{"delete", kind + " a", ""})
	}
	for role, mayChange := range map[string]bool{"view": false, "edit": true} {
		name := "user-with-" + role
		user := clientFor(t, testkit.Value(c.ServiceAccountConfig(t.Context(), metav1.NamespaceDefault, name)).Must(t))
		c.kubectl(t, "create", "clusterrolebinding", name, "--clusterrole="+role, "--serviceaccount=default:"+name)
		awaitRights(t, user, true, sees...)
		awaitRights(t, user, mayChange, changes...)
		c.kubectl(t, "delete", "clusterrolebinding", name)
	}
}

// gathersRights installs a remediator like those of medik8s, and removes it.
func (c cluster) gathersRights(t *testing.T) {
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), namespace, account)).Must(t)
	controller := clientFor(t, config)
	role := file(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: reboot-ext-remediation
  labels: {rbac.ext-remediation/aggregate-to-ext-remediation: "true"}
rules:
- {apiGroups: [example.com], resources: [rebootremediationtemplates], verbs: [get, list, watch]}
- {apiGroups: [example.com], resources: [rebootremediations], verbs: [get, list, watch, create, update, patch, delete]}
`)
	requests := []request{{"watch", template, ""}, {"create", remedy, "default"}, {"patch", remedy + " n1", "default"}, {"delete", remedy + " n1", "default"}}
	wait := func(may bool) {
		t.Helper()
		awaitRights(t, controller, may, requests...)
	}
	wait(false)
	c.kubectl(t, "apply", "-f", role)
	wait(true)
	if mayDo(t, controller, request{"update", template + " t1", "default"}) {
		t.Error("a template can be changed, which no role asks for")
	}
	// Installing again keeps the aggregated rights.
	rights := templates(t, "controller/rights")
	for _, args := range [][]string{{"diff", "-f", rights}, {"apply", "-f", rights}, {"apply", "--server-side", "-f", rights}} {
		if out, err := c.Kubectl(t.Context(), args...); err != nil || args[0] == "diff" && out != "" {
			t.Errorf("kubectl %v: %v\n%s", args, err, out)
		}
		for _, r := range requests {
			testkit.Check(t, mayDo(t, controller, r), "after kubectl %v: %s: no longer allowed", args, r)
		}
	}
	c.kubectl(t, "delete", "-f", role)
	wait(false)
}

// TestEveryRightIsUsed compares the rights with the requests of all test clusters. A right that no
// request has used could be removed.
func TestEveryRightIsUsed(t *testing.T) {
	sent := testkit.Value(testbed.SentRequests()).Must(t)
	if sent == nil {
		t.Skip("it compares the requests of all other tests: make rights")
	}
	count := 0
	for _, template := range []string{"controller/rights.yaml", "agent/rights.yaml", "cleanup.yaml", "crds.yaml"} {
		for _, text := range strings.Split(testkit.Value(helm(t, "", "template", "autohealer", "chart", "--namespace", namespace, "--show-only", "templates/"+template)).Must(t), "\n---\n") {
			var role rbacv1.ClusterRole // a Role has the same fields
			testkit.Must(t, yaml.Unmarshal([]byte(text), &role))
			if !strings.HasSuffix(role.Kind, "Role") || slices.Contains([]string{"autohealer-view", "autohealer-edit"}, role.Name) {
				continue // of users
			}
			program, _ := strings.CutSuffix(role.Name, "-events")
			for _, right := range singleRights(role.Rules) {
				count++
				if !isUsed(right, sent, program, role.Namespace) {
					t.Errorf("%s %s, namespace %q: no request has used %s of %s %v", role.Kind, role.Name, role.Namespace, right.Verbs[0], right.Resources[0], right.ResourceNames)
				}
			}
		}
	}
	testkit.Check(t, count > 50, "there are %d rights", count)
}

// singleRights splits rules into rules of one verb and one resource.
func singleRights(rules []rbacv1.PolicyRule) (rights []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				rights = append(rights, rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: rule.APIGroups, Resources: []string{resource}, ResourceNames: rule.ResourceNames})
			}
		}
	}
	return rights
}

// isUsed reports whether a request of the account needed the right. The namespace is that of a Role.
// A client that watches lists too: API servers before Kubernetes 1.34 do not send a list in a watch.
func isUsed(right rbacv1.PolicyRule, sent map[testbed.SentRequest]bool, account, in string) bool {
	verbs := right.Verbs
	if verbs[0] == "list" {
		verbs = []string{"list", "watch"}
	}
	for r := range sent {
		if r.Account == account && slices.Contains(verbs, r.Verb) && r.Resource == right.Resources[0] && r.Group == right.APIGroups[0] &&
			(in == "" || in == r.Namespace) && (right.ResourceNames == nil || slices.Contains(right.ResourceNames, r.ObjectName)) {
			return true
		}
	}
	return false
}
