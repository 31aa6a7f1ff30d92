package journal

import "maps"

// progress is how far the closed files were read, by this reader and by an earlier one.
type progress struct {
	done   map[id]uint64       // by sequence: the last number in files that were read to their end
	resume map[id]filePosition // files that an earlier reader has not read to their end
	seen   uint64              // the last sequence number of that reader
}

// newProgress returns the progress of an earlier reader. from may be nil.
func newProgress(from *position) progress {
	p := progress{done: map[id]uint64{}, resume: map[id]filePosition{}}
	if from != nil {
		p.seen = from.seen()
		for _, place := range from.Files {
			p.resume[place.File] = place
		}
		maps.Copy(p.done, from.Done)
	}
	return p
}

// isDone says whether a file was read to its end before. Sequence numbers only grow, so a
// file that begins before the end of a done file is not newer. Files that were not done
// are listed in resume.
func (p *progress) isDone(h *header) bool {
	_, isResumed := p.resume[h.file]
	last, isThere := p.done[h.sequence]
	return !isResumed && isThere && h.entries > 0 && h.head <= last
}

// begin returns the last entry that an earlier reader has taken from a file.
func (p *progress) begin(h *header) (taken uint64) {
	taken = p.resume[h.file].Taken
	delete(p.resume, h.file)
	return taken
}

// end records that a file was read to its end.
func (p *progress) end(h *header) {
	delete(p.resume, h.file)
	p.done[h.sequence] = max(p.done[h.sequence], h.tail)
}

// forget removes the state of deleted files. left are the headers of all existing files. It
// returns how many files were deleted between two readers, and their unread entries.
func (p *progress) forget(left []header) (files int, lost uint64) {
	if files = len(p.resume); files > 0 {
		lost = gap(p.seen, p.resume, left)
		clear(p.resume)
	}
	sequences := map[id]bool{}
	for _, h := range left {
		sequences[h.sequence] = true
	}
	maps.DeleteFunc(p.done, func(sequence id, _ uint64) bool { return !sequences[sequence] })
	return files, lost
}
