//go:build !linux

package realnode

import "errors"

// The package compiles elsewhere, so that its importers do, and says why it does not run.
func inside[T any](int, func() (T, error)) (made T, err error) {
	return made, errors.New("nodes are Linux, and run on nothing else")
}
