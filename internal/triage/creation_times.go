package triage

import (
	"slices"
	"sort"
)

// creationTimes are the sorted creation times of nodes, for example of those that a rule
// selects. They count
// the nodes older than a given time without a loop over the nodes. The times are in chunks
// of limited size, so that adding or removing a node moves at most one chunk.
type creationTimes struct {
	chunks [][]int64 // never empty
	total  int
}

const maxChunk = 512

// newCreationTimes sorts times in place.
func newCreationTimes(times []int64) *creationTimes {
	slices.Sort(times)
	a := &creationTimes{total: len(times)}
	for chunk := range slices.Chunk(times, maxChunk) {
		a.chunks = append(a.chunks, slices.Clone(chunk))
	}
	return a
}

// find returns the position of the first time that is not before at.
func (a *creationTimes) find(at int64) (chunk, index int) {
	chunk = sort.Search(len(a.chunks), func(i int) bool {
		times := a.chunks[i]
		return times[len(times)-1] >= at
	})
	if chunk < len(a.chunks) {
		index, _ = slices.BinarySearch(a.chunks[chunk], at)
	}
	return chunk, index
}

func (a *creationTimes) add(at int64) {
	a.total++
	i, index := a.find(at)
	if last := len(a.chunks) - 1; i > last { // later than all
		if last < 0 || len(a.chunks[last]) == maxChunk {
			a.chunks = append(a.chunks, []int64{at})
		} else {
			a.chunks[last] = append(a.chunks[last], at)
		}
		return
	}
	if chunk := a.chunks[i]; len(chunk) == maxChunk {
		half := maxChunk / 2
		a.chunks = slices.Insert(a.chunks, i+1, slices.Clone(chunk[half:]))
		a.chunks[i] = chunk[:half]
		if index > half {
			i, index = i+1, index-half
		}
	}
	a.chunks[i] = slices.Insert(a.chunks[i], index, at)
}

// remove removes one of the times that equal at.
func (a *creationTimes) remove(at int64) {
	i, index := a.find(at)
	a.total--
	a.chunks[i] = slices.Delete(a.chunks[i], index, index+1)
	if len(a.chunks[i]) == 0 {
		a.chunks = slices.Delete(a.chunks, i, i+1)
		return
	}
	a.merge(i)
	a.merge(i - 1)
}

// move replaces one of the times.
func (a *creationTimes) move(before, after int64) {
	a.remove(before)
	a.add(after)
}

// merge joins a chunk with the next one if both are small.
func (a *creationTimes) merge(i int) {
	if i >= 0 && i+1 < len(a.chunks) && len(a.chunks[i])+len(a.chunks[i+1]) <= maxChunk/2 {
		a.chunks[i] = append(a.chunks[i], a.chunks[i+1]...)
		a.chunks = slices.Delete(a.chunks, i+1, i+2)
	}
}

// before counts the times before at. It counts from the end, because callers ask for late
// times.
func (a *creationTimes) before(at int64) int {
	i, index := a.find(at)
	count := a.total
	if i < len(a.chunks) {
		count -= len(a.chunks[i]) - index
	}
	for later := i + 1; later < len(a.chunks); later++ {
		count -= len(a.chunks[later])
	}
	return count
}
