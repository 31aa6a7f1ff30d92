// Package scale measures Autohealer on clusters of 2,000 and 10,000 nodes that
// are as large as real ones: a real API server, a real controller manager, and
// the controller's own program under the rights of deploy/. It promises that a
// figure is what a user would have seen from outside, and that the work behind
// it (writes, nodes touched) is asserted. It refuses to judge time: that is
// reported, for a person to compare with docs/benchmarks.md.
package scale
