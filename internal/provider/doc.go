// Package provider states which node conditions are unhealthy, for each infrastructure
// that can replace nodes: Karpenter, and static nodes without NodeClaims. Users can add
// statements in a file. The package reads that file completely, or rejects it with the
// number of the wrong line. A provider only recommends how long to tolerate a condition;
// the repair policy of the pool decides.
package provider
