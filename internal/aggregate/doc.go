// Package aggregate combines the reports of several monitors into the conditions of the node.
//
// Several monitors may report the same condition. If one of them reports a problem, the condition
// is True, with the message of the monitor that has reported it longest. Two monitors therefore
// never alternate. Otherwise the condition is Unknown if a monitor cannot look, and False if none
// has a problem.
//
// The package does not examine the node and sends nothing: it returns the changes to its caller.
package aggregate
