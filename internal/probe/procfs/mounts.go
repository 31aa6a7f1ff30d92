package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mount is a line of the mount table.
type Mount struct {
	Device string // major:minor, the same for all mounts of a filesystem
	Root   string // the directory of the filesystem that is mounted
	Point  string // the mount point
	Kind   string
	Source string
	// Options are per mount, Super are those of the filesystem.
	Options, Super []string
}

// minFields is the minimum number of fields before the dash.
const minFields = 6

// ParseMounts parses a mount table in the format that proc(5) describes for mountinfo. A single
// space separates fields. Other Unicode whitespace belongs to the fields.
func ParseMounts(text []byte) ([]Mount, error) {
	var mounts []Mount
	for line := range bytes.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(string(line), "\n"), " ")
		// Any number of optional fields may come before the dash.
		dash := -1
		if len(fields) > minFields {
			dash = slices.Index(fields[minFields:], "-")
		}
		if dash < 0 || len(fields) < minFields+dash+4 {
			return nil, fmt.Errorf("line %d is not a line of a mount table: %.100q", len(mounts)+1, line)
		}
		about := fields[minFields+dash+1:] // the filesystem
		mounts = append(mounts, Mount{
			Device: fields[2], Root: UnescapePath(fields[3]), Point: UnescapePath(fields[4]), Options: strings.Split(fields[5], ","),
			Kind: about[0], Source: UnescapePath(about[1]), Super: strings.Split(about[2], ","),
		})
	}
	if len(mounts) == 0 {
		return nil, errors.New("the mount table is empty")
	}
	return mounts, nil
}

// UnescapePath decodes a path of the mount table. The kernel writes whitespace and backslashes as
// octal numbers.
func UnescapePath(written string) string {
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
