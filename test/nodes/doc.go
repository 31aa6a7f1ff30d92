// Package nodes tries Autohealer on real nodes: the agent as a pod of its DaemonSet and
// the controller as pods of its Deployment, from the images and the manifests that users
// have, on kubelets and containerds that are broken on purpose. It promises that a
// problem of a node travels all the way, from where it shows to a pod that runs
// elsewhere. It refuses to play any part of that way.
package nodes
