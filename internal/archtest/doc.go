// Package archtest contains tests of the structure of the repository: which package may
// import which, and that every package is documented. Each import rule states its reason.
// The package contains no other code.
package archtest
