// Package pools tests node repair on clusters in which a real Karpenter creates the nodes.
// Nodes become unhealthy or never become ready, and the tests check the recorded writes:
// which client did what, and when. Every claim of a test about a pool is read from that
// recording. A test does not wait to prove that nothing happens: it checks after another
// event has shown that it could have happened.
package pools
