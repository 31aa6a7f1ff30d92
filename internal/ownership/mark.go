package ownership

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/format"
)

// MarkAnnotation is the annotation of a NodeClaim that holds the mark.
const MarkAnnotation = "autohealer.resourcestack.com/repair"

// Mark records on a NodeClaim that Autohealer deletes it, or is about to, with the reason
// and the node. The controller writes it before it sends the deletion. So the next leader
// knows that Autohealer deleted the claim.
type Mark struct {
	Rule    Rule      `json:"rule"`
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID"`
	Since   time.Time `json:"since"`
	// Deadline is the termination deadline that Autohealer wrote to the claim; empty if
	// none. Before is the earlier value, so that a cancelled deletion can restore it.
	Deadline string `json:"deadline,omitempty"`
	Before   string `json:"before,omitempty"`
	// Unknown are fields that this version does not know. They stay unchanged, because a
	// mark is written once and removed as a whole.
	Unknown format.Unknown `json:"-"`
}

// storedMark is the stored form of a mark.
type storedMark struct {
	Version int `json:"version"`
	Mark
}

// ReadMark returns the mark of a claim; nil if there is none. A claim whose mark cannot be
// read counts as deleted by another component, if it is being deleted.
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
	if !m.Rule.IsKnown() || m.Node == "" || m.NodeUID == "" {
		return nil, fmt.Errorf("annotation %s: it names no rule of a known kind, or no node", MarkAnnotation)
	}
	return &m, nil
}

// Encode returns the value of the annotation.
func (m Mark) Encode() string {
	data, err := format.Write(storedMark{Version, m}, m.Unknown)
	if err != nil {
		panic("encoding a mark: " + err.Error()) // these types always encode
	}
	return string(data)
}
