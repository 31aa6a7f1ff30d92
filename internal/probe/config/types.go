package config

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// Kind of a monitor, by the flag that names its file.
type Kind string

// The kinds of monitors.
const (
	SystemLog    Kind = "system-log-monitor"
	CustomPlugin Kind = "custom-plugin-monitor"
	SystemStats  Kind = "system-stats-monitor"
	// Check is ours: the old agent has no such flag.
	Check    Kind = "check-monitor"
	Problems Kind = "problem-sources"
)

// File is a configuration file that has been read. One of its monitors is there, by
// its kind.
type File struct {
	Path string
	Kind Kind
	// Nodes says on which nodes the monitor runs ("nodeSelector", which is ours).
	// Everything, if the file does not say.
	Nodes labels.Selector

	Log      *LogMonitor
	Plugin   *PluginMonitor
	Stats    *StatsMonitor
	Check    *CheckMonitor
	Problems *ProblemSources
}

// Condition is a condition that a monitor keeps, as it is while all is well.
type Condition struct {
	Type    string
	Reason  string
	Message string
	// SurvivesReboot says that a reboot does not cure it ("survivesReboot", which is
	// ours; if the file does not say, the catalogue does).
	SurvivesReboot bool
}

// The plugins that read logs.
const (
	Kmsg     = "kmsg"
	Journald = "journald"
	Filelog  = "filelog"
)

// LogMonitor says which log is read, and what is looked for in it.
type LogMonitor struct {
	Plugin       string            // Kmsg, Journald or Filelog
	PluginConfig map[string]string // what the plugin wants to know
	LogPath      string            // from the root on; none means the journal's own folders
	SkipList     []string          // lines of a file with one of these in them are passed over
	Lookback     time.Duration
	Delay        time.Duration // after the boot, from when on lines count
	BufferSize   int
	Source       string
	// Metrics says whether the problems are counted.
	Metrics    bool
	Conditions []Condition
	Rules      []LogRule
}

// LogRule says what a line means.
type LogRule struct {
	Permanent bool
	Condition string // that is changed, where Permanent
	Reason    string
	Pattern   string
	// Suffix is added to the message of what is found.
	Suffix string

	// What follows is ours.

	// ClearPattern ends what the rule has found ("clearPattern").
	ClearPattern string
	// ClearAfter ends it when the pattern has not matched for so long ("clearAfter").
	ClearAfter time.Duration
	// Count is how often the pattern must match within Window until it counts
	// ("count", "window"). One, and no window, means at once.
	Count  int
	Window time.Duration
	// KernelOnly passes over lines that somebody else than the kernel has written into
	// its log ("kernelOnly").
	KernelOnly bool
}

// PluginMonitor says which programs are run, and what their answers mean.
type PluginMonitor struct {
	Source            string
	Metrics           bool
	InvokeInterval    time.Duration
	Timeout           time.Duration
	MaxOutputLength   int
	Concurrency       int
	UpdateOnMessage   bool // "enable_message_change_based_condition_update"
	SkipInitialStatus bool
	Conditions        []Condition
	Rules             []PluginRule
}

// PluginRule is one program.
type PluginRule struct {
	Permanent      bool
	Condition      string
	Reason         string
	Path           string
	Args           []string
	Timeout        time.Duration // never zero
	InvokeInterval time.Duration // never zero
}

// CheckMonitor says which of the checks that are built in are made, and what their
// answers mean. It is ours, in the format of a PluginMonitor.
type CheckMonitor struct {
	Source            string
	Metrics           bool
	InvokeInterval    time.Duration
	Timeout           time.Duration
	Concurrency       int
	UpdateOnMessage   bool
	SkipInitialStatus bool
	Conditions        []Condition
	Rules             []CheckRule
}

// CheckRule is one check.
type CheckRule struct {
	Permanent      bool
	Condition      string
	Reason         string
	Check          string // one of Checks
	Timeout        time.Duration
	InvokeInterval time.Duration
	Settings       CheckSettings
}

// CheckSettings are those of all checks; each has its own.
type CheckSettings struct {
	URL         string        // of the kubelet or kube-proxy; empty means the usual one
	Socket      string        // of the container runtime; empty means containerd's
	MountTable  string        // of the readonly filesystems; empty means that of the first process
	MaxError    time.Duration // of the clock; zero means the kernel's own limit
	FullPercent int           // of the connections
	Name        string        // to resolve; empty means that of Kubernetes' own service

	// What is known of the unit that runs it, and what is done about it.
	Unit     string
	Grace    time.Duration
	Repair   bool
	Cooldown time.Duration
}

// StatsMonitor says which figures of the machine become metrics.
type StatsMonitor struct {
	InvokeInterval time.Duration
	ProcPath       string
	// Metrics are the names under which figures are shown, by their ID, such as
	// "cpu/load_1m", and by the part of the machine that they are about.
	Metrics map[string]map[string]string

	// Of disks.
	IncludeRootBlk        bool
	IncludeAllAttachedBlk bool
	LsblkTimeout          time.Duration
	// Of networks: the pattern of interfaces that are left out.
	ExcludeInterface string
	// Of the features of the system: the file that names the modules of the kernel that
	// are known ("knownModulesConfigPath").
	KnownModulesPath string
}
