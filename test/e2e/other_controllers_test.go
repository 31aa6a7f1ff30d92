package e2e

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// Another client changes the same nodes throughout, in every possible way. For every kind
// of patch the API server replaces the whole list of taints. A patch without a
// resourceVersion removes our taint, and the controller must place it again.
func testOtherController(w *scope) {
	const count, kubectl = 100, 6
	theirs := corev1.Taint{Key: "other.example.com/reserved", Effect: corev1.TaintEffectNoSchedule, Value: "yes"}
	isTheirs := func(t corev1.Taint) bool { return t.Key == theirs.Key }
	storm := w.createNodes(testbed.Nodes{Count: count, Labels: map[string]string{"pool": "storm"}})
	// kubectl writes the list that it read a moment before. If our taint changed in
	// between, kubectl restores the old taint, which then belongs to kubectl. So these
	// nodes have a taint of ours that is placed once and does not change.
	handled := w.createNodes(testbed.Nodes{Count: kubectl, First: count + 1, Labels: map[string]string{"pool": "kubectl"}})
	pool := func(name string) func(*v1alpha1.ConditionSetSpec) {
		return func(s *v1alpha1.ConditionSetSpec) { s.Selector.MatchLabels["pool"] = name }
	}
	w.createSet("set", evict(almostHalf), pool("storm"))
	w.createSet("weak", pool("kubectl"))
	w.start(install.Options{Args: []string{alone}})
	patch := func(ctx context.Context, name string, kind types.PatchType, version string, taints []corev1.Taint) error {
		body := map[string]any{"spec": map[string]any{"taints": taints}}
		if version != "" {
			body["metadata"] = map[string]any{"resourceVersion": version}
		}
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return w.api.Patch(ctx, node, client.RawPatch(kind, text))
	}
	// by makes a change in one of several ways.
	by := func(i int, blind []corev1.Taint, change func([]corev1.Taint) []corev1.Taint) func(ctx context.Context, node string) error {
		ways := []func(ctx context.Context, node string) error{
			func(ctx context.Context, node string) error {
				return patch(ctx, node, types.StrategicMergePatchType, "", blind)
			},
			func(ctx context.Context, node string) error { return patch(ctx, node, types.MergePatchType, "", blind) },
			func(ctx context.Context, node string) error {
				return w.rewrite(ctx, node, func(n *corev1.Node) { n.Spec.Taints = change(n.Spec.Taints) })
			},
			func(ctx context.Context, node string) error {
				for {
					found, err := w.get(ctx, node)
					if err != nil {
						return err
					}
					kind := []types.PatchType{types.MergePatchType, types.StrategicMergePatchType}[i%2]
					if err := patch(ctx, node, kind, found.ResourceVersion, change(found.Spec.Taints)); !apierrors.IsConflict(err) {
						return err
					}
				}
			},
		}
		return ways[i/2%len(ways)]
	}
	fallen := w.meanwhile(func() error { return w.turn(append(handled, storm...), corev1.ConditionTrue) })
	for _, node := range handled {
		testkit.Value(w.Kubectl(w.t.Context(), "taint", "node", node, theirs.ToString())).Must(w.t)
	}
	testkit.Must(w.t, w.everywhere(storm, func(ctx context.Context, i int, node string) error {
		return by(i, []corev1.Taint{theirs}, func(taints []corev1.Taint) []corev1.Taint { return append(taints, theirs) })(ctx, node)
	}))
	fallen()
	w.counts(w.key("set"), 49, 51)
	w.counts(w.key("weak"), 0, kubectl)
	w.counts(theirs.Key, 0, count+kubectl)

	recovered := w.meanwhile(func() error { return w.turn(storm, corev1.ConditionFalse) })
	testkit.Must(w.t, w.everywhere(storm, func(ctx context.Context, i int, node string) error {
		return by(i, nil, func(taints []corev1.Taint) []corev1.Taint { return slices.DeleteFunc(slices.Clone(taints), isTheirs) })(ctx, node)
	}))
	for _, node := range handled {
		testkit.Value(w.Kubectl(w.t.Context(), "taint", "node", node, theirs.ToString()+"-")).Must(w.t)
	}
	recovered()
	w.counts(w.key("set"), 0, 0)
	w.counts(w.key("weak"), 0, kubectl)
	w.counts(theirs.Key, 0, 0)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 49, Fallbacks: 51, Removals: count / 2})
}
