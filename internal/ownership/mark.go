package ownership

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/triage"
)

// MarkAnnotation is where on a NodeClaim the mark stands.
const MarkAnnotation = "autohealer.resourcestack.com/repair"

// Mark is the note on a NodeClaim that this system deletes, or is about to: why, and
// which node it is about. It is written before the deletion is sent, so that whoever
// comes next knows whose deletion it is.
type Mark struct {
	Rule    Rule      `json:"rule"`
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID"`
	Since   time.Time `json:"since"`
	// Deadline is what was written as the claim's deadline, empty if nothing was, and
	// Before what stood there: a deletion that is called off leaves no trace.
	Deadline string `json:"deadline,omitempty"`
	Before   string `json:"before,omitempty"`
	// Unknown are fields that this version does not know. A mark is written once and taken
	// off whole, so they stay as they are.
	Unknown format.Unknown `json:"-"`
}

// storedMark is a mark as it stands on the claim.
type storedMark struct {
	Version int `json:"version"`
	Mark
}

// ReadMark returns the mark of a claim, nil if there is none. One that cannot be read
// is nobody's: the claim counts as deleted by somebody else, if it is.
func ReadMark(annotations map[string]string) (*Mark, error) {
	text, ok := annotations[MarkAnnotation]
	if !ok {
		return nil, nil
	}
	var s storedMark
	unknown, err := format.Read([]byte(text), &s)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", MarkAnnotation, err)
	}
	m := s.Mark
	m.Unknown = unknown
	if kind := m.Rule.Kind; kind != triage.Repair && kind != triage.ReadyTimeout || m.Node == "" || m.NodeUID == "" {
		return nil, fmt.Errorf("annotation %s: it names no rule of repairs, or no node", MarkAnnotation)
	}
	return &m, nil
}

// Encode returns the mark as the annotation's value.
func (m Mark) Encode() string {
	data, err := format.Write(storedMark{Version, m}, m.Unknown)
	if err != nil {
		panic("encoding a mark: " + err.Error()) // plain values of our own always encode
	}
	return string(data)
}
