// Package supervise runs the monitors that the configuration files ask for on this
// node, and tells how they are.
//
// It promises that a monitor which ends or panics is run again and pulls no other down
// with it; that one which cannot look, or hangs and says nothing at all, is not taken for
// one that sees nothing: after a minute it counts as dead, and what it says of the node
// is Unknown until it looks again, but for what it has found before; that a new version
// of one file replaces the monitor of that file and touches no other; and that nobody
// waits for one that hangs: it is abandoned, and counted.
//
// It does not know what a monitor looks at. Logs are the first kind; whatever else can
// run and report is another.
package supervise
