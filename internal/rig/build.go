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

var (
	buildOnce sync.Once
	folder    string
	errBuild  error
)

// Clean removes what was built. A package whose tests run a controller calls it
// at their end.
func Clean() {
	if folder != "" {
		_ = os.RemoveAll(folder)
	}
}

// controllerProgram builds the controller, once for this process, with the race
// detector if this process has it.
func controllerProgram(ctx context.Context) (string, error) {
	buildOnce.Do(func() {
		if folder, errBuild = os.MkdirTemp("", "rig-"); errBuild != nil {
			return
		}
		args := []string{"build", "-o", folder}
		if raced {
			args = append(args, "-race")
		}
		if errBuild = readSources(); errBuild != nil {
			return
		}
		build := exec.CommandContext(ctx, "go", append(args, "github.com/resourcestack/autohealer/cmd/autohealer-controller")...)
		if out, err := build.CombinedOutput(); err != nil {
			errBuild = fmt.Errorf("building the controller: %w\n%s", err, out)
		}
	})
	return filepath.Join(folder, "autohealer-controller"), errBuild
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
