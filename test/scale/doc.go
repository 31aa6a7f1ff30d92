// Package scale measures Autohealer on clusters of 2,000 and 10,000 nodes of realistic
// size: a real API server, a real controller manager, and the controller's own program with
// the rights of deploy/. A metric is what a user would see from outside, and the benchmarks
// assert the work behind it (writes, changed nodes). They do not judge time: compare the
// results with docs/contributing/benchmarks.md.
package scale
