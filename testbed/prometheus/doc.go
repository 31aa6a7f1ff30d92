// Package prometheus pins the version of promtool that tests the alerts. It is a module of its own,
// so that its dependencies do not reach the others.
package prometheus
