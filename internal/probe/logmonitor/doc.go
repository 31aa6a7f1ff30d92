// Package logmonitor applies the rules of a monitor to the chunks of a log, and returns
// events and conditions.
//
// It finds exactly what a naive implementation would find. That implementation translates
// every line, adds each line that counts to a window of the last bufferSize lines, and
// tries every rule on that window after every line. This package does so at a fraction of
// the cost, because it translates only lines that contain what a match must contain. A
// line has the same identity whenever it is read. So a restart neither repeats nor loses
// findings: State returns what the monitor knows, and Config.Remembered restores it.
//
// The package has no file, no clock and no goroutine. Its caller passes chunks and the
// time, and calls it from one goroutine at a time. It does not guess when a line was
// written: a line without a timestamp never counts.
//
// # The window
//
// The window holds the last bufferSize lines that count. A line does not count if it
// matches the skip list, has no timestamp, or is too old. Rules with kernelOnly see only
// lines that the kernel has written. The window reaches back at most 32 lines of the log
// per line that it holds, so a log with few lines that count is not searched to its start.
// A record of several lines is one entry. Lost records (Chunk.Lost) empty the window,
// because the lines before and after them do not belong together. A pattern that cannot
// match a newline sees only the newest entry.
//
// # Matches
//
// A temporary rule produces an event for each match. With a count, it produces an event
// when that many matches have occurred within less than its window, and then starts to
// count again.
//
// A permanent rule becomes active with a match, or with the match that reaches its count.
// These end it:
//   - A line that matches its clearPattern. A line that matches both patterns counts as a
//     match: in doubt the node is unhealthy. A clearPattern also resets the count.
//   - clearAfter: no match for that long.
//   - For a rule with a count that has neither: fewer than count matches in the window. A
//     rate near the limit makes this rule flap; a clearAfter prevents that.
//   - A reboot, unless the condition survives it.
//   - A configuration without the rule.
//
// A condition is True while one of its rules is active. It has the reason and message of
// the rule that has been active longest, so two rules do not alternate. While a rule is
// active, further matches only extend it.
//
// # Time
//
// Windows and clearAfter use the timestamps of lines. A timestamp in the future counts as
// now. Each match advances time to its timestamp. When the log was read to its end, Take
// and Wake advance time to now. After a chunk with Chunk.More, which may be a backlog
// after a restart, they do not: unread lines may contain a match. If no chunk follows for
// a second, the log counts as read to its end.
package logmonitor
