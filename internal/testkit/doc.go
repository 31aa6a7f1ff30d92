// Package testkit contains the helpers that tests of all packages share: checking
// errors and values, waiting for a condition, HTTP requests, and logs that a test reads while a
// program writes them. A wait always has a limit and reports the last errors. The package knows
// nothing about Kubernetes or Autohealer, so every test may import it.
package testkit
