package report

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
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

	longestName = 253

	// These limits are also those of deploy/agent/3-guard.yaml, which refuses what is
	// larger: names_test.go there compares them.

	// MostConditions is how many conditions an agent writes.
	MostConditions = 100
	// LongestType is how long the type of a condition may be: a domain, a slash and a name.
	LongestType = 253 + 1 + 63
	// LongestMessage is how long the message of a condition or an Event may be, in bytes.
	LongestMessage = 1024
	// LongestReason is how long the reason of either may be, in bytes.
	LongestReason = 128
)

// otherComponents tell of nodes too. Their names are not for monitors: an Event would
// seem to be theirs.
var otherComponents = []string{
	"autohealer-controller", "cloud-controller-manager", "cloud-node-controller", "cloud-node-lifecycle-controller",
	"cluster-autoscaler", "controllermanager", "default-scheduler", "karpenter", "kube-controller-manager", "kube-proxy",
	"kube-scheduler", "kubelet", "node-controller", "taint-eviction-controller",
}

// OtherComponents are the names that no Event of an agent has as its source.
func OtherComponents() []string { return slices.Clone(otherComponents) }

// sourceName is how Events name a monitor: as it is, unless that is the name of another
// component, or none at all.
func sourceName(monitor string) string {
	if monitor == "" || slices.Contains(otherComponents, monitor) {
		monitor = strings.TrimSuffix(FieldManager+"/"+monitor, "/")
	}
	return cut(monitor, longestName)
}

// LeaseName returns the name of the Lease of a node's agent.
func LeaseName(node string) string { return shorten("autohealer-agent-" + node) }

// Writable says why a condition is none that the agent may write; nil if it may.
func Writable(conditionType string) error {
	if conditionType == "" {
		return errors.New("a condition without a type cannot be written")
	}
	if len(conditionType) > LongestType {
		return fmt.Errorf("a condition whose type has %d characters cannot be written: give it a name of at most %d", len(conditionType), LongestType)
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
