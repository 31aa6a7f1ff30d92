package filelog

import "bytes"

// portion says how to handle bytes that were read.
type portion struct {
	drop   int  // number of leading bytes that belong to no line
	take   int  // number of following bytes that are whole lines
	cut    bool // the taken bytes are the start of a line that is too long
	inLine bool // the bytes end within a line whose start was returned
}

// split decides how to handle pending bytes. They start with a new line, or continue a
// truncated line. Lines longer than longest are truncated.
func split(pending []byte, inLine bool, longest int) portion {
	var p portion
	if inLine {
		end := bytes.IndexByte(pending, '\n')
		if end < 0 {
			return portion{drop: len(pending), inLine: true}
		}
		p.drop = end + 1
	}
	// Zeros before a line do not belong to it: the file was truncated while its writer kept
	// its offset.
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
