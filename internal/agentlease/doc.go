// Package agentlease notices agents that have stopped reporting. An agent renews a Lease
// for as long as it lives; whoever has not for the time that the Lease lasts is
// silent, and what it said last of its node is no longer known to be so. The package
// looks at all Leases every now and then. It promises that nobody is called silent who
// could not have been heard: the time is counted by our own clock from the look that
// brought a renewal, or from when looks began to succeed at all, and the Lease is read
// afresh before anything is written; and that whoever shows by what he writes that he
// lives without renewing is called silent once and not again. It refuses to judge a node that never had an agent
// with a Lease, and to conclude anything from a silence beyond that nobody looks.
package agentlease
