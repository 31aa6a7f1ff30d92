package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// miniature is a set of one small program in a module of its own.
func miniature(t *testing.T) set {
	t.Helper()
	module := t.TempDir()
	write(t, filepath.Join(module, "go.mod"), "module example.com/miniature\n\ngo 1.26.0\n")
	write(t, filepath.Join(module, "go.sum"), "")
	write(t, filepath.Join(module, "main.go"), "package main\n\nfunc main() {}\n")
	return set{
		what: "a miniature", module: module, out: filepath.Join(t.TempDir(), "out"),
		inputs: []string{"main.go"}, given: "MINIATURE_ASSETS",
		programs: []program{{name: "tiny", pkg: "."}},
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func mustBuild(t *testing.T, s set) {
	t.Helper()
	if err := s.build(t.Context(), "miniature"); err != nil {
		t.Fatal(err)
	}
}

// What the programs say of themselves must be what they are built from. The chart and the page must
// name the versions that tests run.
func TestTheVersionsAreThoseOfTheModules(t *testing.T) {
	minor := strings.TrimPrefix(oldestKubernetesVersion[:strings.LastIndex(oldestKubernetesVersion, ".")], "v")
	for _, place := range []struct{ file, says string }{
		{"../../testbed/go.mod", "k8s.io/kubernetes " + kubernetesVersion},
		{"../../testbed/oldest/go.mod", "k8s.io/kubernetes " + oldestKubernetesVersion},
		{"../../testbed/oldest/go.mod", "k8s.io/apiserver => k8s.io/apiserver v0." + strings.TrimPrefix(oldestKubernetesVersion, "v1.")},
		{"../../deploy/chart/templates/checks.yaml", `semverCompare "<` + minor + `.0-0"`},
		{"../../docs/reference/versions.md", "| " + strings.TrimPrefix(kubernetesVersion, "v") + " |"},
		{"../../docs/reference/versions.md", "| " + strings.TrimPrefix(oldestKubernetesVersion, "v") + " |"},
		{"../../docs/reference/versions.md", "| " + strings.TrimPrefix(karpenterVersion, "v") + " |"},
	} {
		text, err := os.ReadFile(place.file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), place.says) {
			t.Errorf("%s does not say %q", place.file, place.says)
		}
	}
}

// The folder of Karpenter's source is named in places that cannot see each other.
func TestTheSourceIsThatOfTheModule(t *testing.T) {
	folder := sets["karpenter"].source.folder
	for _, place := range []struct{ file, says string }{
		{"../../testbed/karpenter/go.mod", "sigs.k8s.io/karpenter " + karpenterVersion + "\n"},
		{"../../testbed/karpenter/go.mod", "=> ../" + folder + "\n"},
		{"../../internal/testbed/karpenter/karpenter.go", `".sources/` + filepath.Base(folder) + `"`},
	} {
		text, err := os.ReadFile(place.file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), place.says) {
			t.Errorf("%s does not say %q", place.file, place.says)
		}
	}
}

func TestBuild(t *testing.T) {
	t.Run("rebuilds nothing that is up to date", func(t *testing.T) {
		s := miniature(t)
		mustBuild(t, s)
		// A mark in the program's place shows whether it is written again.
		tiny := filepath.Join(s.out, "tiny")
		write(t, tiny, "untouched")
		mustBuild(t, s)
		if got, _ := os.ReadFile(tiny); string(got) != "untouched" {
			t.Error("the program was built again though nothing had changed")
		}
		write(t, filepath.Join(s.module, "main.go"), "package main\n\nfunc main() { println() }\n")
		mustBuild(t, s)
		if got, _ := os.ReadFile(tiny); string(got) == "untouched" {
			t.Error("the program was not built again though its source had changed")
		}
	})

	t.Run("takes what the environment offers", func(t *testing.T) {
		s := miniature(t)
		assets := t.TempDir()
		write(t, filepath.Join(assets, "tiny"), "given")
		t.Setenv("MINIATURE_ASSETS", assets)
		mustBuild(t, s)
		if isExecutable(filepath.Join(s.out, "tiny")) {
			t.Error("a program was built that the environment offers")
		}
	})

	t.Run("leaves nothing half-written when it is interrupted", func(t *testing.T) {
		s := miniature(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.build(ctx, "miniature"); err == nil {
			t.Fatal("an interrupted build reports success")
		}
		for _, name := range names(t, s.out) {
			if !strings.HasPrefix(name, ".lock") && name != ".stamps" {
				t.Errorf("%s was left behind", name)
			}
		}
		mustBuild(t, s)
		if !isExecutable(filepath.Join(s.out, "tiny")) {
			t.Error("the next build did not go on")
		}
	})

	t.Run("clears away what a killed build left", func(t *testing.T) {
		s := miniature(t)
		mustBuild(t, s)
		write(t, filepath.Join(s.out, ".tiny.building.4711"), "half")
		mustBuild(t, s)
		for _, name := range names(t, s.out) {
			if strings.Contains(name, ".building.") {
				t.Errorf("%s was left behind", name)
			}
		}
	})

	t.Run("says what does not compile", func(t *testing.T) {
		s := miniature(t)
		write(t, filepath.Join(s.module, "main.go"), "package main\n\nfunc main() { nonsense() }\n")
		err := s.build(t.Context(), "miniature")
		if err == nil || !strings.Contains(err.Error(), "building tiny") || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("error is %v, want it to name the program and the fault", err)
		}
	})

	t.Run("refuses what it does not know", func(t *testing.T) {
		for _, args := range [][]string{nil, {"kitchen"}} {
			if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "one or more of generator, helm, hugo, karpenter, linter, nodes, prometheus, registry, testbed, testbed-oldest") {
				t.Errorf("run(%q) = %v, want an error that names the choice", args, err)
			}
		}
	})

	t.Run("lets one build at a time into the folder", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "lock")
		unlock, err := lock(path)
		if err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() {
			unlockSecond, err := lock(path)
			if err == nil {
				unlockSecond()
			}
			second <- err
		}()
		select {
		case <-second:
			t.Fatal("a second build got in")
		case <-time.After(50 * time.Millisecond): // long enough to have got in if it could
		}
		unlock()
		if err := <-second; err != nil {
			t.Fatal(err)
		}
	})
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
