package e2e

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// testNodePause pauses nodes with the annotation. The pause of one node ends, that of another
// cannot be read. A further node is cordoned, so it gets a taint and no remediation. A pod protects
// another node.
func testNodePause(w *scope) {
	nodes := w.checked(testbed.Nodes{Count: 9}, atMost("100%"))
	paused, unreadable, other, cordoned, protected := nodes[0], nodes[1], nodes[2], nodes[3], nodes[4]
	w.start(install.Options{})
	w.createGuardrails()
	w.createSet("disk")
	w.hasCheckStatus("check", counted(9, 9, 0))

	until := time.Now().Add(time.Hour)
	w.pause(paused, "until="+until.Format(time.RFC3339)+" by=anna reason=new disk")
	w.pause(unreadable, "tomorrow")
	w.cordon(cordoned, true)
	pod := w.protectingPod(protected)
	w.makeUnhealthy(nodes[:5])
	w.tries(other, "quick")
	w.has(other, noSchedule(w.key("disk")))
	w.has(cordoned, noSchedule(w.key("disk")), noSchedule(corev1.TaintNodeUnschedulable))
	stamp := until.UTC().Format(time.RFC3339)
	w.hasCheckStatus("check", counted(9, 4, 1), row(protected, "Vetoed", "respect.doNotDisrupt of Guardrails", "pod default/"+pod.Name), row(cordoned, "Vetoed", "respect.cordons of Guardrails"), row(paused, "NodePaused", "until "+stamp, "by anna", "new disk"), row(unreadable, "NodePaused", `"tomorrow": want until=`))
	w.hasStatus("disk", saysOf(paused, "NodePaused", "until "+stamp, "by anna", "new disk"))
	w.tellsOf(unreadable, "PauseUnreadable", `"tomorrow": want until=`)

	// The user shortens the pause. When it ends, the controller removes the annotation and starts what
	// is due.
	ends := time.Now().Add(3 * time.Second).Truncate(time.Second)
	w.pause(paused, "until="+ends.Format(time.RFC3339)+" by=anna")
	w.tries(paused, "quick")
	w.has(paused, noSchedule(w.key("disk")))
	w.eventually("the end of the pause", func() error {
		node, err := w.get(w.t.Context(), paused)
		if err == nil && node.Annotations[nodepause.Annotation] != "" {
			err = fmt.Errorf("the annotations are %v", node.Annotations)
		}
		return err
	})
	w.startedNothing(paused, ends)
	w.startedNothing(unreadable, time.Now())

	testkit.Must(w.t, w.triesNow(cordoned))
	w.cordon(cordoned, false)
	w.tries(cordoned, "quick")

	testkit.Must(w.t, w.triesNow(protected))
	testkit.Must(w.t, w.api.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0)))
	w.tries(protected, "quick")
}

// protectingPod runs a pod on a node that asks not to be disrupted.
func (w *scope) protectingPod(node string) *corev1.Pod {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}
	testkit.Must(w.t, client.IgnoreAlreadyExists(w.api.Create(w.t.Context(), account)))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: w.name + "-pod", Annotations: map[string]string{"karpenter.sh/do-not-disrupt": "true"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}},
	}
	testkit.Must(w.t, w.api.Create(w.t.Context(), pod))
	return pod
}

// cordon closes a node to new pods as kubectl cordon does, or opens it.
func (w *scope) cordon(node string, is bool) {
	w.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, is))
	testkit.Must(w.t, w.api.Patch(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch))
}

// pause writes the annotation of a node.
func (w *scope) pause(node, value string) {
	w.t.Helper()
	w.mark(node, fmt.Sprintf(`{"annotations":{%q:%q}}`, nodepause.Annotation, value))
}

// startedNothing checks in the recording that the controller placed no taint on a node and made
// no remediation for it before a time.
func (w *scope) startedNothing(node string, before time.Time) {
	w.t.Helper()
	for _, change := range w.recording() {
		annotations := change.Object.GetAnnotations()
		isStep := annotations[remediation.NodeNameAnnotation] == node ||
			change.GVR == testbed.NodesResource && change.Name == node && strings.Contains(annotations[recordAnnotation], w.key("disk"))
		if isStep && change.Time.Before(before) {
			w.t.Errorf("%s: %s %s has begun, although %s was paused", change.Time.Format(time.StampMilli), change.GVR.Resource, change.Name, node)
		}
	}
}
