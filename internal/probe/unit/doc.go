// Package unit reads the state of systemd units and restarts them, over D-Bus, without a shell or a
// program on the node.
//
// Each call returns the current state from systemd, or an error that names the socket. No call
// takes longer than its context allows, even if systemd accepts the connection and never answers.
// Calls are rare, so no connection stays open between them.
//
// The package does not decide whether a unit should be restarted.
package unit
