//go:build !linux

package testbed

import (
	"errors"
	"os/exec"
)

// On other Unixes the package compiles, so that its importers do, and returns this error.
var errLinuxOnly = errors.New("the testbed runs on Linux only: on other systems children survive a killed parent")

type port struct{ number int }

func holdPort() (*port, error) { return nil, errLinuxOnly }

func (p *port) release() {}

func (p *port) address() string { return "" }

func runTethered(_ *exec.Cmd, started func(error)) error {
	started(errLinuxOnly)
	return errLinuxOnly
}

func freeze(_, _ int) error { return errLinuxOnly }
