package triage

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestCreationTimesBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.Int64Range(0, 60), 0, 3*maxChunk).Draw(t, "at first")
		kept := newSortedTimes(slices.Clone(times))
		// Whole runs are added and removed, so that chunks are split, joined and deleted.
		for range rapid.IntRange(0, 20).Draw(t, "runs") {
			from, run := rapid.Int64Range(0, 60).Draw(t, "from"), rapid.IntRange(0, maxChunk).Draw(t, "run")
			step := rapid.Int64Range(0, 2).Draw(t, "step")
			if rapid.Bool().Draw(t, "come") {
				for i := range run {
					at := from + int64(i)*step
					kept.add(at)
					times = append(times, at)
				}
			} else {
				for range min(run, len(times)) {
					i := int(from) % len(times)
					kept.remove(times[i])
					times = slices.Delete(times, i, i+1)
				}
			}
			at := rapid.Int64Range(-1, 2*maxChunk).Draw(t, "at")
			want := 0
			for _, other := range times {
				if other < at {
					want++
				}
			}
			if got := kept.before(at); got != want || kept.total != len(times) {
				t.Fatalf("%d of %d are before %d, want %d of %d", got, kept.total, at, want, len(times))
			}
			for i, chunk := range kept.chunks {
				if len(chunk) == 0 || len(chunk) > maxChunk {
					t.Fatalf("a chunk holds %d times", len(chunk))
				}
				if i > 0 && len(kept.chunks[i-1])+len(chunk) <= maxChunk/2 {
					t.Fatalf("two neighbours hold %d and %d times", len(kept.chunks[i-1]), len(chunk))
				}
			}
		}
	})
}
