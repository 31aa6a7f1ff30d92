// Package nodes tests Autohealer on real nodes: the agent as a pod of its DaemonSet and the
// controller as pods of its Deployment, from the users' images and manifests. The tests
// break kubelets and containerds on purpose. They check that a problem of a node has all
// its effects, from the detection to a pod that runs elsewhere. They fake no part of it.
package nodes
