// Package history checks whether the controller kept its promises during a test
// run. It replays the testbed's recording, which has every change in order with its
// author. After each change it knows the state of the whole cluster, and it judges
// each write of the controller by the state just before the write. It counts what it
// judged, so that a test can require a minimum. It does not use the controller's
// code: it reads ConditionSets, NodeHealthChecks and repair policies itself, and asks
// package naive what their conditions and bounds mean.
//
// "We" and "ours" mean the judged controller, see [Config.Us].
//
// # Violations for ConditionSets
//
//   - [CapExceeded]: we placed a set's NoExecute taint, and then more of the selected
//     nodes had it than the set allows.
//   - [ForeignTouched]: we changed something that is not ours. Ours are the record on
//     the node, the taints in the record with the same timeAdded, and the status of a
//     ConditionSet. We also may not place a taint again that another writer has just
//     removed, and may not put another writer's taint into the record.
//   - [DoneTwice]: we placed the same taint again although no possible cause had
//     changed since, or a write changed nothing.
//   - [Unjustified]: we placed a taint that no set asks for, or removed a taint that
//     its set still asks for, or placed NoExecute on a control-plane node that the set
//     does not select explicitly.
//   - [Unrecorded]: we placed NoExecute, and no ledger entry names the set, the node
//     and the changed version of the node.
//   - [Misrecorded]: after our write the node's record does not match its taints, or
//     cannot be read.
//   - [OutOfTurn]: a node got NoExecute while another node had waited longer for it.
//   - [WrongEnd]: at the end of the recording, a node does not have exactly the taints
//     that the sets ask for, a node waits although the bound has room, or a record has
//     leftovers.
//   - [UnknownAuthor]: the taints or the record of a node changed, or a node was
//     deleted, and nothing proves that the author is another client.
//
// # Violations for health checks
//
//   - [Unjustified]: we created a remediation object for a node that was not unhealthy
//     for long enough, not selected, excluded or paused, or without its template or the
//     node's Lease, or outside all windows of the health check, or while its mode starts
//     nothing. Or we deleted an object while its node was unhealthy or Unknown, or
//     while the object asks for the removal of its node. Or we released the Lease
//     during the treatment.
//   - [GateIgnored]: we started a treatment while too many selected nodes were
//     unhealthy, had an object of the health check, or were removed by it and not yet
//     replaced; or during the cooldown of a storm in the status.
//   - [TreatedTwice]: we created an object for a node under treatment by another health
//     check, or a second object from the same template, or treated a control-plane node
//     while another control-plane node had an object of ours.
//   - [Malformed]: an object, an annotation or a Lease breaks the contract with
//     remediators (kind, namespace, name, annotations, labels, owner, spec).
//   - [TooSoon]: we started a step before the previous step had failed, or had timed
//     out and was marked as timed out; or we deleted an object during healthyDelay.
//   - [ForeignTouched]: we wrote to an object that no health check owns, to a template,
//     to a Lease of another holder, to more than our two annotations of an object, or to
//     more than the status of a health check; or we removed a confirmation from a node
//     that still has an object.
//   - [Conflicting]: we wrote while medik8s' own controller renewed its Lease. The
//     status may say that we are inactive.
//   - [DoneTwice]: a write changed nothing, or marked an object as timed out again.
//   - [WrongEnd]: an unhealthy node has no object without a reason, an object or a Lease
//     is left over, or a status is wrong.
//   - [UnknownAuthor]: an unknown author made a change that would be one of these
//     violations if it was us.
//
// # Violations for repairs
//
// A repair replaces a node: the controller deletes the node's NodeClaim.
//
//   - [Unrecorded]: we deleted a claim without our mark, or marked a claim without a
//     ledger entry that names the rule, the node, the claim and its version.
//   - [Malformed]: a mark cannot be read or names the wrong node, the deadline on the
//     claim is not the policy's, or we removed a mark without its deadline.
//   - [Unjustified]: we replaced a node that is not unhealthy by the policy in force
//     (the block of its NodePool, then the RepairPolicy that names the pool, then a
//     policy that selects the node; the older wins). Or, for the ready timeout, the node is or
//     was ready for work. Or a veto forbids it: do-not-repair on the node, its claim or
//     its pool, another holder's Lease, a claim that is already being deleted, or two
//     claims with one provider ID. Or we deleted a claim or ended a drain by force outside all
//     windows of the policy.
//   - [TooSoon]: the policy still tolerated the condition, the node still had time to
//     become ready, or its pool is paused because three nodes in a row did not.
//   - [CapExceeded]: more nodes of the pool were in repair than its policy allows. A
//     node counts from our mark until the mark is removed, or until the node is gone and
//     a younger node of the pool is ready, or for 15 minutes. All rules of a pool count
//     together.
//   - [GateIgnored]: we deleted a claim without room in the disruption budgets of the
//     pool, counted as Karpenter counts for the reason Unhealthy.
//   - [TreatedTwice]: we marked a claim whose node is under treatment by a health check.
//   - [ForeignTouched]: we wrote more to a claim than the mark and its deadline, or more
//     than the status of a RepairPolicy, or wrote to a NodePool for another reason than
//     to restore a lost block.
//   - [DoneTwice]: we deleted a claim again, or a write changed nothing.
//   - [WrongEnd]: a mark is left on a claim that is not being deleted. The package does
//     not check whether every unhealthy node was replaced: the test must do that.
//
// A RepairPolicy can ask for a remediation object for a node without a NodeClaim. The
// same policy rules and the contract with remediators apply to these objects.
//
// # Violations for Guardrails
//
//   - [RailIgnored]: we started a step that the Guardrails object, or its defaults, forbid: the
//     mode or enforce holds its stage, or afterwards more nodes are in treatment, closed to new pods, or in
//     treatment within one value of a topology label than allowed, or more treatments began
//     than the pace allows, or no node is Ready and schedulable. All policies count together.
//     Also: a treatment began that is not recorded on its node, or is one more than maxAttempts
//     allows, or we removed an attempt that still counts. Also: we placed NoExecute, or began a
//     step of a remediation or of a repair, on a node with a label value of which too many nodes
//     became unhealthy together. Or we began a step of a remediation or of a repair on a node on
//     which others work: a cordon, a taint of the Cluster Autoscaler, of Karpenter or of a
//     maintenance, an announced maintenance, the label that excludes nodes, or a NodeClaim that
//     others delete. (Leases of others are judged with health checks and repairs.) The recording
//     has no pods, so pods that must not be disrupted are not judged.
//   - [RailIgnored] also: we placed a taint, or began a step of a remediation or of a repair, on
//     a node that is paused by its annotation. This needs no Guardrails.
//   - [ForeignTouched], [DoneTwice]: we wrote more than the status, or changed nothing.
//
// A mirror is a ConditionSet or RepairPolicy that was created with the label of mirrors. It asks for
// nothing, and we may write it.
//
// Each error is reported once: after an unjustified removal, placing the taint again is
// not [DoneTwice].
//
// # Tolerances
//
// A write to a node has the version of the node on which it was decided. So this node is
// judged exactly by its state before the write. The writer knows sets and other nodes
// through watches, and this knowledge may be as old as [Config.Lag]. A placement is
// justified if a version of its set that was current within that time asked for it. A
// bound is exceeded only if it exceeds every bound that was current within that time.
// The number of nodes with the taint may never be old.
//
// A remediation object has no version of its node, so the node's state may be as old as
// the lag, too. Other nodes count as unhealthy if they were unhealthy for that time, or
// became unhealthy before the treated node did: a single watch delivers all of them in order.
// A removed node counts from when the writer could know it, until a later node becomes
// ready, or for 15 minutes. The recording does not show which node replaces which. Time
// limits of steps and waits are not judged across an edit of the health check.
//
// Where the specification allows two readings, both are accepted. A clock may start with
// the condition's timestamp or when the change was seen. While a condition is Unknown,
// existing taints stay, but may go if the node was healthy or the set was edited in
// between. An invalid set places nothing new, and its existing taints may stay or go. A
// version of a health check that interrupts remediations counts as invalid until they are over. A
// taint of another writer with the wanted key and effect replaces ours.
//
// A repair is judged when the claim is marked, and again when it is deleted: the node
// must still be unhealthy, without a veto, and within the budgets. The lag applies to
// both. Nodes that other clients take out of service use up a budget from when the writer
// could know it, our own marks at once. A node that joined after the mark may be the
// replacement of any node. An invalid block does not change the last valid block.
//
// A step is a violation of Guardrails only if every version of the object within the lag forbids
// it. Percentages count all nodes that the writer may know: also nodes that were deleted within
// the lag. Taints, remediation objects and marks of ours count at once, cordons and taints of
// other clients from when the writer could know them. A deleted node counts as for health checks
// and repairs, but not in its topology domain: the recording does not show which deleted nodes are
// replaced. The pace limits decisions. Their writes arrive within [Config.Delay], so they count
// within a period that is shorter by this time. Objects that are being deleted, and objects of
// policies that do not exist, do not count. A recording with Guardrails may end with nodes that
// wait.
//
// Without an object the defaults apply if [Config.DefaultMode] is set. An invalid version keeps the
// last valid one in force, or the defaults, but its mode Paused counts.
//
// A correlated failure counts the nodes that the writer must know to be unhealthy under a rule with
// NoExecute, remediations or repairs: since before the lag, under an unchanged policy that is not
// paused. It does not count ready timeouts, conditions with a reason, and nodes that were not ready
// before the lag and whose treatment is not due. The threshold counts every node that may be in the
// domain: also nodes that were deleted, or whose labels changed, within the lag. The window is shorter
// by two lags, because a writer may see each change late. With longestHold, the hold counts as ended as
// soon as it may be. A NoExecute taint that was decided is placed although a failure begins before
// its write: for taints the failure must be older than [Config.Delay].
//
// The work of others counts from when the writer must know it. Remediators cordon nodes, so a cordon
// does not count while the node has a remediation or a mark of ours, or had one within the lag; a
// deletion of a marked claim does not begin on a cordoned node. A pause ends early by the lag, because
// clocks differ. For a taint the pause on the written version of the node counts, even a new pause. A
// window is open early and late by the lag. While a health check observes, its objects may end.
//
// A bound that shrinks below the existing number (after an edit or a deletion of nodes)
// is no violation: only placing is. Unused room is a violation only at the end.
//
// # Usage
//
//	recording, err := cluster.Recording(ctx)
//	...
//	history.Require(t, recording, history.Config{
//		Us:     history.UserAgent("autohealer-controller"),
//		Ledger: types.NamespacedName{Namespace: "autohealer-system", Name: "autohealer-ledger"},
//		EndAt:  time.Now(),
//		DefaultMode: v1alpha1.Enforce, // as --default-mode, if Guardrails are recorded
//	}, history.Counts{Evictions: 98, Fallbacks: 102})
//
// The cluster must record nodes and conditionsets, and ConfigMaps if the ledger is to be
// judged ([Resources]). Health checks are judged if [Config.Remediation] has the kinds of
// their objects; then the cluster must also record the Leases in [Namespaces]. Repairs
// are judged if NodeClaims were recorded, by the flags in [Config.Repairs]:
//
//	history.Require(t, recording, history.Config{
//		Us:      history.UserAgent("autohealer-controller"),
//		Ledger:  ledger,
//		Repairs: history.Repairs{ReadyTimeout: 10 * time.Second}, // as --node-ready-timeout
//		EndAt:   time.Now(),
//	}, history.Counts{Marks: 4, Terminations: 4})
package history
