package main

import (
	"archive/zip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pack makes an archive as a module proxy serves it.
func pack(t *testing.T, files map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "module.zip")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(f)
	for name, content := range files {
		entry, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := entry.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSource(t *testing.T) {
	t.Run("is unpacked with another version of Go, and nothing else is changed", func(t *testing.T) {
		gomod := "module example.com/m\n\ngo 1.99.9\n\nrequire example.com/go v1.0.0\n"
		archive := pack(t, map[string]string{"example.com/m@v1.0.0/go.mod": gomod, "example.com/m@v1.0.0/a/b.go": "package a\n"})
		folder := t.TempDir()
		if err := unpack(archive, "example.com/m@v1.0.0/", folder); err != nil {
			t.Fatal(err)
		}
		if err := setGoVersion(filepath.Join(folder, "go.mod"), "1.26.0"); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"go.mod": strings.Replace(gomod, "1.99.9", "1.26.0", 1), "a/b.go": "package a\n"} {
			if got, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(got) != want {
				t.Errorf("%s is %q (%v), want %q", name, got, err, want)
			}
		}
	})

	t.Run("does not leave its folder", func(t *testing.T) {
		for _, name := range []string{"example.com/m@v1.0.0/../../outside", "elsewhere/file", "example.com/m@v1.0.0//etc/file"} {
			if err := unpack(pack(t, map[string]string{name: "x"}), "example.com/m@v1.0.0/", t.TempDir()); err == nil {
				t.Errorf("%s is unpacked", name)
			}
		}
	})

	t.Run("is refused when its checksum is another one", func(t *testing.T) {
		s := *sets["karpenter"].source
		s.folder = filepath.Join(t.TempDir(), "sources", "karpenter")
		s.sum = "h1:another"
		if err := s.fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "h1:another is expected") {
			t.Errorf("the error is %v", err)
		}
		if _, err := os.Stat(s.folder); err == nil {
			t.Error("it stands in its place all the same")
		}
	})
}
