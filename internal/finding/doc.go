// Package finding defines the data that monitors and third-party daemons pass to the reporter:
// conditions of the node, and events that happened on it. It combines the conditions of all sources
// into those of the node.
//
// The same occurrence always has the same ID, so a caller may pass it on twice.
//
// Several sources may report the same condition. If one of them reports a problem, the condition is
// True, with the message of the source that has reported it longest. Two sources therefore never
// alternate. Otherwise the condition is Unknown if a source cannot look, and False if none has a
// problem.
//
// The package does not examine the node and sends nothing: it returns the changes to its caller.
package finding
