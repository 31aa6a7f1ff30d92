package filelog

import "path/filepath"

// unread knows the names of the files in a folder that come after the one that is read
// and of which nothing was read yet. A look at the folder fills it; the kernel's events
// keep it between two looks, so that a file which came and went meanwhile is counted.
type unread struct {
	base   string            // the name of the file at the path
	files  map[string]bool   // by name; whether the file was empty when it was last seen
	moving map[uint32]moving // renamed away, until the other half of the event comes
	// lost is how many files have disappeared since it was last taken. It may be too high
	// if a file that was read is copied and the copy is removed at once.
	lost int
}

// moving is a file that has lost its name.
type moving struct {
	unread, empty bool
	other         bool // its name was none of the log's
	old           bool // the events of a later reading of the queue do not name it either
}

// expect takes over what a look at the folder has found.
func (u *unread) expect(files []sighting) {
	clear(u.files)
	for _, s := range files {
		// An empty file that was rotated has nothing to lose. One at the path may get lines.
		if name := filepath.Base(s.path); name == u.base || s.size > 0 {
			u.put(name, s.size == 0)
		}
	}
}

func (u *unread) put(name string, empty bool) {
	if u.files == nil {
		u.files = map[string]bool{}
	}
	u.files[name] = empty
}

// created takes in that a file was made.
func (u *unread) created(name string) {
	if !u.isOurs(name) {
		return
	}
	if _, follows := u.files[u.base]; name != u.base && !follows {
		// It is a copy of the file that is read, which will be truncated: what follows in
		// that is unread. If it is not, the next look says so.
		name = u.base
	}
	u.put(name, false) // nothing is known of its size
}

// written takes in that a file has grown.
func (u *unread) written() {
	for name := range u.files {
		u.files[name] = false
	}
}

// deleted takes in that a name is gone.
func (u *unread) deleted(name string) {
	if empty, ok := u.files[name]; ok && !empty {
		u.lost++
	}
	delete(u.files, name)
}

// movedFrom takes in the first half of a renaming.
func (u *unread) movedFrom(name string, cookie uint32) {
	empty, ok := u.files[name]
	delete(u.files, name)
	if u.moving == nil {
		u.moving = map[uint32]moving{}
	}
	u.moving[cookie] = moving{unread: ok, empty: empty, other: !u.isOurs(name)}
}

// movedTo takes in the second half. A file of that name is gone by it.
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

// isOurs says whether a name is that of the log or of one of its generations.
func (u *unread) isOurs(name string) bool { return name == u.base || isGeneration(u.base, name) }

// left counts a file that has gone where it is not looked for.
func (u *unread) left(m moving) {
	if m.unread && !m.empty {
		u.lost++
	}
}

// settle counts what was renamed to another folder: nothing tells where it is now. The
// kernel may tell the two halves of a renaming one after the other.
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

// take returns how many files have disappeared, and forgets it.
func (u *unread) take() int {
	lost := u.lost
	u.lost = 0
	return lost
}
