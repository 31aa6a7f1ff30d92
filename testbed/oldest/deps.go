// Package oldest pins the oldest version of Kubernetes that Autohealer supports.
//
// It is a module beside testbed, because a module can require only one version of Kubernetes. The
// tool lines of this go.mod name the programs. etcd and kwok are those of testbed.
package oldest
