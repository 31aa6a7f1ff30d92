package filelog

import "path/filepath"

// unread tracks the names of files that follow the open file and were not read yet. A scan
// of the directory sets it, and inotify events update it between two scans. So files that
// are created and deleted between two scans are counted.
type unread struct {
	base   string            // name of the file at the path
	files  map[string]bool   // by name; true if the file was empty when last seen
	moving map[uint32]moving // renamed files, until the second event arrives
	// lost is the number of files that were deleted since take was called. It may be too high
	// if a file that was read is copied and the copy is deleted at once.
	lost int
}

// moving is a file between the two events of a rename.
type moving struct {
	unread, empty bool
	other         bool // its old name does not belong to the log
	old           bool // the second event was not in the next read of the queue either
}

// expect replaces the names by the result of a scan.
func (u *unread) expect(files []fileInfo) {
	clear(u.files)
	for _, s := range files {
		u.put(filepath.Base(s.path), s.empty)
	}
}

func (u *unread) put(name string, empty bool) {
	if u.files == nil {
		u.files = map[string]bool{}
	}
	u.files[name] = empty
}

// created handles the creation of a file.
func (u *unread) created(name string) {
	if !u.isOurs(name) {
		return
	}
	if _, follows := u.files[u.base]; name != u.base && !follows {
		// The new file is a copy of the open file, which will be truncated. So the future
		// content of the file at the path is unread. If this is wrong, the next scan corrects
		// it.
		name = u.base
	}
	u.put(name, false) // its size is unknown
}

// written handles the growth of a file.
func (u *unread) written() {
	for name := range u.files {
		u.files[name] = false
	}
}

// deleted handles the deletion of a name.
func (u *unread) deleted(name string) {
	if empty, ok := u.files[name]; ok && !empty {
		u.lost++
	}
	delete(u.files, name)
}

// movedFrom handles the first event of a rename.
func (u *unread) movedFrom(name string, cookie uint32) {
	empty, ok := u.files[name]
	delete(u.files, name)
	if u.moving == nil {
		u.moving = map[uint32]moving{}
	}
	u.moving[cookie] = moving{unread: ok, empty: empty, other: !u.isOurs(name)}
}

// movedTo handles the second event of a rename. The rename has replaced any file of that
// name.
func (u *unread) movedTo(name string, cookie uint32) {
	u.deleted(name)
	m, known := u.moving[cookie]
	delete(u.moving, cookie)
	switch {
	case !u.isOurs(name):
		u.left(m)
	case m.unread:
		u.put(name, m.empty)
	case name == u.base, m.other, !known:
		u.created(name)
	}
}

// isOurs says whether a name is that of the log or of a rotated file.
func (u *unread) isOurs(name string) bool { return name == u.base || isGeneration(u.base, name) }

// left counts a file that was moved to a name that does not belong to the log.
func (u *unread) left(m moving) {
	if m.unread && !m.empty {
		u.lost++
	}
}

// settle counts files that were moved to another directory: no second event arrives. The
// kernel may deliver the two events of a rename in two reads.
func (u *unread) settle() {
	for cookie, m := range u.moving {
		if !m.old {
			m.old = true
			u.moving[cookie] = m
			continue
		}
		u.left(m)
		delete(u.moving, cookie)
	}
}

// take returns the number of deleted files and resets it.
func (u *unread) take() int {
	lost := u.lost
	u.lost = 0
	return lost
}
