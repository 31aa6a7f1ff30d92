package triage

import (
	"slices"
	"sort"
)

// sortedTimes are times of nodes, for example the creation times of those that a rule selects.
// They count the times before a given one without a loop over the nodes. The times are in chunks
// of limited size, so that adding or removing a node moves at most one chunk.
type sortedTimes struct {
	chunks [][]int64 // never empty
	total  int
}

const maxChunk = 512

// newSortedTimes sorts times in place.
func newSortedTimes(times []int64) *sortedTimes {
	slices.Sort(times)
	a := &sortedTimes{total: len(times)}
	for chunk := range slices.Chunk(times, maxChunk) {
		a.chunks = append(a.chunks, slices.Clone(chunk))
	}
	return a
}

// find returns the position of the first time that is not before at.
func (a *sortedTimes) find(at int64) (chunk, index int) {
	chunk = sort.Search(len(a.chunks), func(i int) bool {
		times := a.chunks[i]
		return times[len(times)-1] >= at
	})
	if chunk < len(a.chunks) {
		index, _ = slices.BinarySearch(a.chunks[chunk], at)
	}
	return chunk, index
}

func (a *sortedTimes) add(at int64) {
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
func (a *sortedTimes) remove(at int64) {
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
func (a *sortedTimes) move(before, after int64) {
	a.remove(before)
	a.add(after)
}

// merge joins a chunk with the next one if both are small.
func (a *sortedTimes) merge(i int) {
	if i >= 0 && i+1 < len(a.chunks) && len(a.chunks[i])+len(a.chunks[i+1]) <= maxChunk/2 {
		a.chunks[i] = append(a.chunks[i], a.chunks[i+1]...)
		a.chunks = slices.Delete(a.chunks, i+1, i+2)
	}
}

// before counts the times before at. It counts from the end, because callers ask for late
// times.
func (a *sortedTimes) before(at int64) int {
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
