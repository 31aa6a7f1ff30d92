// Package testbed runs a real Kubernetes control plane for tests, benchmarks
// and the demo: etcd, kube-apiserver and, when asked for, the controller
// manager, the scheduler and kwok, which plays the kubelets.
//
// # The promise
//
// A cluster that Start returns is ready and is its own: its ports are bound to
// loopback and held for as long as it lives, its data stand in a folder of its
// own, its certificates come from its own CA, RBAC is on, and every component
// works under its own name. When the process that started it ends, however it
// ends, the cluster ends with it. Every write to a recorded resource is in the
// Recording once and in order, with the author whom the audit log names.
//
// # What it refuses
//
// It never guesses. A binary that is missing is an error and not a skipped
// test; an author that cannot be proved is "unknown"; a recording that has lost
// a change is an error and not a shorter list. And it fakes no part of the
// control plane: what a test sees here is what a cluster would have shown it.
//
// # The way through
//
//	c := testbed.New(t, testbed.Config{
//		ControllerManager: true,
//		Kwok:              true,
//		Record:            []schema.GroupVersionResource{testbed.NodesResource},
//	})
//	nodes, err := c.CreateNodes(ctx, testbed.Nodes{Count: 100, Pools: []string{"blue", "green"}})
//	...
//	err = c.Silence(ctx, nodes[7].Name)       // its kubelet goes quiet
//	err = c.APIServer.Kill()                  // and now the worst
//	err = c.APIServer.Restart(ctx)
//	...
//	recording, err := c.Recording(ctx)        // who wrote what, in order
//
// The programs come from $KUBEBUILDER_ASSETS or from bin/testbed, where
// `make testbed` puts them. Linux only: elsewhere children could outlive a
// parent that was killed.
package testbed
