package testbed

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// FakeNodeAnnotation with the value FakeNodeValue marks the nodes whose kubelet kwok
	// simulates. CreateNodes sets it. kwok ignores a node without any label.
	FakeNodeAnnotation = "kwok.x-k8s.io/node"

	// FakeNodeValue is the value of FakeNodeAnnotation.
	FakeNodeValue = "fake"

	// SilentLabel makes kwok ignore a node; see Silence.
	SilentLabel = "testbed.autohealer/silent"

	// UnreadyLabel on a node makes its kubelet report not ready. A node that loses the
	// label stays so until its condition is set.
	UnreadyLabel = "testbed.autohealer/unready"
)

//go:embed stages.yaml
var kwokStages []byte

// kwokPart simulates the kubelets. The selector excludes silent nodes. A stage could not,
// because kwok renews the leases of all nodes that it manages.
func (c *Cluster) kwokPart(port *port) *Part {
	return c.part("kwok", prober{client: c.prober.client}.ok("http://"+port.address()+"/readyz"), c.cfg.Flags.Kwok,
		"--kubeconfig="+c.conf("kwok.kubeconfig"),
		"--config="+c.conf("stages.yaml"),
		"--manage-nodes-with-annotation-selector="+FakeNodeAnnotation+"="+FakeNodeValue,
		"--manage-nodes-with-label-selector=!"+SilentLabel,
		"--node-lease-duration-seconds=40", // the kubelet's default: renewed every ten seconds
		"--server-address="+port.address(),
		"--v=WARN", // otherwise it logs every renewed lease
	)
}

// Silence makes the kubelet of a node stop, as if the machine had lost power: no heartbeat,
// no lease, no pod started or removed. The controller manager sets the node's conditions to
// Unknown after the grace period. A pod that is already terminating is still removed.
func (c *Cluster) Silence(ctx context.Context, node string) error {
	if err := c.label(ctx, node, SilentLabel, new("true")); err != nil {
		return fmt.Errorf("silencing node %s: %w", node, err)
	}
	return nil
}

// Wake ends the silence of a node: it reports Ready again.
func (c *Cluster) Wake(ctx context.Context, node string) error {
	if err := c.label(ctx, node, SilentLabel, nil); err != nil {
		return fmt.Errorf("waking node %s: %w", node, err)
	}
	return nil
}

// label sets a label of a node, or removes it when value is nil.
func (c *Cluster) label(ctx context.Context, node, key string, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]*string{key: value}}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	return err
}

// allowKwok gives kwok's user the rights of kubelets, and no more.
func (c *Cluster) allowKwok(ctx context.Context) error {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: kwokUser},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"nodes/status", "pods/status"}, Verbs: []string{"patch"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "list", "watch", "create", "update"}},
		},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: kwokUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: kwokUser},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kwokUser}},
	}
	if _, err := c.client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating kwok's role: %w", err)
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding kwok's role: %w", err)
	}
	return nil
}
