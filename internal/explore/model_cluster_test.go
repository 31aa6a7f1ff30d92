package explore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// call is a request to the API server. Versions and UIDs are those that the side has seen:
// current, stale or none.
type call struct {
	Verb, Kind   string
	Version, UID string
	Value        int
	Finalizer    bool
}

const (
	none    = ""
	current = "current"
	stale   = "stale"
)

// side is the model or the real API server, with what it has answered.
type side struct {
	api      client.Client
	name     string
	versions map[string][]string  // by kind, oldest first
	uids     map[string]types.UID // by kind
}

func newSide(api client.Client, name string) *side {
	return &side{api: api, name: name, versions: map[string][]string{}, uids: map[string]types.UID{}}
}

// object returns an object of a kind with content.
func (s *side) object(c call) client.Object {
	var object client.Object
	switch c.Kind {
	case "Node":
		// An admission plugin of the API server adds this taint to new nodes.
		object = &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}}}
	case "ConfigMap":
		object = &corev1.ConfigMap{}
	case "Lease":
		object = &coordinationv1.Lease{}
	default:
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		u.SetGroupVersionKind(remediator.Kind)
		object = u
	}
	object.SetName(s.name)
	if c.Kind != "Node" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	object.SetAnnotations(map[string]string{"example.com/value": strconv.Itoa(c.Value)})
	if c.Finalizer {
		object.SetFinalizers([]string{"example.com/keep"})
	}
	return object
}

// version returns a version as a call names it.
func (s *side) version(c call) string {
	known := s.versions[c.Kind]
	switch {
	case c.Version == none:
		return ""
	case c.Version == stale && len(known) > 1:
		return known[len(known)-2]
	case c.Version == stale || len(known) == 0:
		return "1"
	}
	return known[len(known)-1]
}

func (s *side) uid(c call) types.UID {
	if c.UID == stale {
		return "00000000-0000-0000-0000-000000000000"
	}
	if c.UID == current {
		return s.uids[c.Kind]
	}
	return ""
}

// do sends a call and describes the answer, without versions and UIDs.
func (s *side) do(t *rapid.T, c call) string {
	object := s.object(c)
	err := s.send(t, c, object)
	if err != nil {
		return string(apierrors.ReasonForError(err))
	}
	return s.look(t, c)
}

func (s *side) send(t *rapid.T, c call, object client.Object) error {
	ctx := t.Context()
	switch c.Verb {
	case "create":
		return s.api.Create(ctx, object)
	case "update":
		object.SetResourceVersion(s.version(c))
		object.SetUID(s.uid(c))
		return s.api.Update(ctx, object)
	case "patch":
		return s.api.Patch(ctx, object, client.RawPatch(types.MergePatchType, s.patch(t, c)))
	case "delete":
		var only client.Preconditions
		if version := s.version(c); version != "" {
			only.ResourceVersion = &version
		}
		if uid := s.uid(c); uid != "" {
			only.UID = &uid
		}
		return s.api.Delete(ctx, object, only)
	}
	return s.api.Get(ctx, client.ObjectKeyFromObject(object), object)
}

// patch returns a patch of annotations, and of the taints of a node. Value 0 removes both.
func (s *side) patch(t *rapid.T, c call) []byte {
	metadata := map[string]any{"annotations": map[string]any{"example.com/value": nil}}
	body := map[string]any{"metadata": metadata}
	if c.Value > 0 {
		metadata["annotations"] = map[string]any{"example.com/value": strconv.Itoa(c.Value)}
	}
	if c.Kind == "Node" {
		taints := []corev1.Taint{{Key: "example.com/taint", Value: strconv.Itoa(c.Value), Effect: corev1.TaintEffectNoExecute}}
		body["spec"] = map[string]any{"taints": taints[:min(c.Value, 1)]}
		if c.Value == 0 {
			body["spec"] = map[string]any{"taints": nil}
		}
	}
	if c.Finalizer { // the model takes the general way for this patch
		metadata["labels"] = map[string]any{"example.com/label": strconv.Itoa(c.Value)}
	}
	if version := s.version(c); version != "" {
		metadata["resourceVersion"] = version
	}
	if uid := s.uid(c); uid != "" {
		metadata["uid"] = uid
	}
	text, err := json.Marshal(body)
	testkit.Must(t, err)
	return text
}

// look describes the stored object: whether it is new, its content, and whether it has a new
// version.
func (s *side) look(t *rapid.T, c call) string {
	object := s.object(c)
	if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		return string(apierrors.ReasonForError(err))
	}
	known := s.versions[c.Kind]
	isNewVersion := len(known) == 0 || known[len(known)-1] != object.GetResourceVersion()
	if isNewVersion {
		s.versions[c.Kind] = append(known, object.GetResourceVersion())
	}
	isNew := s.uids[c.Kind] != object.GetUID()
	s.uids[c.Kind] = object.GetUID()
	taints := ""
	if node, is := object.(*corev1.Node); is {
		taints = fmt.Sprint(node.Spec.Taints)
	}
	return fmt.Sprintf("new %t, new version %t, deleting %t, finalizers %v, annotations %v, labels %v, taints %s", isNew, isNewVersion,
		object.GetDeletionTimestamp() != nil, object.GetFinalizers(), object.GetAnnotations()["example.com/value"], object.GetLabels()["example.com/label"], taints)
}

// Random calls get the same answers from the model and from a real API server.
func TestTheModelAnswersAsTheAPIServer(t *testing.T) {
	server := testbed.New(t, testbed.Config{})
	testkit.Must(t, remediator.Install(t.Context(), server))
	api := testkit.Value(client.New(server.AdminConfig(), client.Options{})).Must(t)
	references := []string{current, stale, none}
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		name := "object-" + strconv.Itoa(runs)
		ofModel, ofServer := newSide(&modelClient{cluster: modelOnly()}, name), newSide(api, name)
		var calls []string
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			next := call{
				Verb:    rapid.SampledFrom([]string{"create", "create", "update", "patch", "patch", "delete", "get"}).Draw(t, "verb"),
				Kind:    rapid.SampledFrom([]string{"Node", "ConfigMap", "Lease", remediator.Kind.Kind}).Draw(t, "kind"),
				Version: rapid.SampledFrom(references).Draw(t, "version"), UID: rapid.SampledFrom(references).Draw(t, "uid"),
				Value: rapid.IntRange(0, 2).Draw(t, "value"), Finalizer: rapid.IntRange(0, 3).Draw(t, "finalizer") == 0,
			}
			calls = append(calls, fmt.Sprintf("%+v", next))
			want, got := ofServer.do(t, next), ofModel.do(t, next)
			if want != got {
				t.Fatalf("after\n%s\nthe API server answers %q, the model %q", strings.Join(calls, "\n"), want, got)
			}
		}
	})
}

// modelOnly returns a cluster without replicas, whose writes are answered at once.
func modelOnly() *cluster { return &cluster{model: newModel(func(change) {})} }
