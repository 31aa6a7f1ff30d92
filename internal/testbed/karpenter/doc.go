// Package karpenter runs a real Karpenter on a testbed, with the provider whose
// machines are nodes that kwok simulates.
//
// # Guarantees
//
// Start returns when Karpenter works: its CRDs are installed, it is ready, and it
// writes under its own user, User, with exactly the rights of its chart. It is a part
// of the cluster like any other: a test can kill, pause and restart it, its log is next
// to the others, and it stops with the cluster. The testbed's kwok simulates its nodes,
// so Silence, Wake and SetCondition work for them, too.
//
// # Limits
//
// It does not change Karpenter and has no Go types of it: pools and claims are
// unstructured objects. Karpenter serves its metrics and health on all interfaces,
// because it has no option for an address.
//
// # Usage
//
//	c := testbed.New(t, testbed.Config{ControllerManager: true, Scheduler: true, Kwok: true})
//	k := karpenter.New(t, c, karpenter.Config{Gates: map[string]bool{"NodeRepair": true}})
//	err := k.CreatePool(ctx, karpenter.Pool{Name: "blue"})
//	err = k.Deploy(ctx, karpenter.Deployment{Name: "web", Pool: "blue", Replicas: 6})
//	err = k.AwaitWhole(ctx, "web")            // on three nodes
//
// `make testbed-karpenter` installs the program and its CRDs.
package karpenter
