package agentlease

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// label and labelValue select the Leases of agents.
	label      = "app.kubernetes.io/name"
	labelValue = "autohealer-agent"

	// namePrefix and the name of the node form the name of a Lease. The agent shortens names
	// that are longer than maxName.
	namePrefix = "autohealer-agent-"
	maxName    = 253

	// defaultDuration is the duration of a Lease without leaseDurationSeconds.
	defaultDuration = 6 * time.Minute
)

// Lease is the relevant part of the Lease of an agent.
type Lease struct {
	Name     string
	Version  string
	Node     string
	UID      types.UID // of the node, empty if the Lease has no owner reference
	Renewed  time.Time // by the clock of the agent
	Duration time.Duration
}

// holder returns the holder of a Lease, a pod or a host, or an empty string if it is not a
// valid name. An attacker on a node may write any text there, and users would read it as text
// of the controller.
func holder(lease *coordinationv1.Lease) string {
	name := lease.Spec.HolderIdentity
	if name == nil || len(validation.IsDNS1123Subdomain(*name)) > 0 {
		return ""
	}
	return *name
}

// Read returns the relevant part of a Lease, and false if it is not the Lease of an agent. It
// rejects a Lease whose name and owner are different nodes. Otherwise an agent could report
// for another node.
func Read(lease *coordinationv1.Lease) (Lease, bool) {
	is := Lease{Name: lease.Name, Version: lease.ResourceVersion, Duration: defaultDuration}
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

// LeaseLabels returns the labels of the Leases of agents.
func LeaseLabels() map[string]string { return map[string]string{label: labelValue} }
