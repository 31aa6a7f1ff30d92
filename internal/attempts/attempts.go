// Package attempts reads and writes the annotation that records how often a node was treated. All
// steps of one treatment are one attempt. A node that replaces another one inherits its attempts. An
// annotation that cannot be read is an error that says how to correct it, because any client may
// write the annotation. The package has no client: the engine writes the annotation.
package attempts

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/text"
)

// Annotation is the annotation of a node that has its attempts.
const Annotation = "autohealer.resourcestack.com/attempts"

// maxText limits the value in messages, because any client may write a long text.
const maxText = 128

// Attempt is a treatment that has begun.
type Attempt struct {
	Policy ownership.Rule `json:"policy"`
	Began  time.Time      `json:"began"`
	// Node is the name of an earlier node that was treated, and that this node replaces. It is empty if
	// this node was treated.
	Node string `json:"node,omitempty"`
}

// Record has the attempts of a node.
type Record struct {
	// Replaces is the UID of the node whose attempts this node has inherited, empty for none.
	Replaces string    `json:"replaces,omitempty"`
	Attempts []Attempt `json:"attempts"`
}

// Read returns the attempts in the annotations of a node.
func Read(annotations map[string]string) (Record, error) {
	value, has := annotations[Annotation]
	if !has {
		return Record{}, nil
	}
	r, err := Parse(value)
	if err != nil {
		return Record{}, fmt.Errorf(`annotation %s: %q: want {"attempts": [{"policy": "NodeHealthCheck/workers", "began": "2026-03-01T12:00:00Z"}]}; `+
			"no treatment of the node starts until you correct or remove the annotation", Annotation, text.Shorten(value, maxText, "..."))
	}
	return r, nil
}

// Parse parses the value of the annotation.
func Parse(value string) (r Record, err error) {
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return Record{}, err
	}
	if len(r.Attempts) == 0 {
		return Record{}, errors.New("there are no attempts")
	}
	for i, a := range r.Attempts {
		began := a.Began.UTC()
		if a.Policy == (ownership.Rule{}) || began.Unix() <= 0 || began.Year() > 9999 { // a later year has no text form
			return Record{}, fmt.Errorf("attempts[%d] has no policy or no time", i)
		}
		r.Attempts[i].Began = began
	}
	return r, nil
}

// Encode returns the value of the annotation.
func (r Record) Encode() string {
	encoded, err := json.Marshal(r)
	if err != nil {
		panic("encoding attempts: " + err.Error()) // these types always encode
	}
	return string(encoded)
}

// Within returns the record without attempts that have left the window. Of the others it has the
// newest: more than limit make no difference.
func (r Record) Within(now time.Time, window time.Duration, limit int) Record {
	r.Attempts = slices.DeleteFunc(slices.Clone(r.Attempts), func(a Attempt) bool { return !a.Began.Add(window).After(now) })
	slices.SortStableFunc(r.Attempts, func(a, b Attempt) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.Node, b.Node))
	})
	r.Attempts = r.Attempts[max(0, len(r.Attempts)-limit):]
	return r
}

// LeftBy returns the attempts that a deleted node leaves to its replacement.
func (r Record) LeftBy(node string) []Attempt {
	left := slices.Clone(r.Attempts)
	for i := range left {
		left[i].Node = cmp.Or(left[i].Node, node)
	}
	return left
}
