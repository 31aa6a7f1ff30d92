package journal

import "errors"

var errLZ4 = errors.New("a block of LZ4 cannot be unpacked")

// lz4Block appends the first bytes that a block of LZ4 holds to b, limit of them. A
// block is a row of sequences: some bytes as they are, then some that stood before.
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
		// What is repeated may be part of the repetition, so it goes byte by byte.
		for range min(length+4, end-len(b)) {
			b = append(b, b[len(b)-back])
		}
	}
	return b, nil
}

// lz4Length reads a length of which four bits are known. Where the block is cut short,
// it is at least what is returned.
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
