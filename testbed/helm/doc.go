// Package helm pins the version of Helm that renders deploy/install.yaml and that the tests of
// the chart run. It is a module of its own, so that its dependencies do not reach the others.
package helm
