package filelog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fileInfo describes a file as it was found.
type fileInfo struct {
	path          string
	device, inode uint64
	size          int64
	written       int64
	born          int64 // when the file was created in nanoseconds; 0 if the file system does not record it
	rotated       bool  // its name is that of a rotated file of the path
	empty         bool  // it has no lines, or is a copy of the file at the path that may still grow
}

// is says whether this is the file of a position, which may have been truncated since. A
// new file may have got the inode of a deleted one, but it was created later.
func (s fileInfo) is(p filePosition) bool {
	return s.device == p.Device && s.inode == p.Inode && (s.born == p.Born || s.born == 0 || p.Born == 0)
}

// errOther says that the name now belongs to another file than the file that was found.
var errOther = errors.New("the file was replaced")

// open opens the file that was found, and no other.
func (s fileInfo) open() (*os.File, error) {
	file, err := openRegular(s.path)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(file.Fd()), &stat)
	if err == nil && (stat.Dev != s.device || stat.Ino != s.inode) {
		err = fmt.Errorf("opening %s: %w", s.path, errOther)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// statFile returns the info of a regular file.
func statFile(path string) (fileInfo, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return fileInfo{}, &fs.PathError{Op: "reading", Path: path, Err: err}
	}
	if what := otherThanFile(stat.Mode); what != "" {
		return fileInfo{}, fmt.Errorf("reading %s: it is %s", path, what)
	}
	return fileInfo{
		path: path, device: stat.Dev, inode: stat.Ino, size: stat.Size, written: stat.Mtim.Nano(), born: born(unix.AT_FDCWD, path),
	}, nil
}

// born returns when a file was created in nanoseconds, or 0 if that is unknown. With an
// empty path it looks at the descriptor.
func born(fd int, path string) int64 {
	var stat unix.Statx_t
	if err := unix.Statx(fd, path, unix.AT_EMPTY_PATH, unix.STATX_BTIME, &stat); err != nil || stat.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return time.Unix(stat.Btime.Sec, int64(stat.Btime.Nsec)).UnixNano()
}

// otherThanFile returns what a file is if it is not a regular file, and what to do.
func otherThanFile(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return ""
	case unix.S_IFDIR:
		return "a directory; use a file in it (if a missing file is mounted into a container, a directory appears: mount its directory instead)"
	case unix.S_IFIFO:
		return "a pipe; use a regular file, because other readers of the pipe would lose lines"
	case unix.S_IFSOCK:
		return "a socket; use a regular file"
	default:
		return "a device; use a regular file (for /dev/kmsg use the plugin kmsg)"
	}
}

// openRegular opens a regular file. It checks the type first, because opening some devices
// has effects.
func openRegular(path string) (*os.File, error) {
	if _, err := statFile(path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(file.Fd()), &stat)
	if what := otherThanFile(stat.Mode); err == nil && what != "" {
		err = fmt.Errorf("reading %s: it is %s", path, what)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// maxScans is how often a directory is read while it changes. Rotations are short.
const maxScans = 20

// find opens the file of a position: the file at the path, else a file with its inode in
// the same directory, else a copy among the rotated files. It returns nil if there is
// none.
func find(path string, p filePosition) (*os.File, error) {
	_, path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	return findAmong(listFiles, path, p)
}

// findAmong searches the files that see returns, until they do not change.
func findAmong(see func(path string) ([]fileInfo, error), path string, p filePosition) (*os.File, error) {
	var before []fileInfo
	for look := range maxScans {
		candidates, err := see(path)
		if err != nil {
			return nil, err
		}
		file, err := search(candidates, path, p)
		if file != nil || err != nil {
			return file, err
		}
		// The file may have been copied and truncated after the search for a copy.
		if look > 0 && slices.EqualFunc(before, candidates, sameName) {
			break
		}
		before = candidates
	}
	return nil, nil
}

// search opens the most likely file of a position.
func search(candidates []fileInfo, path string, p filePosition) (*os.File, error) {
	for _, likely := range []likelihood{sameFile, copied} {
		for _, c := range candidates {
			if rank(c, path, p) != likely || c.size < p.Offset {
				continue
			}
			file, err := p.openIn(c)
			if err != nil && likely == sameFile && !errors.Is(err, errOther) && !errors.Is(err, fs.ErrNotExist) {
				return nil, err // an unreadable file must not be mistaken for another file
			}
			if file != nil {
				return file, nil
			}
		}
	}
	return nil, nil
}

// sameName says whether two infos are of the same file with the same name.
func sameName(a, b fileInfo) bool {
	return a.path == b.path && a.device == b.device && a.inode == b.inode
}

// openIn opens a file if it is the file of the position.
func (p filePosition) openIn(s fileInfo) (*os.File, error) {
	file, err := s.open()
	if err != nil {
		return nil, err
	}
	same, err := p.in(file)
	if err != nil || !same {
		file.Close()
		return nil, err
	}
	return file, nil
}

// likelihood says how likely a file is the file of a position.
type likelihood int

const (
	sameFile likelihood = iota
	copied
	unlikely
)

func rank(s fileInfo, path string, p filePosition) likelihood {
	switch {
	case s.is(p):
		return sameFile
	case (s.path == path || s.rotated) && p.Offset > 0: // at offset 0 all files look alike
		return copied
	default:
		return unlikely
	}
}

// successors returns the files that follow the file of a position, from the oldest. Without
// an error it returns at least a file with lines, or the file at the path. It also says
// whether the file of the position still has a name. later contains names whose files are
// known to be newer from inotify events, because two rotations may have the same
// modification time.
func successors(path string, p filePosition, later map[string]bool) (next []fileInfo, there bool, err error) {
	_, path, err = resolve(path)
	if err != nil {
		return nil, false, err
	}
	all, err := settled(listFiles, path)
	if err != nil {
		return nil, false, err
	}
	var current fileInfo
	var older []fileInfo
	for _, s := range all {
		there = there || s.is(p)
		if s.is(p) && has(s, p) {
			// It may be a copy that was made late. The files that follow are newer than this.
			s.written = min(s.written, p.Written)
		}
		switch {
		case s.path == path:
			current = s
		case s.rotated:
			older = append(older, s)
		}
	}
	older = slices.DeleteFunc(older, func(s fileInfo) bool { return s.inode == current.inode && s.device == current.device })
	sortGenerations(path, older)
	isOlder := func(s fileInfo) bool {
		_, isLater := later[filepath.Base(s.path)]
		return !isLater && s.written <= p.Written
	}
	isRead := func(s fileInfo) bool { return wasRead(s, p) }
	if i := slices.IndexFunc(older, func(s fileInfo) bool { return s.is(p) && has(s, p) }); i >= 0 {
		read := older[:i+1]
		older = older[i+1:]
		isOlder = func(fileInfo) bool { return false }
		isRead = func(s fileInfo) bool {
			return slices.ContainsFunc(read, func(r fileInfo) bool { return partOf(s, r) })
		}
	}
	hasLines := false
	for _, s := range older {
		if isOlder(s) || s.size > 0 && (isRead(s) || p.isCopyOfEarlier(s)) {
			continue
		}
		s.empty = s.size == 0 || partOf(s, current)
		next = append(next, s)
		hasLines = hasLines || !s.empty
	}
	switch {
	case current.path != "":
		current.empty = current.size == 0
		next = append(next, current)
	case !hasLines:
		// An event will announce a new file. If the path is not a regular file, return that
		// error.
		if _, err = statFile(path); err == nil {
			err = fs.ErrNotExist
		}
	}
	return next, there, err
}

// settled returns what see finds while no file is renamed. A file that is renamed while
// its directory is read may not be listed at all.
func settled(see func(path string) ([]fileInfo, error), path string) ([]fileInfo, error) {
	before, err := see(path)
	for range maxScans {
		if err != nil {
			return nil, err
		}
		var now []fileInfo
		now, err = see(path)
		if slices.EqualFunc(before, now, sameName) {
			return now, err
		}
		before = now
	}
	return before, err
}

// has says whether a file is the file of a position, and not another file with a reused
// inode.
func has(s fileInfo, p filePosition) bool {
	file, err := p.openIn(s)
	if file != nil {
		file.Close()
	}
	return err == nil && file != nil
}

// partOf says whether a file is a copy of what another file still contains. Then the copy
// is being made, and the other file will be truncated afterwards.
func partOf(s, other fileInfo) bool {
	if other.size < s.size {
		return false
	}
	file, err := s.open()
	if err != nil {
		return false
	}
	defer file.Close()
	original, err := other.open()
	if err != nil {
		return false
	}
	defer original.Close()
	known := min(span, s.size)
	for _, offset := range []int64{0, s.size - known} {
		var text [span]byte
		if _, err := file.ReadAt(text[:known], offset); err != nil {
			return false
		}
		if same, err := holds(original, offset, text[:known]); err != nil || !same {
			return false
		}
	}
	return true
}

// wasRead says whether a file is a copy of what was read up to the position, or of a part
// of it. At offset 0 every file looks alike, so that does not count.
func wasRead(s fileInfo, p filePosition) bool {
	file, err := s.open()
	if err != nil {
		return false
	}
	defer file.Close()
	same, err := false, error(nil)
	if s.size < p.Offset {
		same, err = p.begins(file)
	} else if p.Offset > 0 {
		same, err = p.in(file)
	}
	return err == nil && same
}

// isCopyOfEarlier says whether a file is a copy of a file that was read before the file of
// the position.
func (p filePosition) isCopyOfEarlier(s fileInfo) bool {
	same := func(e fingerprint) bool {
		earlier := filePosition{Offset: e.Size, Head: e.Head, Tail: e.Tail}
		return e.Size > 0 && e.Size == s.size && has(s, earlier)
	}
	return slices.ContainsFunc(p.Earlier, same)
}

// listFiles returns all regular files in the directory of a path without links. It returns
// none if the directory does not exist.
func listFiles(path string) ([]fileInfo, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []fileInfo
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		if s, err := statFile(filepath.Join(filepath.Dir(path), entry.Name())); err == nil {
			s.rotated = isGeneration(filepath.Base(path), entry.Name())
			all = append(all, s)
		}
	}
	return all, nil
}

// isGeneration says whether a name is that of a rotated file: messages.1,
// messages-20260131, 0.log.20260131-093000, app-2026-01-31.log, messages.old. Compressed
// files do not count.
func isGeneration(base, name string) bool {
	if rest, ok := strings.CutPrefix(name, base); ok {
		return rest == ".old" || dated(rest, 1)
	}
	extension := filepath.Ext(base)
	stem := strings.TrimSuffix(base, extension)
	rest, ok := strings.CutPrefix(name, stem)
	if !ok || stem == "" || extension == "" {
		return false
	}
	rest, ok = strings.CutSuffix(rest, extension)
	return ok && dated(rest, len("20060102")) // app-2.log may be an independent log
}

// dated says whether a part of a name is a number or a date with at least this many
// digits.
func dated(part string, digits int) bool {
	if part == "" || !strings.ContainsRune(".-_", rune(part[0])) {
		return false
	}
	for _, c := range part {
		switch {
		case '0' <= c && c <= '9':
			digits--
		case !strings.ContainsRune(".-_:TZ", c):
			return false
		}
	}
	return digits <= 0
}

// sortGenerations sorts rotated files from the oldest. If all have a number, it uses the
// numbers, because several rotations may have the same modification time.
func sortGenerations(path string, generations []fileInfo) {
	number := func(s fileInfo) (int, bool) {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(s.path), "."))
		return n, err == nil && n < 10_000 && filepath.Base(s.path) == fmt.Sprintf("%s.%d", filepath.Base(path), n)
	}
	numbered := !slices.ContainsFunc(generations, func(s fileInfo) bool { _, ok := number(s); return !ok })
	slices.SortFunc(generations, func(a, b fileInfo) int {
		if numbered {
			m, _ := number(a)
			n, _ := number(b)
			return cmp.Compare(n, m)
		}
		return cmp.Or(cmp.Compare(a.written, b.written), strings.Compare(a.path, b.path))
	})
}
