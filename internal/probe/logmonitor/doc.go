// Package logmonitor turns the chunks of a log into what they mean for the node: it
// looks for the patterns of a monitor's rules, and tells events and conditions.
//
// It promises to find exactly what the plain way would: to translate every line, to
// push it, if it counts, into a window of the last bufferSize of those, and to try every
// rule on that window at every line. It does so for a fraction of the cost, because it
// translates only lines that hold what a match must hold. And it promises that the same line has
// the same identity whenever it is read, so that a restart neither doubles nor
// forgets: what it knows can be kept (State) and given back (Config.Remembered).
//
// It has no file, no clock and no goroutine: its caller hands it chunks and the time,
// and calls it from one goroutine at a time. It refuses to guess when a line was
// written: one without a stamp never counts.
//
// # The window
//
// The window holds the last bufferSize lines that count. One that is on the skip list, has
// no stamp or is too old does not; nor is one that somebody else than the kernel has
// written in the text that a rule of the kernel's only sees. With lines that do not count
// between them, the window goes back over 32 lines of the log for each that it holds, so
// that a log in which hardly any counts is not searched to its beginning. A record of
// several lines is one entry. A gap (Chunk.Lost) empties the window, as what stands on its
// two sides does not belong together. A pattern that cannot hold a newline sees the newest
// entry only, which is all that it could match.
//
// # What a match means
//
// A temporary rule tells an event for each match. With a count, it tells one when
// that many matches have come within less than the window, and then counts anew.
//
// A permanent rule stands from a match on (with a count: from the one that makes it
// full) until it ends. What ends it:
//   - a line that matches its clearPattern. One that matches both is a match: in doubt
//     the node is sick. The clearPattern also empties what has been counted.
//   - clearAfter: no match for so long.
//   - for a rule with a count that has neither: the window holds fewer than count.
//     With a rate near the limit that comes and goes; a clearAfter calms it.
//   - a reboot, unless the condition survives it; and a configuration without the rule.
//
// A condition is True while a rule of it stands, and is told with the words of the one
// that stands longest, so that two rules do not take turns. While a rule stands, its
// further matches only put off its end.
//
// # Time
//
// Windows and quiet are measured by the stamps of lines; a stamp from the future counts
// as now. Each match moves time on to its stamp. When the log is read to its end, now
// decides, whatever stands there, and Wake lets it. After a chunk that says that there is
// more (Chunk.More), which may be a backlog after a restart, now decides nothing: what has
// not been read yet may hold a match. If then nothing comes for a second, there was none.
package logmonitor
