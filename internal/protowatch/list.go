package protowatch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the fields that every list has, as Kubernetes' .proto files have them.
const (
	listMeta, listItems = 1, 2
	metaVersion         = 2 // meta/v1 ListMeta
)

// listRoom is how much of a list is taken off the connection at once.
const listRoom = 64 << 10

// List reads a list of a kind as it comes, and returns its version. It holds one item at
// a time, which is take's own for as long only as that takes.
func List(from io.Reader, kind string, take func(item []byte) error) (version string, err error) {
	list := &lister{Reader: bufio.NewReaderSize(from, listRoom), kind: kind, take: take}
	if err := list.read(); err != nil {
		return "", fmt.Errorf("reading a %s: %w", kind, err)
	}
	return list.version, nil
}

// lister reads one list.
type lister struct {
	*bufio.Reader
	kind    string
	take    func([]byte) error
	version string
	whole   bool // the list itself has come
	room    []byte
}

func (l *lister) read() error {
	begin, err := l.next(len(magic))
	if err != nil {
		return err
	}
	if !bytes.Equal(begin, magic) {
		return fmt.Errorf("it begins with %q: %w", begin, ErrMalformed)
	}
	var kind []byte
	for {
		number, size, _, err := l.head()
		switch {
		case errors.Is(err, io.EOF) && l.whole:
			return nil
		case err != nil:
			return within(err)
		case number == unknownRaw && string(kind) != l.kind:
			return fmt.Errorf("it is a %q", kind)
		case number == unknownRaw:
			l.whole, err = true, l.body(size)
		case number == unknownType:
			var value []byte
			if value, err = l.next(size); err == nil {
				err = Fields(bytes.Clone(value), KeepField(typeKind, &kind))
			}
		default:
			_, err = l.Discard(size)
		}
		if err != nil {
			return within(err)
		}
	}
}

// body reads the list itself, which takes so many bytes.
func (l *lister) body(size int) error {
	for size > 0 {
		number, length, taken, err := l.head()
		if err != nil {
			return within(err)
		}
		if size -= taken + length; size < 0 {
			return ErrMalformed
		}
		value, err := l.next(length)
		if err != nil {
			return err
		}
		switch number {
		case listMeta:
			var version []byte
			err = Fields(value, KeepField(metaVersion, &version))
			l.version = string(version)
		case listItems:
			err = l.take(value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// head reads what comes before the bytes of a field: its number and how many there are.
// It returns how many bytes that took itself; none and io.EOF where nothing comes.
func (l *lister) head() (number protowire.Number, size, taken int, err error) {
	tag, first, err := l.varint()
	if err != nil {
		return 0, 0, 0, err
	}
	length, second, err := l.varint()
	if err != nil {
		return 0, 0, 0, within(err)
	}
	number, kind := protowire.DecodeTag(tag)
	if kind != protowire.BytesType || length > maxList {
		return 0, 0, 0, ErrMalformed
	}
	return number, int(length), first + second, nil
}

// varint reads a number, and returns how many bytes it took.
func (l *lister) varint() (value uint64, taken int, err error) {
	value, err = binary.ReadUvarint(l)
	return value, protowire.SizeVarint(value), err
}

// next reads so many bytes, into the room of those before.
func (l *lister) next(size int) ([]byte, error) {
	if size > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes", errTooLarge, size)
	}
	if cap(l.room) < size {
		l.room = make([]byte, size+size/4)
	}
	_, err := io.ReadFull(l, l.room[:size])
	return l.room[:size], within(err)
}

// within is the error of an end that comes too soon.
func within(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
