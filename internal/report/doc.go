// Package report writes what the agent finds on its node to the API server: conditions of
// the Node, Events, and a Lease that shows that the agent is alive.
//
// The newest state of every condition reaches the API server eventually, whatever fails on
// the way. Every Event is either delivered or counted as dropped. The package writes nothing
// while nothing changes, apart from the Lease.
//
// The agent writes only its own conditions, with server-side apply. It takes a condition over
// from another field manager once, and yields it if that manager writes it again. It never
// writes the conditions that Kubernetes itself reports.
//
// The type core decides which request to send next. It has no clock and no connection.
// Reporter sends the requests, one at a time.
package report
