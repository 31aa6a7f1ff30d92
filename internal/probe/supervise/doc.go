// Package supervise runs the monitors of the configuration files and tracks their health.
//
// A monitor that ends or panics is started again and does not affect others. A monitor that cannot
// look, or hangs without any sign of life, counts as dead after a minute. Its conditions are
// Unknown until it looks again, except those that are True. A new version of a file replaces only
// the monitor of that file. The supervisor does not wait for a monitor that hangs: it abandons and
// counts it.
//
// The package does not know what a monitor looks at.
package supervise
