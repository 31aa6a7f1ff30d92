package history

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// nodeVersion returns a node with one entry of managedFields for each manager.
func nodeVersion(t *testing.T, taints, note string, managers ...string) *unstructured.Unstructured {
	t.Helper()
	object := map[string]any{"spec": map[string]any{}, "metadata": map[string]any{"annotations": map[string]any{}}}
	if taints != "" {
		object["spec"] = map[string]any{"taints": []any{taints}}
	}
	metadata := object["metadata"].(map[string]any)
	if note != "" {
		metadata["annotations"] = map[string]any{recordAnnotation: note}
	}
	var fields []any
	for _, text := range managers {
		var row map[string]any
		testkit.Must(t, json.Unmarshal([]byte(text), &row))
		fields = append(fields, row)
	}
	metadata["managedFields"] = fields
	return &unstructured.Unstructured{Object: object}
}

func TestAuthorByFields(t *testing.T) {
	const (
		kubelet     = `{"manager": "kubelet", "operation": "Update", "time": "12:00:00", "fieldsV1": {"f:metadata": {}}}`
		we          = `{"manager": "us", "operation": "Update", "time": "12:00:01", "fieldsV1": {"f:metadata": {"f:annotations": {"f:` + recordAnnotation + `": {}}}, "f:spec": {"f:taints": {}}}}`
		weLater     = `{"manager": "us", "operation": "Update", "time": "12:00:02", "fieldsV1": {"f:metadata": {"f:annotations": {"f:` + recordAnnotation + `": {}}}, "f:spec": {"f:taints": {}}}}`
		weNoteOnly  = `{"manager": "us", "operation": "Update", "time": "12:00:01", "fieldsV1": {"f:metadata": {"f:annotations": {"f:` + recordAnnotation + `": {}}}}}`
		theirTaints = `{"manager": "them", "operation": "Update", "time": "12:00:01", "fieldsV1": {"f:spec": {"f:taints": {}}}}`
	)
	for _, test := range []struct {
		name          string
		before, after *unstructured.Unstructured
		manager       string
	}{
		{"the manager whose entry has a new time", nodeVersion(t, "a", "x", kubelet, we), nodeVersion(t, "b", "y", kubelet, weLater), "us"},
		{"the manager whose entry is new", nodeVersion(t, "", "", kubelet), nodeVersion(t, "b", "y", kubelet, we), "us"},
		{"the owner of the changed fields, within a second", nodeVersion(t, "a", "x", kubelet, we), nodeVersion(t, "b", "y", kubelet, we), "us"},
		{"none if two managers own them", nodeVersion(t, "a", "x", weNoteOnly, theirTaints), nodeVersion(t, "b", "y", weNoteOnly, theirTaints), ""},
		{"none if the changed fields are gone", nodeVersion(t, "a", "x", kubelet), nodeVersion(t, "", "", kubelet), ""},
		{"none if nothing of ours changed", nodeVersion(t, "a", "x", kubelet, we), nodeVersion(t, "a", "x", kubelet, we), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			manager, proved := authorByFields(test.before, test.after)
			if proved != (test.manager != "") || proved && manager != test.manager {
				t.Errorf("it was %q, proved: %v; want %q", manager, proved, test.manager)
			}
		})
	}
}
