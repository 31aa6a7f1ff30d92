// Package testbed runs a real Kubernetes control plane for tests, benchmarks
// and the demo: etcd, kube-apiserver and, optionally, the controller manager,
// the scheduler and kwok, which simulates the kubelets.
//
// # Guarantees
//
// A cluster that Start returns is ready and isolated: its ports are bound to
// loopback and reserved for as long as it lives, its data is in its own folder,
// its certificates are from its own CA, RBAC is on, and every component has its
// own user. The cluster ends with the process that started it, even if that
// process is killed. Every write to a recorded resource is in the Recording once
// and in order, with the author from the audit log.
//
// # Limits
//
// It never guesses. A missing binary is an error and not a skipped test; an
// author that cannot be proved is "unknown"; a recording that has lost a change
// is an error and not a shorter list. It fakes no part of the control plane:
// a test sees what a real cluster would show.
//
// # Usage
//
//	c := testbed.New(t, testbed.Config{
//		ControllerManager: true,
//		Kwok:              true,
//		Record:            []schema.GroupVersionResource{testbed.NodesResource},
//	})
//	nodes, err := c.CreateNodes(ctx, testbed.Nodes{Count: 100, Pools: []string{"blue", "green"}})
//	...
//	err = c.Silence(ctx, nodes[7].Name)       // its kubelet stops reporting
//	err = c.APIServer.Kill()                  // and now the API server crashes
//	err = c.APIServer.Restart(ctx)
//	...
//	recording, err := c.Recording(ctx)        // all writes in order, with their authors
//
// The programs are in $KUBEBUILDER_ASSETS or in bin/testbed, where `make
// testbed` puts them. The package runs on Linux only: on other systems children
// could outlive a killed parent.
package testbed
