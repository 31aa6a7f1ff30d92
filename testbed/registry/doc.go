// Package registry pins the version of the container registry that the test of the images pushes
// to. It is a module of its own, so that its dependencies do not reach the others.
package registry
