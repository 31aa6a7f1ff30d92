// Package treat brings the cluster in line with what triage has planned. It
// promises that a write changes only what this system has put on a node itself,
// that it takes effect only on the very version of the node that the plan was
// made from, and that whoever asked learns whether it was made, was not made, or
// may still be. Requests to remediators and the Leases of nodes it touches only as
// the objects that they were seen to be, never as others of the same name. It
// refuses to decide: what it writes stands in the plan.
package treat
