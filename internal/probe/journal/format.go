package journal

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// The format of journal files, as https://systemd.io/JOURNAL_FILE_FORMAT tells it.
// All numbers are little-endian.
const (
	signature = "LPKSHHRH"

	headerRead = 256     // so much of a header is looked at
	headerMin  = 208     // the shortest that was ever written
	headerMax  = 1 << 16 // more is no header

	objectHead = 16 // type, flags, size
	fieldHead  = 40
	dataHead   = 64
	entryHead  = 64
	arrayHead  = 24

	// compactExtra is what the head of a datum has more in compact files.
	compactExtra = 8

	// maxEntry bounds the size of an entry. Journald writes at most 1024 fields, of 16
	// bytes each.
	maxEntry = 1 << 17
	// maxBuckets bounds the hash table of fields. Journald makes 1023.
	maxBuckets = 1 << 16
)

// The types of objects that are looked at.
const (
	typeData       = 1
	typeField      = 2
	typeEntry      = 3
	typeEntryArray = 6
)

// Flags of an object: how its payload is compressed.
const (
	compressedXZ   = 1
	compressedLZ4  = 2
	compressedZSTD = 4
)

// Flags of a file that one must know to read it. How data are hashed and compressed
// needs no knowledge of the file: the one is not made use of, the other stands in each
// object.
const (
	flagCompact = 1 << 4
	flagsKnown  = 1<<5 - 1
)

// stateArchived is that of a file to which nothing will be added.
const stateArchived = 2

// id is one of the 128-bit numbers by which files, boots and sequences are known.
type id [16]byte

func (i id) String() string { return hex.EncodeToString(i[:]) }

// MarshalText writes the id in hexadecimal.
func (i id) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (i *id) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(i)) {
		return fmt.Errorf("%q is no 128-bit id", text)
	}
	_, err := hex.Decode(i[:], text)
	return err
}

// errNotYet says that a file has no header yet: journald has just made it.
var errNotYet = errors.New("it has no header yet")

// errBroken says that what stands in a file cannot be.
var errBroken = errors.New("it is corrupted")

func broken(what string, at uint64) error {
	return fmt.Errorf("%w: %s at byte %d", errBroken, what, at)
}

// header is what the beginning of a file says of it.
type header struct {
	file       id
	sequence   id // to which the sequence numbers belong: several files may share one
	compact    bool
	archived   bool
	size       uint64 // of the header itself
	arena      uint64 // of all objects together
	fields     uint64 // offset of the hash table of fields
	buckets    uint64 // of that table
	entries    uint64
	entryArray uint64 // the first of the arrays of all entries
	head, tail uint64 // sequence numbers of the first and the last entry
	tailTime   uint64 // of the last entry, in microseconds since 1970
}

// parseHeader reads the beginning of a file, which has headerMin bytes or more.
func parseHeader(b []byte) (header, error) {
	if string(b[:len(signature)]) != signature {
		for _, c := range b[:len(signature)] {
			if c != 0 {
				return header{}, errors.New("it is no journal file")
			}
		}
		return header{}, errNotYet
	}
	if flags := binary.LittleEndian.Uint32(b[12:]); flags&^flagsKnown != 0 {
		return header{}, fmt.Errorf("it is of a format that is not known here (incompatible flags %#x)", flags&^flagsKnown)
	}
	h := header{
		file:       id(b[24:40]),
		sequence:   id(b[72:88]),
		compact:    binary.LittleEndian.Uint32(b[12:])&flagCompact != 0,
		archived:   b[16] == stateArchived,
		size:       binary.LittleEndian.Uint64(b[88:]),
		arena:      binary.LittleEndian.Uint64(b[96:]),
		fields:     binary.LittleEndian.Uint64(b[120:]),
		buckets:    binary.LittleEndian.Uint64(b[128:]) / 16,
		entries:    binary.LittleEndian.Uint64(b[152:]),
		tail:       binary.LittleEndian.Uint64(b[160:]),
		head:       binary.LittleEndian.Uint64(b[168:]),
		entryArray: binary.LittleEndian.Uint64(b[176:]),
		tailTime:   binary.LittleEndian.Uint64(b[192:]),
	}
	switch {
	case h.size == 0:
		return header{}, errNotYet
	case h.size < headerMin || h.size > headerMax:
		return header{}, broken("its header has an impossible size", 88)
	case h.buckets > maxBuckets:
		return header{}, broken("its table of fields has an impossible size", 128)
	}
	return h, nil
}

// object is the head of each object of a file.
type object struct {
	kind  byte
	flags byte
	size  uint64
}

func parseObject(b []byte) object {
	return object{kind: b[0], flags: b[1], size: binary.LittleEndian.Uint64(b[8:])}
}

// entry is one entry of the journal, without its fields.
type entry struct {
	at, size  uint64 // in its file
	sequence  id
	number    uint64
	realtime  uint64 // microseconds since 1970
	monotonic uint64 // microseconds since the boot
	boot      id
	hash      uint64 // of all its fields: a copy in another file has the same
}

func parseEntry(at, size uint64, b []byte) entry {
	return entry{
		at:        at,
		size:      size,
		number:    binary.LittleEndian.Uint64(b[16:]),
		realtime:  binary.LittleEndian.Uint64(b[24:]),
		monotonic: binary.LittleEndian.Uint64(b[32:]),
		boot:      id(b[40:56]),
		hash:      binary.LittleEndian.Uint64(b[56:]),
	}
}

// before says which of two entries was written first. Sequence numbers know it, then
// the clock that is never set, then the one on the wall.
func (e *entry) before(other *entry) bool {
	switch {
	case e.sequence == other.sequence && e.number != other.number:
		return e.number < other.number
	case e.boot == other.boot && e.monotonic != other.monotonic:
		return e.monotonic < other.monotonic
	}
	return e.realtime < other.realtime
}

// isCopyOf says whether entries in two files are the same one.
func (e *entry) isCopyOf(other *entry) bool {
	return e.hash == other.hash && e.monotonic == other.monotonic && e.realtime == other.realtime && e.boot == other.boot
}
