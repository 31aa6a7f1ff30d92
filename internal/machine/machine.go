// Package machine defines what policies know about the machine behind a node. A provider
// of machines implements [Machine] and [Provider] with its own objects, for example
// Karpenter's NodeClaims. A policy that depends on these interfaces works with every
// provider. The package reads and writes no objects.
package machine

import (
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
)

// Machine is the machine behind a node, as an object of its provider describes it. The
// provider replaces the machine when the object is deleted.
type Machine interface {
	GetName() string
	GetUID() types.UID
	// Pool returns the pool of the machine, empty for none.
	Pool() string
	// Template identifies the template that the machine was made from, empty if unknown.
	Template() string
	// CapacityType returns how the machine is paid for, empty if unknown.
	CapacityType() string
	// Reference returns a reference for Events.
	Reference() *corev1.ObjectReference

	// HasInstance reports whether the machine has or will have an instance.
	HasInstance() bool
	// IsRebooting reports whether the provider restarts the machine.
	IsRebooting() bool
	// ReadySince returns since when the machine is ready for work. It is zero only if the
	// machine is not ready.
	ReadySince() time.Time
	// HasStarted reports whether the machine and its node are ready for work.
	HasStarted(node *corev1.Node) bool
	// IsEnding reports whether the object is being deleted.
	IsEnding() bool
	// IsForced reports whether another client deletes the object, and its drain is being ended by
	// force.
	IsForced() bool
	// Disrupted reports whether the provider takes the machine out of service, and how.
	Disrupted() (how string, is bool)

	// Mark returns the mark of this controller, which says that the machine is to be
	// deleted. It is nil if there is none, or it cannot be read.
	Mark() *ownership.Mark
	// Vetoes returns what forbids this controller to delete the machine.
	Vetoes() []string
}

// Provider knows the machines of one kind. Its methods are for the goroutine of the
// engine.
type Provider interface {
	// Kind names the objects of the provider, for messages.
	Kind() string
	// IsInitialized reports whether the provider has recorded on the node that it was ready
	// for work.
	IsInitialized(node *corev1.Node) bool
	// TakeMachines takes in changed machines. The policy calls it before the engine takes in
	// nodes, because allowances depend on machines.
	TakeMachines(now time.Time)
	// MachineOf returns the machine of a node. It returns nil if the node has none, or if
	// its machine is ambiguous; problem then says why.
	MachineOf(node *corev1.Node) (m Machine, problem string)
	// Candidates yields the machines that may be the machine of a node: usually one, or two
	// if something is wrong.
	Candidates(node *corev1.Node) iter.Seq[Machine]
	// Machine returns the machine that an object reference names, nil for none.
	Machine(ref ledger.ObjectRef) Machine
	Machines() iter.Seq[Machine]
	// HasMachines reports whether there are any machines.
	HasMachines() bool
	// NodesOf returns the names of the nodes of a machine, usually one.
	NodesOf(m Machine) []string
}

// Termination is how a rule terminates machines.
type Termination struct {
	// Mode says whether the provider drains the pods of the node. GracePeriod limits the
	// drain; nil for no limit.
	Mode        v1alpha1.Termination
	GracePeriod *time.Duration
	// BoundPool is the pool whose rules share a bound, empty for none.
	BoundPool string
	// IsReadyTimeout says that the node did not become ready within ReadyTimeout.
	IsReadyTimeout bool
	ReadyTimeout   time.Duration
}
