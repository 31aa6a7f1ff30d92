// Package check contains the built-in checks of a node: kubelet, kube-proxy, container runtime,
// read-only filesystems, clock, conntrack table, DNS and iptables. They run in the agent's process
// and use no shell and no programs of the node.
//
// A check is unhealthy only if the component was asked and gave no good answer in time. If the
// check cannot ask, because of missing permissions or a missing mount, the result is Unknown with a
// reason. While a node or a service is starting, nothing is unhealthy.
//
// A check restarts a service only if its configuration enables repair. The agent restarts one unit
// of the node at a time, never within the unit's cool-down. The cool-down doubles with each
// restart, until the unit has been healthy for that long.
package check
