// Package unit asks systemd for its units and has it restart one, over D-Bus, without a
// shell and without a program on the node.
//
// It promises that an answer is systemd's own, of this moment, or an error that says
// whom it asked; that nobody waits longer than the context allows, also for a systemd
// that accepts and never answers; and that no connection is left open between two
// questions, of which there are few.
//
// It refuses to decide: whether a unit is to be restarted is for whoever asks.
package unit
