// Package required checks that a configuration has all of the fields that it cannot work
// without, and names every missing field in one error.
package required

import (
	"errors"
	"maps"
	"slices"
)

// Fields says of each required field, by name, whether it is missing.
type Fields map[string]bool

// Check returns an error that names all missing fields, in the order of their names.
func (f Fields) Check() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if f[name] {
			errs = append(errs, errors.New(name+" is missing"))
		}
	}
	return errors.Join(errs...)
}
