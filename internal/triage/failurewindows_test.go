package triage

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The tree has the same numbers as a count of all nodes for each end of a window, whatever order nodes
// fail and recover in.
func TestFailureWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kept := &failureWindows{window: time.Duration(rapid.IntRange(1, 20).Draw(t, "window"))}
		var nodes [][]int64
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			if len(nodes) > 0 && rapid.IntRange(0, 2).Draw(t, "recovers") == 0 {
				i := rapid.IntRange(0, len(nodes)-1).Draw(t, "node")
				kept.count(nodes[i], -1)
				nodes = slices.Delete(nodes, i, i+1)
			} else {
				failures := rapid.SliceOfN(rapid.Int64Range(0, 60), 1, 4).Draw(t, "failures")
				slices.Sort(failures)
				failures = slices.Compact(failures)
				kept.count(failures, +1)
				nodes = append(nodes, failures)
			}
			together := func(end int64) (count int) {
				for _, failures := range nodes {
					if slices.ContainsFunc(failures, func(at int64) bool { return at <= end && end <= later(at, kept.window) }) {
						count++
					}
				}
				return count
			}
			most := 0
			for end := range int64(100) {
				most = max(most, together(end))
			}
			if kept.most() != most {
				t.Fatalf("at most %d fail together, want %d of %v", kept.most(), most, nodes)
			}
			for needed := 1; needed <= most; needed++ {
				end := int64(0)
				for together(end) < needed {
					end++
				}
				if got := kept.first(needed); got != end {
					t.Fatalf("%d fail together until %d, want %d, of %v", needed, got, end, nodes)
				}
			}
			if most == 0 && kept.root != nil {
				t.Fatal("the tree of no node is not empty")
			}
		}
	})
}
