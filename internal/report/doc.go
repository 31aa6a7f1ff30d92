// Package report is the agent's voice: what was found on a node becomes conditions
// and Events in the API server, and a Lease says that somebody looks.
//
// It promises that the newest state of every condition gets there in the end, whatever
// happens on the way, that every Event is delivered or counted, and that nothing is
// written while nothing changes. It writes its own rows and no others: it takes a row
// over from another writer once, and yields if the other writes it again. It refuses to
// write the conditions of Kubernetes itself, and to fight.
//
// What to say next is decided by a core without a clock or a connection (core.go and
// what it is made of); Reporter carries it out, one request at a time.
package report
