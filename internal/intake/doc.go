// Package intake receives problem reports from third-party daemons on the node. A daemon
// that may report is called a source. It posts its status over HTTP, on a Unix socket or a
// loopback address.
//
// Only configured sources are accepted, each only for its own conditions. The package
// identifies a source by its socket, by the user of its process, or by its token. The name in
// a status must match, but it never identifies a source.
//
// A status is accepted or rejected as a whole. The response to a rejected status names the
// field and the problem. A source that sends too much is slowed down and delays no other
// source. The conditions of a source that stops reporting become Unknown until it reports
// again. Memory per connection is bounded, whether the client is known or not.
//
// The package does not write to the API server. It passes findings to Config.Emit.
package intake
