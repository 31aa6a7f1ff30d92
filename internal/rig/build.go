package rig

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// built are the programs of this process, and where they are.
var built struct {
	mu       sync.Mutex
	folder   string
	programs map[string]error
}

// Clean removes what was built. A package whose tests run a program calls it
// at their end.
func Clean() {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.folder != "" {
		_ = os.RemoveAll(built.folder)
	}
}

// build builds a program of cmd, once for this process, with the race detector if this
// process has it.
func build(ctx context.Context, name string) (string, error) {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.folder == "" {
		made, err := os.MkdirTemp("", "rig-")
		if err != nil {
			return "", err
		}
		built.folder, built.programs = made, map[string]error{}
	}
	err, done := built.programs[name]
	if !done {
		err = compile(ctx, name, built.folder)
		built.programs[name] = err
	}
	return filepath.Join(built.folder, name), err
}

func compile(ctx context.Context, name, into string) error {
	args := []string{"build", "-o", into}
	if raced {
		args = append(args, "-race")
	}
	if err := readSources(); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", append(args, "github.com/resourcestack/autohealer/cmd/"+name)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	return nil
}

// readSources looks at every file that the program is made of. The test does not
// import it, and go would give an old answer from its cache after a change of the
// program: what counts for it are the imports, and the files that a test looks at.
func readSources() error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if filepath.Dir(root) == root {
			return nil // the program of a demo that runs elsewhere has no cache
		}
		root = filepath.Dir(root)
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (entry.Name()[0] == '.' || entry.Name() == "bin" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		_, err = os.Stat(path)
		return err
	})
}
