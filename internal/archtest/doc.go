// Package archtest keeps the architecture as tests: who may import whom, and that
// every package says what it promises. It refuses to hold any code of its own:
// what is drawn in docs/architecture.md is asserted here, with the reason, so
// that a wrong turn is told at once and not in a review.
package archtest
