package catalog

import (
	"slices"
	"strings"
)

// Status of a condition, in the words of Kubernetes.
type Status string

// The statuses that a condition can have.
const (
	True    Status = "True"
	False   Status = "False"
	Unknown Status = "Unknown"
)

// Effect of a taint, in the words of Kubernetes.
type Effect string

// The effects that a taint can have. None is no taint at all.
const (
	None             Effect = ""
	PreferNoSchedule Effect = "PreferNoSchedule"
	NoSchedule       Effect = "NoSchedule"
	NoExecute        Effect = "NoExecute"
)

// Source is who reports a condition or an Event. Of node-problem-detector it is
// the monitor, by the name that its Events carry.
type Source string

// Kubernetes itself: the kubelet, the node controller and whoever sets up the
// routes. Nobody else may report its conditions.
const Kubernetes Source = "Kubernetes"

// The monitors that node-problem-detector ships.
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

// GPUMonitor is one that node-problem-detector does not have.
const GPUMonitor Source = "gpu-monitor"

// TaintPrefix begins the key of every default taint. It is the domain of
// Autohealer and not that of a user, so that a default never meets a key that
// somebody uses already; what follows it is the condition type, so that whoever
// finds the taint knows which condition to look for.
const TaintPrefix = "autohealer.resourcestack.com/"

// Condition is what is known of one condition type, and what is decided about
// it.
type Condition struct {
	Type   string
	Source Source
	// Healthy is the status of a node that is well. Unknown never is: it says
	// that nobody could look.
	Healthy Status
	// Meaning of the sickness, in one sentence.
	Meaning string
	// SurvivesReboot says that the sickness is still there after a reboot, whether or
	// not anything says so once more.
	SurvivesReboot bool
	// Native are the taints that Kubernetes places for the condition by itself.
	Native []Taint

	// Effect of the default taint for the sick status. There is no default for
	// Unknown, in any condition: not having looked is no sign of sickness.
	Effect Effect
	// Duration is how long the sickness must have stood, such as 5m; empty means
	// that it counts at once.
	Duration string
	// MaxUnhealthy bounds NoExecute: how many nodes it may empty at once.
	MaxUnhealthy string
	// Why this effect and no other.
	Why string
}

// Taint is what stands on a node while a condition has a status.
type Taint struct {
	Status Status
	Effect Effect
	Key    string
}

// Sick is the status of a node that has the sickness.
func (c Condition) Sick() Status {
	if c.Healthy == True {
		return False
	}
	return True
}

// TaintKey is the key of the default taint; empty if there is none.
func (c Condition) TaintKey() string {
	if c.Effect == None {
		return ""
	}
	return TaintPrefix + c.Type
}

// Event is a reason under which something is reported that passes: it is told
// once and no condition stands, so there is nothing that a taint could follow.
type Event struct {
	Reason  string
	Sources []Source
	Meaning string
}

// Conditions lists the catalogue: Kubernetes' own conditions first, then by
// source. The list is the caller's.
func Conditions() []Condition {
	list := slices.Clone(conditions)
	for i := range list {
		list[i].Native = slices.Clone(list[i].Native)
	}
	return list
}

// Events lists what the shipped monitors report besides conditions. The list is
// the caller's.
func Events() []Event {
	list := slices.Clone(events)
	for i := range list {
		list[i].Sources = slices.Clone(list[i].Sources)
	}
	return list
}

// Lookup finds a condition by its type, exactly as it is written.
func Lookup(conditionType string) (Condition, bool) {
	for _, c := range conditions {
		if c.Type == conditionType {
			c.Native = slices.Clone(c.Native)
			return c, true
		}
	}
	return Condition{}, false
}

// LookupEvent finds an Event by its reason, exactly as it is written. A reason
// where a condition type is wanted is a mistake that can be told from others: a
// condition of that name never stands.
func LookupEvent(reason string) (Event, bool) {
	for _, e := range events {
		if e.Reason == reason {
			e.Sources = slices.Clone(e.Sources)
			return e, true
		}
	}
	return Event{}, false
}

// Healthy says whether the status, in any letter case, is the one of a node that
// is well. Of a type that is not in the catalogue nobody knows, and the answer
// is no.
func Healthy(conditionType, status string) bool {
	c, ok := Lookup(conditionType)
	return ok && strings.EqualFold(status, string(c.Healthy))
}
