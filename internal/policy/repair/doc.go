// Package repair follows RepairPolicies, the repair blocks of NodePools, and ready timeouts:
// the controller replaces unhealthy nodes and nodes that do not become ready. The package
// assigns each node to one policy and passes the assignment to the core as a label that no real node can have.
// So each node counts under one policy only. Besides the bound, an allowance limits
// terminations: what the disruption budgets of the NodePool leave, and the number of launch
// attempts left for nodes that do not become Ready.
//
// It deletes no machines itself: a treatment for the kind of machine does, and asks this
// package how a rule terminates nodes. It knows machines through internal/machine,
// and pools as Karpenter's NodePools.
package repair
