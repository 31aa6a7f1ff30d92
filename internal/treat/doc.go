// Package treat brings the cluster in line with what triage has planned. It
// promises that a write changes only what this system has put on a node itself,
// that it takes effect only on the very version of the node that the plan was
// made from, and that whoever asked learns whether it was made, was not made, or
// may still be. It refuses to decide: what it writes stands in the plan.
package treat
