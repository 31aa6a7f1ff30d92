// Package kmsg reads the kernel log from /dev/kmsg, with the sequence number, priority and
// facility of each record.
//
// It returns each record once and in order, also across restarts of the agent within a
// boot. It counts records that the ring buffer has overwritten before they could be read,
// and continues after them.
//
// The text of a record is its message, without surrounding blanks and without the
// dictionary lines that describe it (" SUBSYSTEM=block"). The kernel writes unprintable
// bytes and newlines as \xNN. The package keeps this form: rules are written for it, and
// no message can look like two records. Line fragments that the kernel could not join
// (flags "c" and "+") stay separate records. These flags are unreliable according to the
// kernel's own documentation, and a missing fragment would never arrive.
//
// The package does not write to the log, clear it or change it.
package kmsg
