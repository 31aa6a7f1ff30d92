// Package realnode gives a testbed real nodes: a kubelet and a containerd each, which
// run pods.
//
// # The promise
//
// A node has namespaces of its own for processes, mounts and the network, and its own
// /etc, /run, /var/lib and /var/log. So several of them stand side by side, each as if
// it had the machine to itself, and the manifests of a cluster need no change to run
// there. Its first process ends with the one that started it, however that ends, and
// takes everything along: no process, mount, link or address stays behind. What the
// kubelet writes into settings of the kernel goes into files of the node's own. Only
// control groups outlive a process that was killed, and the next start removes them.
//
// # What it refuses
//
// It installs nothing, and leaves nothing out: what is missing is one error, which says
// how to get it. It pulls no image: those that a node has were given to it. There is no
// way from a pod to another node, nor to anywhere but its own node and the API server.
package realnode
