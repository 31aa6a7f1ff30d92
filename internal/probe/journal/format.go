package journal

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// The format of journal files: https://systemd.io/JOURNAL_FILE_FORMAT. All numbers are
// little-endian.
const (
	signature = "LPKSHHRH"

	headerRead = 256     // bytes of the header that are read
	headerMin  = 208     // shortest header of any version
	headerMax  = 1 << 16 // longest plausible header

	fieldHead = 40
	dataHead  = 64
	entryHead = 64
	arrayHead = 24

	// compactExtra is the additional length of the head of data in compact files.
	compactExtra = 8

	// maxEntry limits the size of an entry. Journald writes at most 1024 fields of 16 bytes
	// each.
	maxEntry = 1 << 17
	// maxBuckets limits the hash table of fields. Journald uses 1023.
	maxBuckets = 1 << 16
)

// The object types that the package reads.
const (
	typeData       = 1
	typeField      = 2
	typeEntry      = 3
	typeEntryArray = 6
)

// Object flags: the compression of the payload.
const (
	compressedXZ   = 1
	compressedLZ4  = 2
	compressedZSTD = 4
)

// Incompatible file flags. Those about hashing and compression need no handling: hashes
// are not used, and each object names its compression.
const (
	flagCompact = 1 << 4
	flagsKnown  = 1<<5 - 1
)

// stateArchived is the state of a file that does not grow any more.
const stateArchived = 2

// id is a 128-bit ID of a file, a boot or a sequence.
type id [16]byte

func (i id) String() string { return hex.EncodeToString(i[:]) }

// MarshalText encodes the ID in hexadecimal.
func (i id) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText decodes the result of MarshalText.
func (i *id) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(i)) {
		return fmt.Errorf("%q is not a 128-bit ID", text)
	}
	_, err := hex.Decode(i[:], text)
	return err
}

// errNotYet says that journald has just created the file, and it has no header yet.
var errNotYet = errors.New("the file has no header yet")

// errCorrupted says that the content of a file is invalid.
var errCorrupted = errors.New("the file is corrupted")

func corrupted(what string, at uint64) error {
	return fmt.Errorf("%w: %s at byte %d", errCorrupted, what, at)
}

// header is the header of a file.
type header struct {
	file       id
	sequence   id // ID of the sequence; several files may share one
	compact    bool
	archived   bool
	size       uint64 // size of the header
	arena      uint64 // size of all objects
	fields     uint64 // offset of the hash table of fields
	buckets    uint64 // number of buckets in that table
	entries    uint64
	entryArray uint64 // offset of the first array of all entries
	head, tail uint64 // sequence numbers of the first and the last entry
	tailTime   uint64 // time of the last entry, in microseconds since 1970
}

// parseHeader parses the header. b has at least headerMin bytes.
func parseHeader(b []byte) (header, error) {
	if string(b[:len(signature)]) != signature {
		for _, c := range b[:len(signature)] {
			if c != 0 {
				return header{}, errors.New("not a journal file")
			}
		}
		return header{}, errNotYet
	}
	if flags := binary.LittleEndian.Uint32(b[12:]); flags&^flagsKnown != 0 {
		return header{}, fmt.Errorf("unsupported journal format (incompatible flags %#x)", flags&^flagsKnown)
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
		return header{}, corrupted("the header has an invalid size", 88)
	case h.buckets > maxBuckets:
		return header{}, corrupted("the field table has an invalid size", 128)
	}
	return h, nil
}

// object is the head of an object.
type object struct {
	kind  byte
	flags byte
	size  uint64
}

func parseObject(b []byte) object {
	return object{kind: b[0], flags: b[1], size: binary.LittleEndian.Uint64(b[8:])}
}

// entry is an entry of the journal without its fields.
type entry struct {
	at, size  uint64 // offset and size in its file
	sequence  id
	number    uint64
	realtime  uint64 // microseconds since 1970
	monotonic uint64 // microseconds since the boot
	boot      id
	hash      uint64 // hash of all fields; a copy in another file has the same
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

// before says which of two entries was written first. It compares sequence numbers, else
// the monotonic clock, else the wall clock.
func (e *entry) before(other *entry) bool {
	switch {
	case e.sequence == other.sequence && e.number != other.number:
		return e.number < other.number
	case e.boot == other.boot && e.monotonic != other.monotonic:
		return e.monotonic < other.monotonic
	}
	return e.realtime < other.realtime
}

// isCopyOf says whether two entries in different files are the same entry.
func (e *entry) isCopyOf(other *entry) bool {
	return e.hash == other.hash && e.monotonic == other.monotonic && e.realtime == other.realtime && e.boot == other.boot
}
