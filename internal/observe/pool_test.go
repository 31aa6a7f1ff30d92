package observe_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// Providers replace nodes within a pool, and each has its own label for it.
func TestPoolOf(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"":                                   {"pool": "blue"},
		"blue":                               {karpenter.NodePoolLabel: "blue", "eks.amazonaws.com/nodegroup": "red"},
		"eks.amazonaws.com/nodegroup=blue":   {"eks.amazonaws.com/nodegroup": "blue"},
		"cloud.google.com/gke-nodepool=blue": {"cloud.google.com/gke-nodepool": "blue"},
	} {
		testkit.Same(t, observe.PoolOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}), want, "the pool of %v", labels)
	}
}
