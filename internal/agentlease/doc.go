// Package agentlease detects agents that have stopped reporting. Every agent renews a Lease.
// An agent that does not renew it for the duration of the Lease is silent, and the conditions
// that it wrote are no longer reliable. The package then sets these conditions to Unknown.
//
// The package lists all Leases at intervals. It measures time with its own clock: from the
// list that showed a renewal, or from when lists began to succeed. So an outage of the API
// server makes no agent silent. It reads the Lease again before it writes anything. An agent
// that still writes its conditions but does not renew its Lease is marked silent once, and not
// again.
//
// The package ignores nodes that never had an agent with a Lease. It does not decide what
// follows from a silent agent.
package agentlease
