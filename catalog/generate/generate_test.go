package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const root = "../.."

// The files in the repository are those that the catalog generates.
func TestFilesAreFresh(t *testing.T) {
	made := t.TempDir()
	page := testkit.Value(os.ReadFile(root + "/docs/reference/conditions.md")).Must(t)
	testkit.Must(t, os.MkdirAll(filepath.Join(made, "docs/reference"), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(made, "docs/reference/conditions.md"), page, 0o600))
	testkit.Must(t, command([]string{made}))
	for _, path := range []string{"docs/reference/conditions.md", "deploy/defaults/conditionsets.yaml"} {
		want := testkit.Value(os.ReadFile(filepath.Join(made, path))).Must(t)
		got := testkit.Value(os.ReadFile(filepath.Join(root, path))).Must(t)
		testkit.NoDiff(t, cmp.Diff(string(want), string(got)), "%s is stale, run make generate (-made +there)", path)
	}
}

// The page contains every condition and every Event in the right table.
func TestPageIsComplete(t *testing.T) {
	page := testkit.Value(os.ReadFile(root + "/docs/reference/conditions.md")).Must(t)
	rows := map[string]int{}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") {
			rows[strings.Trim(cells[0], "| `")] = len(cells)
		}
	}
	want := map[string]int{}
	for _, c := range catalog.Conditions() {
		want[c.Type] = 8
		if c.Source == catalog.Kubernetes {
			want[c.Type] = 5
		}
	}
	for _, e := range catalog.Events() {
		want[e.Reason] = 3
	}
	testkit.NoDiff(t, cmp.Diff(want, rows), "rows by their number of columns")
}

func TestConditionSets(t *testing.T) {
	got := conditionSets([]catalog.Condition{
		{Type: "Ready", Source: catalog.Kubernetes, Healthy: catalog.True, Why: "It is not for us."},
		{
			Type: "NTPProblem", Source: catalog.NTPMonitor, Healthy: catalog.False, Meaning: "The clock is wrong.",
			Effect: catalog.PreferNoSchedule, Why: "This is a reason that is so long that it does not fit into one line of the comment.",
		},
		{
			Type: "DiskReady", Source: catalog.DiskMonitor, Healthy: catalog.True, Meaning: "The disk is gone.",
			Effect: catalog.NoExecute, Duration: "5m", MaxUnhealthy: "10%", Why: "It is lost.",
		},
	})
	want := header + `---
# NTPProblem (ntp-custom-plugin-monitor): The clock is wrong.
# PreferNoSchedule: This is a reason that is so long that it does not fit into
# one line of the comment.
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata:
  name: default-ntp-problem
  labels:
    app.kubernetes.io/part-of: autohealer
spec:
  type: NTPProblem
  effect: PreferNoSchedule
  taintKey: autohealer.resourcestack.com/NTPProblem
  conditions:
    NTPProblem:
      status: true
---
# DiskReady (disk-monitor): The disk is gone.
# NoExecute: It is lost.
apiVersion: autohealer.resourcestack.com/v1alpha1
kind: ConditionSet
metadata:
  name: default-disk-ready
  labels:
    app.kubernetes.io/part-of: autohealer
spec:
  type: DiskReady
  effect: NoExecute
  taintKey: autohealer.resourcestack.com/DiskReady
  maxUnhealthy: 10%
  conditions:
    DiskReady:
      status: false
      duration: 5m
`
	testkit.NoDiff(t, cmp.Diff(want, got), "the parsed rows")
}

func TestKebab(t *testing.T) {
	for name, want := range map[string]string{
		"NTPProblem": "ntp-problem", "CorruptDockerOverlay2": "corrupt-docker-overlay2",
		"KernelDeadlock": "kernel-deadlock", "DiskBadBlock": "disk-bad-block", "OOM": "oom", "": "",
	} {
		testkit.Same(t, kebab(name), want, "%s", name)
	}
}

func TestFill(t *testing.T) {
	const begin, end = "<!-- begin a: made of the catalogue by make generate -->\n", "<!-- end a -->\n"
	tests := []struct {
		name, page, want, says string
	}{
		{"an empty place", "x\n" + begin + end + "y\n", "x\n" + begin + "rows\n" + end + "y\n", ""},
		{"old rows", begin + "old\n" + end, begin + "rows\n" + end, ""},
		{"no begin", "x\n" + end, "", "there is no line \"<!-- begin a"},
		{"no end", begin + "x\n", "", "there is no line \"<!-- end a -->\" after"},
		{"the end before the beginning", end + begin, "", "there is no line \"<!-- end a -->\" after"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := fill(test.page, "a", "rows\n")
			if test.says == "" {
				testkit.Check(t, err == nil && got == test.want, "%v: %q, want %q", err, got, test.want)
				return
			}
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.says), "%v, want something with %q", err, test.says)
		})
	}
}

func TestCommandWantsAFolder(t *testing.T) {
	for _, args := range [][]string{nil, {"a", "b"}, {t.TempDir()}} {
		testkit.Check(t, command(args) != nil, "%q was taken", args)
	}
}
