package testkit

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
)

// Check fails the test unless a claim holds. The test continues.
func Check(tb TB, holds bool, format string, args ...any) {
	if !holds {
		tb.Helper() // only here, as in Must
		tb.Errorf(format, args...)
	}
}

// Require ends the test unless a claim holds.
func Require(tb TB, holds bool, format string, args ...any) {
	if !holds {
		tb.Helper()
		tb.Fatal(fmt.Sprintf(format, args...))
	}
}

// Same fails the test unless both values are the same; pointers are the same if they point to
// the same variable. The format names what is compared.
func Same[V any](tb TB, got, want V, format string, args ...any) {
	if !equal(got, want) {
		tb.Helper()
		tb.Errorf("%s", unequal(got, want, fmt.Sprintf(format, args...)))
	}
}

// MustBeSame ends the test unless both values are the same.
func MustBeSame[V any](tb TB, got, want V, format string, args ...any) {
	if !equal(got, want) {
		tb.Helper()
		tb.Fatal(unequal(got, want, fmt.Sprintf(format, args...)))
	}
}

func equal(got, want any) bool {
	if reflect.ValueOf(got).Kind() == reflect.Pointer {
		return got == want
	}
	return reflect.DeepEqual(got, want)
}

func unequal(got, want any, what string) string {
	verb := "%+v"
	switch want.(type) {
	case string, []string, map[string]string:
		verb = "%q"
	}
	return fmt.Sprintf("got "+verb+", want "+verb+": %s", got, want, what)
}

// Between fails the test unless a value is within these bounds, which belong to the range.
func Between[V cmp.Ordered](tb TB, got, low, high V, format string, args ...any) {
	if got < low || got > high {
		tb.Helper()
		tb.Errorf("got %v, want %v to %v: %s", got, low, high, fmt.Sprintf(format, args...))
	}
}

// Contains fails the test unless a text contains a part.
func Contains(tb TB, text, part, format string, args ...any) {
	if !strings.Contains(text, part) {
		tb.Helper()
		tb.Errorf("%s: %q is missing in:\n%s", fmt.Sprintf(format, args...), part, text)
	}
}

// NoDiff fails the test if there is a difference, as cmp.Diff(want, got) prints it.
func NoDiff(tb TB, diff, format string, args ...any) {
	if diff != "" {
		tb.Helper()
		tb.Errorf("%s (-want +got, unless it says otherwise):\n%s", fmt.Sprintf(format, args...), diff)
	}
}
