// Package helpers holds the programs that configuration files of node-problem-detector
// call by their paths, so that one binary can be all of them, by the name under which it
// is called.
//
// It promises their flags and what their exit codes mean: 0 is well, 1 is sick, and 2 is
// that nobody knows, which is also the answer to flags that are wrong. Each prints one
// line and ends by itself before the time that their files allow.
//
// It refuses to call other programs: what a shell did with systemctl, crictl, journalctl
// and iptables is asked of systemd, the runtime, the journal and the kernel. Its own sh
// can only become the one program that it is told to exec.
package helpers
