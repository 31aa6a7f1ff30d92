// Package realnode adds real nodes to a testbed: each runs a kubelet and a containerd,
// which run pods.
//
// # Guarantees
//
// A node has its own namespaces for processes, mounts and the network, and its own /etc,
// /run, /var/lib and /var/log. So several nodes run side by side, each as if it had the
// machine to itself, and manifests of a cluster run there unchanged. The first process of
// a node ends with the process that started it, in every case, and ends everything else:
// no process, mount, link or address remains. Kernel settings that the kubelet writes go
// into files of the node. Only control groups outlive a killed process, and the next start
// removes them.
//
// # Limits
//
// It installs nothing: all missing requirements are in one error, which says how to get
// them. It pulls no image: a node has only the images that the test imports. A pod can
// reach only its own node and the API server.
package realnode
