// Package install puts Autohealer onto a testbed the way a user would: the manifests
// of deploy/ are applied, and the programs of the controller and the agent run with
// the rights that they give them and no others. It promises that what a test, a benchmark or
// the demo shows is the product. It refuses to reach into it: what is not seen
// through the API server, the metrics or the log is not seen.
package install
