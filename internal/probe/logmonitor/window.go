package logmonitor

import (
	"time"
)

// entry is one record of a log that counts, as patterns see it.
type entry struct {
	place   uint64 // among the entries that were in the window, from 1 on
	ordinal uint64 // among all records of the log
	number  uint64 // which tells it from others that say the same
	at      time.Time
	text    []byte
	kernel  bool

	own []byte // holds the text once its chunk is gone
}

// window is the last entries of a log, as many as a pattern may span.
type window struct {
	entries []entry // the one with the place n is at n modulo their number
	last    uint64  // place of the newest
	depth   uint64  // how many records of the log, with those that do not count, it goes back
	seen    uint64  // ordinal of the last record that was looked at
	kept    uint64  // place of the last entry that has its own text

	joined [2][]byte // the text of all, and of the kernel's only
	upTo   [2]uint64 // which entry is the newest in it
}

func newWindow(size, depth uint64) *window {
	return &window{entries: make([]entry, size), depth: depth}
}

func (w *window) size() uint64 { return uint64(len(w.entries)) }

// push adds an entry.
func (w *window) push(e entry) {
	w.last++
	e.place, e.own = w.last, w.at(w.last).own
	*w.at(w.last) = e
}

func (w *window) at(place uint64) *entry { return &w.entries[place%w.size()] }

// is returns the entry of a record, nil if the newest one is of another.
func (w *window) is(ordinal uint64) *entry {
	if e := w.at(w.last); e.place != 0 && e.ordinal == ordinal {
		return e
	}
	return nil
}

// text returns what a pattern that may cross lines sees when the newest entry has come.
func (w *window) text(kernelOnly bool) []byte {
	which := 0
	if kernelOnly {
		which = 1
	}
	if w.upTo[which] == w.last {
		return w.joined[which]
	}
	text, some := w.joined[which][:0], false
	for place := w.oldest(); place <= w.last; place++ {
		e := w.at(place)
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

// oldest returns the place of the oldest entry that the newest can be in a match with.
func (w *window) oldest() uint64 {
	oldest := w.last + 1
	for oldest > 1 && w.last-oldest+1 < w.size() {
		e := w.at(oldest - 1)
		if e.place != oldest-1 || e.ordinal+w.depth <= w.at(w.last).ordinal {
			break
		}
		oldest--
	}
	return oldest
}

// forget empties the window: what comes next does not follow on what is in it.
func (w *window) forget() {
	for i := range w.entries {
		w.entries[i].place = 0
	}
}

// keep copies what is still needed of a chunk that goes.
func (w *window) keep() {
	if w.last > w.size() {
		w.kept = max(w.kept, w.last-w.size())
	}
	for ; w.kept < w.last; w.kept++ {
		e := w.at(w.kept + 1)
		e.own = append(e.own[:0], e.text...)
		e.text = e.own
	}
}
