package filelog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// span is how many bytes a fingerprint takes, at the beginning of a file and before a
// place in it.
const span = 256

// place is where a reader is. Inodes are used again and files truncated, so it tells
// what lies before it, too.
type place struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Offset int64  `json:"offset"`
	// InLine says that the place is in a line which was cut, and whose rest is passed
	// over.
	InLine bool `json:"inLine,omitempty"`
	// Head and Tail are hashes of the first bytes of the file and of the last before
	// the place: span each, or what there is.
	Head uint64 `json:"head"`
	Tail uint64 `json:"tail"`
	// Written is when the file was last written to as far as was seen, in nanoseconds.
	Written int64 `json:"written"`
	// Earlier are the files that were read to their ends before, up to the last of them:
	// a copy that was made of one must not be read again.
	Earlier []fingerprint `json:"earlier,omitempty"`
}

// mostEarlier is how many files are known that were read before. Copies are made soon.
const mostEarlier = 8

// fingerprint tells a file that was read from others.
type fingerprint struct {
	Size int64  `json:"size"`
	Head uint64 `json:"head"`
	Tail uint64 `json:"tail"`
}

// followed are the files that were read when the one of the place was read to its end.
func (p place) followed() []fingerprint {
	all := append(slices.Clone(p.Earlier), fingerprint{p.Offset, p.Head, p.Tail})
	return all[max(0, len(all)-mostEarlier):]
}

func parsePlace(position logs.Position) (place, error) {
	var p place
	if err := json.Unmarshal(position, &p); err != nil {
		return place{}, err
	}
	if p.Offset < 0 {
		return place{}, fmt.Errorf("offset is %d", p.Offset)
	}
	return p, nil
}

func (p place) position() logs.Position {
	text, err := json.Marshal(p)
	if err != nil {
		return nil // numbers always marshal
	}
	return text
}

// place is where the reader is, in the file that is open.
func (r *Reader) place() place { return r.placeAt(r.start) }

// placeAt is where a byte of the buffer lies.
func (r *Reader) placeAt(at int) place {
	offset := r.offset + int64(at-r.start)
	known := int(min(span, offset))
	return place{
		Device: r.stat.Dev, Inode: r.stat.Ino, Offset: offset, InLine: r.inLine,
		Head: hash(r.head[:known]), Tail: hash(r.buf[at-known : at]),
		Written: r.stat.Mtim.Nano(), Earlier: r.earlier,
	}
}

func hash(text []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return h.Sum64()
}

// in says whether a file, whichever it is, holds before the place what the place's
// file held.
func (p place) in(file *os.File) (bool, error) {
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

// begins says whether a file begins like that of the place.
func (p place) begins(file *os.File) (bool, error) {
	var head [span]byte
	known := min(span, p.Offset)
	_, err := file.ReadAt(head[:known], 0)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil && hash(head[:known]) == p.Head, err
}

// holds says whether a text is in a file at an offset.
func holds(file *os.File, offset int64, text []byte) (bool, error) {
	var there [span]byte
	_, err := file.ReadAt(there[:len(text)], offset)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil && bytes.Equal(there[:len(text)], text), err
}
