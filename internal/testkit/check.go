package testkit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// TB is what the checks need of a test. A [testing.TB] has it, and so have other kinds of tests.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// Must ends the test if there is an error.
func Must(tb TB, err error) {
	if err != nil {
		tb.Helper() // only here: benchmarks call Must in their loops
		tb.Fatal(err)
	}
}

// Result is the result of a call that can fail.
type Result[T any] struct {
	value T
	err   error
}

// Value takes the results of a call: testkit.Value(os.ReadFile(path)).Must(t).
func Value[T any](value T, err error) Result[T] { return Result[T]{value, err} }

// Must returns the value. It ends the test if the call failed.
func (r Result[T]) Must(tb TB) T {
	if r.err != nil {
		tb.Helper()
		tb.Fatal(r.err)
	}
	return r.value
}

// Err returns the error of the call.
func (r Result[T]) Err() error { return r.err }

// Fails reports that the call did not fail, or that its error lacks one of these parts.
func (r Result[T]) Fails(tb TB, parts ...string) {
	tb.Helper()
	Fails(tb, r.err, parts...)
}

// Fails reports that there is no error, or that it lacks one of these parts.
func Fails(tb TB, err error, parts ...string) {
	tb.Helper()
	if wrong := Says(err, parts...); wrong != nil {
		tb.Errorf("%v", wrong)
	}
}

// Says returns nil if there is an error with all of these parts.
func Says(err error, parts ...string) error {
	if err == nil {
		return errors.New("there is no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%q is missing in the error: %w", part, err)
		}
	}
	return nil
}

// Equal reports how a value differs from the expected one.
func Equal(tb TB, what string, want, got any, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
