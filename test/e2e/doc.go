// Package e2e tries Autohealer as users have it: the manifests of deploy/ on a
// real control plane, and the controller's own program under their rights. It
// promises that every promise about taints is held against the recorded history
// of writes, in fair weather and in every kind of fault. It refuses to look
// inside: it sees what the API server shows.
package e2e
