package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// built are the programs that this process has built, with their paths.
var built struct {
	mu       sync.Mutex
	folder   string
	programs map[string]error
}

// Clean removes the built programs. A package whose tests run a program calls it at the
// end.
func Clean() {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.folder != "" {
		_ = os.RemoveAll(built.folder)
	}
}

// Build builds the program in a folder of this module, for example cmd/autohealer-agent,
// once per process. It uses the race detector if this process does, or if RACE_PROGRAMS is
// set. The first call can add flags of go build. It returns the path.
func Build(ctx context.Context, pkg string, flags ...string) (string, error) {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.folder == "" {
		made, err := os.MkdirTemp("", "install-")
		if err != nil {
			return "", err
		}
		built.folder, built.programs = made, map[string]error{}
	}
	err, done := built.programs[pkg]
	if !done {
		err = compile(ctx, pkg, built.folder, flags)
		built.programs[pkg] = err
	}
	return filepath.Join(built.folder, filepath.Base(pkg)), err
}

func compile(ctx context.Context, pkg, into string, flags []string) error {
	args := append([]string{"build", "-tags", "grpcnotrace", "-o", into}, flags...) // as in the Makefile
	if raced || os.Getenv("RACE_PROGRAMS") != "" {
		args = append(args, "-race", "-ldflags=-w")
	}
	if _, err := sources(); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", append(args, "github.com/resourcestack/autohealer/"+pkg)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// Images builds images like `make images`: autohealer-agent, autohealer-controller, and
// pause, which pods of real nodes need. It returns the archives in the folder.
func Images(ctx context.Context, into string, names ...string) ([]string, error) {
	root, err := sources()
	if err != nil {
		return nil, err
	}
	if root == "" {
		return nil, errors.New("building images: the working directory is outside of the repository")
	}
	if into, err = filepath.Abs(into); err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, "go", append([]string{"run", ".", "-into", into, "-platforms", "linux/" + runtime.GOARCH}, names...)...)
	command.Dir = filepath.Join(root, "tools", "images")
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building images: %w\n%s", err, out)
	}
	archives := make([]string, len(names))
	for i, name := range names {
		archives[i] = filepath.Join(into, name+".tar")
	}
	return archives, nil
}

// sources returns the root of the module, or "" outside of it. It stats every source file
// of the programs: the test does not import them, and go would return a cached test result
// after a change of a program. The cache depends only on imports and on files that the test
// opens.
func sources() (root string, err error) {
	if root, err = os.Getwd(); err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if filepath.Dir(root) == root {
			return "", nil // a demo outside of the module has no test cache
		}
		root = filepath.Dir(root)
	}
	return root, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
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
