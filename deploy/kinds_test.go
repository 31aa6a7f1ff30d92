package deploy_test

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autohealer "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediation "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// sides are the two kinds of kubectl apply.
var sides = []string{"--server-side=false", "--server-side=true"}

// kind reads and writes one of our kinds of objects without kubectl.
type kind[T any] struct {
	cluster
	group    schema.GroupVersion
	kind     string
	resource string
	sample   string // the object of most tests
	isOnly   bool   // no object may have another name
}

func (c cluster) conditionSets() kind[autohealer.ConditionSet] {
	return kind[autohealer.ConditionSet]{c, autohealer.GroupVersion, "ConditionSet", "conditionsets", "conditionset-1", false}
}

func (c cluster) repairPolicies() kind[autohealer.RepairPolicy] {
	return kind[autohealer.RepairPolicy]{c, autohealer.GroupVersion, "RepairPolicy", "repairpolicies", "default", false}
}

func (c cluster) guardrails() kind[autohealer.Guardrails] {
	return kind[autohealer.Guardrails]{c, autohealer.GroupVersion, "Guardrails", "guardrails", autohealer.GuardrailsName, true}
}

func (c cluster) healthChecks() kind[remediation.NodeHealthCheck] {
	return kind[remediation.NodeHealthCheck]{c, remediation.GroupVersion, "NodeHealthCheck", "nodehealthchecks", "nodehealthcheck-sample", false}
}

// field returns a field of an object.
func field(object any, name string) reflect.Value {
	return reflect.ValueOf(object).Elem().FieldByName(name)
}

// with returns an object that is not stored.
func (k kind[T]) with(name string, spec any) *T {
	object := new(T)
	field(object, "TypeMeta").Set(reflect.ValueOf(metav1.TypeMeta{APIVersion: k.group.String(), Kind: k.kind}))
	field(object, "Name").SetString(name)
	field(object, "Spec").Set(reflect.ValueOf(spec))
	return object
}

// client sends JSON for the group.
func (k kind[T]) client(t *testing.T) rest.Interface {
	t.Helper()
	config := k.AdminConfig()
	config.APIPath, config.GroupVersion = "/apis", &k.group
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return testkit.Value(rest.RESTClientFor(config)).Must(t)
}

// list reads all objects like the controller: all or none.
func (k kind[T]) list(t *testing.T) []T {
	t.Helper()
	data := testkit.Value(k.client(t).Get().Resource(k.resource).Do(t.Context()).Raw()).Must(t)
	var list struct {
		Items []T `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatalf("the list cannot be read: %v\n%s", err, data)
	}
	return list.Items
}

// one returns the only object.
func (k kind[T]) one(t *testing.T) *T {
	t.Helper()
	list := k.list(t)
	testkit.Require(t, len(list) == 1, "%d %s are stored", len(list), k.resource)
	return &list[0]
}

func (k kind[T]) versions(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, object := range k.list(t) {
		found[field(&object, "Name").String()] = field(&object, "ResourceVersion").String()
	}
	return found
}

// create creates an object. Parameters are names and values.
func (k kind[T]) create(t *testing.T, name, spec string, params ...string) error {
	t.Helper()
	request := k.client(t).Post().Resource(k.resource)
	for i := 0; i < len(params); i += 2 {
		request = request.Param(params[i], params[i+1])
	}
	return request.Body(fmt.Appendf(nil, `{"apiVersion": %q, "kind": %q, "metadata": {"name": %q}, "spec": %s}`, k.group, k.kind, name, spec)).
		Do(t.Context()).Error()
}

// send writes an object, and reads the answer into it.
func (k kind[T]) send(t *testing.T, r *rest.Request, object *T) {
	t.Helper()
	body := testkit.Value(json.Marshal(object)).Must(t)
	answer, err := r.Resource(k.resource).Body(body).Do(t.Context()).Raw()
	testkit.Require(t, err == nil, "%v\n%s", err, body)
	*object = *new(T)
	testkit.Must(t, json.Unmarshal(answer, object))
}

func (k kind[T]) patchStatus(t *testing.T, name, status string) error {
	t.Helper()
	return k.client(t).Patch(types.MergePatchType).Resource(k.resource).Name(name).SubResource("status").
		Param("fieldManager", account).Body([]byte(`{"status": ` + status + `}`)).Do(t.Context()).Error()
}

func (k kind[T]) deleteAll(t *testing.T) {
	t.Helper()
	k.kubectl(t, "delete", k.resource, "--all")
}

// applies applies a file twice. The second time changes nothing.
func (k kind[T]) applies(t *testing.T, side, path string) {
	t.Helper()
	k.kubectl(t, "apply", "--validate=strict", side, "-f", path)
	before := k.versions(t)
	k.kubectl(t, "apply", "--validate=strict", side, "-f", path)
	testkit.Equal(t, "versions after the second apply", before, k.versions(t))
}

// roundTrips writes an object like a program: first a minimal spec, then a spec and a status
// with every field. An empty status clears a full one.
func (k kind[T]) roundTrips(t *testing.T, least, spec, status any) {
	t.Helper()
	object, client := k.with(k.sample, least), k.client(t)
	k.send(t, client.Post(), object)
	field(object, "Spec").Set(reflect.ValueOf(spec))
	k.send(t, client.Put().Name(k.sample), object)
	field(object, "Status").Set(reflect.ValueOf(status))
	k.send(t, client.Put().Name(k.sample).SubResource("status"), object)
	testkit.Equal(t, "spec", spec, field(object, "Spec").Interface())
	testkit.Equal(t, "status", status, field(object, "Status").Interface())
	none := reflect.Zero(reflect.TypeOf(status)).Interface()
	testkit.Must(t, k.patchStatus(t, k.sample, string(testkit.Value(json.Marshal(none)).Must(t))))
	testkit.Equal(t, "status after an empty one is patched in", none, field(k.one(t), "Status").Interface())
	k.deleteAll(t)
}

// isOldest reports whether the API server is the oldest that we support. It differs in three ways:
// it prints types in place of invalid values, its status subresources check the rules of the whole
// object even if they did not change, and it does not check the range of integers in a status.
func (c cluster) isOldest(t *testing.T) bool {
	t.Helper()
	version := testkit.Value(clientFor(t, c.AdminConfig()).Discovery().ServerVersion()).Must(t)
	return version.Minor == "30"
}

// invalidValue is an invalid value in a message of the API server.
var invalidValue = regexp.MustCompile(`Invalid value: (?:"[^"]*"|-?[0-9]+|null): `)

// message returns a message of the API server, without invalid values if it is the oldest.
func (c cluster) message(t *testing.T, text string) string {
	t.Helper()
	if c.isOldest(t) {
		return invalidValue.ReplaceAllString(text, "Invalid value: ")
	}
	return text
}

// mistake is a change of a manifest that makes it invalid, with the expected message.
type mistake struct{ name, old, new, says string }

// refuses applies a manifest with each of the mistakes. It sends the requests of kubectl
// apply itself, because starting kubectl takes longer than all the rest.
func (c cluster) refuses(t *testing.T, manifest string, mistakes []mistake) {
	t.Helper()
	api := testkit.Value(client.New(c.AdminConfig(), client.Options{})).Must(t)
	strict := metav1.FieldValidationStrict
	for _, test := range mistakes {
		bad := strings.Replace(manifest, test.old, test.new, 1)
		testkit.Require(t, bad != manifest, "%s: %q is not in the manifest to start from", test.name, test.old)
		object := &unstructured.Unstructured{}
		testkit.Must(t, yaml.Unmarshal([]byte(bad), &object.Object))
		for side, err := range map[string]error{
			"on the client": api.Create(t.Context(), object.DeepCopy(), &client.CreateOptions{FieldValidation: strict}),
			"on the server": api.Patch(t.Context(), object.DeepCopy(), client.RawPatch(types.ApplyYAMLPatchType, []byte(bad)), &client.PatchOptions{
				FieldManager: "kubectl", FieldValidation: strict,
			}),
		} {
			if err == nil || !strings.Contains(c.message(t, err.Error()), c.message(t, test.says)) {
				t.Errorf("%s, applied %s: the error is\n%v\nwant\n%s", test.name, side, err, test.says)
			}
		}
	}
}

// stores tries to store objects without kubectl. By name they have a spec, and whether the
// API server accepts it.
func (k kind[T]) stores(t *testing.T, specs map[string]storable) {
	t.Helper()
	for name, test := range specs {
		if err := k.create(t, name, test.spec); (err == nil) != test.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type storable struct {
	spec  string
	taken bool
}

// writable is a status that the API server may accept, and that may be read then.
type writable struct {
	status      string
	taken, read bool
}

// staysReadable writes statuses of an object. The list must stay complete, and all other
// statuses empty.
func (k kind[T]) staysReadable(t *testing.T, name string, statuses []writable) {
	t.Helper()
	stored := len(k.list(t))
	for _, test := range statuses {
		if err := k.patchStatus(t, name, test.status); (err == nil) != test.taken {
			t.Errorf("status %s: %v", test.status, err)
		}
		list := k.list(t)
		testkit.Check(t, len(list) == stored, "after status %s the list is incomplete", test.status)
		for _, object := range list {
			is, empty := field(&object, "Name").String(), field(&object, "Status").IsZero()
			testkit.Check(t, empty != (is == name && test.read), "after status %s that of %s is empty: %v", test.status, is, empty)
		}
		testkit.Must(t, k.patchStatus(t, name, "null"))
	}
}

// trial is a change of a valid spec.
type trial[S any] struct {
	name    string
	change  func(*S)
	late    bool // only the compiler refuses it
	lenient bool // only the schema refuses it
}

// agrees compares the API server with the compiler. A difference means an unnecessary
// refusal, or a stored object that is not applied.
func agrees[T, S any](t *testing.T, k kind[T], compile func(*T) error, valid func() S, trials []trial[S]) {
	t.Helper()
	var taken, refused int
	name := "trial"
	if k.isOnly {
		name = k.sample
	}
	for _, test := range trials {
		spec := valid()
		test.change(&spec)
		object := k.with(name, spec)
		body := testkit.Value(json.Marshal(object)).Must(t)
		err := k.client(t).Post().Resource(k.resource).Param("dryRun", "All").Body(body).Do(t.Context()).Error()
		wrong := compile(object)
		switch {
		case err != nil && !apierrors.IsInvalid(err):
			t.Errorf("%q: %v", test.name, err)
		case test.late && (err != nil || wrong == nil):
			t.Errorf("%q: only the compiler should refuse it; the API server says %v, the compiler %v", test.name, err, wrong)
		case test.lenient && (err == nil || wrong != nil):
			t.Errorf("%q: only the API server should refuse it; it says %v, the compiler %v", test.name, err, wrong)
		case !test.late && !test.lenient && (err == nil) != (wrong == nil):
			t.Errorf("%q: the API server says %v, the compiler %v", test.name, err, wrong)
		}
		if err == nil {
			taken++
		} else {
			refused++
		}
	}
	t.Logf("%d were accepted and %d refused", taken, refused)
	testkit.Check(t, taken != 0 && refused != 0, "one kind was never tried")
}

// oldObject is an object that the CRD without its rules accepts, with a patch of its spec
// that mends it.
type oldObject struct{ name, spec, mend string }

// storesOld stores objects under a CRD without rules, which the function may change further.
// Then it installs the CRD again, which refuses the objects. All must stay readable.
func (k kind[T]) storesOld(t *testing.T, crd string, rules int, old []oldObject, change func(crd map[string]any), meanwhile func()) {
	t.Helper()
	var definition map[string]any
	testkit.Must(t, yaml.Unmarshal(testkit.Value(os.ReadFile(crd)).Must(t), &definition))
	if n := withoutRules(definition); n < rules {
		t.Fatalf("the CRD has %d rules: the test proves nothing", n)
	}
	change(definition)
	k.kubectl(t, "replace", "-f", file(t, string(testkit.Value(json.Marshal(definition)).Must(t))))
	for _, old := range old {
		testkit.Eventually(t, "the CRD without rules to be served", func() error { return k.create(t, old.name, old.spec) })
	}
	meanwhile()
	stored := len(k.list(t))
	k.kubectl(t, "replace", "-f", crd)
	for _, old := range old {
		testkit.Eventually(t, "the CRD with rules to be served", func() error {
			if k.create(t, "trial", old.spec, "dryRun", "All") == nil {
				return fmt.Errorf("%s is still accepted", old.spec)
			}
			return nil
		})
	}
	if got := len(k.list(t)); got != stored || got < len(old) {
		t.Errorf("%d %s can be read, want %d", got, k.resource, stored)
	}
}

// withoutRules removes the CEL rules from a schema and returns their number.
func withoutRules(schema any) (removed int) {
	switch schema := schema.(type) {
	case map[string]any:
		if rules, ok := schema["x-kubernetes-validations"].([]any); ok {
			removed += len(rules)
			delete(schema, "x-kubernetes-validations")
		}
		for _, value := range schema {
			removed += withoutRules(value)
		}
	case []any:
		for _, value := range schema {
			removed += withoutRules(value)
		}
	}
	return removed
}
