package filelog

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// openFile is the open file of a reader, and the text in it that was read and not returned
// yet.
type openFile struct {
	file *os.File    // nil if no file is open
	stat unix.Stat_t // last stat of file
	born int64       // when file was created, as in filePosition
	// written, if not 0, is when the original of file was last known to be written. A copy may
	// be made later than the files that follow the original.
	written int64
	grew    time.Time     // when data were last read from file, or it was opened
	earlier []fingerprint // files that were read before this one

	// buf[start:end] was read and not returned yet, and starts at offset in the file. The
	// span bytes before start are the bytes before offset in the file.
	buf        []byte
	start, end int
	offset     int64
	inLine     bool       // offset is within a truncated line whose rest is skipped
	head       [span]byte // the first bytes of the file, as far as they were read
	line       []byte     // buffer for a line without a newline in the file
}

// begin continues at an offset of another file.
func (o *openFile) begin(file *os.File, offset int64, now time.Time) error {
	o.file = file
	if err := unix.Fstat(int(file.Fd()), &o.stat); err != nil {
		return err
	}
	o.born = born(int(file.Fd()), "")
	if err := o.goTo(offset); err != nil {
		return err
	}
	o.inLine, o.grew, o.written = false, now, 0
	return nil
}

// close closes the file, if one is open.
func (o *openFile) close() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close()
	o.file = nil
	return err
}

// take returns the whole lines of the pending bytes. isCut says that they are the start of
// a line that is longer than longest.
func (o *openFile) take(longest int) (chunk logs.Chunk, isCut bool) {
	p := split(o.buf[o.start:o.end], o.inLine, longest)
	o.start += p.drop
	o.offset += int64(p.drop)
	o.inLine = p.inLine
	if p.take == 0 {
		return logs.Chunk{}, false
	}
	text := o.buf[o.start : o.start+p.take]
	if p.cut {
		o.inLine = true
		text = o.terminated(text)
	}
	chunk = o.newChunk(text, p.take)
	chunk.More = o.end == len(o.buf) || bytes.IndexByte(o.buf[o.start:o.end], '\n') >= 0
	return chunk, p.cut
}

// terminated returns a copy of an incomplete line with a newline.
func (o *openFile) terminated(half []byte) []byte {
	o.line = append(append(o.line[:0], half...), '\n')
	return o.line
}

// newChunk returns a chunk of a text that uses this many pending bytes.
func (o *openFile) newChunk(text []byte, taken int) logs.Chunk {
	first := o.offset
	o.start += taken
	o.offset += int64(taken)
	return logs.Chunk{Text: text, First: uint64(first), Next: o.position().encode()}
}

// flush returns an incomplete line. It will not be completed, because a next file exists.
func (o *openFile) flush() logs.Chunk {
	half := o.buf[o.start:o.end]
	if len(half) == 0 {
		return logs.Chunk{}
	}
	chunk := o.newChunk(o.terminated(half), len(half))
	chunk.More = true
	return chunk
}

// fill reads more bytes. It also says whether the file still has the same text before
// them.
func (o *openFile) fill() (n int, intact bool, err error) {
	keep := min(span, o.start)
	copy(o.buf, o.buf[o.start-keep:o.end])
	o.start, o.end = keep, keep+o.end-o.start

	point := o.offset + int64(o.end-o.start)
	n, err = o.file.ReadAt(o.buf[o.end:], point)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, false, err
	}
	// Check for a truncation only after the read. If the file is truncated later, the bytes
	// are still valid, because the copy contains them.
	intact, err = o.intact(point)
	if err != nil || !intact {
		return 0, false, err
	}
	if point < span {
		copy(o.head[point:], o.buf[o.end:o.end+n])
	}
	o.end += n
	if n > 0 && !o.inLine && allZero(o.buf[o.start:o.end]) {
		err = o.skipHole()
	}
	return n, true, err
}

// intact says whether the file still has the text before point that was read from there.
func (o *openFile) intact(point int64) (bool, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(o.file.Fd()), &stat); err != nil {
		return false, err
	}
	known := min(span, point)
	same, err := holds(o.file, 0, o.head[:known])
	if err != nil || !same {
		return false, err
	}
	same, err = holds(o.file, point-known, o.buf[int64(o.end)-known:o.end])
	if err != nil || !same {
		return false, err
	}
	o.stat = stat
	return true, nil
}

// skipHole skips a hole in a sparse file without reading it. A writer that does not append
// leaves a hole up to its old offset after a truncation.
func (o *openFile) skipHole() error {
	point := o.offset + int64(o.end-o.start)
	data, err := unix.Seek(int(o.file.Fd()), point, unix.SEEK_DATA)
	if err != nil || data <= point {
		return nil //nolint:nilerr // only a hole follows, or holes are unsupported: read on
	}
	return o.goTo(data)
}

// goTo moves to an offset of the file.
func (o *openFile) goTo(offset int64) error {
	known := min(span, offset)
	if _, err := io.ReadFull(io.NewSectionReader(o.file, 0, known), o.head[:known]); err != nil {
		return err
	}
	if _, err := io.ReadFull(io.NewSectionReader(o.file, offset-known, known), o.buf[:known]); err != nil {
		return err
	}
	o.start, o.end, o.offset = int(known), int(known), offset
	return nil
}

// hasLines says whether the file is not empty.
func (o *openFile) hasLines() bool {
	info, err := o.file.Stat()
	return err == nil && info.Size() > 0
}

// quietFor returns how long the file has not grown, as far as is known.
func (o *openFile) quietFor(now time.Time) time.Duration {
	return max(now.Sub(o.grew), now.Sub(time.Unix(o.stat.Mtim.Unix())))
}
