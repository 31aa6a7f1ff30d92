package logmonitor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// gpus returns the GPU monitor that comes with the agent, after its start.
func gpus(t *testing.T) *Monitor {
	t.Helper()
	file, warnings, err := config.Read("../../../config/gpu-monitor.json", config.SystemLog)
	testkit.Require(t, err == nil && len(warnings) == 0, "%v %v", err, warnings)
	m := testkit.Value(New(Config{Monitor: *file.Log, Boot: "a"})).Must(t)
	dear := m.Expensive()
	testkit.Check(t, len(dear) == 0, "expensive are %q", dear)
	m.Start(day)
	return m
}

// say makes the kernel write a record; | is a newline within it.
func say(m *Monitor, number uint64, record string) finding.Report {
	text := []byte(strings.ReplaceAll(record, "|", "\n") + "\n")
	return m.Take(day, logs.Chunk{Text: text, Records: []logs.Record{{End: len(text), Time: day, Number: number, Facility: logs.Kernel}}})
}

// found returns the reasons of the events in a report and, after a !, the reason of the
// condition.
func found(t *testing.T, r finding.Report) string {
	t.Helper()
	var words []string
	for _, e := range r.Events {
		if e.Condition == "" {
			words = append(words, e.Reason)
		}
	}
	for _, c := range r.Conditions {
		testkit.Check(t, c.Type == "GPUUnhealthy" && c.Status == catalog.True, "reported %+v", c)
		words = append(words, "!"+c.Reason)
	}
	return strings.Join(words, " ")
}

// These lines are from NVIDIA drivers of many versions. Some name a process and some do
// not; some are about shared GPUs.
func TestLinesOfNVIDIADrivers(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "!XidFallenOffTheBus"},
		{"NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.", "!XidFallenOffTheBus"},
		{"NVRM: Xid (PCI:0000:3b:00.0): 79, GPU has fallen off the bus.", "!XidFallenOffTheBus"},
		{"NVRM: The NVIDIA GPU 0000:b3:00.0|NVRM: (PCI ID: 10de:26b5) installed in this system has|NVRM: fallen off the bus and is not responding to commands.", "!GPUFallenOffTheBus"},
		{"NVRM: Xid (PCI:0000:07:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x7fdf0de80 partition 5, subpartition 1", "!XidDoubleBitECC"},
		{"NVRM: Xid (PCI:0000:01:00): 62, 023f0f30 00000000 00000000 202c0ffe 202bc4b6 2029bdb6 202bccb8 20297b2a", "!XidMicrocontrollerHalt"},
		{"NVRM: Xid (PCI:0000:01:00): 62, 0096(1c54) 00000000 00000000", "!XidMicrocontrollerHalt"},
		{"NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)", "!XidNVLinkError"},
		{"NVRM: Xid (PCI:0000:37:00): 95, pid=5171, Uncontained: FBHUB. RST: Yes, D-RST: No", "!XidUncontainedMemoryError"},
		{"NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005", "!XidContextSwitchTimeout"},
		{"NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).", "!XidGSPTimeout"},
		{"NVRM: Xid (PCI:000f:01:00): 120, pid=9111, name=python, GSP task exception: load access fault", "!XidGSPError"},
		{"NVRM: Xid (PCI:0000:2a:00): 140, pid='<unknown>', name=<unknown>, An uncorrectable ECC error detected (possible firmware handling failure) DRAM:0, LTC:0, MMU:0, PCIE:0", "!XidUnrecoveredECC"},
		{"NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)", "XidNVLink5Error !XidNVLink5Fatal"},
		{"NVRM: Xid (PCI:0008:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)", "XidNVLink5Error !XidNVLink5Fatal"},
		{"NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)", "XidNVLink5Error"},
		{"NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)", "XidNVLink5Error"},
		{"NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "XidRecoveryActionChanged !XidRecoveryRequired"},
		{"NVRM: Xid (PCI:0000:0d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", "XidRecoveryActionChanged !XidRecoveryRequired"},
		{"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "XidRecoveryActionChanged !XidRecoveryRequired"},
		{"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "XidRecoveryActionChanged !XidRecoveryRequired"},
		{"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "XidRecoveryActionChanged"},
		{"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)", "XidRecoveryActionChanged"},

		{"NVRM: Xid (PCI:0002:00:00): 13, pid=2519562, name=python3, Graphics Exception: ChID 000c, Class 0000cbc0, Offset 00000000, Data 00000000", "XidGraphicsEngineError"},
		{"NVRM: Xid (0000:01:00): 13, 0005 00000000 0000502d 00000104 00000000 00000100", "XidGraphicsEngineError"},
		{"NVRM: Xid (PCI:0000:01:00): 69, Class Error: ChId 0005, Class 0000a097, Offset 00000d9c, Data ffffffff, ErrorCode 0000000c", "XidGraphicsEngineError"},
		{"NVRM: Xid (PCI:0000:00:06): 31, pid=79749, name=exe, Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_7 faulted @ 0x2b57_b3000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE", "XidMemoryPageFault"},
		{"NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000005 intr 00008000", "XidInvalidCommands"},
		{"NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=distprovers-gpu, Ch 0000000f", "XidPreemptiveCleanup"},
		{"NVRM: Xid (PCI:0000:52:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.", "XidRowRemapPending"},
		{"NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No", "XidContainedMemoryError"},
		{"NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception", "XidGraphicsEngineError"},
		{"NVRM: Xid (PCI:0000:0d:00): 51, BAD_TSG encountered on runlist: 0 with error code: 4", "XidOther"},
		{"NVRM: Xid (0000:03:00): 14, Channel 00000001", "XidOther"},

		// No errors of the driver.
		{"NVRM: GPU at PCI:0000:01:00: GPU-bc0fa0b9-cac2-f507-b715-9bebdb69c71e", ""},
		{"NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", ""}, // its Xid 79 precedes it
		{"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (dvs-builder@U22-I3-B10-02-5)  Mon Jun  2 13:13:04 UTC 2025", ""},
		{"NVRM: The NVIDIA probe routine failed for 1 device(s).", ""},
		{"NVRM: Xid error: xyz, invalid data", ""},
		{"NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", ""},
		{"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", ""},
		{"NVRM: os_schedule: Attempted to yield the CPU while in atomic or interrupt context", ""},
	} {
		report := say(gpus(t), 1, test.line)
		testkit.Same(t, found(t, report), test.want, "the meaning of\n  %s", test.line)
		// The line and the message name the GPU.
		whole := strings.ReplaceAll(test.line, "|", "\n")
		for _, e := range report.Events {
			testkit.Check(t, strings.Contains(e.Message, whole) || strings.Contains(e.Message, strconv.Quote(whole)),
				"for %q the message is %q", whole, e.Message)
		}
		for _, c := range report.Conditions {
			testkit.Contains(t, c.Message, whole, "the condition message")
		}
	}
}

// Some drivers report a lost GPU in several records.
func TestLostGPUInThreeRecords(t *testing.T) {
	m := gpus(t)
	say(m, 1, "NVRM: The NVIDIA GPU 0000:b3:00.0")
	say(m, 2, "NVRM: (PCI ID: 10de:26b5) installed in this system has")
	report := say(m, 3, "NVRM: fallen off the bus and is not responding to commands.")
	testkit.Check(t, found(t, report) == "!GPUFallenOffTheBus" && strings.Contains(report.Conditions[0].Message, "0000:b3:00.0"), "reported %+v", report)
}

// table reads the tables of the documentation: the Xid numbers of each reason.
func table(t *testing.T) map[string][]int {
	t.Helper()
	page := testkit.Value(os.ReadFile("../../../docs/reference/gpu-errors.md")).Must(t)
	numbers := map[string][]int{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| `") {
			continue
		}
		reason := strings.Trim(cells[0], "| `")
		numbers[reason] = nil
		listed, condition, _ := strings.Cut(cells[1], ", where")
		if listed, _, _ = strings.Cut(listed, ", to"); condition != "" || listed != cells[1] {
			continue // the rest of the line decides
		}
		for _, part := range strings.Split(listed, ", ") {
			first, last, _ := strings.Cut(part, "-")
			from, err := strconv.Atoi(first)
			if err != nil {
				continue
			}
			to, err := strconv.Atoi(last)
			if err != nil {
				to = from
			}
			for ; from <= to; from++ {
				numbers[reason] = append(numbers[reason], from)
			}
		}
	}
	return numbers
}

// Each number has the documented meaning, also numbers of later drivers.
func TestXidsHaveTheirDocumentedReasons(t *testing.T) {
	want := map[int]string{}
	told := table(t)
	for reason, numbers := range told {
		for _, number := range numbers {
			testkit.Same(t, want[number], "", "the meaning of %d in the documentation", number)
			want[number] = reason
		}
	}
	testkit.Check(t, len(told) == 36 && len(want) >= 80, "the documentation has %d reasons for %d numbers", len(told), len(want))
	m := gpus(t)
	for _, rule := range m.cfg.Monitor.Rules {
		_, ok := told[rule.Reason]
		testkit.Check(t, ok, "%s is not documented", rule.Reason)
		_, known := catalog.LookupEvent(rule.Reason)
		testkit.Check(t, known != rule.Permanent, "%s is an Event of the catalog: %v", rule.Reason, known)
	}
	fatal, others := 0, 0
	for number := 1; number <= 1200; number++ {
		line := fmt.Sprintf("NVRM: Xid (PCI:0000:01:00): %d, pid=1, name=79, x 154, (79): 79, 48", number)
		if number%2 == 0 {
			line = fmt.Sprintf("NVRM: Xid (PCI:0000:01:00): %d", number)
		}
		got := found(t, say(m, uint64(number), line))
		if strings.HasPrefix(got, "!") {
			fatal++
			m = gpus(t) // with no active condition
		}
		if want[number] == "" {
			want[number] = "XidOther"
			others++
		}
		testkit.Same(t, strings.TrimPrefix(got, "!"), want[number], "the documentation of %s, which means %q", line, got)
	}
	t.Logf("saw %d numbers, of which %d are fatal and %d have no reason of their own", len(want), fatal, others)
	testkit.Same(t, fatal, 19, "fatal numbers")
}

// The condition lasts until the reboot, even if programs work meanwhile.
func TestGPUIsUnhealthyUntilAReboot(t *testing.T) {
	m := gpus(t)
	say(m, 1, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
	testkit.Same(t, found(t, say(m, 2, "NVRM: Xid (PCI:0000:02:00): 48, DBE")), "", "the condition after a second GPU failed")
	for boot, want := range map[string]catalog.Status{"a": catalog.True, "b": catalog.False} {
		cfg := m.cfg
		cfg.Boot, cfg.Remembered = boot, m.State()
		next := testkit.Value(New(cfg)).Must(t)
		testkit.Same(t, next.Start(day).Conditions[0].Status, want, "the condition in boot %s", boot)
	}
}
