//go:build !linux

package testbed

import (
	"errors"
	"os/exec"
)

// On other Unixes the package compiles, so that its importers do, and says why
// it does not run.
var errLinuxOnly = errors.New("the testbed runs on Linux only: nowhere else do children die with a parent that was killed")

type port struct{ number int }

func holdPort() (*port, error) { return nil, errLinuxOnly }

func (p *port) release() {}

func (p *port) address() string { return "" }

func runTethered(_ *exec.Cmd, started func(error)) error {
	started(errLinuxOnly)
	return errLinuxOnly
}

func freeze(_, _ int) error { return errLinuxOnly }
