// Package nodefacts knows the facts of all nodes on every replica, leader or not, so
// that each of them can tell what a policy would do. It promises answers from what
// it was told last, to any number of askers at once, and to say so while it has not
// heard of everything yet ([Census.Ready]). It refuses to decide: it follows no
// rule, and nobody acts on what it holds.
//
// Whoever asks never waits until all of many nodes are taken in: that is done a few at
// a time, and an answer in between is from what is known by then.
//
// # Who tells it
//
// A replica that waits for its turn has nothing but the census, which so has a
// watch of its own ([Census.Follow]). The leader hears of every node anyway, and
// tells the census what it learns ([Census.Observe], [Census.Forget]). It begins
// with that while it is still loading. From then on the watch, which may be behind,
// has no say about a node that the leader has spoken of, and once the leader has
// loaded everything ([Census.Take]) the watch ends, and with it what only the watch
// had told.
package nodefacts
