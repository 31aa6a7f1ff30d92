// Package journal follows the files of systemd-journald, and promises that every entry
// that counts is handed out once: across rotation, vacuuming, a flush from /run to /var,
// and restarts of journald and of whoever reads. What cannot be read is counted, or said
// where nobody can count it. It refuses to ask libsystemd or journalctl, and it never
// writes.
//
// # How it reads
//
// A file of the journal is an index of itself. Each datum, such as
// SYSLOG_IDENTIFIER=kubelet, is there once, and knows the entries that have it. So
// only the entries of the wanted identifier or unit are looked at, and what all others log
// costs nothing.
//
// Files are read by pread and never mapped: one that is cut short under a reader
// would otherwise end the whole program. Whatever stands in them is checked before it
// is believed, and chains may only lead forward (or only back), so that none is endless.
//
// # Where it goes on
//
// A position names every file that may still grow, and the entry up to which it was
// read. Of files that are read to their end only the last sequence number is kept. A
// file that is in neither is new, and is read from its beginning.
package journal
