// Package journal follows the files of systemd-journald, and returns every matching entry
// once: across rotation, vacuuming, a flush from /run to /var, and restarts of journald
// and of the agent. It counts entries that cannot be read, and logs losses that cannot be
// counted. It does not use libsystemd or journalctl, and it never writes.
//
// # Reading
//
// A journal file is its own index. Each data object, for example
// SYSLOG_IDENTIFIER=kubelet, is stored once and lists the entries that contain it. So the
// reader only looks at entries of the wanted identifier or unit, and other entries cost
// nothing.
//
// The package reads files with pread and never maps them, because truncating a mapped file
// would crash the agent. It validates everything that it reads. Chains may only lead
// forward (or only backward), so no chain is endless.
//
// # Position
//
// A position names every file that may still grow, and the last entry that was read in it.
// For files that were read to their end it only stores the last sequence number. A file
// that the position does not cover is new and is read from its start.
package journal
