// Package plugin turns a custom-plugin-monitor file into a monitor: each of its rules becomes a
// check that runs a program.
//
// The exit codes mean the same as in node-problem-detector. Exit code 0 is healthy and 1 is
// unhealthy. Any other code, and any end that the program did not choose, is Unknown, with a reason
// for each kind of failure. The message is the output of the program, cut to the length that the
// file allows.
//
// The package does not start processes and keeps no time: packages subprocess and interval do. It
// does not interpret the output.
package plugin
