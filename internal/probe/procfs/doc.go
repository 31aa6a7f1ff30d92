// Package procfs reads facts about the machine from the proc file system: the current boot and the
// kernel's mount table.
//
// The agent uses the identity of a boot to drop problems that a reboot ends, and its time to ignore
// log lines from before the boot. Two reads during the same boot return the same values at any time,
// unless the clock was set in between. Paths of the mount table are returned exactly as they are on
// disk, including spaces and control characters.
//
// The package does not guess: if the kernel does not tell a value, it fails. It never accesses a
// mounted filesystem, so a filesystem that hangs cannot block it.
package procfs
