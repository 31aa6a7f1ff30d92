package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
		build := exec.CommandContext(ctx, "go", append(args, "github.com/resourcestack/autohealer/cmd/autohealer-controller")...)
		if out, err := build.CombinedOutput(); err != nil {
			errBuild = fmt.Errorf("building the controller: %w\n%s", err, out)
		}
	})
	return filepath.Join(folder, "autohealer-controller"), errBuild
}
