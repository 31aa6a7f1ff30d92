package spelling

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/catalog"
)

func known() []string {
	var types []string
	for _, c := range catalog.Conditions() {
		types = append(types, c.Type)
	}
	return types
}

// plausible are names that users give to their own conditions. They are neither misspellings nor in
// the catalog.
var plausible = []string{
	// Reported by other agents and cloud providers.
	"AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady",
	"CPUUnhealthy", "DPUUnhealthy", "IPUUnhealthy", "NPUUnhealthy", "TPUUnhealthy", "GPU0Unhealthy", "GPU1Unhealthy", "GPU2Unhealthy",
	"GPU3Unhealthy", "GPU4Unhealthy", "GPU5Unhealthy", "GPU6Unhealthy", "GPU7Unhealthy", "FPGAUnhealthy", "EFAUnhealthy",
	"XIDError", "NVLinkDown", "BootDiskCorrupt", "OutOfResource",
	"FilesystemCorruptionProblem", "VMEventScheduled", "KubeletProblem", "ContainerRuntimeProblem", "NodeDrainable",
	"GracefulNodeShutdownInProgress", "DrainInProgress", "Drained", "MaintenancePlanned", "MaintenanceInProgress",
	"CordonedByOperator", "FrequentCrioRestart", "FrequentPodmanRestart", "FrequentKubeProxyRestart", "CoreDNSUnhealthy",
	// The opposites of known types.
	"KubeletHealthy", "ContainerRuntimeHealthy", "NetworkAvailable", "NotReady", "Unready", "WritableFilesystem",
	// Similar to known types.
	"CPUPressure", "GPUPressure", "IOPressure", "RAIDPressure", "InodePressure", "NetworkPressure", "DiskFull", "DiskFailure",
	"PTPProblem", "DNSProblem", "ChronyProblem", "ZfsShutdown", "NfsShutdown", "BtrfsShutdown", "KernelPanic", "KernelLivelock",
	"CorruptPodmanOverlay", "CorruptContainerdSnapshot", "CperHardwareErrorRecurring", "CPUHardwareErrorFatal", "MemoryBadBlock",
	"OutOfMemory", "OutOfInodes", "Read", "Reads", "Real", "Reedy", "Steady", "Heady", "Beady", "Ready2", "IReady", "example.com/KernelDeadlock", "example.com/Ready",
}

func TestNearestConditionLeavesNamesAlone(t *testing.T) {
	if len(plausible) < 40 {
		t.Fatalf("%d names are no sample", len(plausible))
	}
	names := slices.Clone(plausible)
	for _, e := range catalog.Events() {
		names = append(names, e.Reason)
	}
	for _, name := range names {
		if _, ok := catalog.Lookup(name); ok {
			t.Errorf("%s is in the catalogue", name)
		}
		if got, ok := NearestCondition(name); ok {
			t.Errorf("%s is taken for a slip of %s", name, got)
		}
	}
	// Nor are they misspellings of each other: nodes may report some of them.
	for i, name := range names {
		others := slices.Concat(names[:i], names[i+1:])
		if got, ok := NearestCondition(name, others...); ok {
			t.Errorf("%s is taken for a slip of %s", name, got)
		}
	}
}

func TestNearestConditionNeverCorrectsAKnownName(t *testing.T) {
	types := known()
	for _, name := range types {
		if got, ok := NearestCondition(name, types...); ok {
			t.Errorf("%s is taken for a slip of %s", name, got)
		}
		if got, ok := NearestCondition(name, name+"s"); ok {
			t.Errorf("%s is taken for a slip of %s, which a node reports", name, got)
		}
	}
	// A name that a node reports is right, however it is spelled.
	if got, ok := NearestCondition("KubletUnhealthy", "KubletUnhealthy"); ok {
		t.Errorf("KubletUnhealthy is taken for a slip of %s", got)
	}
}

// slips calls see with every misspelling of a name by a single mistake.
func slips(name string, see func(string)) {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	for i := range len(name) + 1 {
		for _, letter := range alphabet {
			see(name[:i] + string(letter) + name[i:])
			if i < len(name) {
				see(name[:i] + string(letter) + name[i+1:])
			}
		}
		if i < len(name) {
			see(name[:i] + name[i+1:])
		}
		if i+1 < len(name) {
			see(name[:i] + name[i+1:i+2] + name[i:i+1] + name[i+2:])
		}
	}
}

func TestNearestConditionFindsEveryMistake(t *testing.T) {
	types := known()
	seen, apart := 0, 0
	for _, name := range types {
		slips(name, func(slip string) {
			ends := func(s string) string { return strings.ToLower(s[:1] + s[len(s)-1:]) }
			if slip == name || len(name) < 8 && ends(slip) != ends(name) {
				return
			}
			if slices.Contains(plausible, slip) {
				apart++
				return
			}
			seen++
			if seen%2 == 0 { // case does not hide a mistake
				slip = strings.ToLower(slip)
			}
			if got, ok := NearestCondition(slip); !ok || got != name {
				t.Errorf("%s is taken for %q, want %s", slip, got, name)
			}
		})
	}
	t.Logf("saw %d slips in %d names, and %d that are names of their own", seen, len(types), apart)
	if seen < 10000 || apart == 0 {
		t.Error("this test looks at next to nothing")
	}
}

func TestNearestConditionFindsOtherCapitalsAndSeparators(t *testing.T) {
	types := known()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(types).Draw(t, "name")
		var written strings.Builder
		for i, letter := range name {
			if i > 0 {
				written.WriteString(rapid.SampledFrom([]string{"", "", "", "-", "_", ".", " "}).Draw(t, "separator"))
			}
			if rapid.Bool().Draw(t, "capital") {
				written.WriteRune(unicode.ToUpper(letter))
			} else {
				written.WriteRune(unicode.ToLower(letter))
			}
		}
		if written.String() == name {
			t.Skip("nothing was changed")
		}
		if got, ok := NearestCondition(written.String()); !ok || got != name {
			t.Fatalf("%q is taken for %q, want %s", written.String(), got, name)
		}
	})
}

func TestNearestCondition(t *testing.T) {
	tests := []struct {
		name    string
		written string
		others  []string
		want    string
	}{
		{"a letter too few", "KubletUnhealthy", nil, "KubeletUnhealthy"},
		{"a letter too many", "KernelDeadlocks", nil, "KernelDeadlock"},
		{"another letter", "DiskPresture", nil, "DiskPressure"},
		{"two swapped", "MemoryPressuer", nil, "MemoryPressure"},
		{"other capitals", "ReadOnlyFileSystem", nil, "ReadonlyFilesystem"},
		{"as a taint is written", "pid-pressure", nil, "PIDPressure"},
		{"the shortest name in other capitals", "ready", nil, "Ready"},
		{"the shortest name with two swapped", "Reday", nil, "Ready"},
		{"the shortest name with a letter too few", "Redy", nil, "Ready"},
		{"the shortest name with a letter too many", "Readdy", nil, "Ready"},
		{"the shortest name with its first letter twice", "RReady", nil, "Ready"},
		{"the shortest name with another letter within", "Resdy", nil, "Ready"},
		{"the shortest name with another first letter may be another word", "Heady", nil, ""},
		{"the shortest name without its last letter is another word", "Read", nil, ""},
		{"the shortest name with another last letter is another word", "Reads", nil, ""},
		{"the shortest name with a number is a user's own", "Ready2", nil, ""},
		{"a slip of the shortest name that a node reports", "Redy", []string{"Redy"}, ""},
		{"a slip of the shortest name in a domain", "example.com/Redy", nil, ""},
		{"what a node reports, short and with a letter too few", "Stedy", []string{"Steady"}, ""},
		{"a slip in each of two words", "ContanerRuntimeUnhealty", nil, "ContainerRuntimeUnhealthy"},
		{"a slip in each of three words", "ContanerRutimeUnhealty", nil, ""},
		{"two slips in a name that is not long", "MemryPresure", nil, ""},
		{"two slips in one word", "KubeletUnhelty", nil, ""},

		{"what a node reports, with a slip", "FPGAUnhelthy", []string{"FPGAUnhealthy"}, "FPGAUnhealthy"},
		{"what a node reports, in other capitals", "FpgaUnhealthy", []string{"FPGAUnhealthy"}, "FPGAUnhealthy"},
		{"what a node reports, with a slip in each of two words", "AcceleratdHardwreReady", []string{"AcceleratedHardwareReady"}, "AcceleratedHardwareReady"},
		{"another abbreviation", "FPGBUnhealthy", []string{"FPGAUnhealthy"}, ""},
		{"a number more than what is known", "GPU0Unhealthy", nil, ""},
		{"a slip of an abbreviation that is known", "GPPUnhealthy", nil, "GPUUnhealthy"},
		{"another number", "GPU0Unhealthy", []string{"GPU1Unhealthy"}, ""},
		{"another number after a word", "Disk1Failing", []string{"Disk2Failing"}, ""},
		{"another long number", "Port10001Down", []string{"Port10002Down"}, ""},
		{"another short word", "RootDiskCorrupt", []string{"BootDiskCorrupt"}, ""},
		{"the opposite", "StorageUnready", []string{"StorageReady"}, ""},
		{"a name of a domain, with a slip", "example.com/FanBrokn", []string{"example.com/FanBroken"}, "example.com/FanBroken"},
		{"the same name of another domain", "example.org/FanBroken", []string{"example.com/FanBroken"}, ""},
		{"the same name without a domain", "FanBroken", []string{"example.com/FanBroken"}, ""},
		{"the catalogue goes first", "kerneldeadlock", []string{"KernelDeadLock"}, "KernelDeadlock"},
		{"the smaller mistake goes first", "kernel-deadlocks", []string{"KernelDeadlocks"}, "KernelDeadlocks"},
		{"of two that are as near, the first by the alphabet", "FansBroke", []string{"FansBrokes", "FansBroken"}, "FansBroken"},
		{"nothing", "", []string{"", "A"}, ""},
		{"only a separator", "-", []string{"", "."}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, ok := NearestCondition(test.written, test.others...)
			if got != test.want || ok != (test.want != "") {
				t.Errorf("%q is taken for %q (%v), want %q", test.written, got, ok, test.want)
			}
		})
	}
}

// The answer is always a known name, differs from the input, and does not depend on the order in
// which nodes report.
func TestNearestConditionAnswersWithWhatIsKnown(t *testing.T) {
	name := rapid.OneOf(
		rapid.SampledFrom(known()), rapid.SampledFrom(plausible),
		rapid.StringMatching(`([ab]/)?([A-C][a-c]{0,6}[-_.0-9]?){0,4}`), rapid.String(),
	)
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		others := rapid.SliceOfN(name, 0, 5).Draw(t, "others")
		written := rapid.OneOf(name, rapid.SampledFrom(append(known(), others...))).Draw(t, "written")
		if at := rapid.IntRange(0, 2*len(written)).Draw(t, "slip"); at < len(written) {
			written = written[:at] + written[at+1:]
		}
		got, ok := NearestCondition(written, others...)
		if !ok {
			if got != "" {
				t.Fatalf("%q without a yes", got)
			}
			return
		}
		found++
		if got == written || !slices.Contains(known(), got) && !slices.Contains(others, got) {
			t.Fatalf("%q is taken for %q", written, got)
		}
		slices.Reverse(others)
		if again, _ := NearestCondition(written, others...); again != got {
			t.Fatalf("%q is taken for %q, and in another order for %q", written, got, again)
		}
	})
	t.Logf("saw %d near misses", found)
	if found == 0 {
		t.Error("no name was near another: this test looks at nothing")
	}
}

func BenchmarkNearestCondition(b *testing.B) {
	for b.Loop() {
		if _, ok := NearestCondition("AcceleratedHardwareReady", plausible[1:]...); ok {
			b.Fatal("it is a name of its own")
		}
	}
}
