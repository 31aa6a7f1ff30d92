package triage

import (
	"slices"
	"sort"
)

// ages are the creation times of the nodes that a rule selects, in order. They tell how
// many nodes are older than a time without a look at the nodes. The times stand in
// chunks of bounded size, so that a node that comes or goes moves no more than one chunk.
type ages struct {
	chunks [][]int64 // none is empty
	total  int
}

const maxChunk = 512

// newAges takes the times over.
func newAges(times []int64) *ages {
	slices.Sort(times)
	a := &ages{total: len(times)}
	for chunk := range slices.Chunk(times, maxChunk) {
		a.chunks = append(a.chunks, slices.Clone(chunk))
	}
	return a
}

// find returns where the first time stands that is not before at.
func (a *ages) find(at int64) (chunk, index int) {
	chunk = sort.Search(len(a.chunks), func(i int) bool {
		times := a.chunks[i]
		return times[len(times)-1] >= at
	})
	if chunk < len(a.chunks) {
		index, _ = slices.BinarySearch(a.chunks[chunk], at)
	}
	return chunk, index
}

func (a *ages) add(at int64) {
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

// remove takes out one of the times that are equal to at.
func (a *ages) remove(at int64) {
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

// merge joins a chunk and the next one if both are small, so that there are never many
// small ones.
func (a *ages) merge(i int) {
	if i >= 0 && i+1 < len(a.chunks) && len(a.chunks[i])+len(a.chunks[i+1]) <= maxChunk/2 {
		a.chunks[i] = append(a.chunks[i], a.chunks[i+1]...)
		a.chunks = slices.Delete(a.chunks, i+1, i+2)
	}
}

// before counts the times that are before at. It counts from the end, because the
// times that it is asked for are late ones.
func (a *ages) before(at int64) int {
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
