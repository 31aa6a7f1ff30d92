package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// file is a journal file and how far it was read.
type file struct {
	window window
	header header
	wanted []byte // the data that entries must contain; empty for all entries
	field  uint64 // offset of its field; 0 while the file does not contain it
	data   uint64 // offset of the data; 0 while the file does not contain it
	known  uint64 // the newest data of the field that was compared

	list   list
	cursor cursor
	next   entry  // the next entry, if ready
	ready  bool   // next is valid
	latest uint64 // offset of the last entry that was found

	// Entries up to this sequence number were read before a restart.
	from uint64
	// taken is the sequence number of the last entry that was skipped or returned.
	taken uint64
	lost  uint64 // unreadable entries that were not reported yet
	fault error  // why the last of them could not be read

	kindCache []fact // cache of data kinds by offset
	unpacker  *unpacker
	prefix    []byte // buffer for the start of compressed data
	top       [headerRead]byte
}

// openFile reads only the header of a file. wanted is the data that entries must contain,
// for example SYSLOG_IDENTIFIER=kubelet. If it is empty, all entries match.
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
		return corrupted("an object lies beyond the end", at)
	}
	got, err := f.window.disk.ReadAt(b, int64(at))
	switch {
	case got == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return corrupted("an object lies beyond the end", at)
	}
	return err
}

// refresh reads the current number of entries. Journald links an entry last, so all listed
// entries are complete.
func (f *file) refresh() error {
	f.window.forget()
	if err := f.readHeader(); err != nil {
		return err
	}
	all := list{arrays: f.header.entryArray, length: f.header.entries}
	if len(f.wanted) > 0 {
		if f.data == 0 {
			at, err := f.findData()
			if err != nil || at == 0 {
				return err
			}
			f.data = at
		}
		head, err := f.object(f.data, typeData, dataHead)
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
		return corrupted("the number of entries exceeds the file size", f.data)
	}
	f.list = all
	return nil
}

// object returns the head of an object of the given kind.
func (f *file) object(at uint64, kind byte, head int) ([]byte, error) {
	if at < f.header.size || at%8 != 0 {
		return nil, corrupted("an offset is invalid", at)
	}
	b, err := f.window.bytes(at, head)
	if err != nil {
		return nil, err
	}
	if o := parseObject(b); o.kind != kind || o.size < uint64(head) {
		return nil, corrupted("another object was expected", at)
	}
	return b, nil
}

// findData returns the offset of the wanted data, 0 if the file does not contain it yet.
// Each field has a chain of its data from the newest to the oldest. findDatum compares
// only data that are new since the last call.
func (f *file) findData() (uint64, error) {
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
		is, err := f.isWanted(at, f.wanted)
		if err != nil {
			return 0, err
		}
		if is {
			return at, nil
		}
		if older >= at {
			return 0, corrupted("the data chain of a field is cyclic", at)
		}
		at = older
	}
	f.known = newest
	return 0, nil
}

// isWanted says whether the data at an offset is the wanted data.
func (f *file) isWanted(at uint64, wanted []byte) (bool, error) {
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

// findField returns the offset of a field, 0 if the file does not contain it yet. There
// are few fields, so it compares all of them and needs no knowledge of their hash.
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
				return 0, corrupted("a chain of fields is cyclic", at)
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
		return entry{}, corrupted("an entry has an invalid size", at)
	}
	e := parseEntry(at, size, head)
	e.sequence = f.header.sequence
	return e, nil
}

// peek prepares the next entry that is not older than since and was not read before a
// restart. It returns false if there is none now. It counts unreadable entries.
func (f *file) peek(since uint64) bool {
	for !f.ready && f.cursor.index < f.list.length {
		at, err := f.find(f.cursor.index)
		if err != nil { // the rest of the list is unreachable
			f.miss(f.list.length-f.cursor.index, err)
			f.cursor.index = f.list.length
			break
		}
		f.cursor.index++
		e, err := f.entry(at)
		if err == nil && at <= f.latest { // entries are stored in the order of their arrival
			err = corrupted("an entry is listed after a later one", at)
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

// begin skips entries that were read before a restart or are too old.
func (f *file) begin(from, since uint64) {
	f.from, f.taken = from, from
	last := f.seek(func(e *entry) bool { return e.number <= from || e.realtime < since })
	f.taken = max(f.taken, last.number)
}
