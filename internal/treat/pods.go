package treat

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// doNotDisrupt are annotations with which a pod protects its node, if their value is "true".
var doNotDisrupt = [...]string{"karpenter.sh/do-not-disrupt", "autohealer.resourcestack.com/do-not-disrupt"}

// podsAtOnce limits the size of an answer. A kubelet runs 110 pods by default.
const podsAtOnce = 250

// ProtectingPod returns the first pod on a node that protects the node from treatments, and its
// annotation. Both are empty for none. Pods that have ended or are being deleted do not count: the
// eviction from an unreachable node marks its pods as deleted. It reads metadata from the API server,
// because the controller does not watch pods.
func (w *Writer) ProtectingPod(ctx context.Context, node string) (pod, annotation string, err error) {
	pods := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	onNode := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", node),
		fields.OneTermNotEqualSelector("status.phase", "Succeeded"), fields.OneTermNotEqualSelector("status.phase", "Failed"),
	)}
	for {
		if err := w.client.List(ctx, pods, onNode, client.Limit(podsAtOnce), client.Continue(pods.Continue)); err != nil {
			return "", "", fmt.Errorf("listing the pods of node %s: %w", node, err)
		}
		for _, p := range pods.Items {
			for _, key := range doNotDisrupt {
				if p.Annotations[key] == "true" && p.DeletionTimestamp == nil {
					return p.Namespace + "/" + p.Name, key, nil
				}
			}
		}
		if pods.Continue == "" {
			return "", "", nil
		}
	}
}
