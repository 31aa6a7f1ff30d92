// Package ownership records on a node which taints Autohealer has placed there. A taint
// counts as placed by Autohealer only if its key, its effect and the second in which it was
// added match the record. A taint with a key that is reserved for another component never
// counts.
//
// Entries of a newer version are kept and count as not placed by Autohealer. The package
// does not guess: if a record cannot be read, Read returns an error, and no taint on that
// node counts as placed by Autohealer.
package ownership

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/taintkey"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Version is the version of the stored format of records and marks. Records and marks
// without a version are older and have the same meaning.
const Version = 1

// Annotation is the annotation of a Node that holds the record.
const Annotation = "autohealer.resourcestack.com/record"

// Record is what Autohealer records on a node.
type Record struct {
	Taints []Taint           `json:"taints,omitempty"`
	Starts []RememberedStart `json:"memories,omitempty"`
	// Initialized says that the node was ready for work at some time. It is set only if no
	// other component records that.
	Initialized bool `json:"initialized,omitempty"`
	// Fence changes the node and nothing else. An older write in flight then fails, because
	// its resource version no longer exists.
	Fence string `json:"fence,omitempty"`
	// Unrecognized is the content that this version does not know.
	Unrecognized Unrecognized `json:"-"`
}

// Unrecognized is the content of a record that this version does not know: entries for rules
// of other kinds, and other fields. It is written back unchanged.
type Unrecognized struct {
	Taints   []Taint
	Memories []RememberedStart
	Unknown  format.Unknown
}

// stored is the stored form of a record.
type stored struct {
	Version int `json:"version"`
	Record
}

// CountUnknown returns how many entries and fields of the record this version does not know.
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

// Taint is a taint that Autohealer placed for a rule. Several rules may share one taint on
// the node.
type Taint struct {
	Rule    Rule               `json:"rule"`
	Key     string             `json:"key"`
	Effect  corev1.TaintEffect `json:"effect"`
	Added   time.Time          `json:"added"`
	Unknown format.Unknown     `json:"-"`
}

// RememberedStart is the start of a clock that cannot be derived from the conditions of the
// node.
type RememberedStart struct {
	Rule       Rule           `json:"rule"`
	Condition  string         `json:"condition"`
	Since      time.Time      `json:"since"`
	Transition time.Time      `json:"transition,omitzero"`
	Unknown    format.Unknown `json:"-"`
}

// UnmarshalJSON keeps unknown fields.
func (t *Taint) UnmarshalJSON(text []byte) (err error) {
	type plain Taint
	unknown, err := format.Read(text, (*plain)(t))
	t.Unknown = unknown
	return err
}

// MarshalJSON writes unknown fields back.
func (t Taint) MarshalJSON() ([]byte, error) {
	type plain Taint
	return format.Write(plain(t), t.Unknown)
}

// UnmarshalJSON keeps unknown fields.
func (m *RememberedStart) UnmarshalJSON(text []byte) (err error) {
	type plain RememberedStart
	unknown, err := format.Read(text, (*plain)(m))
	m.Unknown = unknown
	return err
}

// MarshalJSON writes unknown fields back.
func (m RememberedStart) MarshalJSON() ([]byte, error) {
	type plain RememberedStart
	return format.Write(plain(m), m.Unknown)
}

// Rule is the ID of a rule in its stored form, for example ConditionSet/kernel-deadlock. If
// this version does not know the kind, Kind is empty and Name has the whole text.
type Rule triage.RuleID

// IsKnown says whether this version knows the kind of the rule.
func (r Rule) IsKnown() bool { return r.Kind != "" }

// MarshalText writes the kind and the name of the rule.
func (r Rule) MarshalText() ([]byte, error) {
	if !r.IsKnown() {
		return []byte(r.Name), nil
	}
	return []byte(triage.RuleID(r).String()), nil
}

// UnmarshalText parses the result of MarshalText.
func (r *Rule) UnmarshalText(text []byte) error {
	id, err := policykind.ParseRuleID(string(text))
	if err != nil {
		id = triage.RuleID{Name: string(text)}
	}
	*r = Rule(id)
	return nil
}

// Read returns the record of a node; empty if there is none.
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
	r.Taints, r.Unrecognized.Taints = splitKnown(r.Taints, func(t Taint) bool { return t.Rule.IsKnown() })
	r.Starts, r.Unrecognized.Memories = splitKnown(r.Starts, func(m RememberedStart) bool { return m.Rule.IsKnown() })
	return r, nil
}

// splitKnown splits a list into known entries and others.
func splitKnown[T any](all []T, isKnown func(T) bool) (known, others []T) {
	for _, e := range all {
		if isKnown(e) {
			known = append(known, e)
		} else {
			others = append(others, e)
		}
	}
	return known, others
}

// Encode returns the value of the annotation, and false if there is nothing to record.
func (r Record) Encode() (text string, some bool) {
	r.Taints = slices.Concat(r.Taints, r.Unrecognized.Taints)
	r.Starts = slices.Concat(r.Starts, r.Unrecognized.Memories)
	if len(r.Taints) == 0 && len(r.Starts) == 0 && !r.Initialized && r.Fence == "" && r.Unrecognized.Unknown == "" {
		return "", false
	}
	data, err := format.Write(stored{Version, r}, r.Unrecognized.Unknown)
	if err != nil {
		panic("encoding a record: " + err.Error()) // these types always encode
	}
	return string(data), true
}

// Owns says whether the record has a taint on the node. If another component replaced the
// taint by an equal one, its time differs or is not set.
func (r Record) Owns(taint corev1.Taint) bool {
	return slices.ContainsFunc(r.Taints, func(t Taint) bool { return t.Is(taint) })
}

// Keeps says whether a taint on the node belongs to a rule of a kind that this version does
// not know. That rule still wants it.
func (r Record) Keeps(taint corev1.Taint) bool {
	return slices.ContainsFunc(r.Unrecognized.Taints, func(t Taint) bool { return t.Is(taint) })
}

// Is says whether this is the taint that Autohealer placed. A taint with a reserved key
// never is: the controller places none, so another program wrote that record.
func (t Taint) Is(taint corev1.Taint) bool {
	if _, reserved := taintkey.Owner(taint.Key); reserved {
		return false
	}
	return t.Key == taint.Key && t.Effect == taint.Effect && taint.Value == "" &&
		taint.TimeAdded != nil && taint.TimeAdded.Time.Equal(t.Added)
}

// Taint returns the taint in the form of the Kubernetes API.
func (t Taint) Taint() corev1.Taint {
	return corev1.Taint{Key: t.Key, Effect: t.Effect, TimeAdded: metav1Time(t.Added)}
}

func metav1Time(t time.Time) *metav1.Time {
	whole := metav1.NewTime(t)
	return &whole
}
