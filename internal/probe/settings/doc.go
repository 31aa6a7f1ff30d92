// Package settings reads and watches the agent's configuration files. For each file it keeps the
// current content and the last valid version.
//
// An edit is noticed soon after it is made, also in a mounted ConfigMap and for files that are
// created later. An invalid version never replaces a valid one, even after a restart of the agent.
// Each change is reported once. If a file is deleted, its configuration is no longer in effect.
//
// The package does not decide whether a version is valid, and it starts no monitors.
package settings
