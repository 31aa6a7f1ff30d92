package treat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldManager is the field manager of every write.
const FieldManager = "autohealer-controller"

// Writer writes to the API server.
type Writer struct {
	client client.Client
}

// NewWriter returns a writer. The client must not read from a cache.
func NewWriter(c client.Client) *Writer { return &Writer{client: c} }

// Apply writes a change and returns the node's new resourceVersion. Classify says what an
// error means for the change.
func (w *Writer) Apply(ctx context.Context, c *Change) (resourceVersion string, err error) {
	patch, err := c.patch()
	if err != nil {
		return "", fmt.Errorf("encoding the change of node %s: %w", c.Node.Name, err)
	}
	// Only the metadata are returned, because a node is large.
	answer := &metav1.PartialObjectMetadata{TypeMeta: nodeKind, ObjectMeta: metav1.ObjectMeta{Name: c.Node.Name}}
	err = w.client.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager))
	if err != nil {
		return "", fmt.Errorf("patching node %s: %w", c.Node.Name, err)
	}
	return answer.ResourceVersion, nil
}

// Fetch reads a node from the API server, not from a cache.
func (w *Writer) Fetch(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := w.client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return node, nil
}

// IsStill reports whether a node still has this version, by a read from the API server. It
// reads metadata only, which costs two thirds of a read of the node.
func (w *Writer) IsStill(ctx context.Context, node *corev1.Node) (bool, error) {
	now := &metav1.PartialObjectMetadata{TypeMeta: nodeKind}
	if err := w.client.Get(ctx, client.ObjectKey{Name: node.Name}, now); err != nil {
		return false, fmt.Errorf("looking at node %s: %w", node.Name, err)
	}
	return now.UID == node.UID && now.ResourceVersion == node.ResourceVersion, nil
}

// StatusOf returns a function that replaces the whole status of this object and returns the new
// resourceVersion. It fails if another object has the name now. A merge patch would keep fields that
// another program wrote and this one does not know.
func StatusOf[S any](w *Writer, kind metav1.TypeMeta, uid types.UID) func(ctx context.Context, name string, status S) (resourceVersion string, err error) {
	return func(ctx context.Context, name string, status S) (string, error) {
		return w.patchStatus(ctx, kind, name, test("/metadata/uid", uid), add("/status", status))
	}
}

// patchStatus changes the status of an object. Only the metadata are returned, because a status may
// be large.
func (w *Writer) patchStatus(ctx context.Context, kind metav1.TypeMeta, name string, operations ...operation) (resourceVersion string, err error) {
	patch, err := json.Marshal(operations)
	if err != nil {
		return "", fmt.Errorf("encoding the status of %s %s: %w", kind.Kind, name, err)
	}
	answer := &metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Name: name}}
	err = w.client.Status().Patch(ctx, answer, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(FieldManager))
	if err != nil {
		return "", fmt.Errorf("writing the status of %s %s: %w", kind.Kind, name, err)
	}
	return answer.ResourceVersion, nil
}

// operation is an operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func add(path string, value any) operation  { return operation{"add", path, value} }
func test(path string, value any) operation { return operation{"test", path, value} }

// Outcome is the result of a write.
type Outcome int

// Outcomes of a write.
const (
	// Made: the write has taken effect.
	Made Outcome = iota
	// Stale: the object is no longer the version that the write was made for. The write was not made.
	Stale
	// Busy: the API server is overloaded. The write was not made.
	Busy
	// Refused: the write was not made, and a quick retry will not help.
	Refused
	// Unknown: the write may have been made, or may still be in flight.
	Unknown
)

// String returns the outcome as metrics name it.
func (o Outcome) String() string {
	return [...]string{Made: "made", Stale: "stale", Busy: "busy", Refused: "refused", Unknown: "unknown"}[o]
}

// Classify returns the outcome of a write from its error.
func Classify(err error) Outcome {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return Made
	case meta.IsNoMatchError(err):
		return Refused // the API server does not have this kind, so nothing was sent
	case !errors.As(err, &status):
		return Unknown // the request got no answer
	}
	switch code := int(status.Status().Code); {
	case code == http.StatusConflict || code == http.StatusNotFound || code == http.StatusGone:
		return Stale
	case code == http.StatusTooManyRequests:
		return Busy
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout:
		return Refused
	}
	return Unknown
}
