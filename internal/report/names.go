package report

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/text"
)

const (
	// FieldManager owns the conditions of the agent. The controller uses the same name when it
	// marks the conditions of a silent agent as Unknown, so the agent still owns them when it
	// returns.
	FieldManager = "autohealer-agent"
	// HandManager owns the fields of a yielded condition that its other writer has not written
	// yet. Without this owner the API server would remove them.
	HandManager = "autohealer-agent-yielded"
	// LeaseLabel is the label of the Leases of all agents. Its value is LeaseLabelValue.
	LeaseLabel = "app.kubernetes.io/name"
	// LeaseLabelValue distinguishes the Leases of agents from other Leases.
	LeaseLabelValue = "autohealer-agent"

	// LeaseDuration is the time without a renewal after which an agent is silent: three missed
	// renewals.
	LeaseDuration = 3 * renewEvery
	renewEvery    = 2 * time.Minute

	maxNameLength = 253

	// The admission policies of agents enforce the same limits. names_test.go in deploy compares them.

	// MostConditions is the maximum number of conditions of one agent.
	MostConditions = 100
	// LongestType is the maximum length of a condition type: a domain, a slash and a name.
	LongestType = 253 + 1 + 63
	// LongestMessage is the maximum length of the message of a condition or an Event, in
	// bytes.
	LongestMessage = 1024
	// LongestReason is the maximum length of the reason of a condition or an Event, in bytes.
	LongestReason = 128
)

// otherComponents are other components that write Events about nodes. A monitor must not use
// these names, because its Events would appear to come from that component.
var otherComponents = []string{
	"autohealer-controller", "cloud-controller-manager", "cloud-node-controller", "cloud-node-lifecycle-controller",
	"cluster-autoscaler", "controllermanager", "default-scheduler", "karpenter", "kube-controller-manager", "kube-proxy",
	"kube-scheduler", "kubelet", "node-controller", "taint-eviction-controller",
}

// OtherComponents returns the names that the agent never uses as the source of an Event.
func OtherComponents() []string { return slices.Clone(otherComponents) }

// sourceName returns the source that Events of a monitor have: its name, prefixed if it is
// empty or the name of another component.
func sourceName(monitor string) string {
	if monitor == "" || slices.Contains(otherComponents, monitor) {
		monitor = strings.TrimSuffix(FieldManager+"/"+monitor, "/")
	}
	return text.Message(monitor, maxNameLength)
}

// LeaseName returns the name of the Lease of the agent on a node.
func LeaseName(node string) string { return shorten("autohealer-agent-" + node) }

// Writable returns why the agent must not write a condition of this type, or nil if it may.
func Writable(conditionType string) error {
	if conditionType == "" {
		return errors.New("the condition has no type")
	}
	if len(conditionType) > LongestType {
		return fmt.Errorf("the condition type has %d characters: use at most %d", len(conditionType), LongestType)
	}
	if known, ok := catalog.Lookup(conditionType); ok && known.Source == catalog.Kubernetes {
		return fmt.Errorf("the condition %s is reported by Kubernetes itself, so the agent never writes it: use another type", conditionType)
	}
	return nil
}

// eventName returns the same name for the same occurrence, so that an Event that is sent twice
// is stored once.
func eventName(node, id string) string {
	if len(id) < 16 || strings.Trim(id[:16], "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		id = digest(id)
	}
	return shorten(node + "." + id[:16])
}

func shorten(name string) string {
	if len(name) <= maxNameLength {
		return name
	}
	tail := digest(name)[:16]
	return strings.TrimRight(name[:maxNameLength-len(tail)-1], ".-") + "-" + tail
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// validTime returns t in UTC, or the fallback if t cannot be written as RFC 3339. A log line
// may contain any year.
func validTime(t, fallback time.Time) time.Time {
	if t.IsZero() || t.Year() < 1 || t.Year() > 9999 {
		t = fallback
	}
	return t.UTC()
}
