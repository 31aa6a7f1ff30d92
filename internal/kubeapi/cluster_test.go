package kubeapi_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestRealAPIServer(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	clients, err := kubernetes.NewForConfig(cluster.AdminConfig())
	testkit.Must(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"gpu": "true"}}}
	if _, err := clients.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	asked := func(access kubeapi.Access) error {
		t.Helper()
		node, err := client(t, access).NodeMetadata(t.Context(), "node-1")
		testkit.Check(t, err != nil || node.Labels["gpu"] == "true", "the labels are %v", node.Labels)
		return err
	}
	code := func(err error) int {
		var status *kubeapi.StatusError
		if errors.As(err, &status) {
			return status.Code
		}
		return 0
	}

	access, err := kubeapi.Find(cluster.Kubeconfig(), "", os.Getenv)
	testkit.Must(t, err)
	if err := asked(access); err != nil {
		t.Errorf("with a kubeconfig: %v", err)
	}
	if _, err := client(t, access).NodeMetadata(t.Context(), "node-2"); code(err) != http.StatusNotFound {
		t.Errorf("a missing node: %v", err)
	}

	// As an agent in a DaemonSet, with the one permission that it needs.
	config, err := cluster.ServiceAccountConfig(t.Context(), "default", "agent", testbed.WithNode("node-1"))
	testkit.Must(t, err)
	access = kubeapi.Access{Server: config.Host, CA: config.CAData, CAFile: config.CAFile, TokenFile: filepath.Join(t.TempDir(), "token")}
	put(t, access.TokenFile, []byte(config.BearerToken))
	if err := asked(access); code(err) != http.StatusForbidden {
		t.Errorf("without permission: %v", err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}}}
	if _, err := clients.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "agent"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "agent"}},
	}
	if _, err := clients.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The authorizer sees a new permission with a delay.
	for err = asked(access); code(err) == http.StatusForbidden && t.Context().Err() == nil; {
		err = asked(access)
	}
	testkit.Check(t, err == nil, "with a service account: %v", err)
}
