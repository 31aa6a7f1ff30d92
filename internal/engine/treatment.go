package engine

import (
	"context"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Remover is a treatment whose objects may remove nodes for good. A removed node keeps its
// slot until it is replaced.
type Remover interface {
	// ShowsRemoval reports whether an object still exists that removed the node of a slot.
	ShowsRemoval(slot ledger.Slot) bool
	// RestoreRemoval tells that the ledger of the previous leader names the removed node.
	RestoreRemoval(slot ledger.Slot)
}

// Treatment carries out one kind of response to an unhealthy node, for example with
// remediation objects. It knows what exists for a node and what to do next. The engine
// queues the tasks, stores their slots in the ledger before they run, and retries them.
// The engine calls all methods except Watch from its own goroutine.
type Treatment interface {
	// Watch lists and watches what the treatment depends on, until ctx ends.
	Watch(ctx context.Context)
	// Ready reports whether everything is loaded that the first tasks depend on.
	Ready(now time.Time) bool
	// Take takes in changed objects, after the engine has taken in nodes and before policies
	// set rules: a rule without the existing treatments could start one twice.
	Take(now time.Time)
	// NodeChanged tells about a new version of a node. before is nil for a new node; after
	// is nil for a node that is gone.
	NodeChanged(before, after *corev1.Node)
	// AddFacts adds the treatments of a node and what forbids them.
	AddFacts(now time.Time, n *Node, facts *triage.Node)
	// Check runs before anything is sent in a round.
	Check(now time.Time)
	// Concerns reports whether the plan of a node asks for something that this treatment
	// does.
	Concerns(n *Node, plan triage.Plan) bool
	// Update tells the core what the treatment knows about a node name and the core does
	// not. The engine calls it before Tasks, and also while a task runs.
	Update(now time.Time, node string)
	// Tasks yields the tasks of a node, the most urgent first, each with the time of a
	// later task, zero for none. The engine runs the first task whose retry is due. A nil
	// task only says when there may be one. If the node is gone, n is nil and the plan is
	// empty.
	Tasks(now time.Time, nodeTasks *NodeTasks, n *Node, plan triage.Plan) iter.Seq2[*Task, time.Time]
	// Owns reports whether the treatment writes objects of this kind.
	Owns(object ledger.ObjectRef) bool
	// Restore resumes the write that the node's slot covers, after a change of leader. It
	// returns false if the write has arrived already or never can, so that its slot is free.
	Restore(now time.Time, nodeTasks *NodeTasks, n *Node) bool
	// MayArrive reports whether a write that was sent for the slot may still succeed, apart
	// from its age.
	MayArrive(slot ledger.ObjectWrite) bool
	// FreesSlot reports whether the slot of a node that is gone is free. If it is not, due is
	// when to ask again, zero if the engine reconciles the node anyway.
	FreesSlot(now time.Time, nodeTasks *NodeTasks) (free bool, due time.Time)
	// Rules returns the rules that have something on the node.
	Rules(node string) []triage.RuleID
	// Problems says what delays the treatment of a node.
	Problems(node string) []string
	// Forget drops what the treatment remembers about a node name. It returns false, and
	// drops nothing, if something is left to do.
	Forget(node string) bool
}
