package journal

import (
	"errors"
	"io"
)

// windowSize is the number of bytes that are read at once. An entry and its own data take
// about 1 KiB and are stored next to each other.
const windowSize = 8 << 10

// window reads parts of a file and caches the last part. Data that are linked into a list
// do not change any more. Before a list is read again, the window must forget.
type window struct {
	disk   io.ReaderAt
	begin  uint64
	data   []byte
	buffer []byte
}

func (w *window) forget() { w.data = w.data[:0] }

// bytes returns n bytes of the file. The slice is valid until the next call. The caller
// limits n.
func (w *window) bytes(at uint64, n int) ([]byte, error) {
	if at > 1<<62 {
		return nil, corrupted("an object lies beyond the end", at)
	}
	if at < w.begin || at+uint64(n) > w.begin+uint64(len(w.data)) {
		if err := w.move(at, n); err != nil {
			return nil, err
		}
	}
	return w.data[at-w.begin:][:n], nil
}

// move reads at least n bytes from an offset, and some bytes before it, because the data
// of an entry precede it.
func (w *window) move(at uint64, n int) error {
	w.forget()
	w.begin = at - min(at, windowSize/4)
	need := int(at-w.begin) + n
	if size := max(need, windowSize); len(w.buffer) < size {
		w.buffer = make([]byte, size)
	}
	got, err := w.disk.ReadAt(w.buffer, int64(w.begin))
	switch {
	case got >= need:
		w.data = w.buffer[:got]
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return corrupted("an object lies beyond the end", at)
	}
	return err
}
