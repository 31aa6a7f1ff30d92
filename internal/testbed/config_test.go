package testbed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestConfig(t *testing.T) {
	t.Run("reports all problems", func(t *testing.T) {
		for _, test := range []struct {
			cfg  Config
			want string // in the error; empty for none
		}{
			{Config{}, ""},
			{Config{Record: []schema.GroupVersionResource{NodesResource, PodsResource, LeasesResource}}, ""},
			{Config{Scheduler: true, Flags: Flags{Scheduler: []string{"--v=4"}}}, ""},
			{Config{Flags: Flags{Scheduler: []string{"--v=4"}}}, "Flags.Scheduler is set, but Scheduler is not asked for"},
			{Config{Flags: Flags{Etcd: []string{"v=4"}}}, `Flags.Etcd: "v=4" is not of the form`},
			{Config{Record: []schema.GroupVersionResource{{Version: "v1"}}}, "Record[0]"},
			{Config{Record: []schema.GroupVersionResource{{Version: "v1", Resource: "Node"}}}, `"Node" is not a resource in lower-case plural`},
			{Config{Record: []schema.GroupVersionResource{{Version: "v1", Resource: "nodes/status"}}}, `"nodes/status" is not a resource`},
			{Config{Record: []schema.GroupVersionResource{{Group: "events.k8s.io", Version: "v1", Resource: "events"}}}, `stored as group ""`},
			{Config{Record: []schema.GroupVersionResource{NodesResource, {Version: "v2", Resource: "nodes"}}}, "Record[1]: nodes is named twice"},
			{Config{Record: []schema.GroupVersionResource{LeasesResource}, RecordIn: map[schema.GroupVersionResource][]string{LeasesResource: {"locks"}}}, ""},
			{Config{Record: []schema.GroupVersionResource{NodesResource}, RecordIn: map[schema.GroupVersionResource][]string{LeasesResource: {"locks"}}}, "RecordIn: leases.coordination.k8s.io is not in Record"},
			{Config{Record: []schema.GroupVersionResource{LeasesResource}, RecordIn: map[schema.GroupVersionResource][]string{LeasesResource: {}}}, "needs the names of namespaces"},
		} {
			err := test.cfg.Validate()
			testkit.Check(t, test.want != "" || err == nil, "%+v: %v", test.cfg, err)
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%+v: error %v does not say %q", test.cfg, err, test.want)
			}
		}
	})

	t.Run("is refused by Start before anything is created", func(t *testing.T) {
		folder := t.TempDir()
		if _, err := Start(t.Context(), Config{Dir: folder, Flags: Flags{Kwok: []string{"--x"}}}); err == nil {
			t.Fatal("no error")
		}
		if made, _ := os.ReadDir(folder); len(made) > 0 {
			t.Errorf("%v was made", made)
		}
	})

	t.Run("may not name a folder too deep for a socket", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), strings.Repeat("deep", 20))
		testkit.Must(t, os.Mkdir(folder, 0o755))
		testkit.Value(Start(t.Context(), Config{Dir: folder})).Fails(t, "too long for a socket")
		if made, _ := os.ReadDir(folder); len(made) > 0 {
			t.Errorf("%v is left", made)
		}
	})
}

func TestPrograms(t *testing.T) {
	program := func(folder, name string) string {
		path := filepath.Join(folder, name)
		testkit.Must(t, os.WriteFile(path, nil, 0o755))
		return path
	}
	write := func(path, content string) {
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	// A module with another module in it, like this repository.
	root := testkit.Value(filepath.EvalSymlinks(t.TempDir())).Must(t)
	write(filepath.Join(root, "go.mod"), "// the product\nmodule "+modulePath+"\n")
	write(filepath.Join(root, "testbed", "go.mod"), "module "+modulePath+"/testbed\n")
	write(filepath.Join(root, "bin", "testbed", "kwok"), "not executable")
	built := program(filepath.Join(root, "bin", "testbed"), "etcd")
	assets := t.TempDir()
	given := program(assets, "etcd")
	t.Chdir(filepath.Join(root, "testbed"))

	for _, test := range []struct {
		name, assets, env, program, want string
	}{
		{"come from the module's bin folder", "", "", "etcd", built},
		{"come from KUBEBUILDER_ASSETS first", "", assets, "etcd", given},
		{"come from the bin folder when KUBEBUILDER_ASSETS lacks them", "", t.TempDir(), "etcd", built},
		{"come from Config.Assets and nowhere else", assets, t.TempDir(), "etcd", given},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("KUBEBUILDER_ASSETS", test.env)
			got, err := Config{Assets: test.assets}.findProgram(test.program)
			testkit.Check(t, err == nil && got == test.want, "got %q (%v), want %q", got, err, test.want)
		})
	}

	t.Run("that are missing are reported, with instructions", func(t *testing.T) {
		t.Setenv("KUBEBUILDER_ASSETS", "")
		for _, name := range []string{"kube-apiserver", "kwok"} {
			_, err := Config{}.findProgram(name)
			if err == nil || !strings.Contains(err.Error(), name+" not found in "+filepath.Join(root, "bin", "testbed")) || !strings.Contains(err.Error(), "make testbed") {
				t.Errorf("error %v", err)
			}
		}
	})

	t.Run("that are missing outside the module are reported with the reason", func(t *testing.T) {
		t.Setenv("KUBEBUILDER_ASSETS", "")
		t.Chdir(t.TempDir())
		testkit.Value((Config{}).findProgram("etcd")).Fails(t, "outside "+modulePath)
	})
}
