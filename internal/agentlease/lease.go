package agentlease

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// label and labelValue are what the Leases of agents are known by.
	label      = "app.kubernetes.io/name"
	labelValue = "autohealer-agent"

	// namePrefix and the name of the node are the name of a Lease, if that is not
	// longer than maxName. If it is, the agent has shortened it.
	namePrefix = "autohealer-agent-"
	maxName    = 253

	// usualDuration is how long a Lease lasts that does not say so.
	usualDuration = 6 * time.Minute
)

// Lease is what is known of the Lease of an agent.
type Lease struct {
	Name     string
	Version  string
	Node     string
	UID      types.UID // of the node, empty if the Lease does not tell
	Renewed  time.Time // as the agent has written it
	Duration time.Duration
}

// holder returns who has written a Lease, a pod or else a host, and nothing if that is
// no name of either: whoever takes over a node may write there what he likes, and people
// would read it as our words.
func holder(lease *coordinationv1.Lease) string {
	name := lease.Spec.HolderIdentity
	if name == nil || len(validation.IsDNS1123Subdomain(*name)) > 0 {
		return ""
	}
	return *name
}

// Read returns what counts of a Lease, and false if it is no agent's: none whose name
// is that of another node than its owner's. Otherwise one agent could speak for the
// node of another.
func Read(lease *coordinationv1.Lease) (Lease, bool) {
	is := Lease{Name: lease.Name, Version: lease.ResourceVersion, Duration: usualDuration}
	named, ok := strings.CutPrefix(lease.Name, namePrefix)
	if !ok || named == "" {
		return is, false
	}
	is.Node = named
	for _, owner := range lease.OwnerReferences {
		if owner.Kind == "Node" && owner.APIVersion == "v1" {
			is.Node, is.UID = owner.Name, owner.UID
		}
	}
	if is.Node != named && len(namePrefix)+len(is.Node) <= maxName {
		return is, false
	}
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		is.Duration = time.Duration(*seconds) * time.Second
	}
	if at := lease.Spec.RenewTime; at != nil {
		is.Renewed = at.Time
	}
	return is, true
}

// LeaseLabels are what the Leases of agents are known by.
func LeaseLabels() map[string]string { return map[string]string{label: labelValue} }
