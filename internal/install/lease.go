package install

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// Elected returns the flags of a controller that takes part in the leader election. Its
// lease is long, because a leader with a short lease loses it on a busy machine, and
// nothing restarts it there. ExpireLease ends the lease of a leader that a test kills or
// pauses.
func Elected() []string {
	return []string{"--leader-elect-lease-duration=30s", "--leader-elect-renew-deadline=20s", "--leader-elect-retry-period=500ms"}
}

// ExpireLease shortens the lease of the leader to a second, so that another replica takes
// over if the leader does not renew it.
func ExpireLease(ctx context.Context, c *testbed.Cluster) error {
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return err
	}
	_, err = admin.CoordinationV1().Leases(Namespace).Patch(ctx, Account, types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
