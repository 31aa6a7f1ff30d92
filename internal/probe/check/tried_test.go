package check

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// The files of all versions can be read. These files never change; a new version adds its own.
func TestAttemptsOfAllVersionsAreRead(t *testing.T) {
	at := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	want := attempts{
		"containerd.service": {At: at, Times: 2, By: "runtime", Well: at.Add(5 * time.Minute)},
		"kubelet.service":    {At: at.Add(time.Minute)},
	}
	for _, name := range []string{"tried-v0.json", "tried-v1.json"} {
		text, err := os.ReadFile("testdata/" + name)
		testkit.Must(t, err)
		got, err := parseAttempts(text)
		if diff := cmp.Diff(want, got.Units); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
		if written, err := got.text(); name == "tried-v1.json" && (err != nil || !bytes.Equal(append(written, '\n'), text)) {
			t.Errorf("today's format has changed, which takes a new version: %v\n%s", err, written)
		}
	}
	newer := `{"version":7,"units":{"a":{"at":"2026-11-15T12:00:00Z","cause":"x"}},"new":1}`
	got, err := parseAttempts([]byte(newer))
	testkit.Must(t, err)
	if text, _ := got.text(); string(text) != `{"version":1,"units":{"a":{"at":"2026-11-15T12:00:00Z","cause":"x"}},"new":1}` {
		t.Errorf("of what a newer version has noted %s is left", text)
	}
	for _, text := range []string{``, `[]`, `{"version":1,"units":[]}`, `{"a":{"at":"soon"}}`} {
		if got, err := parseAttempts([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, got)
		}
	}
}
