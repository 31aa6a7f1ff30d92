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

// Field numbers of every list in the .proto files of Kubernetes.
const (
	listMeta, listItems = 1, 2
	metaVersion         = 2 // meta/v1 ListMeta
)

// listBufferSize is the size of one read from the connection.
const listBufferSize = 64 << 10

// List reads a list of a kind from a stream, and returns its version. It passes one item at a
// time to take, which must not keep it.
func List(from io.Reader, kind string, take func(item []byte) error) (version string, err error) {
	list := &lister{Reader: bufio.NewReaderSize(from, listBufferSize), kind: kind, take: take}
	if err := list.read(); err != nil {
		return "", fmt.Errorf("reading a %s: %w", kind, err)
	}
	return list.version, nil
}

// lister reads a list.
type lister struct {
	*bufio.Reader
	kind     string
	take     func([]byte) error
	version  string
	complete bool // the list itself was read
	buffer   []byte
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
		number, size, _, err := l.fieldHeader()
		switch {
		case errors.Is(err, io.EOF) && l.complete:
			return nil
		case err != nil:
			return unexpectedEOF(err)
		case number == unknownRaw && string(kind) != l.kind:
			return fmt.Errorf("it is a %q", kind)
		case number == unknownRaw:
			l.complete, err = true, l.body(size)
		case number == unknownType:
			var value []byte
			if value, err = l.next(size); err == nil {
				err = Fields(bytes.Clone(value), KeepField(typeKind, &kind))
			}
		default:
			_, err = l.Discard(size)
		}
		if err != nil {
			return unexpectedEOF(err)
		}
	}
}

// body reads the list itself, which has size bytes.
func (l *lister) body(size int) error {
	for size > 0 {
		number, length, taken, err := l.fieldHeader()
		if err != nil {
			return unexpectedEOF(err)
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

// fieldHeader reads the number and the size of a field. taken is the number of bytes of the
// header. At the end of the stream it returns io.EOF.
func (l *lister) fieldHeader() (number protowire.Number, size, taken int, err error) {
	tag, first, err := l.varint()
	if err != nil {
		return 0, 0, 0, err
	}
	length, second, err := l.varint()
	if err != nil {
		return 0, 0, 0, unexpectedEOF(err)
	}
	number, kind := protowire.DecodeTag(tag)
	if kind != protowire.BytesType || length > maxList {
		return 0, 0, 0, ErrMalformed
	}
	return number, int(length), first + second, nil
}

// varint reads a number. taken is the number of its bytes.
func (l *lister) varint() (value uint64, taken int, err error) {
	value, err = binary.ReadUvarint(l)
	return value, protowire.SizeVarint(value), err
}

// next reads size bytes into the buffer, overwriting the previous ones.
func (l *lister) next(size int) ([]byte, error) {
	if size > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes", errTooLarge, size)
	}
	if cap(l.buffer) < size {
		l.buffer = make([]byte, size+size/4)
	}
	_, err := io.ReadFull(l, l.buffer[:size])
	return l.buffer[:size], unexpectedEOF(err)
}

// unexpectedEOF replaces io.EOF by io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
