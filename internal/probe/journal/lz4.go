package journal

import "errors"

var errLZ4 = errors.New("an LZ4 block is invalid")

// lz4Block appends up to limit bytes of a decompressed LZ4 block to b. A block is a series
// of sequences: literal bytes, then a copy of earlier output.
func lz4Block(b, block []byte, limit int) ([]byte, error) {
	begin := len(b)
	end := begin + limit
	for len(b) < end {
		if len(block) == 0 {
			return b, errLZ4
		}
		token := block[0]
		var literals, length int
		literals, block = lz4Length(block[1:], int(token>>4))
		take := min(literals, end-len(b))
		if take > len(block) {
			return b, errLZ4
		}
		b = append(b, block[:take]...)
		if len(b) == end {
			break
		}
		block = block[take:]
		if len(block) < 2 {
			return b, errLZ4
		}
		back := int(block[0]) | int(block[1])<<8
		length, block = lz4Length(block[2:], int(token&15))
		if back == 0 || back > len(b)-begin {
			return b, errLZ4
		}
		// The copy may overlap its own output, so it is done byte by byte.
		for range min(length+4, end-len(b)) {
			b = append(b, b[len(b)-back])
		}
	}
	return b, nil
}

// lz4Length decodes a length whose first four bits are given. If the block is truncated,
// the true length may be larger.
func lz4Length(block []byte, bits int) (length int, rest []byte) {
	length = bits
	if bits < 15 {
		return length, block
	}
	for i, c := range block {
		length += int(c)
		if c != 255 {
			return length, block[i+1:]
		}
	}
	return length, nil
}
