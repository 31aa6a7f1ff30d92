package explore

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errNoAnswer is what a caller gets whose request or answer was lost.
var errNoAnswer = errors.New("the connection was lost")

// request is a write that waits for the explorer. It may outlive its caller.
type request struct {
	replica *replica
	verb    string
	key     objectKey
	object  client.Object // to create or update; nil otherwise
	patch   []byte
	only    client.Preconditions // of a deletion
	label   string               // unique among the waiting requests
	sentAt  time.Time
	isHeld  bool
	isLost  bool // no caller waits for the answer any more
	answer  chan answer
}

// answer is the answer to a request.
type answer struct {
	object client.Object
	err    error
}

// apply makes the write.
func (r *request) apply(m *model) answer {
	var a answer
	switch r.verb {
	case "creates":
		a.object, a.err = m.create(r.object)
	case "updates":
		a.object, a.err = m.update(r.object)
	case "patches":
		a.object, a.err = m.mergePatch(r.key, r.patch)
	case "deletes":
		a.object, a.err = m.delete(r.key, r.only)
	}
	return a
}

// modelClient is the client of one replica. Reads are answered at once. Writes wait until the
// explorer lets them arrive. Methods that the controller does not use are those of the nil
// interface, and panic.
type modelClient struct {
	client.WithWatch
	cluster *cluster
	replica *replica
}

// Get reads an object.
func (c *modelClient) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.cluster.mu.Lock()
	found, err := c.cluster.model.get(objectKey{kindOf(into), key.Namespace, key.Name})
	c.cluster.noteRead(c.replica, objectKey{kindOf(into), key.Namespace, key.Name})
	c.cluster.mu.Unlock()
	if err != nil {
		return err
	}
	return fill(into, found)
}

// Create creates an object.
func (c *modelClient) Create(ctx context.Context, object client.Object, _ ...client.CreateOption) error {
	return c.write(ctx, &request{verb: "creates", key: keyOf(object), object: copyOf(object)}, object)
}

// Update updates an object.
func (c *modelClient) Update(ctx context.Context, object client.Object, _ ...client.UpdateOption) error {
	return c.write(ctx, &request{verb: "updates", key: keyOf(object), object: copyOf(object)}, object)
}

// Patch patches an object.
func (c *modelClient) Patch(ctx context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	if patch.Type() != types.MergePatchType {
		return fmt.Errorf("the model has no patches of type %s", patch.Type())
	}
	body, err := patch.Data(object)
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	return c.write(ctx, &request{verb: "patches", key: keyOf(object), patch: body}, object)
}

// Delete deletes an object.
func (c *modelClient) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	var all client.DeleteOptions
	all.ApplyOptions(options)
	r := &request{verb: "deletes", key: keyOf(object)}
	if all.Preconditions != nil {
		r.only = client.Preconditions{UID: all.Preconditions.UID, ResourceVersion: all.Preconditions.ResourceVersion}
	}
	return c.write(ctx, r, nil)
}

// write waits for the answer to a request. into receives the stored object; it may be nil.
func (c *modelClient) write(ctx context.Context, r *request, into client.Object) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.replica, r.sentAt, r.answer = c.replica, time.Now(), make(chan answer, 1)
	if c.replica == nil || c.replica.isClaiming {
		c.cluster.mu.Lock()
		a := r.apply(c.cluster.model)
		c.cluster.mu.Unlock()
		return a.take(into)
	}
	c.cluster.send(r)
	select {
	case a := <-r.answer:
		return a.take(into)
	case <-ctx.Done():
		c.cluster.abandon(r)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			sleep(c.cluster.turn(r)) // several requests may time out at the same time
		}
		return ctx.Err()
	}
}

// take copies the stored object to the caller.
func (a answer) take(into client.Object) error {
	if a.err != nil || into == nil {
		return a.err
	}
	return fill(into, a.object)
}

// fill copies a stored object into the object of a caller, which may ask for the metadata
// only.
func fill(into, from client.Object) error {
	switch into := into.(type) {
	case *corev1.Node:
		*into = *from.(*corev1.Node).DeepCopy()
	case *corev1.ConfigMap:
		*into = *from.(*corev1.ConfigMap).DeepCopy()
	case *coordinationv1.Lease:
		*into = *from.(*coordinationv1.Lease).DeepCopy()
	case *unstructured.Unstructured:
		*into = *from.(*unstructured.Unstructured).DeepCopy()
	case *metav1.PartialObjectMetadata:
		into.Name, into.Namespace, into.UID = from.GetName(), from.GetNamespace(), from.GetUID()
		into.ResourceVersion, into.Generation = from.GetResourceVersion(), from.GetGeneration()
	default:
		return fmt.Errorf("the model has no %T", into)
	}
	return nil
}
