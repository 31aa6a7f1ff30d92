// Package provider states which node conditions are unhealthy: for NodePools of each cloud,
// and for nodes without a NodePool. Users can add statements in a file. The package reads
// that file completely, or rejects it with the number of the wrong line. A provider only
// recommends how long to tolerate a condition; the repair policy of the pool decides.
package provider
