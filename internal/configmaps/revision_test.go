package configmaps

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The revisions of all format versions can be read. The files never change; a new version
// adds its own.
func TestRevisionsOfAllVersionsAreRead(t *testing.T) {
	read := func(text string) *Version {
		t.Helper()
		v, err := decodeRevision(&appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: "autohealer-system", OwnerReferences: []metav1.OwnerReference{{Name: "sets", UID: "0c7f0f9e-1111-4a6e-9d52-000000000001"}}},
			Data:       runtime.RawExtension{Raw: []byte(text)},
		})
		testkit.Require(t, err == nil && len(v.Sets) == 1 && v.Sets[0].Spec.Type == "A", "%s: %+v, %v", text, v, err)
		return v
	}
	var latest string
	for _, name := range []string{"revision-v0.json", "revision-v1.json"} {
		text := testkit.Value(os.ReadFile("testdata/" + name)).Must(t)
		latest = strings.TrimSpace(string(text))
		read(latest)
	}
	if text, err := json.Marshal(storedVersion{storedVersionNow, read(latest).source}); err != nil || string(text) != latest {
		t.Errorf("today's format has changed, which takes a new version: %v\n%s", err, text)
	}
	read(strings.Replace(latest, `{"version":1,`, `{"version":7,"by":"x",`, 1))
}
