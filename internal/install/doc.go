// Package install installs Autohealer on a testbed like a user: it applies the manifests of
// deploy/, and runs the programs of the controller and the agent with exactly the rights of
// the manifests. So a test, a benchmark or the demo shows the real product. It does not
// look inside the programs: a caller sees only the API server, the metrics and the logs.
package install
