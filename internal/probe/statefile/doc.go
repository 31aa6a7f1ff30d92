// Package statefile stores the state that the agent needs after a restart: how far it has
// read each log, the problems it has found, the labels of its node, the last valid text of
// its configuration files, and a note for the reporter.
//
// The state file is complete at every moment, even if the agent or the node crashes during
// a write. The store writes urgent changes at once and others within seconds. A caller
// that stores something never waits for the disk. If a write fails, the store logs it and
// retries; the agent continues without stored state.
//
// The store keeps a monitor for a day after it was removed from the configuration. If it
// comes back, its findings still hold.
//
// The package does not interpret what it stores. The writer of a position or a state
// decides what it means and whether it is valid after a reboot.
package statefile
