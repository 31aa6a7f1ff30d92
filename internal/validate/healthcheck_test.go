package validate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	autohealer "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// soundHealth checks what must hold for every verdict on a health check.
func soundHealth(tb rapid.TB, c validate.HealthCase) validate.Verdict {
	tb.Helper()
	v := validate.HealthCheck(c)
	if diff := cmp.Diff(v, validate.HealthCheck(c)); diff != "" {
		tb.Fatalf("the second verdict is another (-first +second):\n%s", diff)
	}
	for _, p := range v.Problems {
		if !slices.Contains([]validate.Reason{validate.Invalid, validate.HealthyStatus, validate.SameKind, validate.Remediating}, p.Reason) {
			tb.Fatalf("a health check is refused for %s", p.Reason)
		}
	}
	speaks(tb, v)
	// The current nodes are never a reason to reject.
	blind := c
	blind.Reported, blind.Survey = nil, nil
	if diff := cmp.Diff(reasons(v), reasons(validate.HealthCheck(blind))); diff != "" {
		tb.Fatalf("the verdict differs without knowledge of the nodes (-known +unknown):\n%s", diff)
	}
	// A stored health check can be paused regardless of its problems.
	paused := c
	paused.Check, paused.Stored = c.Check.DeepCopy(), c.Check
	if paused.Check.Spec.Unreadable == "" {
		paused.Check.Spec.PauseRequests = append(paused.Check.Spec.PauseRequests, "stop")
		if err := validate.HealthCheck(paused).Err(); err != nil {
			tb.Fatalf("it cannot be paused: %v", err)
		}
	}
	return v
}

func drawReference(t *rapid.T, spoiled bool) corev1.ObjectReference {
	ref := corev1.ObjectReference{
		APIVersion: "example.com/v1", Namespace: "default",
		Kind: rapid.SampledFrom([]string{"ARemediationTemplate", "BRemediationTemplate"}).Draw(t, "kind"),
		Name: rapid.SampledFrom([]string{"one", "two", "three", "absent"}).Draw(t, "template"),
	}
	if spoiled && rapid.IntRange(0, 3).Draw(t, "bad reference") == 0 {
		ref.Kind = "Template"
	}
	return ref
}

// drawCheck returns a health check that mostly compiles, unless it is spoiled.
func drawCheck(t *rapid.T, name string, spoiled bool) *v1alpha1.NodeHealthCheck {
	check := &v1alpha1.NodeHealthCheck{ObjectMeta: metav1.ObjectMeta{Name: name}}
	spec := &check.Spec
	if rapid.Bool().Draw(t, "escalates") {
		for i := range rapid.IntRange(1, 3).Draw(t, "steps") {
			spec.EscalatingRemediations = append(spec.EscalatingRemediations, v1alpha1.EscalatingRemediation{
				RemediationTemplate: drawReference(t, spoiled), Order: int64(i), Timeout: "10m",
			})
		}
	} else {
		spec.RemediationTemplate = new(drawReference(t, spoiled))
	}
	if rapid.Bool().Draw(t, "signs") {
		types := append(slices.Clone(someTypes), "Ready", "odd\nname")
		for range rapid.IntRange(1, 2).Draw(t, "conditions") {
			spec.UnhealthyConditions = append(spec.UnhealthyConditions, v1alpha1.UnhealthyCondition{
				Type:     corev1.NodeConditionType(rapid.SampledFrom(types).Draw(t, "condition")),
				Status:   rapid.SampledFrom([]corev1.ConditionStatus{"False", "True", "Unknown"}).Draw(t, "status"),
				Duration: rapid.SampledFrom([]string{"5m", "1s"}).Draw(t, "duration"),
			})
		}
	}
	bounds := someBounds[:5]
	if spoiled {
		bounds = someBounds
	}
	if rapid.Bool().Draw(t, "bounded") {
		bound := new(rapid.SampledFrom(append(slices.Clone(bounds), intstr.FromString("0%"))).Draw(t, "bound"))
		if rapid.Bool().Draw(t, "from the other side") {
			spec.MinHealthy = bound
		} else {
			spec.MaxUnhealthy = bound
		}
	}
	if rapid.Bool().Draw(t, "selects") {
		spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "pool")}}
	}
	if rapid.IntRange(0, 3).Draw(t, "annotated") == 0 {
		check.Annotations = map[string]string{autohealer.AcceptImpactAnnotation: rapid.SampledFrom([]string{"true", "yes"}).Draw(t, "accept")}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "unhealthy") {
		node := v1alpha1.UnhealthyNode{Name: fmt.Sprint("n", i)}
		for j := range rapid.IntRange(0, 2).Draw(t, "remediations") {
			node.Remediations = append(node.Remediations, v1alpha1.Remediation{Resource: corev1.ObjectReference{Name: fmt.Sprintf("r%d-%d", i, j)}})
		}
		check.Status.UnhealthyNodes = append(check.Status.UnhealthyNodes, node)
	}
	if spoiled && rapid.IntRange(0, 4).Draw(t, "unreadable") == 0 {
		check.Spec = v1alpha1.NodeHealthCheckSpec{Unreadable: "it is torn"}
	}
	return check
}

// readsTemplates finds three templates; one of them allows several of its kind.
func readsTemplates(template remediation.Template) (*unstructured.Unstructured, error) {
	if template.Name == "absent" {
		return nil, errors.New("it is not there")
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
	object.SetGroupVersionKind(template.GroupVersionKind)
	object.SetNamespace(template.Namespace)
	object.SetName(template.Name)
	if template.Kind == "ARemediationTemplate" && template.Name != "three" {
		object.SetAnnotations(map[string]string{remediation.MultipleTemplatesAnnotation: "true"})
	}
	return object, nil
}

func TestHealthVerdictsAreSound(t *testing.T) {
	saw := map[string]int{}
	often(t, func(t *rapid.T) {
		nodes := drawCluster(t)
		c := validate.HealthCase{Check: drawCheck(t, "mine", rapid.IntRange(0, 3).Draw(t, "spoiled") == 0), Template: readsTemplates}
		if rapid.Bool().Draw(t, "stored") {
			c.Stored = drawCheck(t, "mine", rapid.IntRange(0, 3).Draw(t, "spoiled") == 0)
			if rapid.Bool().Draw(t, "small change") {
				c.Stored = c.Check.DeepCopy()
				c.Stored.Spec.MaxUnhealthy, c.Stored.Spec.MinHealthy = new(intstr.FromInt32(7)), nil
			}
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "others") {
			c.Others = append(c.Others, drawCheck(t, fmt.Sprint("other", i), rapid.Bool().Draw(t, "spoiled")))
		}
		gone := rapid.Bool().Draw(t, "gone")
		if rapid.Bool().Draw(t, "looks") {
			c.UnderWay = func(corev1.ObjectReference) bool { return !gone }
		}
		c.Reported, c.Survey = nodes.reported(), nodes.survey
		v := soundHealth(t, c)
		for _, reason := range reasons(v) {
			saw[string(reason)]++
		}
		for _, w := range validate.Lines(v.Warnings) {
			for _, part := range []string{"will remediate", "nothing is begun until no more", "nothing is ever begun", "is no limit", "no node has these labels", "of the control plane", "other templates", "could not be read", "cut off", "did you mean", "starts anew"} {
				if strings.Contains(w, part) {
					saw[part]++
				}
			}
		}
		under := c.Stored != nil && slices.ContainsFunc(c.Stored.Status.UnhealthyNodes, func(n v1alpha1.UnhealthyNode) bool { return len(n.Remediations) > 0 }) && (c.UnderWay == nil || !gone)
		if slices.Contains(reasons(v), validate.Remediating) && (!under || c.Check.Annotations[autohealer.AcceptImpactAnnotation] == "true") {
			t.Fatalf("nothing is under way, or it was accepted: %v", v.Err())
		}
		if c.Stored == nil {
			return
		}
		refused := validate.HealthCheckDeletion(c.Stored, c.UnderWay).Err() != nil
		if want := under && c.Stored.Annotations[autohealer.AcceptImpactAnnotation] != "true"; refused != want {
			t.Fatalf("its deletion is refused: %v, want %v", refused, want)
		}
		if refused {
			saw["deletions refused"]++
		} else {
			saw["deletions let through"]++
		}
		if restricted := c.Check.DeepCopy(); under && len(v.Problems) == 0 && restricted.Annotations == nil && c.Check.Spec.PauseRequests == nil {
			if !cmp.Equal(restricted.Spec.Selector, c.Stored.Spec.Selector) {
				t.Fatalf("the selector was changed from %v to %v during a remediation", c.Stored.Spec.Selector, restricted.Spec.Selector)
			}
			saw["small changes during a remediation"]++
		}
	})
	t.Logf("saw %v", saw)
	for _, what := range []string{
		"Invalid", "HealthyStatus", "SameKind", "Remediating", "deletions refused", "deletions let through", "small changes during a remediation",
		"will remediate", "nothing is begun until no more", "nothing is ever begun", "is no limit", "no node has these labels", "of the control plane", "other templates", "could not be read", "cut off", "did you mean", "starts anew",
	} {
		testkit.Check(t, saw[what] != 0, "never saw %q: the draw is too tame", what)
	}
}

// A survey of ten thousand nodes takes a while, and the request waits. There must be only
// one per verdict. Remediations are read until one is found in progress.
func TestNumberOfReadsPerHealthCheck(t *testing.T) {
	nodes := cluster{}
	testkit.Must(t, nodes.add("worker", 4, []string{"Ready:False", "pool=a"}))
	check := func(name, template, pool string) *v1alpha1.NodeHealthCheck {
		c := &v1alpha1.NodeHealthCheck{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.RemediationTemplate = &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "ARemediationTemplate", Namespace: "default", Name: template}
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}
		return c
	}
	stored := check("mine", "two", "b")
	for i := range 200 {
		stored.Status.UnhealthyNodes = append(stored.Status.UnhealthyNodes, v1alpha1.UnhealthyNode{
			Name: fmt.Sprint("n", i), Remediations: []v1alpha1.Remediation{{Resource: corev1.ObjectReference{Name: fmt.Sprint("r", i)}}},
		})
	}
	var surveys, templates, looks int
	c := validate.HealthCase{
		Check: check("mine", "one", "a"), Stored: stored, Others: []*v1alpha1.NodeHealthCheck{check("x", "two", "a"), check("y", "three", "a")},
		Reported: nodes.reported(),
		Template: func(template remediation.Template) (*unstructured.Unstructured, error) {
			templates++
			return readsTemplates(template)
		},
		UnderWay: func(ref corev1.ObjectReference) bool {
			looks++
			return ref.Name == "r2"
		},
	}
	c.Survey = func(rule triage.Rule, others ...triage.Selector) (triage.Survey, error) {
		surveys++
		return nodes.survey(rule, others...)
	}
	v := validate.HealthCheck(c)
	if surveys != 1 || templates != 1 || looks != 3 {
		t.Errorf("%d surveys, %d templates and %d remediations looked at", surveys, templates, looks)
	}
	testkit.Fails(t, v.Err(), "remediations of 198 nodes are under way (n2, n3, n4, n5, n6 and 193 more)") // refused as
}

// Every stored health check gets a verdict.
func FuzzHealthCheck(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a"},"spec":{"remediationTemplate":{"apiVersion":"a/v1","kind":"ATemplate","name":"a"}}}`), []byte(`{}`))
	f.Add([]byte(`{"metadata":{"generateName":"a"},"spec":{"minHealthy":"51%","unhealthyConditions":[{"type":"Ready","status":"True","duration":"1s"},{"type":"\n","status":"True","duration":"1s"}],"escalatingRemediations":[{"order":1,"timeout":"1m","remediationTemplate":{"apiVersion":"a/v1","kind":"ATemplate","name":"a"}},{"order":2,"timeout":"1m","remediationTemplate":{"apiVersion":"a/v1","kind":"ATemplate","name":"absent"}}]}}`),
		[]byte(`{"metadata":{"name":"b"},"spec":{"selector":{"matchLabels":{"pool":"a"}},"remediationTemplate":{"apiVersion":"a/v1","kind":"ATemplate","name":"a"}},"status":{"unhealthyNodes":[{"name":"n","remediations":[{"resource":{"name":"x"}}]}]}}`))
	f.Add([]byte(`{"spec":{"maxUnhealthy":{},"selector":7}}`), []byte(`{"status":{"unhealthyNodes":{}}}`))
	f.Fuzz(func(t *testing.T, one, other []byte) {
		read := func(data []byte) *v1alpha1.NodeHealthCheck {
			check := &v1alpha1.NodeHealthCheck{}
			if json.Unmarshal(data, check) != nil {
				t.Skip("not even an object")
			}
			return check
		}
		nodes := cluster{}
		testkit.Must(t, nodes.add("n", 3, []string{"pool=a", "Ready:True", "OutOfDisk:False", "A:Unknown"}))
		c := validate.HealthCase{
			Check: read(one), Others: []*v1alpha1.NodeHealthCheck{read(other)},
			Reported: nodes.reported(), Survey: nodes.survey, Template: readsTemplates,
		}
		soundHealth(t, c)
		c.Stored = read(other)
		soundHealth(t, c)
		validate.HealthCheckDeletion(c.Stored, nil)
	})
}

// The well-known samples and the examples are accepted.
func TestKnownHealthChecksAreAccepted(t *testing.T) {
	nodes := cluster{}
	testkit.Must(t, nodes.add("n", 5, []string{"Ready:True"}))
	read := 0
	for _, path := range []string{
		"../../api/remediation/v1alpha1/testdata/seed.yaml", "../../api/remediation/v1alpha1/testdata/medik8s.yaml",
		"../../examples/node-health-check.yaml", "../../examples/node-health-check-baremetal.yaml",
	} {
		for _, check := range documents[v1alpha1.NodeHealthCheck](t, path) {
			read++
			v := soundHealth(t, validate.HealthCase{Check: check, Reported: nodes.reported(), Survey: nodes.survey})
			if v.Err() != nil {
				t.Errorf("%s: %v", path, v.Err())
			}
			if len(v.Warnings) > 0 {
				t.Logf("%s: %q", path, v.Warnings)
			}
		}
	}
	testkit.Check(t, read >= 5, "%d health checks: this test looks at nothing", read)
}
