package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// file is one file of the journal, and how far it has been read.
type file struct {
	window window
	header header
	wanted []byte // the datum that entries must have; empty if all count
	field  uint64 // where its field stands; 0 while nobody has logged one
	datum  uint64 // where it stands itself; 0 while nobody has logged it
	known  uint64 // the newest datum of the field that has been looked at

	list   list
	cursor cursor
	next   entry  // the entry that comes next, if there is one
	ready  bool   // there is one
	latest uint64 // offset of the last entry that was found

	// Entries up to this sequence number were read by somebody before us.
	from uint64
	// taken is the sequence number of the last entry that was passed or handed out.
	taken uint64
	lost  uint64 // entries that could not be read, and have not been told of
	fault error  // the last reason why

	kinds    []fact // of data, by where they stand
	unpacker *unpacker
	prefix   []byte // of a compressed datum, to be used again
	top      [headerRead]byte
}

// openFile reads the header of a file, and no more. Wanted is the datum that entries must
// have, such as SYSLOG_IDENTIFIER=kubelet; empty means that all count.
func openFile(disk io.ReaderAt, wanted string, unpacker *unpacker) (*file, error) {
	f := &file{window: window{disk: disk}, unpacker: unpacker, wanted: []byte(wanted)}
	return f, f.readHeader()
}

func (f *file) readHeader() error {
	clear(f.top[:])
	got, err := f.window.disk.ReadAt(f.top[:], 0)
	if got < headerMin {
		if err == nil || errors.Is(err, io.EOF) {
			return errNotYet
		}
		return err
	}
	h, err := parseHeader(f.top[:])
	if err != nil {
		return err
	}
	f.header = h
	return nil
}

// read fills b from the file.
func (f *file) read(b []byte, at uint64) error {
	if at > 1<<62 {
		return broken("an object lies beyond the end", at)
	}
	got, err := f.window.disk.ReadAt(b, int64(at))
	switch {
	case got == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return broken("an object lies beyond the end", at)
	}
	return err
}

// look finds out how many entries there are by now. Journald links an entry last, so
// what a list tells of is there.
func (f *file) look() error {
	f.window.forget()
	if err := f.readHeader(); err != nil {
		return err
	}
	all := list{arrays: f.header.entryArray, length: f.header.entries}
	if len(f.wanted) > 0 {
		if f.datum == 0 {
			at, err := f.findDatum()
			if err != nil || at == 0 {
				return err
			}
			f.datum = at
		}
		head, err := f.object(f.datum, typeData, dataHead)
		if err != nil {
			return err
		}
		all = list{
			first:  binary.LittleEndian.Uint64(head[40:]),
			arrays: binary.LittleEndian.Uint64(head[48:]),
			length: binary.LittleEndian.Uint64(head[56:]),
		}
	}
	if all.length > f.header.arena/entryHead {
		return broken("there are more entries than have room", f.datum)
	}
	f.list = all
	return nil
}

// object returns the head of an object, which must be of that kind.
func (f *file) object(at uint64, kind byte, head int) ([]byte, error) {
	if at < f.header.size || at%8 != 0 {
		return nil, broken("no object can be", at)
	}
	b, err := f.window.bytes(at, head)
	if err != nil {
		return nil, err
	}
	if o := parseObject(b); o.kind != kind || o.size < uint64(head) {
		return nil, broken("another object was expected", at)
	}
	return b, nil
}

// findDatum returns where the wanted datum stands, 0 if nowhere yet. Each field has a
// chain of its data, from the newest to the oldest: what was looked at before needs no
// second look.
func (f *file) findDatum() (uint64, error) {
	if f.field == 0 {
		name, _, _ := bytes.Cut(f.wanted, []byte("="))
		at, err := f.findField(name)
		if err != nil || at == 0 {
			return 0, err
		}
		f.field = at
	}
	head, err := f.object(f.field, typeField, fieldHead)
	if err != nil {
		return 0, err
	}
	newest := binary.LittleEndian.Uint64(head[32:])
	for at := newest; at > f.known; {
		head, err := f.object(at, typeData, dataHead)
		if err != nil {
			return 0, err
		}
		older := binary.LittleEndian.Uint64(head[32:])
		is, err := f.isDatum(at, f.wanted)
		if err != nil {
			return 0, err
		}
		if is {
			return at, nil
		}
		if older >= at {
			return 0, broken("the data of a field go round in circles", at)
		}
		at = older
	}
	f.known = newest
	return 0, nil
}

// isDatum says whether a datum is this one.
func (f *file) isDatum(at uint64, wanted []byte) (bool, error) {
	p, err := f.payload(at)
	if err != nil {
		return false, err
	}
	if p.compressed == 0 && p.size != uint64(len(wanted)) {
		return false, nil
	}
	text, _, err := p.first(nil, len(wanted)+1)
	if err != nil {
		return false, err
	}
	return bytes.Equal(text, wanted), nil
}

// findField returns where a field stands, 0 if nowhere yet. There are few fields: to
// look at all of them is simpler than to know how they are hashed.
func (f *file) findField(name []byte) (uint64, error) {
	for bucket := range f.header.buckets {
		slot, err := f.window.bytes(f.header.fields+16*bucket, 8)
		if err != nil {
			return 0, err
		}
		for at := binary.LittleEndian.Uint64(slot); at != 0; {
			head, err := f.object(at, typeField, fieldHead)
			if err != nil {
				return 0, err
			}
			size := parseObject(head).size - fieldHead
			next := binary.LittleEndian.Uint64(head[24:])
			if size == uint64(len(name)) {
				text, err := f.window.bytes(at+fieldHead, len(name))
				if err != nil {
					return 0, err
				}
				if bytes.Equal(text, name) {
					return at, nil
				}
			}
			if next != 0 && next <= at {
				return 0, broken("a chain of fields goes round in circles", at)
			}
			at = next
		}
	}
	return 0, nil
}

// entry reads the entry at an offset.
func (f *file) entry(at uint64) (entry, error) {
	head, err := f.object(at, typeEntry, entryHead)
	if err != nil {
		return entry{}, err
	}
	size := parseObject(head).size
	if size > maxEntry {
		return entry{}, broken("an entry has an impossible size", at)
	}
	e := parseEntry(at, size, head)
	e.sequence = f.header.sequence
	return e, nil
}

// peek makes the next entry ready that is not older than since and was not read by
// somebody before; false if there is none now. What cannot be read is counted.
func (f *file) peek(since uint64) bool {
	for !f.ready && f.cursor.index < f.list.length {
		at, err := f.find(f.cursor.index)
		if err != nil { // the rest of the list cannot be found
			f.miss(f.list.length-f.cursor.index, err)
			f.cursor.index = f.list.length
			break
		}
		f.cursor.index++
		e, err := f.entry(at)
		if err == nil && at <= f.latest { // entries stand in the order in which they came
			err = broken("an entry is listed after a later one", at)
		}
		if err != nil {
			f.miss(1, err)
			continue
		}
		f.latest = at
		switch {
		case e.number <= f.from:
		case e.realtime < since:
			f.taken = e.number
		default:
			f.next, f.ready = e, true
		}
	}
	return f.ready
}

func (f *file) miss(entries uint64, why error) {
	f.lost += entries
	f.fault = why
}

// begin passes over the entries that were read by somebody before, or are too old.
func (f *file) begin(from, since uint64) {
	f.from, f.taken = from, from
	last := f.seek(func(e *entry) bool { return e.number <= from || e.realtime < since })
	f.taken = max(f.taken, last.number)
}
