// Package treat writes to the cluster what triage has planned. A write changes only what
// Autohealer put on a node itself. It takes effect only on the version of the node that the
// plan was made from. The caller learns whether the write was made, was not made, or may
// still be made. Writes to remediation objects and node Leases carry the UID of the object
// that was read, so they never touch another object of the same name. The package decides
// nothing: the plan says what to write.
package treat
