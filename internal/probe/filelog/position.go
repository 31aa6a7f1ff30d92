package filelog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// span is the number of bytes in a fingerprint, at the start of a file and before a
// position.
const span = 256

// filePosition is the position of a reader. Inodes are reused and files are truncated, so it also
// identifies the text before it.
type filePosition struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Born is when the file was created in nanoseconds, or 0 if that is unknown.
	Born   int64 `json:"born,omitempty"`
	Offset int64 `json:"offset"`
	// InLine says that the position is within a truncated line whose rest is skipped.
	InLine bool `json:"inLine,omitempty"`
	// Head and Tail are hashes of the first bytes of the file and of the last bytes before
	// the position: span bytes each, or fewer if there are fewer.
	Head uint64 `json:"head"`
	Tail uint64 `json:"tail"`
	// Written is the last known modification time of the file in nanoseconds.
	Written int64 `json:"written"`
	// Earlier identifies the files that were read before, so that copies of them are not read
	// again. The newest is last.
	Earlier []fingerprint `json:"earlier,omitempty"`
}

// maxEarlier limits the number of earlier files. Copies are made soon after a rotation.
const maxEarlier = 8

// fingerprint identifies a file that was read.
type fingerprint struct {
	Size int64  `json:"size"`
	Head uint64 `json:"head"`
	Tail uint64 `json:"tail"`
}

// followed returns the earlier files for a successor of this file.
func (p filePosition) followed() []fingerprint {
	all := append(slices.Clone(p.Earlier), fingerprint{p.Offset, p.Head, p.Tail})
	return all[max(0, len(all)-maxEarlier):]
}

func parsePosition(position logs.Position) (filePosition, error) {
	var p filePosition
	if err := json.Unmarshal(position, &p); err != nil {
		return filePosition{}, err
	}
	if p.Offset < 0 {
		return filePosition{}, fmt.Errorf("offset is %d", p.Offset)
	}
	return p, nil
}

func (p filePosition) encode() logs.Position {
	text, err := json.Marshal(p)
	if err != nil {
		return nil // numbers can always be encoded
	}
	return text
}

// position returns the current position in the open file.
func (o *openFile) position() filePosition { return o.positionAt(o.start) }

// positionAt returns the position of a byte in the buffer.
func (o *openFile) positionAt(at int) filePosition {
	offset := o.offset + int64(at-o.start)
	known := int(min(span, offset))
	return filePosition{
		Device: o.stat.Dev, Inode: o.stat.Ino, Born: o.born, Offset: offset, InLine: o.inLine,
		Head: hash(o.head[:known]), Tail: hash(o.buf[at-known : at]),
		Written: cmp.Or(o.written, o.stat.Mtim.Nano()), Earlier: o.earlier,
	}
}

func hash(text []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return h.Sum64()
}

// isOpenAs says whether an open file is the file of the position, and not a copy of it.
func (p filePosition) isOpenAs(file *os.File) bool {
	var stat unix.Stat_t
	err := unix.Fstat(int(file.Fd()), &stat)
	return err == nil && fileInfo{device: stat.Dev, inode: stat.Ino, born: born(int(file.Fd()), "")}.is(p)
}

// in says whether a file has the same text before the position as the file of the
// position.
func (p filePosition) in(file *os.File) (bool, error) {
	begins, err := p.begins(file)
	if err != nil || !begins {
		return false, err
	}
	var tail [span]byte
	known := min(span, p.Offset)
	_, err = file.ReadAt(tail[:known], p.Offset-known)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil && hash(tail[:known]) == p.Tail, err
}

// begins says whether a file begins like the file of the position.
func (p filePosition) begins(file *os.File) (bool, error) {
	var head [span]byte
	known := min(span, p.Offset)
	_, err := file.ReadAt(head[:known], 0)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil && hash(head[:known]) == p.Head, err
}

// holds says whether a file contains a text at an offset.
func holds(file *os.File, offset int64, text []byte) (bool, error) {
	var there [span]byte
	_, err := file.ReadAt(there[:len(text)], offset)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil && bytes.Equal(there[:len(text)], text), err
}
