// Package record is the note that Autohealer leaves on a node about what it has
// put there. It promises that what is on the note and on the node was put there
// by this system: a taint counts as its own only if key, effect and the second
// in which it was added agree. It refuses to guess: a note that cannot be read
// is an error, and nothing on that node counts as its own.
package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/triage"
)

// Annotation is where on a Node the note stands.
const Annotation = "autohealer.resourcestack.com/record"

// Record is the note.
type Record struct {
	Taints   []Taint  `json:"taints,omitempty"`
	Memories []Memory `json:"memories,omitempty"`
	// Initialized says that the node once was ready for work, where nobody else has
	// noted that.
	Initialized bool `json:"initialized,omitempty"`
	// Fence changes the node and nothing else: an older write that is still on
	// its way names a version of the node that no longer exists.
	Fence string `json:"fence,omitempty"`
}

// Taint is a taint that was placed for a rule. Several rules may share one.
type Taint struct {
	Rule   Rule               `json:"rule"`
	Key    string             `json:"key"`
	Effect corev1.TaintEffect `json:"effect"`
	Added  time.Time          `json:"added"`
}

// Memory is the start of a clock that the node's own stamps no longer tell.
type Memory struct {
	Rule       Rule      `json:"rule"`
	Condition  string    `json:"condition"`
	Since      time.Time `json:"since"`
	Transition time.Time `json:"transition,omitzero"`
}

// Rule is the name of a rule as it stands on a note: ConditionSet/kernel-deadlock.
type Rule triage.RuleID

// MarshalText writes the rule's kind and name.
func (r Rule) MarshalText() ([]byte, error) { return []byte(triage.RuleID(r).String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (r *Rule) UnmarshalText(text []byte) error {
	id, err := triage.ParseRuleID(string(text))
	*r = Rule(id)
	return err
}

// Read returns the note that is on a node, an empty one if there is none.
func Read(annotations map[string]string) (Record, error) {
	text, ok := annotations[Annotation]
	if !ok {
		return Record{}, nil
	}
	var r Record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Record{}, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	return r, nil
}

// Encode returns the note as the annotation's value, and false if there is
// nothing to note.
func (r Record) Encode() (text string, some bool) {
	if len(r.Taints) == 0 && len(r.Memories) == 0 && !r.Initialized && r.Fence == "" {
		return "", false
	}
	data, err := json.Marshal(r)
	if err != nil {
		panic("encoding a record: " + err.Error()) // plain values of our own always encode
	}
	return string(data), true
}

// Owns says whether a taint on the node is one that the note tells of. Somebody
// who took ours away and put up an equal one of theirs has set another time, or
// none.
func (r Record) Owns(taint corev1.Taint) bool {
	return slices.ContainsFunc(r.Taints, func(t Taint) bool { return t.Is(taint) })
}

// Is says whether this is the taint that was placed.
func (t Taint) Is(taint corev1.Taint) bool {
	return t.Key == taint.Key && t.Effect == taint.Effect && taint.Value == "" &&
		taint.TimeAdded != nil && taint.TimeAdded.Time.Equal(t.Added)
}

// Taint returns the taint as it stands on the node.
func (t Taint) Taint() corev1.Taint {
	return corev1.Taint{Key: t.Key, Effect: t.Effect, TimeAdded: stamp(t.Added)}
}

func stamp(t time.Time) *metav1.Time {
	whole := metav1.NewTime(t)
	return &whole
}
