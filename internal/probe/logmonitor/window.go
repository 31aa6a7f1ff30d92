package logmonitor

import (
	"time"
)

// entry is one record of a log, as patterns see it.
type entry struct {
	ordinal uint64
	number  uint64 // which tells it from others that say the same
	at      time.Time
	text    []byte
	counts  bool // it has a stamp, is not too old and not to be passed over
	kernel  bool

	own []byte // holds the text once its chunk is gone
}

// window is the last entries of a log, as many as a pattern may span.
type window struct {
	entries []entry // the entry with ordinal n has the place n modulo their number
	last    uint64  // ordinal of the newest

	joined [2][]byte // the text of all, and of the kernel's only
	upTo   [2]uint64 // which entry is the newest in it
}

func newWindow(size int) *window { return &window{entries: make([]entry, size)} }

func (w *window) size() uint64 { return uint64(len(w.entries)) }

// push makes room for an entry, which the caller fills in.
func (w *window) push(ordinal uint64) *entry {
	e := &w.entries[ordinal%w.size()]
	*e = entry{ordinal: ordinal, own: e.own}
	w.last = ordinal
	return e
}

func (w *window) newest() *entry { return &w.entries[w.last%w.size()] }

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
	w.each(func(e *entry) {
		if !e.counts || kernelOnly && !e.kernel {
			return
		}
		if some {
			text = append(text, '\n')
		}
		text, some = append(text, e.text...), true
	})
	w.joined[which], w.upTo[which] = text, w.last
	return text
}

// each visits the entries that are there, from the oldest on.
func (w *window) each(visit func(*entry)) {
	oldest := uint64(1)
	if w.last > w.size() {
		oldest = w.last - w.size() + 1
	}
	for ordinal := oldest; ordinal <= w.last; ordinal++ {
		if e := &w.entries[ordinal%w.size()]; e.ordinal == ordinal {
			visit(e)
		}
	}
}

// forget empties the window: what comes next does not follow on what is in it.
func (w *window) forget() {
	for i := range w.entries {
		w.entries[i].ordinal = 0
	}
}

// keep copies what is still needed of a chunk that goes.
func (w *window) keep() {
	w.each(func(e *entry) {
		e.own = append(e.own[:0], e.text...)
		e.text = e.own
	})
}
