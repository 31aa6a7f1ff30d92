package journal

import (
	"errors"
	"io"
)

// windowSize is how much of a file is read at a time. An entry and the data that are
// its own take about one KiB, and stand together.
const windowSize = 8 << 10

// window shows parts of a file, and remembers the last one: what has been linked into
// a list does not change any more. Before a list is read anew, the window must forget.
type window struct {
	disk  io.ReaderAt
	begin uint64
	shown []byte
	room  []byte
}

func (w *window) forget() { w.shown = w.shown[:0] }

// bytes returns n bytes of the file, which are the window's again at the next call.
// How many there may be is for the caller to bound.
func (w *window) bytes(at uint64, n int) ([]byte, error) {
	if at > 1<<62 {
		return nil, broken("an object lies beyond the end", at)
	}
	if at < w.begin || at+uint64(n) > w.begin+uint64(len(w.shown)) {
		if err := w.move(at, n); err != nil {
			return nil, err
		}
	}
	return w.shown[at-w.begin:][:n], nil
}

// move shows at least n bytes from there on, and a little of what stands before: the
// data of an entry stand before it.
func (w *window) move(at uint64, n int) error {
	w.forget()
	w.begin = at - min(at, windowSize/4)
	need := int(at-w.begin) + n
	if size := max(need, windowSize); len(w.room) < size {
		w.room = make([]byte, size)
	}
	got, err := w.disk.ReadAt(w.room, int64(w.begin))
	switch {
	case got >= need:
		w.shown = w.room[:got]
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return broken("an object lies beyond the end", at)
	}
	return err
}
