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

	"golang.org/x/sys/unix"
)

// sighting is a file as it was seen.
type sighting struct {
	path          string
	device, inode uint64
	size          int64
	written       int64
	rotated       bool // it has a name that the file at the path is rotated to
}

func (s sighting) is(p place) bool { return s.device == p.Device && s.inode == p.Inode }

// errOther says that another file than the one that was seen has its name now.
var errOther = errors.New("another file has come")

// open opens the file that was seen, and no other.
func (s sighting) open() (*os.File, error) {
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

// lookAt sees the file at a path, if it is one with lines.
func lookAt(path string) (sighting, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return sighting{}, &fs.PathError{Op: "reading", Path: path, Err: err}
	}
	if what := otherThanFile(stat.Mode); what != "" {
		return sighting{}, fmt.Errorf("reading %s: it is %s", path, what)
	}
	return sighting{path: path, device: stat.Dev, inode: stat.Ino, size: stat.Size, written: stat.Mtim.Nano()}, nil
}

// otherThanFile says what a file is that has no lines to follow.
func otherThanFile(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return ""
	case unix.S_IFDIR:
		return "a folder; name a file in it (where a file is mounted that is not there, a folder appears: mount its folder instead)"
	case unix.S_IFIFO:
		return "a pipe; name a regular file, whoever else reads the pipe would miss what is read here"
	case unix.S_IFSOCK:
		return "a socket; name a regular file"
	default:
		return "a device; name a regular file (for /dev/kmsg there is the plugin kmsg)"
	}
}

// openRegular opens a regular file. It is looked at first: to open some devices is an
// act.
func openRegular(path string) (*os.File, error) {
	if _, err := lookAt(path); err != nil {
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

// mostLooks is how often a folder is looked at while it changes: rotations are short.
const mostLooks = 20

// find opens the file that a place is in: at the path, else that with its inode in the
// same folder, else a copy among those that the file was rotated to. None is no error.
func find(path string, p place) (*os.File, error) {
	_, path, err := trail(path)
	if err != nil {
		return nil, err
	}
	return findAmong(neighbours, path, p)
}

// findAmong does so among what is seen, as long as that changes.
func findAmong(see func(path string) ([]sighting, error), path string, p place) (*os.File, error) {
	var before []sighting
	for look := range mostLooks {
		candidates, err := see(path)
		if err != nil {
			return nil, err
		}
		file, err := search(candidates, path, p)
		if file != nil || err != nil {
			return file, err
		}
		// The file may have been copied and truncated after the copy was looked for.
		if look > 0 && slices.EqualFunc(before, candidates, sameName) {
			break
		}
		before = candidates
	}
	return nil, nil
}

// search opens the likeliest of some files that the place is in.
func search(candidates []sighting, path string, p place) (*os.File, error) {
	for _, likely := range []likelihood{sameFile, copied} {
		for _, c := range candidates {
			if rank(c, path, p) != likely || c.size < p.Offset {
				continue
			}
			file, err := p.openIn(c)
			if err != nil && likely == sameFile && !errors.Is(err, errOther) && !errors.Is(err, fs.ErrNotExist) {
				return nil, err // it must not be taken for another because it cannot be read now
			}
			if file != nil {
				return file, nil
			}
		}
	}
	return nil, nil
}

// sameName says whether two sightings are of one file under one name.
func sameName(a, b sighting) bool {
	return a.path == b.path && a.device == b.device && a.inode == b.inode
}

// openIn opens a file if the place is in it.
func (p place) openIn(s sighting) (*os.File, error) {
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

// likelihood of a file to be the one that a place is in.
type likelihood int

const (
	sameFile likelihood = iota
	copied
	strange
)

func rank(s sighting, path string, p place) likelihood {
	switch {
	case s.is(p):
		return sameFile
	case (s.path == path || s.rotated) && p.Offset > 0: // before that, all are alike
		return copied
	default:
		return strange
	}
}

// successors sees the files that were begun after the one that a place is in, from the
// oldest on: those that have lines, and the one at the path. There is at least one if
// there is no error. It also says whether the file of the place has a name there. Of some
// names the kernel has told that their files are later: two rotations may fall into one
// tick of the disk's clock.
func successors(path string, p place, later map[string]bool) (next []sighting, there bool, err error) {
	_, path, err = trail(path)
	if err != nil {
		return nil, false, err
	}
	all, err := settled(neighbours, path)
	if err != nil {
		return nil, false, err
	}
	var current sighting
	var older []sighting
	for _, s := range all {
		there = there || s.is(p)
		switch {
		case s.path == path:
			current = s
		case s.rotated:
			older = append(older, s)
		}
	}
	older = slices.DeleteFunc(older, func(s sighting) bool { return s.inode == current.inode && s.device == current.device })
	inOrder(path, older)
	old := func(s sighting) bool {
		_, isLater := later[filepath.Base(s.path)]
		return !isLater && s.written <= p.Written || wasRead(s, p)
	}
	if i := slices.IndexFunc(older, func(s sighting) bool { return s.is(p) && has(s, p) }); i >= 0 {
		read := older[:i+1]
		older = older[i+1:]
		old = func(s sighting) bool {
			return slices.ContainsFunc(read, func(r sighting) bool { return partOf(s, r) })
		}
	}
	for _, s := range older {
		if s.size > 0 && !old(s) && !p.isCopyOfEarlier(s) && !partOf(s, current) {
			next = append(next, s)
		}
	}
	switch {
	case current.path != "":
		next = append(next, current)
	case len(next) == 0:
		// Whatever has come since is told of; and if it is no file, that is said.
		if _, err = lookAt(path); err == nil {
			err = fs.ErrNotExist
		}
	}
	return next, there, err
}

// settled is what is seen when nobody renames: a file that is renamed while its folder
// is read may not be seen at all.
func settled(see func(path string) ([]sighting, error), path string) ([]sighting, error) {
	before, err := see(path)
	for range mostLooks {
		if err != nil {
			return nil, err
		}
		var now []sighting
		now, err = see(path)
		if slices.EqualFunc(before, now, sameName) {
			return now, err
		}
		before = now
	}
	return before, err
}

// has says whether the file that was seen is the one that a place is in, and not
// another that got its inode.
func has(s sighting, p place) bool {
	file, err := p.openIn(s)
	if file != nil {
		file.Close()
	}
	return err == nil && file != nil
}

// partOf says whether a file is a copy of what another still holds: it is being made, and
// the other will be truncated when it is finished.
func partOf(s, other sighting) bool {
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

// wasRead says whether the file that was seen is a copy of what was read up to the place,
// or of less. A file of zeros begins like every other of them, so that is not enough.
func wasRead(s sighting, p place) bool {
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

// isCopyOfEarlier says whether the file that was seen is a copy of one that was read
// before the file of the place.
func (p place) isCopyOfEarlier(s sighting) bool {
	same := func(e fingerprint) bool {
		earlier := place{Offset: e.Size, Head: e.Head, Tail: e.Tail}
		return e.Size > 0 && e.Size == s.size && has(s, earlier)
	}
	return slices.ContainsFunc(p.Earlier, same)
}

// neighbours sees all regular files in the folder of a path without links. A folder
// that is not there has none.
func neighbours(path string) ([]sighting, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []sighting
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		if s, err := lookAt(filepath.Join(filepath.Dir(path), entry.Name())); err == nil {
			s.rotated = isGeneration(filepath.Base(path), entry.Name())
			all = append(all, s)
		}
	}
	return all, nil
}

// isGeneration says whether a name is one that a file is rotated to: messages.1,
// messages-20260131, 0.log.20260131-093000, app-2026-01-31.log, messages.old. Packed
// ones have no lines to read.
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
	return ok && dated(rest, len("20060102")) // app-2.log may be a log of its own
}

// dated says whether a part of a name is a number or a date, with so many digits.
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

// inOrder sorts generations from the oldest on: by their numbers, if all have one, as
// several rotations may fall into one tick of the disk's clock.
func inOrder(path string, generations []sighting) {
	number := func(s sighting) (int, bool) {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(s.path), "."))
		return n, err == nil && n < 10_000 && filepath.Base(s.path) == fmt.Sprintf("%s.%d", filepath.Base(path), n)
	}
	numbered := !slices.ContainsFunc(generations, func(s sighting) bool { _, ok := number(s); return !ok })
	slices.SortFunc(generations, func(a, b sighting) int {
		if numbered {
			m, _ := number(a)
			n, _ := number(b)
			return cmp.Compare(n, m)
		}
		return cmp.Or(cmp.Compare(a.written, b.written), strings.Compare(a.path, b.path))
	})
}
