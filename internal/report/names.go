package report

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/resourcestack/autohealer/catalog"
)

const (
	// FieldManager owns the rows of the agent. The controller writes under the same name
	// when the agent is silent, so that the agent owns them still when it returns.
	FieldManager = "autohealer-agent"
	// HandManager owns what would vanish from a row that the agent yields and that its
	// other writer has not written in full yet.
	HandManager = "autohealer-agent-yielded"
	// LeaseLabel is on the Leases of all agents, with LeaseLabelValue.
	LeaseLabel = "app.kubernetes.io/name"
	// LeaseLabelValue tells them from other Leases.
	LeaseLabelValue = "autohealer-agent"

	// LeaseDuration is after how long without a renewal an agent is silent: three misses.
	LeaseDuration = 3 * renewEvery
	renewEvery    = 2 * time.Minute

	longestName             = 253
	longestEventMessage     = 1024
	longestConditionMessage = 4096
	longestReason           = 128
)

// LeaseName returns the name of the Lease of a node's agent.
func LeaseName(node string) string { return shorten("autohealer-agent-" + node) }

// Writable says why a condition is none that the agent may write; nil if it may.
func Writable(conditionType string) error {
	if conditionType == "" {
		return errors.New("a condition without a type cannot be written")
	}
	if known, ok := catalog.Lookup(conditionType); ok && known.Source == catalog.Kubernetes {
		return fmt.Errorf("the condition %s is kept by Kubernetes itself and never written by the agent: give yours a name of its own", conditionType)
	}
	return nil
}

// eventName is the same for an occurrence however often it is found, so that what is
// sent twice is stored once.
func eventName(node, id string) string {
	if len(id) < 16 || strings.Trim(id[:16], "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		id = digest(id)
	}
	return shorten(node + "." + id[:16])
}

func shorten(name string) string {
	if len(name) <= longestName {
		return name
	}
	tail := digest(name)[:16]
	return strings.TrimRight(name[:longestName-len(tail)-1], ".-") + "-" + tail
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// cut shortens a text to at most so many bytes, at the border of a rune. What is no
// UTF-8 is replaced first: the API server would do so too, and what it has would never
// be what it was told.
func cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	const more = "…"
	end := most - len(more)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// stamp is a time that can be written, and otherwise the one that is given instead: a
// log may hold any year.
func stamp(t, otherwise time.Time) time.Time {
	if t.IsZero() || t.Year() < 1 || t.Year() > 9999 {
		t = otherwise
	}
	return t.UTC()
}
