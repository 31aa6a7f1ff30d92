package karpenter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// PodsPerNode is how many pods of a Deployment fit on a node of a pool.
const PodsPerNode = 2

// Startup says how the new nodes of a pool behave.
type Startup string

const (
	// StartsReady is the default: Ready within a second or two.
	StartsReady Startup = ""
	// StartsSilent is a machine whose kubelet never reports. The node has no Ready
	// condition until the controller manager sets Unknown.
	StartsSilent Startup = "Silent"
	// StartsUnready is a kubelet that always reports not ready.
	StartsUnready Startup = "Unready"
	// StartsTainted is a node that is Ready, with a startup taint that no component
	// removes.
	StartsTainted Startup = "Tainted"
)

// StartupTaint is the startup taint of nodes in a pool that does not start Ready. It keeps pods
// off these nodes from the beginning.
var StartupTaint = corev1.Taint{Key: "testbed.autohealer/starting", Effect: corev1.TaintEffectNoSchedule}

// Pool is a NodePool whose nodes have room for two pods each. Karpenter does not replace
// its nodes for being old, empty or underutilized.
type Pool struct {
	// Name of the NodePool, and of its node class.
	Name string
	// Startup says how its new nodes behave.
	Startup Startup
	// Labels and Annotations are set on its claims and nodes.
	Labels, Annotations map[string]string
	// Spec is merged over the spec of the NodePool: disruption.budgets, repair, and so on.
	// Objects are merged, all other values are replaced.
	Spec map[string]any
}

// Validate returns all problems of the pool.
func (p Pool) Validate() error {
	var errs []error
	if p.Name == "" {
		errs = append(errs, fmt.Errorf("%s is empty", "Name"))
	}
	if known := []Startup{StartsReady, StartsSilent, StartsUnready, StartsTainted}; !slices.Contains(known, p.Startup) {
		errs = append(errs, fmt.Errorf("%s: %q is not one of %q", "Startup", p.Startup, known))
	}
	return errors.Join(errs...)
}

// CreatePool creates a NodePool and its node class, and waits until Karpenter reports it as
// ready. Karpenter would look at earlier pods only ten seconds later.
func (k *Karpenter) CreatePool(ctx context.Context, pool Pool) error {
	if err := pool.Validate(); err != nil {
		return fmt.Errorf("making a pool: %w", err)
	}
	object, err := pool.object()
	if err != nil {
		return fmt.Errorf("making pool %s: %w", pool.Name, err)
	}
	class := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass",
		"metadata": map[string]any{"name": pool.Name},
	}}
	if _, err := k.dynamic.Resource(classesResource).Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating node class %s: %w", pool.Name, err)
	}
	if _, err := k.dynamic.Resource(PoolsResource).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making pool %s: %w", pool.Name, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, fmt.Errorf("not after %s", maxWait))
	defer cancel()
	return await(ctx, "pool "+pool.Name, func(ctx context.Context) error {
		made, err := k.dynamic.Resource(PoolsResource).Get(ctx, pool.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if Condition(made, "Ready").Status != metav1.ConditionTrue {
			return errors.New("Karpenter does not report it as ready")
		}
		return nil
	})
}

// Condition returns a condition of a pool or a claim, with an empty status if there is
// none.
func Condition(object *unstructured.Unstructured, kind string) metav1.Condition {
	var read struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read); err != nil {
		return metav1.Condition{}
	}
	for _, condition := range read.Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return metav1.Condition{}
}

func (p Pool) object() (*unstructured.Unstructured, error) {
	labels := map[string]string{}
	for key, value := range p.Labels {
		labels[key] = value
	}
	template := map[string]any{
		"nodeClassRef": map[string]any{"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": p.Name},
		"requirements": []any{
			map[string]any{"key": "karpenter.kwok.sh/instance-cpu", "operator": "In", "values": []any{"4"}},
			map[string]any{"key": "karpenter.sh/capacity-type", "operator": "In", "values": []any{"on-demand"}},
		},
		"expireAfter": "Never",
	}
	if p.Startup != StartsReady {
		// Karpenter's kwok provider creates a Node without conditions. Until the first one is
		// written, the node lifecycle controller removes the taint not-ready, and pods could start.
		template["startupTaints"] = []any{StartupTaint}
	}
	switch p.Startup {
	case StartsReady, StartsTainted:
	case StartsSilent:
		labels[testbed.SilentLabel] = "true"
	case StartsUnready:
		labels[testbed.UnreadyLabel] = "true"
	}
	// The conversion through JSON leaves only types that an unstructured object may hold.
	text, err := json.Marshal(map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodePool",
		"metadata": map[string]any{"name": p.Name},
		"spec": merge(map[string]any{
			"disruption": map[string]any{"consolidateAfter": "Never"},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels, "annotations": p.Annotations},
				"spec":     template,
			},
		}, p.Spec),
	})
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	return object, object.UnmarshalJSON(text)
}

// merge merges one object over another.
func merge(under, over map[string]any) map[string]any {
	for key, value := range over {
		below, isObject := under[key].(map[string]any)
		if above, ok := value.(map[string]any); ok && isObject {
			value = merge(below, above)
		}
		under[key] = value
	}
	return under
}

// Claims returns the NodeClaims of a pool.
func (k *Karpenter) Claims(ctx context.Context, pool string) ([]unstructured.Unstructured, error) {
	list, err := k.dynamic.Resource(ClaimsResource).List(ctx, metav1.ListOptions{LabelSelector: testbed.PoolLabel + "=" + pool})
	if err != nil {
		return nil, fmt.Errorf("listing the claims of pool %s: %w", pool, err)
	}
	return list.Items, nil
}

// Nodes returns the Nodes of a pool.
func (k *Karpenter) Nodes(ctx context.Context, pool string) ([]corev1.Node, error) {
	list, err := k.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: testbed.PoolLabel + "=" + pool})
	if err != nil {
		return nil, fmt.Errorf("listing the nodes of pool %s: %w", pool, err)
	}
	return list.Items, nil
}
