// Package stats exports statistics of the machine as metrics: CPU, disks, networks, memory,
// filesystems and kernel features. Names, labels and types are the same as in
// node-problem-detector, so existing dashboards keep working.
//
// The monitor reads the statistics every invokeInterval. A scrape returns the latest values and
// waits for nothing. A filesystem that hangs does not block the monitor: it asks only filesystems
// on local block devices, each in its own goroutine, and does not ask again until the goroutine
// returns. A value that cannot be read is absent, not zero. The log reports it once.
//
// The package does not judge: a full disk is a value, not a problem of the node. It runs no
// programs, whatever the names of the settings suggest.
package stats
