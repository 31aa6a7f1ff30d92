package journal

import (
	"encoding/binary"
	"io"
)

// payload is the content of a data object, NAME=value, as stored in the file.
type payload struct {
	file       *objectFile
	at, size   uint64
	compressed byte
}

// payload returns the payload of the data object at an offset.
func (f *objectFile) payload(at uint64) (payload, error) {
	before := uint64(dataHead)
	if f.header.compact {
		before += compactExtra
	}
	head, err := f.object(at, typeData, int(before))
	if err != nil {
		return payload{}, err
	}
	o := parseObject(head)
	if o.size > 1<<40 {
		return payload{}, corrupted("a data object has an invalid size", at)
	}
	return payload{
		file:       f,
		at:         at + before,
		size:       o.size - before,
		compressed: o.flags & (compressedXZ | compressedLZ4 | compressedZSTD),
	}, nil
}

// first appends up to limit bytes of the payload to b. cut says that the payload is
// longer.
func (p payload) first(b []byte, limit int) (text []byte, cut bool, err error) {
	if p.compressed != 0 {
		return p.unpack(b, limit)
	}
	n := int(min(p.size, uint64(limit)))
	if n <= windowSize/2 {
		text, err := p.file.window.bytes(p.at, n)
		if err != nil {
			return b, false, err
		}
		return append(b, text...), p.size > uint64(n), nil
	}
	begin := len(b)
	b = append(b, make([]byte, n)...)
	if err := p.file.read(b[begin:], p.at); err != nil {
		return b[:begin], false, err
	}
	return b, p.size > uint64(n), nil
}

// stream returns a reader of the stored payload.
func (p payload) stream() io.Reader {
	return io.NewSectionReader(p.file.window.disk, int64(p.at), int64(p.size))
}

// prefix returns the start of an uncompressed payload. The slice belongs to the window.
func (p payload) prefix(limit int) ([]byte, error) {
	return p.file.window.bytes(p.at, int(min(p.size, uint64(limit))))
}

// kind is the meaning of a data object for the reader.
type kind uint8

const (
	other kind = iota
	message
	priority
	facility
	kernelTransport
)

// fact is the cached kind of the data object at an offset.
type fact struct {
	at    uint64
	kind  kind
	value int16 // the value of a priority or facility
}

// kindCacheSize is the size of the cache of kinds. Most entries share most of their data
// objects. A newer object replaces an older one in the same slot.
const kindCacheSize = 1024

// Prefixes of the relevant data.
const (
	messagePrefix       = "MESSAGE="
	priorityPrefix      = "PRIORITY="
	facilityPrefix      = "SYSLOG_FACILITY="
	kernelTransportData = "_TRANSPORT=kernel"
	prefixLength        = 24
)

// classify returns the kind of the data object at an offset.
func (f *objectFile) classify(at uint64) (fact, error) {
	if f.kindCache == nil {
		f.kindCache = make([]fact, kindCacheSize)
	}
	slot := &f.kindCache[at/8%kindCacheSize]
	if slot.at == at {
		return *slot, nil
	}
	p, err := f.payload(at)
	if err != nil {
		return fact{}, err
	}
	var text []byte
	if p.compressed == 0 {
		text, err = p.prefix(prefixLength)
	} else {
		text, _, err = p.first(f.prefix[:0], prefixLength)
		f.prefix = text
	}
	if err != nil {
		return fact{}, err
	}
	slot.at = at
	slot.kind, slot.value = interpret(text)
	return *slot, nil
}

func interpret(text []byte) (kind, int16) {
	is := func(name string) bool { return len(text) >= len(name) && string(text[:len(name)]) == name }
	switch {
	case is(messagePrefix):
		return message, 0
	case is(priorityPrefix):
		if n, ok := parseSmall(text[len(priorityPrefix):]); ok && n < 8 {
			return priority, n
		}
	case is(facilityPrefix):
		if n, ok := parseSmall(text[len(facilityPrefix):]); ok {
			return facility, n
		}
	case string(text) == kernelTransportData:
		return kernelTransport, 0
	}
	return other, 0
}

// parseSmall parses a number of at most three digits.
func parseSmall(text []byte) (int16, bool) {
	if len(text) == 0 || len(text) > 3 {
		return 0, false
	}
	var n int16
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int16(c-'0')
	}
	return n, true
}

// fieldValues are the relevant fields of an entry.
type fieldValues struct {
	message  uint64 // offset of its data object; 0 if there is none
	priority int16
	facility int16
	kernel   bool // journald received it from the kernel
}

// fields reads the relevant fields of an entry.
func (f *objectFile) fields(e *entry, offsets []uint64) (fieldValues, []uint64, error) {
	size := uint64(16)
	if f.header.compact {
		size = 4
	}
	// Reading data moves the window, so copy the offsets first.
	offsets = offsets[:0]
	b, err := f.window.bytes(e.at, int(e.size))
	if err != nil {
		return fieldValues{}, offsets, err
	}
	for b = b[entryHead:]; uint64(len(b)) >= size; b = b[size:] {
		if f.header.compact {
			offsets = append(offsets, uint64(binary.LittleEndian.Uint32(b)))
		} else {
			offsets = append(offsets, binary.LittleEndian.Uint64(b))
		}
	}
	s := fieldValues{priority: noPriority, facility: noPriority}
	var unread error // irrelevant if the message could be read
	for _, at := range offsets {
		known, err := f.classify(at)
		if err != nil {
			unread = err
			continue
		}
		switch known.kind {
		case message:
			if s.message == 0 {
				s.message = at
			}
		case priority:
			s.priority = known.value
		case facility:
			s.facility = known.value
		case kernelTransport:
			s.kernel = true
		case other:
		}
	}
	if s.message == 0 {
		return s, offsets, unread
	}
	return s, offsets, nil
}
