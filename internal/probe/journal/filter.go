package journal

import (
	"bytes"
	"encoding/binary"
)

// filter selects the entries of a file that contain certain data. It keeps the offsets
// that it has found.
type filter struct {
	wanted []byte // the data that entries must contain; empty for all entries
	field  uint64 // offset of its field; 0 while the file does not contain it
	data   uint64 // offset of the data; 0 while the file does not contain it
	known  uint64 // the newest data of the field that was compared
}

// entries returns the list of the selected entries.
func (s *filter) entries(f *objectFile) (list, error) {
	all := list{arrays: f.header.entryArray, length: f.header.entries}
	if len(s.wanted) > 0 {
		if s.data == 0 {
			at, err := s.find(f)
			if err != nil || at == 0 {
				return list{}, err
			}
			s.data = at
		}
		head, err := f.object(s.data, typeData, dataHead)
		if err != nil {
			return list{}, err
		}
		all = list{
			first:  binary.LittleEndian.Uint64(head[40:]),
			arrays: binary.LittleEndian.Uint64(head[48:]),
			length: binary.LittleEndian.Uint64(head[56:]),
		}
	}
	if all.length > f.header.arena/entryHead {
		return list{}, corrupted("the number of entries exceeds the file size", s.data)
	}
	return all, nil
}

// find returns the offset of the wanted data, 0 if the file does not contain it yet.
// Each field has a chain of its data from the newest to the oldest. find compares
// only data that are new since the last call.
func (s *filter) find(f *objectFile) (uint64, error) {
	if s.field == 0 {
		name, _, _ := bytes.Cut(s.wanted, []byte("="))
		at, err := f.findField(name)
		if err != nil || at == 0 {
			return 0, err
		}
		s.field = at
	}
	head, err := f.object(s.field, typeField, fieldHead)
	if err != nil {
		return 0, err
	}
	newest := binary.LittleEndian.Uint64(head[32:])
	for at := newest; at > s.known; {
		head, err := f.object(at, typeData, dataHead)
		if err != nil {
			return 0, err
		}
		older := binary.LittleEndian.Uint64(head[32:])
		is, err := s.is(f, at)
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
	s.known = newest
	return 0, nil
}

// is says whether the data at an offset is the wanted data.
func (s *filter) is(f *objectFile, at uint64) (bool, error) {
	p, err := f.payload(at)
	if err != nil {
		return false, err
	}
	if p.compressed == 0 && p.size != uint64(len(s.wanted)) {
		return false, nil
	}
	text, _, err := p.first(nil, len(s.wanted)+1)
	if err != nil {
		return false, err
	}
	return bytes.Equal(text, s.wanted), nil
}

// findField returns the offset of a field, 0 if the file does not contain it yet. There
// are few fields, so it compares all of them and needs no knowledge of their hash.
func (f *objectFile) findField(name []byte) (uint64, error) {
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
