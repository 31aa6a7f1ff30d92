// Package intake is where third-party daemons report problems of the node: it says who
// may report what, and takes it.
//
// It promises that only configured sources are heard, each only on its own conditions;
// that a status counts as a whole or not at all, and one that does not is answered with
// what is wrong and where; that a source which floods is slowed and holds up no other;
// and that the conditions of a source which falls silent are Unknown until it speaks
// again. What it keeps of any caller, known or not, is bounded.
//
// It refuses to believe a name: a source is known by its socket, by the user that it
// runs as, or by its token, and what it calls itself must agree.
package intake
