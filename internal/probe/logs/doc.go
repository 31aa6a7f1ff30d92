// Package logs defines the types that all log readers share: chunks of whole lines,
// readers that follow a log from a position, and translators that parse a line.
//
// Readers pass chunks on without parsing them. Most lines match no rule, and parsing every
// line would cost more than all other work on the log. Only a caller that finds a match in
// a line translates that line. The package itself reads no log.
package logs
