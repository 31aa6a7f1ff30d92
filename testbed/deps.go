// Package testbed pins what a real Kubernetes control plane is built from.
//
// It is a module of its own so that none of these hundreds of dependencies
// reach the product's go.mod. It holds no code of a control plane beyond an
// entry point for etcd, nor of a node beyond a process that waits: the programs
// are upstream's, named by the tool lines of this go.mod, at the versions that
// stand there.
package testbed
