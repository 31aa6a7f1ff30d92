// Package catalog is what is known of node conditions before any cluster is
// asked: which types there are, who reports them, in which status a node is
// well, what the sickness means, and what is done about it if nobody has said
// otherwise. The documentation and the default ConditionSets are made of it, and
// admission and the agent read it.
//
// It promises that every default is a decision with its reason beside it. It
// refuses to know clusters and to act: it imports the standard library only, so
// that the small agent can carry it, and a condition that is not in it is
// unknown here, not wrong.
package catalog
