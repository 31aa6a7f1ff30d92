// Package helpers contains the programs that node-problem-detector's configuration files call by
// path. A single binary provides all of them and selects the program by the name under which it is
// called.
//
// The flags and exit codes are the same: 0 is healthy, 1 is unhealthy, and 2 is unknown, also for
// invalid flags. Each program prints a single line and ends within the time that the configuration
// files allow.
//
// The programs do not call other programs. They ask systemd, the container runtime, the journal and
// the kernel directly instead of using systemctl, crictl, journalctl and iptables. The package's
// own sh can only exec the program that it is given. It exits with 127 for everything else, so that
// a script that needs a real shell does not count as a problem of the node.
package helpers
