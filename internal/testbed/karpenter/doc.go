// Package karpenter runs a real Karpenter on a testbed, with the provider whose
// machines are nodes that kwok plays.
//
// # The promise
//
// Start returns when Karpenter works: its CRDs stand, it is ready, and it writes under
// a name of its own, User, with the rights that its chart gives it and no more. It is a
// part of the cluster like any other: it can be killed, paused and restarted, its log
// stands beside the others, and it ends with them. Its nodes are played by the kwok of
// the testbed, so that Silence, Wake and SetCondition do to them what they do to others.
//
// # What it refuses
//
// It changes nothing of Karpenter, of which it knows no type: pools and claims are
// read and written as what the API server has. And it keeps no port to loopback that
// Karpenter does not: metrics and health are served on all interfaces, for it has no
// way to say otherwise.
//
// # The way through
//
//	c := testbed.New(t, testbed.Config{ControllerManager: true, Scheduler: true, Kwok: true})
//	k := karpenter.New(t, c, karpenter.Config{Gates: map[string]bool{"NodeRepair": true}})
//	err := k.CreatePool(ctx, karpenter.Pool{Name: "blue"})
//	err = k.Deploy(ctx, karpenter.Deployment{Name: "web", Pool: "blue", Replicas: 6})
//	err = k.AwaitWhole(ctx, "web")            // on three nodes
//
// The program and its CRDs stand where `make testbed-karpenter` puts them.
package karpenter
