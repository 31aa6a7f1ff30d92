// Package kmsg reads the log of the kernel where it is made, record by record, with the
// number, the priority and the facility that the kernel gives each.
//
// It promises that a record is handed on once, in order, also across restarts of the
// agent within a boot; and that what the ring has overwritten before it could be read
// is counted, and does not end the reading.
//
// The text of a record is its message, without the blanks around it and without the
// lines of its dictionary (" SUBSYSTEM=block"), which are about it and not of it. The
// kernel writes what cannot be printed as \xNN, a newline too, and so it stays: rules
// were written for that, and nobody can make one record look like two. Fragments of a
// line that the kernel could not join (flags "c" and "+") stay records of their own:
// the hints are not reliable, as the kernel says itself, and whoever waits for the rest
// of a line waits for ever when there is none.
//
// The package refuses to write: it never marks, clears or adds to the log.
package kmsg
