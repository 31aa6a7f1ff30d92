package logmonitor

import (
	"time"
)

// entry is a record that counts.
type entry struct {
	index   uint64 // number among the entries of the window, from 1
	ordinal uint64 // number among all records of the log
	number  uint64 // distinguishes records with the same text
	at      time.Time
	text    []byte
	kernel  bool

	copied []byte // holds the text after its chunk is released
}

// window holds the last entries of a log, as many as a pattern may span.
type window struct {
	entries []entry // ring buffer: entry n is at n modulo its length
	last    uint64  // index of the newest entry
	depth   uint64  // number of records, including those that do not count, that it reaches back
	seen    uint64  // ordinal of the last record that was processed
	copied  uint64  // index of the last entry with a copied text
	pending []entry // entries that are about to be added, the newest first

	joined [2][]byte // the text of all entries, and of the kernel's entries
	upTo   [2]uint64 // index of the newest entry in it
}

func newWindow(size, depth uint64) *window {
	return &window{entries: make([]entry, size), depth: depth}
}

func (w *window) size() uint64 { return uint64(len(w.entries)) }

// push adds an entry.
func (w *window) push(e entry) {
	w.last++
	e.index, e.copied = w.last, w.at(w.last).copied
	*w.at(w.last) = e
}

func (w *window) at(index uint64) *entry { return &w.entries[index%w.size()] }

// newest returns the newest entry if it has this ordinal, else nil.
func (w *window) newest(ordinal uint64) *entry {
	if e := w.at(w.last); e.index != 0 && e.ordinal == ordinal {
		return e
	}
	return nil
}

// text returns the text that a pattern across lines is tried on.
func (w *window) text(kernelOnly bool) []byte {
	which := 0
	if kernelOnly {
		which = 1
	}
	if w.upTo[which] == w.last {
		return w.joined[which]
	}
	text, some := w.joined[which][:0], false
	for index := w.oldest(); index <= w.last; index++ {
		e := w.at(index)
		if kernelOnly && !e.kernel {
			continue
		}
		if some {
			text = append(text, '\n')
		}
		text, some = append(text, e.text...), true
	}
	w.joined[which], w.upTo[which] = text, w.last
	return text
}

// oldest returns the index of the oldest entry that can be in a match with the newest.
func (w *window) oldest() uint64 {
	oldest := w.last + 1
	for oldest > 1 && w.last-oldest+1 < w.size() {
		e := w.at(oldest - 1)
		if e.index != oldest-1 || e.ordinal+w.depth <= w.at(w.last).ordinal {
			break
		}
		oldest--
	}
	return oldest
}

// clear empties the window, because the next record does not follow its entries.
func (w *window) clear() {
	for i := range w.entries {
		w.entries[i].index = 0
	}
}

// copyTexts copies texts that are still needed out of a chunk that will be released.
func (w *window) copyTexts() {
	if w.last > w.size() {
		w.copied = max(w.copied, w.last-w.size())
	}
	for ; w.copied < w.last; w.copied++ {
		e := w.at(w.copied + 1)
		e.copied = append(e.copied[:0], e.text...)
		e.text = e.copied
	}
}
