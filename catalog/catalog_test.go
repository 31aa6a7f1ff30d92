package catalog_test

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// taint is a taint that Kubernetes sets for a status.
type taint struct {
	condition string
	status    catalog.Status
	effect    catalog.Effect
	key       string
}

// kubernetes is the first table of the ConditionSets proposal, row by row: the taints of Kubernetes
// itself.
var kubernetes = []taint{
	{"Ready", "True", "", ""},
	{"Ready", "False", "NoExecute", "node.kubernetes.io/not-ready"},
	{"Ready", "Unknown", "NoExecute", "node.kubernetes.io/unreachable"},
	{"OutOfDisk", "True", "NoSchedule", "node.kubernetes.io/out-of-disk"},
	{"OutOfDisk", "False", "", ""},
	{"OutOfDisk", "Unknown", "", ""},
	{"MemoryPressure", "True", "NoSchedule", "node.kubernetes.io/memory-pressure"},
	{"MemoryPressure", "False", "", ""},
	{"MemoryPressure", "Unknown", "", ""},
	{"DiskPressure", "True", "NoSchedule", "node.kubernetes.io/disk-pressure"},
	{"DiskPressure", "False", "", ""},
	{"DiskPressure", "Unknown", "", ""},
	{"NetworkUnavailable", "True", "NoSchedule", "node.kubernetes.io/network-unavailable"},
	{"NetworkUnavailable", "False", "", ""},
	{"NetworkUnavailable", "Unknown", "", ""},
	{"PIDPressure", "True", "NoSchedule", "node.kubernetes.io/pid-pressure"},
	{"PIDPressure", "False", "", ""},
	{"PIDPressure", "Unknown", "", ""},
}

// proposed are the condition types of node-problem-detector in the other tables of the proposal. It
// leaves their effects and keys open.
var proposed = []string{
	"NTPProblem",
	"CorruptDockerOverlay2",
	"ContainerRuntimeUnhealthy",
	"KubeletUnhealthy",
	"KernelDeadlock", "ReadonlyFilesystem", "FrequentUnregisterNetDevice",
	"FrequentKubeletRestart", "FrequentDockerRestart", "FrequentContainerdRestart",
}

// monitor lists what a monitor of node-problem-detector reports.
type monitor struct {
	conditions []string // the conditions of its permanent rules
	events     []string // the reasons of its temporary rules
}

// shipped are the monitors of node-problem-detector, by their sources.
var shipped = map[catalog.Source]monitor{
	"kernel-monitor": {
		[]string{"KernelDeadlock", "XfsShutdown", "CperHardwareErrorFatal", "FrequentUnregisterNetDevice"},
		[]string{
			"OOMKilling", "TaskHung", "UnregisterNetDevice", "KernelOops", "Ext4Error", "Ext4Warning", "IOError",
			"MemoryReadError", "CperHardwareErrorCorrected", "CperHardwareErrorRecoverable",
		},
	},
	"readonly-monitor": {[]string{"ReadonlyFilesystem"}, nil},
	"docker-monitor":   {[]string{"CorruptDockerOverlay2"}, []string{"CorruptDockerImage", "DockerContainerStartupFailure"}},
	"systemd-monitor": {
		[]string{"FrequentKubeletRestart", "FrequentDockerRestart", "FrequentContainerdRestart"},
		[]string{"KubeletStart", "DockerStart", "ContainerdStart"},
	},
	// What its program can find, and Autohealer's built-in checks.
	"health-checker": {
		[]string{"KubeletUnhealthy", "ContainerRuntimeUnhealthy", "KubeProxyUnhealthy"},
		[]string{"ConntrackFull", "UnitRestarted", "UnitRestartFailed"},
	},
	"ntp-custom-plugin-monitor":     {[]string{"NTPProblem"}, []string{"NTPIsDown"}},
	"network-custom-plugin-monitor": {nil, []string{"ConntrackFull", "DNSUnreachable"}},
	"iptables-mode-monitor":         {nil, []string{"IPTablesVersionsMismatch"}},
	"disk-monitor":                  {[]string{"DiskBadBlock"}, nil},
	// The design of node-problem-detector names these, and none of its monitors reports them.
	"third-party daemon": {[]string{"BadCPU", "RuntimeHung"}, nil},
	// This monitor exists only in Autohealer.
	"gpu-monitor": {[]string{"GPUUnhealthy"}, []string{
		"XidGraphicsEngineError", "XidMemoryPageFault", "XidInvalidCommands", "XidStoppedProcessing", "XidPreemptiveCleanup",
		"XidCopyEngineError", "XidVideoEngineError", "XidRowRemapPending", "XidHighSingleBitECCRate", "XidContainedMemoryError",
		"XidNVLink5Error", "XidRecoveryActionChanged", "XidUncorrectableECC", "XidOther",
	}},
	"abrt-adaptor": {nil, []string{"CCPPCrash", "UncaughtException", "XorgCrash", "VMcore", "KernelOops"}},
}

func TestCatalogHasWhatKubernetesReports(t *testing.T) {
	for _, row := range kubernetes {
		c, ok := catalog.Lookup(row.condition)
		if !ok {
			t.Errorf("%s is not in the catalogue", row.condition)
			continue
		}
		testkit.Check(t, c.Source == catalog.Kubernetes && c.Effect == catalog.None,
			"%s comes from %s and has the default %q: what Kubernetes taints for is left to it", row.condition, c.Source, c.Effect)
		var got taint
		for _, native := range c.Native {
			if native.Status == row.status {
				got = taint{row.condition, native.Status, native.Effect, native.Key}
			}
		}
		if row.effect == "" {
			row = taint{}
		}
		testkit.Same(t, got, row, "%s: what Kubernetes does, and the catalogue's entry", c.Type)
	}
}

func TestCatalogHasWhatNodeProblemDetectorReports(t *testing.T) {
	for _, condition := range proposed {
		c, ok := catalog.Lookup(condition)
		testkit.Check(t, ok && c.Effect != catalog.None, "%s is known: %v; its effect is %q, which was to be decided", condition, ok, c.Effect)
	}
	got := map[catalog.Source]monitor{}
	for _, c := range catalog.Conditions() {
		if c.Source != catalog.Kubernetes {
			m := got[c.Source]
			m.conditions = append(m.conditions, c.Type)
			got[c.Source] = m
		}
	}
	for _, e := range catalog.Events() {
		for _, source := range e.Sources {
			m := got[source]
			m.events = append(m.events, e.Reason)
			got[source] = m
		}
	}
	anyOrder := cmp.Transformer("sorted", func(list []string) map[string]bool {
		set := map[string]bool{}
		for _, name := range list {
			set[name] = true
		}
		return set
	})
	testkit.NoDiff(t, cmp.Diff(shipped, got, cmp.AllowUnexported(monitor{}), anyOrder), "monitors (-shipped +catalogue)")
}

func TestEveryConditionIsDecided(t *testing.T) {
	seen := map[string]bool{}
	effects := map[catalog.Effect]int{}
	for _, c := range catalog.Conditions() {
		testkit.Check(t, !seen[c.Type], "%s is there twice", c.Type)
		seen[c.Type] = true
		effects[c.Effect]++
		testkit.Check(t, c.Healthy == catalog.True || c.Healthy == catalog.False, "%s is healthy when %q", c.Type, c.Healthy)
		testkit.Check(t, c.Unhealthy() != c.Healthy && c.Unhealthy() != catalog.Unknown, "%s is unhealthy when %q", c.Type, c.Unhealthy())
		testkit.Same(t, (c.Healthy == catalog.True), strings.HasSuffix(c.Type, "Ready"),
			"%s is healthy when %s: a problem is named by what is wrong", c.Type, c.Healthy)
		isSentence(t, c.Type, c.Meaning)
		isSentence(t, c.Type, c.Why)
		for _, native := range c.Native {
			testkit.Check(t, native.Status != c.Healthy && strings.HasPrefix(native.Key, "node.kubernetes.io/"),
				"%s has %+v for a taint of Kubernetes", c.Type, native)
		}
		switch c.Effect {
		case catalog.None:
			testkit.Check(t, len(c.Native) != 0 && c.Duration == "" && c.TaintKey() == "", "%s has no default: which component taints for it?", c.Type)
		case catalog.PreferNoSchedule, catalog.NoSchedule, catalog.NoExecute:
			testkit.Check(t, len(c.Native) == 0, "%s has a default beside the taint of Kubernetes", c.Type)
			testkit.Check(t, c.TaintKey() == "autohealer.resourcestack.com/"+c.Type && len(c.Type) <= 63, "%s has the key %q", c.Type, c.TaintKey())
		default:
			t.Errorf("%s has the effect %q", c.Type, c.Effect)
		}
		testkit.Same(t, (c.Effect == catalog.NoExecute), (c.MaxUnhealthy != ""),
			"%s: %s with the bound %q; what empties nodes is bounded, and nothing else is", c.Type, c.Effect, c.MaxUnhealthy)
	}
	t.Logf("saw %d conditions, by effect %v", len(seen), effects)
	testkit.Check(t, len(effects) >= 4, "some effect is never chosen: this test does not look at it")
	for _, e := range catalog.Events() {
		testkit.Check(t, !seen[e.Reason], "%s is a condition, or there twice", e.Reason)
		seen[e.Reason] = true
		isSentence(t, e.Reason, e.Meaning)
	}
}

// isSentence requires a text that fits into a row of a table.
func isSentence(t *testing.T, of, text string) {
	t.Helper()
	first := strings.IndexFunc(text, unicode.IsLetter)
	testkit.Check(t, first == 0 && strings.HasSuffix(text, ".") && !strings.Contains(text, ". ") && !strings.ContainsAny(text, "|<>\n`"),
		"%s: %q is not one plain sentence", of, text)
}

// Only hardware stays broken. A user must clear a condition that survives a reboot, so each of them
// is a decision.
func TestOnlyBrokenHardwareSurvivesAReboot(t *testing.T) {
	var got []string
	for _, c := range catalog.Conditions() {
		if c.SurvivesReboot {
			got = append(got, c.Type)
		}
	}
	testkit.NoDiff(t, cmp.Diff([]string{"CperHardwareErrorFatal", "DiskBadBlock", "BadCPU"}, got), "the conditions")
}

func TestLookup(t *testing.T) {
	c, ok := catalog.Lookup("KernelDeadlock")
	testkit.Check(t, ok && c.Type == "KernelDeadlock" && c.Unhealthy() == catalog.True, "KernelDeadlock: %+v, %v", c, ok)
	if c, ok := catalog.Lookup("Ready"); !ok || c.Unhealthy() != catalog.False {
		t.Errorf("Ready: %+v, %v", c, ok)
	}
	for _, name := range []string{"", "kerneldeadlock", "KernelDeadlock ", "OOMKilling", "FPGAUnhealthy"} {
		c, ok := catalog.Lookup(name)
		testkit.Check(t, !ok, "%q is %+v", name, c)
	}
	if e, ok := catalog.LookupEvent("ConntrackFull"); !ok || e.Reason != "ConntrackFull" {
		t.Errorf("ConntrackFull: %+v, %v", e, ok)
	}
	if e, ok := catalog.LookupEvent("KernelDeadlock"); ok {
		t.Errorf("KernelDeadlock is the Event %+v", e)
	}
}

func TestHealthy(t *testing.T) {
	tests := []struct {
		condition, status string
		want              bool
	}{
		{"Ready", "True", true},
		{"Ready", "true", true},
		{"Ready", "False", false},
		{"Ready", "Unknown", false},
		{"OutOfDisk", "False", true},
		{"OutOfDisk", "false", true},
		{"OutOfDisk", "True", false},
		{"KernelDeadlock", "False", true},
		{"KernelDeadlock", "Unknown", false},
		{"KernelDeadlock", "", false},
		{"FPGAUnhealthy", "False", false},
		{"FPGAUnhealthy", "True", false},
	}
	for _, test := range tests {
		testkit.Same(t, catalog.Healthy(test.condition, test.status), test.want, "%s=%s is healthy", test.condition, test.status)
	}
	for _, c := range catalog.Conditions() {
		testkit.Check(t, catalog.Healthy(c.Type, string(c.Healthy)) && !catalog.Healthy(c.Type, string(c.Unhealthy())) && !catalog.Healthy(c.Type, "Unknown"),
			"%s: healthy is not the one status that means it", c.Type)
	}
}

// Callers get copies and cannot change the shared table.
func TestCallersCannotChangeTheCatalogue(t *testing.T) {
	before, eventsBefore := catalog.Conditions(), catalog.Events()
	spoiled, spoiledEvents := catalog.Conditions(), catalog.Events()
	for i := range spoiled {
		spoiled[i].Type = "x"
		for j := range spoiled[i].Native {
			spoiled[i].Native[j].Key = "x"
		}
	}
	for i := range spoiledEvents {
		spoiledEvents[i].Sources[0] = "x"
	}
	ready, _ := catalog.Lookup("Ready")
	ready.Native[0].Key = "x"
	oom, _ := catalog.LookupEvent("OOMKilling")
	oom.Sources[0] = "x"
	testkit.NoDiff(t, cmp.Diff(before, catalog.Conditions()), "Conditions returns a copy")
	testkit.NoDiff(t, cmp.Diff(eventsBefore, catalog.Events()), "Events returns a copy")
	testkit.Check(t, !slices.ContainsFunc(catalog.Conditions(), func(c catalog.Condition) bool { return c.Type == "x" }), "the catalogue was changed")
}
