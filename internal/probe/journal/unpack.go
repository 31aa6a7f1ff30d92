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

// maxFrame limits the memory for compressed data. The reader does not decompress data that
// need more.
const maxFrame = 8 << 20

// errNotRead says that a compression is not supported.
var errNotRead = errors.New("this compression is not supported")

// unpack appends up to limit bytes of a compressed payload to b, like first.
func (p payload) unpack(b []byte, limit int) (text []byte, cut bool, err error) {
	begin := len(b)
	// An additional byte shows whether there is more.
	switch p.compressed {
	case compressedZSTD:
		b, err = p.unpackZSTD(b, limit+1)
	case compressedLZ4:
		b, err = p.unpackLZ4(b, limit+1)
	case compressedXZ:
		err = fmt.Errorf("data compressed with xz: %w", errNotRead)
	default:
		err = corrupted("a data object has two compression flags", p.at)
	}
	switch {
	case err != nil:
		return b[:begin], false, err
	case len(b) == begin:
		return b, false, corrupted("a compressed data object is empty", p.at)
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

// unpacker keeps the decoder, because creating it costs more than using it.
type unpacker struct {
	stream  *bufio.Reader
	decoder *zstd.Decoder
}

// zstd returns a decoder of a stream.
func (u *unpacker) zstd(stream io.Reader) (*zstd.Decoder, error) {
	if u.decoder != nil {
		u.stream.Reset(stream)
		return u.decoder, u.decoder.Reset(u.stream)
	}
	u.stream = bufio.NewReader(stream)
	// With a concurrency of 1 the decoder has no goroutines and need not be closed.
	decoder, err := zstd.NewReader(u.stream,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxFrame))
	u.decoder = decoder
	return decoder, err
}

// appendFrom appends up to limit bytes of a reader.
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

// unpackLZ4 decompresses an LZ4 block. The decompressed length precedes the block.
func (p payload) unpackLZ4(b []byte, limit int) ([]byte, error) {
	const length = 8
	if p.size < length {
		return b, corrupted("a compressed data object is too short", p.at)
	}
	// Compressed data are less than twice as long as the original, so the rest of the block
	// is not needed.
	packed := make([]byte, min(p.size, length+2*uint64(limit)+16))
	if err := p.file.read(packed, p.at); err != nil {
		return b, err
	}
	n := min(uint64(limit), binary.LittleEndian.Uint64(packed))
	b, err := lz4Block(b, packed[length:], int(n))
	if err != nil {
		return b, corrupted(err.Error(), p.at)
	}
	return b, nil
}
