// Package check holds the examinations of a node that are built in: the kubelet,
// kube-proxy, the container runtime, filesystems, the clock, and the network's tables and
// names. They run in the agent's own process, without a shell and without programs of the
// node.
//
// It promises that sick means that somebody was asked and gave no good answer in time;
// who could not be asked at all, for want of rights or of a mount, is Unknown, with a
// reason. While a node or a service starts, nothing is called sick.
//
// It refuses to act on its own: a service is restarted only where its configuration says
// so, one at a time on a node, never within its cool-down, and ever more seldom until it has
// been well for as long.
package check
