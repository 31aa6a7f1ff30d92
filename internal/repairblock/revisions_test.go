package repairblock

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The revisions of all format versions can be read. The files never change; a new version
// adds its own.
func TestRevisionsOfAllVersionsAreRead(t *testing.T) {
	want := &lastGood{
		Pool: "default", UID: "0c7f0f9e-1111-4a6e-9d52-000000000001", Generation: 3, Definition: "0c7f0f9e-1111-4a6e-9d52-000000000002/5",
		Block: &v1alpha1.RepairSpec{DefaultTolerationDuration: "5m"},
	}
	read := func(text string) *lastGood {
		t.Helper()
		return testkit.Value(readRevision(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(text)}})).Must(t)
	}
	var latest string
	for _, name := range []string{"copy-v0.json", "copy-v1.json"} {
		text := testkit.Value(os.ReadFile("testdata/" + name)).Must(t)
		latest = strings.TrimSpace(string(text))
		if diff := cmp.Diff(want, read(latest)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if made, err := newRevision("ns", 1, want); err != nil || string(made.Data.Raw) != latest {
		t.Errorf("today's format has changed, which takes a new version: %v\n%s", err, made.Data.Raw)
	}
	newer := read(strings.Replace(latest, `{"version":1,`, `{"version":7,"by":"x",`, 1))
	if made, err := newRevision("ns", 2, newer); err != nil || !strings.HasSuffix(string(made.Data.Raw), `,"by":"x"}`) {
		t.Errorf("what a newer version has kept is lost: %v\n%s", err, made.Data.Raw)
	}
}
