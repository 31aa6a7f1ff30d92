package mountinfo

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mount is a line of the table.
type Mount struct {
	Device string // major:minor, the same for all mounts of one filesystem
	Root   string // what of the filesystem is mounted
	Point  string // where
	Kind   string
	Source string
	// What this mount allows, and what the filesystem does.
	Options, Super []string
}

// fixed is how many fields there are at least before the dash.
const fixed = 6

// Parse reads a table, as proc(5) describes mountinfo. Its fields are a single blank
// apart: other blanks, of which Unicode has many, belong to them.
func Parse(text []byte) ([]Mount, error) {
	var mounts []Mount
	for line := range bytes.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(string(line), "\n"), " ")
		// Before the dash there may be any number of others.
		dash := -1
		if len(fields) > fixed {
			dash = slices.Index(fields[fixed:], "-")
		}
		if dash < 0 || len(fields) < fixed+dash+4 {
			return nil, fmt.Errorf("line %d is none of a table of mounts: %.100q", len(mounts)+1, line)
		}
		about := fields[fixed+dash+1:] // the filesystem
		mounts = append(mounts, Mount{
			Device: fields[2], Root: Unescape(fields[3]), Point: Unescape(fields[4]), Options: strings.Split(fields[5], ","),
			Kind: about[0], Source: Unescape(about[1]), Super: strings.Split(about[2], ","),
		})
	}
	if len(mounts) == 0 {
		return nil, errors.New("the table is empty")
	}
	return mounts, nil
}

// Unescape returns a path of a table as it is: there, blanks and backslashes are written
// as octal numbers.
func Unescape(written string) string {
	if !strings.Contains(written, `\`) {
		return written
	}
	var out strings.Builder
	for i := 0; i < len(written); i++ {
		if written[i] == '\\' && i+4 <= len(written) {
			if code, err := strconv.ParseUint(written[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(written[i])
	}
	return out.String()
}
