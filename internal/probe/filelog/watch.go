package filelog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// slowLook is how often a file is looked at where the kernel does not tell of changes.
const slowLook = 2 * time.Second

const (
	ofNames = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_ONLYDIR
	ofFiles = unix.IN_MODIFY | unix.IN_ATTRIB
)

// remote are filesystems whose files others write to without this kernel's knowledge.
var remote = []int64{
	unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
	unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC,
}

// watch waits until something happens to the file at a path: to what it holds, to its
// name, or to a link or a folder on the way to it.
//
// It speaks to inotify itself. What is to be watched is an inode which has lost its
// name perhaps (/proc/self/fd), and single names in folders where a lot happens; a
// library that watches paths can do neither, and wants a goroutine and a channel for
// each file on top.
type watch struct {
	path    string
	log     *slog.Logger
	inotify *os.File           // nil if there is none to be had
	fd      int                // of inotify; File.Fd would undo its deadlines
	names   map[int32][]string // of steps, by the watch of their folder
	files   map[int32]struct{} // watches of files
	held    *os.File           // the file that is read
	stale   bool               // the way may lead elsewhere now
	slow    bool               // changes are not told of
	told    bool               // that it is slow
	folder  int32              // the watch of the folder in which the path ends
	unread  unread             // what comes after the file that is read
	missed  bool               // there were more events than the kernel keeps
	noticed bool               // something has happened that wait has not told of
	events  [16 << 10]byte
}

func newWatch(path string, log *slog.Logger) *watch {
	w := &watch{path: path, log: log, stale: true}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		w.lookSlowly("asking for inotify", err)
		w.stale = false
		return w
	}
	w.fd = fd
	w.inotify = os.NewFile(uintptr(fd), "inotify")
	w.follow(nil)
	return w
}

func (w *watch) close() error {
	if w.inotify == nil {
		return nil
	}
	return w.inotify.Close()
}

// lookSlowly is said once; what it is about does not get better by saying.
func (w *watch) lookSlowly(action string, err error) {
	w.slow = true
	if !w.told {
		w.told = true
		w.log.Warn("changes of the file are not told of, looking at it every few seconds", "action", action, "err", err)
	}
}

// follow watches the way to the file, and the one that is held besides, which may have
// lost its name. It does nothing if nothing has changed.
func (w *watch) follow(held *os.File) {
	if !w.stale && held == w.held {
		return
	}
	w.held = held
	if w.inotify == nil {
		return
	}
	w.drain() // while it is known which file an event is about
	w.stale, w.slow = false, false
	// Between a look at the way and the watching of it, it may have changed.
	steps, end, _ := trail(w.path) // what is wrong with the way, who reads the file says
	for range 5 {
		w.arm(steps, end)
		now, nowEnd, _ := trail(w.path)
		if slices.Equal(now, steps) {
			return
		}
		steps, end = now, nowEnd
	}
	w.stale = true
}

// arm puts watches on all steps and files, and removes all others.
func (w *watch) arm(steps []step, end string) {
	old := w.names
	oldFiles := w.files
	w.names, w.files = map[int32][]string{}, map[int32]struct{}{}
	var folder int32
	for _, s := range steps {
		id, ok := w.add(s.folder, ofNames)
		if !ok {
			continue
		}
		w.names[id] = append(w.names[id], s.name)
		if filepath.Join(s.folder, s.name) == end {
			folder = id
		}
	}
	if base := filepath.Base(end); folder != w.folder || base != w.unread.base {
		w.folder, w.unread = folder, unread{base: base, lost: w.unread.lost}
	}
	if id, ok := w.add(w.path, ofFiles); ok {
		w.files[id] = struct{}{}
	}
	if w.held != nil {
		if id, ok := w.add(fmt.Sprintf("/proc/self/fd/%d", w.held.Fd()), ofFiles); ok {
			w.files[id] = struct{}{}
		}
	}
	for id := range old {
		w.drop(id)
	}
	for id := range oldFiles {
		w.drop(id)
	}
}

// drop removes a watch that is not wanted any more. The kernel may have done so.
func (w *watch) drop(id int32) {
	_, name := w.names[id]
	_, file := w.files[id]
	if !name && !file {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(id))
	}
}

func (w *watch) add(path string, mask uint32) (int32, bool) {
	id, err := unix.InotifyAddWatch(w.fd, path, mask)
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return 0, false
	default:
		w.lookSlowly("watching "+path, err)
		return 0, false
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err == nil && slices.Contains(remote, stat.Type) {
		w.lookSlowly("watching "+path, errors.New("others write to this filesystem"))
	}
	return int32(id), true
}

// isBlind says that nothing tells of files which come and go between two looks.
func (w *watch) isBlind() bool { return w.inotify == nil || w.slow || w.missed }

// drain takes in what has happened so far, without waiting. It says whether any of it
// was about the file or the way to it.
func (w *watch) drain() bool {
	if w.inotify == nil {
		return false
	}
	concerned := false
	for {
		n, err := unix.Read(w.fd, w.events[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break // there is no more, or wait will tell what is wrong
		}
		concerned = w.concerned(w.events[:n]) || concerned
	}
	w.unread.settle()
	w.noticed = w.noticed || concerned
	return concerned
}

// wait returns when something has happened since the last look began, or the time is up;
// zero is for ever.
func (w *watch) wait(ctx context.Context, limit time.Duration) error {
	if w.noticed {
		return ctx.Err()
	}
	if w.slow && (limit == 0 || limit > slowLook) {
		limit = slowLook
	}
	if w.inotify == nil {
		return rest(ctx, limit)
	}
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if err := w.inotify.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("waiting for changes of %s: %w", w.path, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = w.inotify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		n, err := w.inotify.Read(w.events[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			w.stale = w.stale || w.slow
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("waiting for changes of %s: %w", w.path, err)
		}
		if w.concerned(w.events[:n]) {
			return nil
		}
	}
}

// concerned says whether one of the events is about the file or the way to it.
func (w *watch) concerned(events []byte) bool {
	concerned := false
	for len(events) >= unix.SizeofInotifyEvent {
		id := int32(binary.NativeEndian.Uint32(events[0:]))
		mask := binary.NativeEndian.Uint32(events[4:])
		cookie := binary.NativeEndian.Uint32(events[8:])
		size := int(binary.NativeEndian.Uint32(events[12:]))
		events = events[unix.SizeofInotifyEvent:]
		name, _, _ := bytes.Cut(events[:min(size, len(events))], []byte{0})
		events = events[min(size, len(events)):]

		names, ofName := w.names[id]
		_, ofFile := w.files[id]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			concerned, w.stale, w.missed = true, true, true
		case ofName && (slices.Contains(names, string(name)) || mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) != 0):
			concerned, w.stale = true, true
		case ofName && id == w.folder && w.unread.isOurs(string(name)):
			concerned = true
		case ofFile:
			concerned = true
			if mask&unix.IN_MODIFY != 0 {
				w.unread.written()
			}
		}
		if ofName && id == w.folder {
			w.tell(string(name), mask, cookie)
		}
	}
	return concerned
}

// tell takes in what has happened to a name in the folder of the file.
func (w *watch) tell(name string, mask, cookie uint32) {
	switch {
	case mask&unix.IN_CREATE != 0:
		w.unread.created(name)
	case mask&unix.IN_DELETE != 0:
		w.unread.deleted(name)
	case mask&unix.IN_MOVED_FROM != 0:
		w.unread.movedFrom(name, cookie)
	case mask&unix.IN_MOVED_TO != 0:
		w.unread.movedTo(name, cookie)
	}
}
