package config

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/resourcestack/autohealer/catalog"
)

// Kind is the kind of a monitor. It is the name of the flag that takes the file.
type Kind string

// The kinds of monitors.
const (
	SystemLog    Kind = "system-log-monitor"
	CustomPlugin Kind = "custom-plugin-monitor"
	SystemStats  Kind = "system-stats-monitor"
	// Check and Problems exist only in Autohealer.
	Check    Kind = "check-monitor"
	Problems Kind = "problem-sources"
)

// File is a parsed configuration file. Exactly one of its monitors is set, according to Kind.
type File struct {
	Path string
	Kind Kind
	// Nodes selects the nodes on which the monitor runs ("nodeSelector", only in Autohealer). The
	// default is all nodes.
	Nodes labels.Selector

	Log      *LogMonitor
	Plugin   *PluginMonitor
	Stats    *StatsMonitor
	Check    *CheckMonitor
	Problems *ProblemSources
}

// Condition is a condition of a monitor, with its healthy reason and message.
type Condition struct {
	Type    string
	Reason  string
	Message string

	// The following fields exist only in Autohealer. Their defaults come from the catalog.

	// Healthy is the status of a healthy node, True or False ("healthyStatus").
	Healthy catalog.Status
	// Meaning describes the problem in a sentence ("meaning").
	Meaning string
	// SurvivesReboot means that a reboot does not end the problem ("survivesReboot").
	SurvivesReboot bool
}

// Inverted returns whether the condition is True on a healthy node.
func (c Condition) Inverted() bool { return c.Healthy == catalog.True }

// The plugins that read logs.
const (
	Kmsg     = "kmsg"
	Journald = "journald"
	Filelog  = "filelog"
)

// LogMonitor configures which log is read and which patterns are searched.
type LogMonitor struct {
	Plugin       string            // Kmsg, Journald or Filelog
	PluginConfig map[string]string // settings of the plugin
	LogPath      string            // an absolute path; empty means the default folders of the journal
	SkipList     []string          // lines of a file that contain any of these are ignored
	Lookback     time.Duration
	Delay        time.Duration // after the boot; earlier lines are ignored
	BufferSize   int
	Source       string
	// Metrics exports counters of the problems.
	Metrics    bool
	Conditions []Condition
	Rules      []LogRule
}

// LogRule defines what a line means.
type LogRule struct {
	Permanent bool
	Condition string // the condition that the rule changes, if Permanent
	Reason    string
	Pattern   string
	// Suffix is appended to the message.
	Suffix string

	// The following fields exist only in Autohealer.

	// ClearPattern ends the problem when it matches ("clearPattern").
	ClearPattern string
	// ClearAfter ends the problem when the pattern has not matched for this long ("clearAfter").
	ClearAfter time.Duration
	// Count is how often the pattern must match within Window before the rule applies ("count",
	// "window"). With 1 and no window it applies at once.
	Count  int
	Window time.Duration
	// KernelOnly ignores lines of the kernel log that the kernel itself did not write
	// ("kernelOnly").
	KernelOnly bool
}

// PluginMonitor configures which programs are run and what their exit codes mean.
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

// PluginRule is a program.
type PluginRule struct {
	Permanent      bool
	Condition      string
	Reason         string
	Path           string
	Args           []string
	Timeout        time.Duration // never zero
	InvokeInterval time.Duration // never zero
}

// CheckMonitor configures which built-in checks run and what their results mean. It exists only in
// Autohealer and has the format of a PluginMonitor.
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

// CheckRule is a built-in check.
type CheckRule struct {
	Permanent      bool
	Condition      string
	Reason         string
	Check          string // one of Checks
	Timeout        time.Duration
	InvokeInterval time.Duration
	Settings       CheckSettings
}

// CheckSettings are the settings of all checks. Each check uses some of them.
type CheckSettings struct {
	URL         string        // of the kubelet or kube-proxy; empty means the default
	Socket      string        // of the container runtime; empty means containerd's
	MountTable  string        // for readonly-filesystems; empty means that of the first process
	MaxError    time.Duration // of the clock; zero means the kernel's own limit
	FullPercent int           // of the connection table
	Name        string        // to resolve; empty means the Kubernetes service

	// The systemd unit that runs the checked component, and its repair.
	Unit     string
	Grace    time.Duration
	Repair   bool
	Cooldown time.Duration
}

// StatsMonitor configures which statistics of the machine become metrics.
type StatsMonitor struct {
	InvokeInterval time.Duration
	ProcPath       string
	// Metrics are the display names by section and by ID, for example "cpu/load_1m".
	Metrics map[string]map[string]string

	// Settings of the disk section.
	IncludeRootBlk        bool
	IncludeAllAttachedBlk bool
	LsblkTimeout          time.Duration
	// ExcludeInterface is a pattern of network interfaces that are ignored.
	ExcludeInterface string
	// KnownModulesPath is a file that lists known kernel modules ("knownModulesConfigPath").
	KnownModulesPath string
}
