package docs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// baseline is the state of the cluster before each page. Restoring it takes less time than another
// cluster or installation: only the objects that a page has changed are written.
type baseline struct {
	objects   dynamic.Interface
	metadata  metadata.Interface
	resources []schema.GroupVersionResource // CRDs and namespaces first
	stored    map[key]*unstructured.Unstructured
	// seen has the versions of objects that are equal to the stored ones. The status may differ.
	seen map[key]version
}

type key struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

func (k key) String() string {
	return strings.Trim(k.resource.Resource+" "+k.namespace+"/"+k.name, "/")
}

// version changes with each change of an object.
type version struct{ uid, version string }

// unstored are resources that components of the cluster write for themselves.
var unstored = []string{
	"events", "leases", "pods", "replicasets", "controllerrevisions", "endpoints", "endpointslices", "apiservices", "bindings",
	"prioritylevelconfigurations", "csinodes", "ipaddresses", "servicecidrs",
}

// isUnstored reports whether the controller, or Kubernetes, writes an object for itself.
func (k key) isUnstored() bool {
	switch k.resource.Resource {
	case "configmaps":
		return k.name == "kube-root-ca.crt" || k.name == "autohealer-ledger"
	case "repairpolicies", "conditionsets": // mirrors
		return strings.HasPrefix(k.name, "nodepool-")
	case "serviceaccounts":
		return k.name == "default"
	}
	return false
}

// stores takes the current state as the baseline.
func (f *fixture) stores(t *testing.T) {
	t.Helper()
	config := f.AdminConfig()
	config.WarningHandlerWithContext = rest.NoWarnings{}
	f.baseline = &baseline{
		objects: testkit.Value(dynamic.NewForConfig(config)).Must(t), metadata: testkit.Value(metadata.NewForConfig(f.AdminConfig())).Must(t),
		stored: map[key]*unstructured.Unstructured{}, seen: map[key]version{},
	}
	lists := testkit.Value(discovery.NewDiscoveryClientForConfigOrDie(f.AdminConfig()).ServerPreferredResources()).Must(t)
	for _, list := range lists {
		group := testkit.Value(schema.ParseGroupVersion(list.GroupVersion)).Must(t)
		for _, resource := range list.APIResources {
			if slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "update") && !slices.Contains(unstored, resource.Name) {
				f.baseline.resources = append(f.baseline.resources, group.WithResource(resource.Name))
			}
		}
	}
	slices.SortStableFunc(f.baseline.resources, func(a, b schema.GroupVersionResource) int { return rank(a) - rank(b) })
	found := testkit.Value(f.baseline.list(t.Context())).Must(t)
	for key, version := range found {
		f.baseline.stored[key] = testkit.Value(f.baseline.get(t.Context(), key)).Must(t)
		f.baseline.seen[key] = version
	}
}

// rank says in which order objects are created.
func rank(resource schema.GroupVersionResource) int {
	switch resource.Resource {
	case "customresourcedefinitions", "namespaces":
		return 0
	case "serviceaccounts", "secrets", "configmaps", "services":
		return 1
	case "clusterroles", "clusterrolebindings", "roles", "rolebindings", "deployments":
		return 2
	}
	return 3
}

// list returns the versions of all objects.
func (b *baseline) list(ctx context.Context) (map[key]version, error) {
	found := map[key]version{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	next := make(chan schema.GroupVersionResource)
	for range 4 {
		wg.Go(func() {
			for resource := range next {
				list, err := b.metadata.Resource(resource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
				if apierrors.IsNotFound(err) { // its CRD is deleted
					continue
				}
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("listing %s: %w", resource.Resource, err))
				} else {
					for _, item := range list.Items {
						if key := (key{resource, item.Namespace, item.Name}); !key.isUnstored() {
							found[key] = version{string(item.UID), item.ResourceVersion}
						}
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, resource := range b.resources {
		next <- resource
	}
	close(next)
	wg.Wait()
	return found, errors.Join(errs...)
}

func (b *baseline) get(ctx context.Context, key key) (*unstructured.Unstructured, error) {
	return b.client(key).Get(ctx, key.name, metav1.GetOptions{})
}

func (b *baseline) client(key key) dynamic.ResourceInterface {
	if key.namespace == "" {
		return b.objects.Resource(key.resource)
	}
	return b.objects.Resource(key.resource).Namespace(key.namespace)
}

// restores restores the baseline. If a page has changed it, it waits until a controller serves the
// webhook again.
func (f *fixture) restores(t *testing.T) {
	t.Helper()
	changed := false
	// A page may have removed everything, and each object takes up to three requests.
	testkit.Wait{Limit: 3 * time.Minute}.Eventually(t, "the baseline to be restored", func() error {
		err := f.baseline.restore(t.Context())
		changed = changed || err != nil
		return err
	})
	if changed {
		f.awaitsWebhook(t)
	}
}

// restore makes all changes that are possible now, and returns which were necessary.
func (b *baseline) restore(ctx context.Context) error {
	found, err := b.list(ctx)
	if err != nil {
		return err
	}
	var errs []error
	note := func(action string, key key, err error) {
		if err == nil {
			err = errors.New("done, and not checked yet")
		}
		errs = append(errs, fmt.Errorf("%s %s: %w", action, key, err))
	}
	for key := range found {
		if b.stored[key] == nil {
			note("deleting", key, b.client(key).Delete(ctx, key.name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(b.stored), func(a, b key) int { return rank(a.resource) - rank(b.resource) }) {
		want, is := b.stored[key].DeepCopy(), found[key]
		switch {
		case is == version{}:
			want.SetUID("")
			want.SetResourceVersion("")
			_, err := b.client(key).Create(ctx, want, metav1.CreateOptions{})
			note("creating", key, err)
		case is != b.seen[key]:
			done, err := b.resets(ctx, key, want)
			if !done {
				note("changing", key, err)
			} else {
				b.seen[key] = is
			}
		}
	}
	return errors.Join(errs...)
}

// resets writes an object unless it is equal to the baseline.
func (b *baseline) resets(ctx context.Context, key key, want *unstructured.Unstructured) (done bool, err error) {
	is, err := b.get(ctx, key)
	if err != nil {
		return false, err
	}
	if is.GetDeletionTimestamp() != nil {
		return false, errors.New("it is being deleted")
	}
	if key.resource.Resource == "nodes" && !equality.Semantic.DeepEqual(conditions(is), conditions(want)) {
		want.SetResourceVersion(is.GetResourceVersion())
		_, err := b.client(key).UpdateStatus(ctx, want, metav1.UpdateOptions{})
		return false, err
	}
	same := equality.Semantic.DeepEqual(essence(is), essence(want))
	if same && equality.Semantic.DeepEqual(owners(is), owners(want)) {
		return true, nil
	}
	if !same {
		want.SetResourceVersion(is.GetResourceVersion())
		want.SetUID(is.GetUID())
		is, err = b.client(key).Update(ctx, want, metav1.UpdateOptions{})
		if apierrors.IsInvalid(err) { // another object of this name, and the field cannot change
			return false, errors.Join(err, b.client(key).Delete(ctx, key.name, metav1.DeleteOptions{}))
		}
		if err != nil {
			return false, err
		}
	}
	// The update has made this test the owner of the fields, and Helm's apply would conflict.
	is.SetManagedFields(b.stored[key].GetManagedFields())
	_, err = b.client(key).Update(ctx, is, metav1.UpdateOptions{})
	return false, err
}

// owners returns which user owns which fields.
func owners(object *unstructured.Unstructured) map[string]string {
	found := map[string]string{}
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "" && !slices.Contains(components, entry.Manager) && entry.FieldsV1 != nil {
			found[entry.Manager+" "+string(entry.Operation)] = entry.FieldsV1.GetRawString()
		}
	}
	return found
}

// components write objects at any time.
var components = []string{"autohealer-controller", "autohealer", "kube-controller-manager", "kube-apiserver"}

func conditions(node *unstructured.Unstructured) any {
	found, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
	return found
}

// essence returns what a user has written of an object.
func essence(object *unstructured.Unstructured) map[string]any {
	copied := object.DeepCopy().Object
	delete(copied, "status")
	if object.GetKind() == "Secret" && object.GetName() == "autohealer-webhook-cert" {
		delete(copied, "data")
	}
	if hooks, ok := copied["webhooks"].([]any); ok {
		for _, hook := range hooks {
			unstructured.RemoveNestedField(hook.(map[string]any), "clientConfig", "caBundle")
		}
	}
	copied["metadata"] = map[string]any{"labels": object.GetLabels(), "annotations": annotations(object)}
	return copied
}

// annotations returns the annotations without those that Kubernetes writes.
func annotations(object *unstructured.Unstructured) map[string]string {
	found := maps.Clone(object.GetAnnotations())
	delete(found, "deployment.kubernetes.io/revision")
	delete(found, "deprecated.daemonset.template.generation")
	if len(found) == 0 {
		return nil
	}
	return found
}
