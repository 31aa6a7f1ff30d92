package journal

import (
	"errors"
	"io"
)

// objectFile reads the header and the objects of a journal file.
type objectFile struct {
	window    window
	header    header
	top       [headerRead]byte // buffer for the header
	kindCache []fact           // cache of data kinds by offset
	unpacker  *unpacker
	prefix    []byte // buffer for the start of compressed data
}

func (f *objectFile) readHeader() error {
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
func (f *objectFile) read(b []byte, at uint64) error {
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

// object returns the head of an object of the given kind.
func (f *objectFile) object(at uint64, kind byte, head int) ([]byte, error) {
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

// entry reads the entry at an offset.
func (f *objectFile) entry(at uint64) (entry, error) {
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
