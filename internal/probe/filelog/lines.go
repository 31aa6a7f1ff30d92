package filelog

import "bytes"

// portion is what becomes of some bytes that were read.
type portion struct {
	drop   int  // so many at the beginning are of no line
	take   int  // so many after them are whole lines
	cut    bool // what is taken is the beginning of one line that is too long
	inLine bool // the bytes end in a line whose beginning was handed on
}

// split says what becomes of pending bytes. They begin a line, or go on with one
// that was cut; those that are longer than longest are.
func split(pending []byte, inLine bool, longest int) portion {
	var p portion
	if inLine {
		end := bytes.IndexByte(pending, '\n')
		if end < 0 {
			return portion{drop: len(pending), inLine: true}
		}
		p.drop = end + 1
	}
	// Zeros before a line are no part of it: the file was truncated under a writer that
	// went on where it was.
	for p.drop < len(pending) && pending[p.drop] == 0 {
		p.drop++
	}
	lines := pending[p.drop:]
	for p.take < len(lines) {
		window := lines[p.take:min(len(lines), p.take+longest+1)]
		end := bytes.LastIndexByte(window, '\n')
		if end < 0 {
			if p.take == 0 && len(window) > longest {
				return portion{drop: p.drop, take: longest, cut: true}
			}
			break
		}
		p.take += end + 1
	}
	if zeros := bytes.Index(lines[:p.take], []byte("\n\x00")); zeros >= 0 {
		p.take = zeros + 1
	}
	return p
}

func allZero(text []byte) bool {
	for _, c := range text {
		if c != 0 {
			return false
		}
	}
	return true
}
