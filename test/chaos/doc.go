// Package chaos runs two replicas of the controller's own binary on a real control plane with
// all kinds of policies, while nodes fail and recover at random, and breaks everything that can
// break: replicas, their clocks, the network, the API server and etcd. Package history then
// judges every recorded write. A seed repeats the choices, not the timing of the processes. The
// package does not look inside the controller: it sees only what the API server shows.
package chaos
