package catalog

import (
	"slices"
	"strings"
)

// Status is the status of a condition, as in Kubernetes.
type Status string

// The statuses of a condition.
const (
	True    Status = "True"
	False   Status = "False"
	Unknown Status = "Unknown"
)

// Effect is the effect of a taint, as in Kubernetes.
type Effect string

// The effects of a taint. None means no taint.
const (
	None             Effect = ""
	PreferNoSchedule Effect = "PreferNoSchedule"
	NoSchedule       Effect = "NoSchedule"
	NoExecute        Effect = "NoExecute"
)

// Source is the component that reports a condition or an Event. For node-problem-detector it is the
// monitor's name as in its Events.
type Source string

// Kubernetes is the source of the conditions of the kubelet, the node controller and the route
// controller. Other sources must not report these conditions.
const Kubernetes Source = "Kubernetes"

// The monitors of node-problem-detector.
const (
	KernelMonitor   Source = "kernel-monitor"
	ReadonlyMonitor Source = "readonly-monitor"
	DockerMonitor   Source = "docker-monitor"
	SystemdMonitor  Source = "systemd-monitor"
	HealthChecker   Source = "health-checker"
	NTPMonitor      Source = "ntp-custom-plugin-monitor"
	NetworkMonitor  Source = "network-custom-plugin-monitor"
	IPTablesMonitor Source = "iptables-mode-monitor"
	DiskMonitor     Source = "disk-monitor"
	ABRTAdaptor     Source = "abrt-adaptor"
)

// GPUMonitor exists only in Autohealer.
const GPUMonitor Source = "gpu-monitor"

// ThirdParty stands for a daemon that reports through the agent. No shipped monitor detects the
// problem.
const ThirdParty Source = "third-party daemon"

// TaintPrefix is the prefix of the keys of default taints. It is a domain of Autohealer, so a
// default never conflicts with a key of a user. The condition type follows it, so that a reader of
// the taint knows the condition.
const TaintPrefix = "autohealer.resourcestack.com/"

// Condition describes a condition type and its default taint.
type Condition struct {
	Type   string
	Source Source
	// Healthy is the status of a healthy node. It is never Unknown, which means that the monitor
	// could not look.
	Healthy Status
	// Meaning describes the problem in a sentence.
	Meaning string
	// SurvivesReboot means that the problem still exists after a reboot, even if it is not reported
	// again.
	SurvivesReboot bool
	// Native are the taints that Kubernetes itself sets for the condition.
	Native []Taint

	// Effect is the effect of the default taint while the condition is unhealthy. Unknown has no
	// default for any condition: it does not indicate a problem.
	Effect Effect
	// Duration is how long the problem must last before the taint is set, for example 5m. Empty means
	// at once.
	Duration string
	// MaxUnhealthy limits how many nodes NoExecute may evict at once.
	MaxUnhealthy string
	// Why explains the choice of the effect.
	Why string
}

// Taint is a taint that Kubernetes sets while the condition has a status.
type Taint struct {
	Status Status
	Effect Effect
	Key    string
}

// Unhealthy returns the unhealthy status.
func (c Condition) Unhealthy() Status {
	if c.Healthy == True {
		return False
	}
	return True
}

// TaintKey returns the key of the default taint, empty if there is none.
func (c Condition) TaintKey() string {
	if c.Effect == None {
		return ""
	}
	return TaintPrefix + c.Type
}

// Event describes the reason of a temporary problem. It is reported as an Event and has no
// condition, so no taint can depend on it.
type Event struct {
	Reason  string
	Sources []Source
	Meaning string
}

// Conditions returns a copy of the catalog: the conditions of Kubernetes first, then the others by
// source.
func Conditions() []Condition {
	list := slices.Clone(conditions)
	for i := range list {
		list[i].Native = slices.Clone(list[i].Native)
	}
	return list
}

// Events returns a copy of the Events that the shipped monitors report besides conditions.
func Events() []Event {
	list := slices.Clone(events)
	for i := range list {
		list[i].Sources = slices.Clone(list[i].Sources)
	}
	return list
}

// Lookup finds a condition by its exact type.
func Lookup(conditionType string) (Condition, bool) {
	for _, c := range conditions {
		if c.Type == conditionType {
			c.Native = slices.Clone(c.Native)
			return c, true
		}
	}
	return Condition{}, false
}

// LookupEvent finds an Event by its exact reason. Callers use it to recognise a user's mistake: an
// Event's reason in the place of a condition type, which never exists on a node.
func LookupEvent(reason string) (Event, bool) {
	for _, e := range events {
		if e.Reason == reason {
			e.Sources = slices.Clone(e.Sources)
			return e, true
		}
	}
	return Event{}, false
}

// Healthy returns whether the status, in any case, is that of a healthy node. It returns false for
// types that are not in the catalog.
func Healthy(conditionType, status string) bool {
	c, ok := Lookup(conditionType)
	return ok && strings.EqualFold(status, string(c.Healthy))
}
