// Package ownership is the note that Autohealer leaves on a node about what it has
// put there. It promises that what is on the note and on the node was put there
// by this system: a taint counts as its own only if key, effect and the second
// in which it was added agree, and never if its key is reserved for another component.
// What a newer version has noted beside that is kept, and counts as somebody else's. It
// refuses to guess: a note that cannot be read is an error, and nothing on that node
// counts as its own.
package ownership

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/taintkey"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Version is that of the notes and marks that are written. Those from before there were
// versions have none, and say the same.
const Version = 1

// Annotation is where on a Node the note stands.
const Annotation = "autohealer.resourcestack.com/record"

// Record is the note.
type Record struct {
	Taints []Taint           `json:"taints,omitempty"`
	Starts []RememberedStart `json:"memories,omitempty"`
	// Initialized says that the node once was ready for work, where nobody else has
	// noted that.
	Initialized bool `json:"initialized,omitempty"`
	// Fence changes the node and nothing else: an older write that is still on
	// its way names a version of the node that no longer exists.
	Fence string `json:"fence,omitempty"`
	// Unrecognized is what this version does not know.
	Unrecognized Unrecognized `json:"-"`
}

// Unrecognized is what a note holds that this version does not know: entries of rules of other
// kinds, and other fields. They are written back as they are.
type Unrecognized struct {
	Taints   []Taint
	Memories []RememberedStart
	Unknown  format.Unknown
}

// stored is a note as it stands on the node.
type stored struct {
	Version int `json:"version"`
	Record
}

// CountUnknown returns how many entries and fields of the note this version does not know.
func (r Record) CountUnknown() int {
	n := len(r.Unrecognized.Taints) + len(r.Unrecognized.Memories) + r.Unrecognized.Unknown.Len()
	for _, t := range r.Taints {
		n += t.Unknown.Len()
	}
	for _, m := range r.Starts {
		n += m.Unknown.Len()
	}
	return n
}

// Taint is a taint that was placed for a rule. Several rules may share one.
type Taint struct {
	Rule    Rule               `json:"rule"`
	Key     string             `json:"key"`
	Effect  corev1.TaintEffect `json:"effect"`
	Added   time.Time          `json:"added"`
	Unknown format.Unknown     `json:"-"`
}

// RememberedStart is the start of a clock that the node's own stamps no longer tell.
type RememberedStart struct {
	Rule       Rule           `json:"rule"`
	Condition  string         `json:"condition"`
	Since      time.Time      `json:"since"`
	Transition time.Time      `json:"transition,omitzero"`
	Unknown    format.Unknown `json:"-"`
}

// UnmarshalJSON keeps fields that are not known.
func (t *Taint) UnmarshalJSON(text []byte) (err error) {
	type plain Taint
	unknown, err := format.Read(text, (*plain)(t))
	t.Unknown = unknown
	return err
}

// MarshalJSON writes them back.
func (t Taint) MarshalJSON() ([]byte, error) {
	type plain Taint
	return format.Write(plain(t), t.Unknown)
}

// UnmarshalJSON keeps fields that are not known.
func (m *RememberedStart) UnmarshalJSON(text []byte) (err error) {
	type plain RememberedStart
	unknown, err := format.Read(text, (*plain)(m))
	m.Unknown = unknown
	return err
}

// MarshalJSON writes them back.
func (m RememberedStart) MarshalJSON() ([]byte, error) {
	type plain RememberedStart
	return format.Write(plain(m), m.Unknown)
}

// Rule is the name of a rule as it stands on a note: ConditionSet/kernel-deadlock. One
// of a kind that this version does not know has no kind, and all of that as its name.
type Rule triage.RuleID

// IsKnown says whether this version knows the kind of the rule.
func (r Rule) IsKnown() bool { return r.Kind != 0 }

// MarshalText writes the rule's kind and name.
func (r Rule) MarshalText() ([]byte, error) {
	if !r.IsKnown() {
		return []byte(r.Name), nil
	}
	return []byte(triage.RuleID(r).String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (r *Rule) UnmarshalText(text []byte) error {
	id, err := triage.ParseRuleID(string(text))
	if err != nil {
		id = triage.RuleID{Name: string(text)}
	}
	*r = Rule(id)
	return nil
}

// Read returns the note that is on a node, an empty one if there is none.
func Read(annotations map[string]string) (Record, error) {
	text, ok := annotations[Annotation]
	if !ok {
		return Record{}, nil
	}
	var s stored
	unknown, err := format.Read([]byte(text), &s)
	if err != nil {
		return Record{}, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	r := s.Record
	r.Unrecognized.Unknown = unknown
	r.Taints, r.Unrecognized.Taints = part(r.Taints, func(t Taint) bool { return t.Rule.IsKnown() })
	r.Starts, r.Unrecognized.Memories = part(r.Starts, func(m RememberedStart) bool { return m.Rule.IsKnown() })
	return r, nil
}

// part returns the entries of a list that are known, and the others.
func part[T any](all []T, isKnown func(T) bool) (known, others []T) {
	for _, e := range all {
		if isKnown(e) {
			known = append(known, e)
		} else {
			others = append(others, e)
		}
	}
	return known, others
}

// Encode returns the note as the annotation's value, and false if there is
// nothing to note.
func (r Record) Encode() (text string, some bool) {
	r.Taints = slices.Concat(r.Taints, r.Unrecognized.Taints)
	r.Starts = slices.Concat(r.Starts, r.Unrecognized.Memories)
	if len(r.Taints) == 0 && len(r.Starts) == 0 && !r.Initialized && r.Fence == "" && r.Unrecognized.Unknown == "" {
		return "", false
	}
	data, err := format.Write(stored{Version, r}, r.Unrecognized.Unknown)
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

// Keeps says whether a taint on the node was noted by a rule that this version does not
// know, which wants it still.
func (r Record) Keeps(taint corev1.Taint) bool {
	return slices.ContainsFunc(r.Unrecognized.Taints, func(t Taint) bool { return t.Is(taint) })
}

// Is says whether this is the taint that was placed. A taint with a reserved key never
// is: the controller places none, so a record that names one was written by another.
func (t Taint) Is(taint corev1.Taint) bool {
	if _, reserved := taintkey.Owner(taint.Key); reserved {
		return false
	}
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
