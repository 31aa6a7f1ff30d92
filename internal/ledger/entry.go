package ledger

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ownership"
)

// Entry is an entry of the ledger: a [NodeWrite], an [ObjectWrite], a [DeletedNode],
// [LaunchFailures], [Starts] or [Attempts]. Entries are comparable.
type Entry interface {
	record() record
}

// Slot is a slot under the bound of a rule, and the node that takes it.
type Slot struct {
	Rule ownership.Rule
	Node string
	UID  string // of the node
}

// NodeWrite is a write to a node that takes a slot and may be in flight.
type NodeWrite struct {
	Slot
	// ResourceVersion is the precondition of the write: the version of the node. Once the
	// node has another version, the write has either succeeded or cannot succeed any more.
	ResourceVersion string
	// Closes says that the write takes no slot under the bound of the rule: it only closes the
	// node to new pods, with a taint that is weaker than NoExecute.
	Closes  bool
	Unknown format.Unknown // fields that this version does not know
}

// ObjectWrite is a write to another object than the node that takes a slot and may be in
// flight. It creates the object, or it starts the object's deletion.
type ObjectWrite struct {
	Slot
	Object ObjectRef
	// ResourceVersion is the precondition of the write. It is empty for a creation, which
	// may succeed until the request is too old.
	ResourceVersion string
	Step            int       // the step of the rule that the write carries out
	Since           time.Time // when the treatment began, if the treatment deletes the node
	ControlPlane    bool      // the node is a control-plane node
	// Pool is the pool whose bound counts the slot, if the rule shares its bound. If the
	// rule is also removed, nothing else tells the pool.
	Pool string
	// Topology is as in triage.Grant, if the treatment deletes the node.
	Topology string
	Unknown  format.Unknown
}

// DeletedNode is a deleted node that keeps its slot until it is replaced.
type DeletedNode struct {
	Slot
	Step int
	// Gone is when the node was deleted, by the clock of the process that saw it. Since is
	// when the treatment began that deleted the node: the replacement is younger.
	Gone, Since  time.Time
	ControlPlane bool   // the deleted node was a control-plane node
	Pool         string // as in ObjectWrite
	// Replaced says that the node no longer occupies the slot. The entry exists only
	// because the treatment that deleted the node still exists.
	Replaced bool
	// ReadyNeeded is as in triage.Grant; 0 if it is unknown.
	ReadyNeeded int
	Topology    string // as in triage.Grant
	Unknown     format.Unknown
}

// LaunchFailures counts consecutive nodes of a pool that were replaced because they did
// not become ready.
type LaunchFailures struct {
	Rule   ownership.Rule // of the pool
	Failed int
	Last   time.Time // when the last one was replaced
	// Template is a hash of the node template of the pool at that time. With another
	// template the failures no longer count.
	Template string
	Unknown  format.Unknown
}

// Starts is the number of treatments that began in an interval of the pace, as in
// triage.Start.
type Starts struct {
	At         time.Time
	Treatments int
	Unknown    format.Unknown
}

// Attempts are the attempts of a node that is deleted, or may be while no process leads. The node
// that replaces it inherits them.
type Attempts struct {
	Node, UID string
	// NodePool is the pool of the node. The next node of the pool inherits the attempts. It is empty
	// if the node has no pool.
	NodePool string
	Record   string // the attempts, as in the annotation of a node
	Unknown  format.Unknown
}

// UnknownEntry is an entry of a kind that this version does not know. It stays in the
// ledger.
type UnknownEntry struct {
	Slot
	ControlPlane bool
	stored       record
}

// ObjectRef refers to an object in the cluster by kind and name.
type ObjectRef struct {
	schema.GroupKind
	Namespace, Name string
}

// String returns the stored form, for example "Reboot.example.com ns/worker-1".
func (r ObjectRef) String() string { return r.GroupKind.String() + " " + r.Namespace + "/" + r.Name }

// parseObjectRef parses the stored form.
func parseObjectRef(text string) (r ObjectRef, ok bool) {
	kind, name, _ := strings.Cut(text, " ")
	r.GroupKind = schema.ParseGroupKind(kind)
	r.Namespace, r.Name, _ = strings.Cut(name, "/")
	return r, r.String() == text
}

// record is the stored form of all kinds of entries.
type record struct {
	Rule            ownership.Rule `json:"rule"`
	Node            string         `json:"node"`
	UID             string         `json:"uid"`
	ResourceVersion string         `json:"resourceVersion,omitempty"`
	Object          string         `json:"object,omitempty"`
	Step            int            `json:"step,omitempty"`
	Gone            time.Time      `json:"gone,omitzero"`
	Since           time.Time      `json:"since,omitzero"`
	ControlPlane    bool           `json:"controlPlane,omitempty"`
	Pool            string         `json:"pool,omitempty"`
	Tries           int            `json:"tries,omitempty"`
	Template        string         `json:"template,omitempty"`
	Replaced        bool           `json:"replaced,omitempty"`
	ReadyNeeded     int            `json:"readyNeeded,omitempty"`
	Closes          bool           `json:"closes,omitempty"`
	Topology        string         `json:"topology,omitempty"`
	Starts          int            `json:"starts,omitempty"`
	Attempts        string         `json:"attempts,omitempty"`
	Unknown         format.Unknown `json:"-"`
}

func (e NodeWrite) record() record {
	return record{Rule: e.Rule, Node: e.Node, UID: e.UID, ResourceVersion: e.ResourceVersion, Closes: e.Closes, Unknown: e.Unknown}
}

func (e ObjectWrite) record() record {
	return record{
		Rule: e.Rule, Node: e.Node, UID: e.UID, ResourceVersion: e.ResourceVersion, Object: e.Object.String(), Step: e.Step, Since: e.Since,
		ControlPlane: e.ControlPlane, Pool: e.Pool, Topology: e.Topology, Unknown: e.Unknown,
	}
}

func (e DeletedNode) record() record {
	return record{
		Rule: e.Rule, Node: e.Node, UID: e.UID, Step: e.Step, Gone: e.Gone, Since: e.Since,
		ControlPlane: e.ControlPlane, Pool: e.Pool, Replaced: e.Replaced, ReadyNeeded: e.ReadyNeeded, Topology: e.Topology, Unknown: e.Unknown,
	}
}

func (e LaunchFailures) record() record {
	return record{Rule: e.Rule, Tries: e.Failed, Since: e.Last, Template: e.Template, Unknown: e.Unknown}
}

func (e Starts) record() record {
	return record{Since: e.At, Starts: e.Treatments, Unknown: e.Unknown}
}

func (e Attempts) record() record {
	return record{Node: e.Node, UID: e.UID, Pool: e.NodePool, Attempts: e.Record, Unknown: e.Unknown}
}

func (e UnknownEntry) record() record { return e.stored }

// entry returns the entry of a record. Fields of another kind, which no version has
// written, are dropped.
func (r record) entry() Entry {
	slot := Slot{Rule: r.Rule, Node: r.Node, UID: r.UID}
	switch {
	case r.Starts > 0 && r.Rule == (ownership.Rule{}):
		return Starts{r.Since, r.Starts, r.Unknown}
	case r.Attempts != "" && r.Rule == (ownership.Rule{}):
		return Attempts{r.Node, r.UID, r.Pool, r.Attempts, r.Unknown}
	case !r.Rule.IsKnown():
	case !r.Gone.IsZero():
		return DeletedNode{slot, r.Step, r.Gone, r.Since, r.ControlPlane, r.Pool, r.Replaced, r.ReadyNeeded, r.Topology, r.Unknown}
	case r.Tries > 0:
		return LaunchFailures{r.Rule, r.Tries, r.Since, r.Template, r.Unknown}
	case r.Object != "":
		if object, ok := parseObjectRef(r.Object); ok {
			return ObjectWrite{slot, object, r.ResourceVersion, r.Step, r.Since, r.ControlPlane, r.Pool, r.Topology, r.Unknown}
		}
	case r.ResourceVersion != "" || r.Unknown == "":
		return NodeWrite{slot, r.ResourceVersion, r.Closes, r.Unknown}
	}
	return UnknownEntry{slot, r.ControlPlane, r}
}
