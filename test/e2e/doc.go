// Package e2e tests Autohealer as users install it: the manifests of deploy/ on a real
// control plane, and the controller's own binary with their rights. It checks every promise
// about taints against the recorded history of writes, without faults and with every kind
// of fault. It does not look inside the controller: it sees only what the API server shows.
package e2e
