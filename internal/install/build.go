package install

import (
	"context"
	"errors"
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

// Build builds the program of a folder of this module, such as cmd/autohealer-agent, once
// for this process, with the race detector if this process has it, and returns its path.
func Build(ctx context.Context, room string) (string, error) {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.folder == "" {
		made, err := os.MkdirTemp("", "rig-")
		if err != nil {
			return "", err
		}
		built.folder, built.programs = made, map[string]error{}
	}
	err, done := built.programs[room]
	if !done {
		err = compile(ctx, room, built.folder)
		built.programs[room] = err
	}
	return filepath.Join(built.folder, filepath.Base(room)), err
}

func compile(ctx context.Context, room, into string) error {
	args := []string{"build", "-tags", "grpcnotrace", "-o", into} // as in the Makefile
	if raced {
		args = append(args, "-race")
	}
	if _, err := sources(); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", append(args, "github.com/resourcestack/autohealer/"+room)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", room, err, out)
	}
	return nil
}

// Images builds images as `make images` does: autohealer-agent, autohealer-controller,
// and pause, which pods of real nodes need. It returns their archives, which are in the
// folder.
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
	command := exec.CommandContext(ctx, "go", append([]string{"run", ".", "-into", into}, names...)...)
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

// sources returns the root of the module, empty outside of it, after a look at every
// file that the programs are made of. The test does not import them, and go would give
// an old answer from its cache after a change of a program: what counts for it are the
// imports, and the files that a test looks at.
func sources() (root string, err error) {
	if root, err = os.Getwd(); err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if filepath.Dir(root) == root {
			return "", nil // the program of a demo that runs elsewhere has no cache
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
