package journal_test

import (
	"encoding/binary"
	"strings"
)

// image is a constructed journal file. It contains only what readers look at, and can
// contain what journald would not write.
type image struct {
	b       []byte
	compact bool
	fields  map[string]uint64
	data    map[string]uint64
	entries uint64
}

const (
	headerSize = 272
	buckets    = 3
)

func newImage(compact bool) *image {
	m := &image{b: make([]byte, headerSize), compact: compact, fields: map[string]uint64{}, data: map[string]uint64{}}
	copy(m.b, "LPKSHHRH")
	if compact {
		m.b[12] = 1 << 4
	}
	m.b[16] = 1 // online
	copy(m.b[24:], "the file's own id")
	copy(m.b[72:], "the sequence's id")
	m.put(88, headerSize)
	m.put(120, m.object(5, 0, make([]byte, 16*buckets))+16)
	m.put(128, 16*buckets)
	return m
}

func (m *image) put(at, value uint64) { binary.LittleEndian.PutUint64(m.b[at:], value) }
func (m *image) get(at uint64) uint64 { return binary.LittleEndian.Uint64(m.b[at:]) }

// object adds an object and returns its offset.
func (m *image) object(kind, flags byte, body []byte) uint64 {
	at := uint64(len(m.b))
	m.b = append(m.b, kind, flags, 0, 0, 0, 0, 0, 0)
	m.b = binary.LittleEndian.AppendUint64(m.b, uint64(16+len(body)))
	m.b = append(m.b, body...)
	for len(m.b)%8 != 0 {
		m.b = append(m.b, 0)
	}
	m.put(96, uint64(len(m.b))-headerSize)
	return at
}

// datum returns the offset of NAME=value.
func (m *image) datum(text string) uint64 {
	if at, ok := m.data[text]; ok {
		return at
	}
	name, _, _ := strings.Cut(text, "=")
	at := m.packed(name, 0, text)
	m.data[text] = at
	return at
}

// packed adds a data object with a given payload, compressed according to the flags.
func (m *image) packed(name string, flags byte, payload string) uint64 {
	head := 48
	if m.compact {
		head += 8
	}
	at := m.object(1, flags, append(make([]byte, head), payload...))
	field, ok := m.fields[name]
	if !ok {
		field = m.object(2, 0, append(make([]byte, 24), name...))
		slot := m.get(120) + 16*(uint64(len(name))%buckets)
		for m.get(slot) != 0 {
			slot = m.get(slot) + 24
		}
		m.put(slot, field)
		m.fields[name] = field
	}
	m.put(at+32, m.get(field+32))
	m.put(field+32, at)
	return at
}

// entry adds an entry with these data, one second after the previous entry.
func (m *image) entry(data ...uint64) uint64 {
	m.entries++
	body := make([]byte, 48)
	binary.LittleEndian.PutUint64(body[0:], m.entries)
	binary.LittleEndian.PutUint64(body[8:], 1e15+m.entries*1e6)
	binary.LittleEndian.PutUint64(body[16:], m.entries*1e6)
	copy(body[24:], "the id of a boot")
	binary.LittleEndian.PutUint64(body[40:], m.entries)
	for _, at := range data {
		if m.compact {
			body = binary.LittleEndian.AppendUint32(body, uint32(at))
		} else {
			body = binary.LittleEndian.AppendUint64(body, at)
			body = binary.LittleEndian.AppendUint64(body, 0)
		}
	}
	at := m.object(3, 0, body)
	m.link(0, 176, 152, at)
	for _, d := range data {
		m.link(d+40, d+48, d+56, at)
	}
	m.put(160, m.entries)
	m.put(168, 1)
	m.put(192, 1e15+m.entries*1e6)
	return at
}

// say adds an entry with an identifier and a message.
func (m *image) say(identifier, message string) uint64 {
	return m.entry(m.datum("MESSAGE="+message), m.datum("SYSLOG_IDENTIFIER="+identifier), m.datum("PRIORITY=4"),
		m.datum("SYSLOG_FACILITY=3"), m.datum("_TRANSPORT=syslog"), m.datum("_HOSTNAME=node-1"))
}

// link adds an entry to a list. The first three arguments are the offsets of the first
// entry, of the arrays and of the length.
func (m *image) link(first, arrays, length, entry uint64) {
	n := m.get(length)
	m.put(length, n+1)
	if first != 0 {
		if n == 0 {
			m.put(first, entry)
			return
		}
		n--
	}
	size, room := uint64(8), uint64(4)
	if m.compact {
		size = 4
	}
	for pointer := arrays; ; {
		if m.get(pointer) == 0 {
			array := m.object(6, 0, make([]byte, 8+room*size))
			m.put(pointer, array)
		}
		array := m.get(pointer)
		room = (m.get(array+8) - 24) / size
		if n < room {
			slot := m.b[array+24+n*size:]
			if m.compact {
				binary.LittleEndian.PutUint32(slot, uint32(entry))
			} else {
				binary.LittleEndian.PutUint64(slot, entry)
			}
			return
		}
		n -= room
		pointer, room = array+16, room*2
	}
}
