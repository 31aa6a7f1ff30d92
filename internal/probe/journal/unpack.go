package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// maxFrame bounds the memory for a compressed datum. One that needs more is not read.
const maxFrame = 8 << 20

// errNotRead says that a datum is written in a way that is not read here.
var errNotRead = errors.New("it is not read here")

// unpack appends the first bytes of a compressed payload to b, as first does.
func (p payload) unpack(b []byte, limit int) (text []byte, cut bool, err error) {
	begin := len(b)
	// One byte more than may be taken tells whether there are more.
	switch p.compressed {
	case compressedZSTD:
		b, err = p.unpackZSTD(b, limit+1)
	case compressedLZ4:
		b, err = p.unpackLZ4(b, limit+1)
	case compressedXZ:
		err = fmt.Errorf("a datum compressed by xz: %w", errNotRead)
	default:
		err = broken("a datum is compressed in two ways", p.at)
	}
	switch {
	case err != nil:
		return b[:begin], false, err
	case len(b) == begin:
		return b, false, broken("a compressed datum is empty", p.at)
	case len(b)-begin > limit:
		return b[:begin+limit], true, nil
	}
	return b, false, nil
}

func (p payload) unpackZSTD(b []byte, limit int) ([]byte, error) {
	decoder, err := p.file.unpacker.zstd(p.stream())
	if err != nil {
		return b, err
	}
	return appendFrom(b, decoder, limit)
}

// unpacker keeps what it takes to unpack data: to make it costs more than to use it.
type unpacker struct {
	stream  *bufio.Reader
	decoder *zstd.Decoder
}

// zstd returns what unpacks a stream.
func (u *unpacker) zstd(stream io.Reader) (*zstd.Decoder, error) {
	if u.decoder != nil {
		u.stream.Reset(stream)
		return u.decoder, u.decoder.Reset(u.stream)
	}
	u.stream = bufio.NewReader(stream)
	// With a concurrency of one it works for whoever reads, and nobody has to end it.
	decoder, err := zstd.NewReader(u.stream,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxFrame))
	u.decoder = decoder
	return decoder, err
}

// appendFrom appends what there is to read, but no more than limit bytes.
func appendFrom(b []byte, from io.Reader, limit int) ([]byte, error) {
	end := len(b) + limit
	for b = slices.Grow(b, limit); len(b) < end; {
		n, err := from.Read(b[len(b):end])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// unpackLZ4 unpacks one block of LZ4, before which stands how long it is unpacked.
func (p payload) unpackLZ4(b []byte, limit int) ([]byte, error) {
	const length = 8
	if p.size < length {
		return b, broken("a compressed datum is too short", p.at)
	}
	// Bytes as they are and repetitions take less than twice the room of what they stand
	// for, so the rest of the block is of no interest.
	packed := make([]byte, min(p.size, length+2*uint64(limit)+16))
	if err := p.file.read(packed, p.at); err != nil {
		return b, err
	}
	n := min(uint64(limit), binary.LittleEndian.Uint64(packed))
	b, err := lz4Block(b, packed[length:], int(n))
	if err != nil {
		return b, broken(err.Error(), p.at)
	}
	return b, nil
}
