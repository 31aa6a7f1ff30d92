// Package filelog reads a growing text file, and finds the timestamp and the message in
// its lines.
//
// It returns every line that still exists in plain text once and in order, for any kind of
// rotation: rename, copy and truncate, several rotations between two reads, or while no
// reader runs. If a rotated file is deleted before it was read, the reader counts a gap.
// While no reader runs, it notices only that the file of its position was deleted; tools
// for rotation delete the oldest file first.
// It does not read a copy of a file that it has already read. If the file does not exist,
// the reader waits for it. It waits with inotify, and polls only where inotify does not
// work.
//
// The reader does not parse lines; only the translator does, on request.
package filelog
