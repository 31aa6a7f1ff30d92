// Package boot identifies the current boot of the machine and its start time. The agent uses the
// identity to drop problems that a reboot ends, and the time to ignore log lines from before the
// boot.
//
// Two reads during the same boot return the same values at any time, unless the clock was set in
// between. The package does not guess: if the kernel does not tell a value, Read fails.
package boot
