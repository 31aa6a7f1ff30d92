// Package logwatch monitors a log: it connects the reader of the log, the rules that
// interpret its lines, and the stored state of both.
//
// A watch reports a finding before it stores that the line was read, and stores position
// and rule state together. After a restart or a kill no line is lost, and a finding that
// is reported twice has the same identity. A watch reports conditions when it has read the
// log to its end, or after a few seconds. It does not interpret lines (package logmonitor
// does) and does not detect that it hangs (package supervise does).
package logwatch
