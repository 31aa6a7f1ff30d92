// Package nodefacts stores the facts of all nodes on every replica of the controller, so that
// each replica can compute what a policy would do.
//
// Its methods are safe for concurrent use and answer from the newest known facts.
// [Store.Ready] reports whether every node is known. The store changes many nodes in small
// batches, so a caller never waits for all of them.
//
// The package does not decide or act: it evaluates rules only on request.
//
// # Sources
//
// A replica that is not the leader has its own watch of nodes ([Store.Watch]). On the leader,
// the loop of the controller passes every node that it reads to the store ([Store.Observe],
// [Store.Forget]). It begins while it is still loading. The watch may be behind the loop, so
// the store ignores the watch for nodes that the loop has passed. When the loop has loaded all
// nodes ([Store.Takeover]), the watch ends, and the store removes nodes that only the watch
// has reported.
package nodefacts
