// Package filelog reads a growing text file, and finds the stamp and the message in
// its lines.
//
// It promises that every line which is still to be had in plain text is handed on
// once and in order, however the file is rotated: renamed, copied and truncated,
// several times between two looks, or while nobody looked. A file that disappears before
// it is read is counted as a gap, and a copy of a file that was read is not read. A file that comes and goes
// is waited for, and the kernel says when (inotify); nothing is polled where that can
// be had. The package refuses to understand lines: what stands in one is nobody's
// business until somebody asks the translator.
package filelog
