// Package watch lists and watches objects of the API server for the controller.
//
// A watch writes to an [Inbox], which keeps only the newest version of every changed object
// until the controller's loop takes it. So a slow loop costs no memory, and a fast storm no
// rounds. An [Optional] inbox is for a kind that may not be installed or readable, and knows
// the API server's last answer. [Kinds] watches kinds that policies name at run time. Watches
// without a loop give [Run] a store of their own.
//
// Two packages have loops of their own. internal/repairblock lists again whenever a watch ends,
// because a resumed watch does not report changes that only come from another schema.
// internal/certificate reads two objects again after each change, and has no cache: a cache for
// which a right is missing never fills and reports nothing.
//
// The package does not decide what a change means, and writes nothing.
package watch
