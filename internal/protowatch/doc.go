// Package protowatch reads watches and lists in protobuf from the connection. It serves kinds
// that change so often that the decoder of Kubernetes would cost more than all processing.
//
// It passes every object to the caller's decoder as the API server sent it, one at a time and
// without a copy. It closes a connection that may be dead, and returns an error for a truncated
// list. [Backoff] is the common wait of all watches of the controller before a retry.
//
// The package knows no kind. The caller decodes the objects.
package protowatch
