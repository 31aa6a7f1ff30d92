//go:build !linux

package realnode

import "errors"

// The package compiles elsewhere, so that its importers do, and returns an error.
func inside[T any](int, func() (T, error)) (made T, err error) {
	return made, errors.New("real nodes run on Linux only")
}
