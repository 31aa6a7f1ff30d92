package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/probe/exam"
)

// MountTable is where the kernel lists what is mounted: of the first process, which in a
// pod is the node's with hostPID, and else the agent's own.
const MountTable = "/proc/1/mountinfo"

// Readonly examines the table of mounts for filesystems that the kernel has made
// read-only after an error.
func Readonly(table string) exam.Exam {
	return func(context.Context) exam.Answer {
		text, err := os.ReadFile(table)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return unknown(notAllowed, "reading the table of mounts: %v", err)
		case err != nil:
			return unknown(notFound, "reading the table of mounts: %v", err)
		}
		mounts, err := parseMounts(text)
		if err != nil {
			return unknown(notFound, "reading %s: %v", table, err)
		}
		return judgeMounts(mounts)
	}
}

// mount is a line of the table.
type mount struct {
	device string // major:minor, the same for all mounts of one filesystem
	root   string // what of the filesystem is mounted
	point  string
	kind   string
	source string
	// What this mount allows, and what the filesystem does.
	options, super []string
}

// parseMounts reads a table of mounts, as proc(5) describes mountinfo.
func parseMounts(text []byte) ([]mount, error) {
	var mounts []mount
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		// Between the sixth field and the dash there may be any number of others.
		dash := slices.Index(fields, "-")
		if dash < 6 || len(fields) < dash+3 {
			return nil, fmt.Errorf("line %d is none of a table of mounts: %q", len(mounts)+1, briefly(string(line)))
		}
		m := mount{
			device: fields[2], root: unescape(fields[3]), point: unescape(fields[4]), options: strings.Split(fields[5], ","),
			kind: fields[dash+1], source: unescape(fields[dash+2]),
		}
		if len(fields) > dash+3 { // a source may be empty
			m.super = strings.Split(fields[dash+3], ",")
		} else {
			m.source, m.super = "", strings.Split(fields[dash+2], ",")
		}
		mounts = append(mounts, m)
	}
	if len(mounts) == 0 {
		return nil, errors.New("the table is empty")
	}
	return mounts, nil
}

// unescape undoes what the kernel does to blanks and backslashes in paths.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(path)
}

// turning are the filesystems that turn read-only when they find themselves damaged. All
// others are as somebody wanted them: images (squashfs, iso9660), what is no disk at all,
// and XFS, which shuts down instead.
var turning = []string{
	"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "gfs2", "hfsplus", "jfs", "msdos", "nilfs2", "ntfs3", "ocfs2", "reiserfs", "vfat",
}

// judgeMounts finds filesystems that are read-only and were not mounted so. Who mounts or
// remounts one read-only makes both the mount and the filesystem so; a bind mount that is
// read-only leaves the filesystem writable; only the kernel takes the filesystem away
// under a writable mount. Newer kernels say so in a word of its own.
func judgeMounts(mounts []mount) exam.Answer {
	var found []string
	for _, m := range widest(mounts) {
		if slices.Contains(turning, m.kind) && m.broken() {
			found = append(found, fmt.Sprintf("%s on %s (%s)", m.source, m.point, m.kind))
		}
	}
	switch {
	case len(found) == 0:
		return well("no filesystem has been made read-only")
	case len(found) > 3:
		found = append(found[:3], fmt.Sprintf("and %d more", len(found)-3))
	}
	return sick("made read-only by the kernel: %s", strings.Join(found, ", "))
}

// widest returns the mount of each filesystem that speaks for it: the one that shows most
// of it, and of several the oldest, which the kernel lists first. Those that came later
// may be bind mounts, which stay writable when somebody makes the first one read-only.
func widest(mounts []mount) []mount {
	var chosen []mount
	place := map[string]int{} // by device
	for _, m := range mounts {
		at, known := place[m.device]
		switch {
		case !known:
			place[m.device] = len(chosen)
			chosen = append(chosen, m)
		case len(m.root) < len(chosen[at].root):
			chosen[at] = m
		}
	}
	return chosen
}

// broken says whether a mount is writable in vain.
func (m mount) broken() bool {
	if slices.Contains(m.super, "emergency_ro") || slices.Contains(m.super, "shutdown") {
		return true // of the filesystem, so that all of its mounts have it
	}
	return slices.Contains(m.super, "ro") && !slices.Contains(m.options, "ro")
}
