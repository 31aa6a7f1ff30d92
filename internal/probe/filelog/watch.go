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

// pollInterval is how often the reader checks a file without inotify.
const pollInterval = 2 * time.Second

const (
	nameEvents = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_ONLYDIR
	fileEvents = unix.IN_MODIFY | unix.IN_ATTRIB
)

// remote lists file systems that other machines write to without inotify events.
var remote = []int64{
	unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
	unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC,
}

// watch waits until something happens to the file at a path: to its content, to its name,
// or to a link or directory on the way to it.
//
// It uses inotify directly. It watches inodes that may have lost their names
// (/proc/self/fd), and single names in busy directories. Libraries that watch paths
// support neither, and need a goroutine and a channel per file.
type watch struct {
	path    string
	log     *slog.Logger
	inotify *os.File           // nil if inotify is not available
	fd      int                // descriptor of inotify; File.Fd would disable deadlines
	names   map[int32][]string // names of steps, by the watch of their directory
	files   map[int32]struct{} // watches of files
	held    *os.File           // the open file of the reader
	stale   bool               // the path may lead elsewhere now
	slow    bool               // inotify does not report all changes
	logged  bool               // slow was logged
	folder  int32              // watch of the directory in which the path ends
	unread  unread             // files that follow the open file
	missed  bool               // the event queue has overflowed
	noticed bool               // an event arrived that wait has not returned for
	events  [16 << 10]byte
}

func newWatch(path string, log *slog.Logger) *watch {
	w := &watch{path: path, log: log, stale: true}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		w.poll("creating an inotify instance", err)
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

// poll switches to polling, and logs that once.
func (w *watch) poll(action string, err error) {
	w.slow = true
	if !w.logged {
		w.logged = true
		w.log.Warn("inotify does not report changes of the file: polling every few seconds", "action", action, "err", err)
	}
}

// follow watches all steps to the file, and the open file, which may have lost its name.
// It does nothing if nothing has changed.
func (w *watch) follow(held *os.File) {
	if !w.stale && held == w.held {
		return
	}
	w.held = held
	if w.inotify == nil {
		return
	}
	w.drain() // while the watches still identify their files
	w.stale, w.slow = false, false
	// The path may change between resolving and watching it.
	steps, end, _ := resolve(w.path) // the reader reports errors of the path
	for range 5 {
		w.arm(steps, end)
		now, nowEnd, _ := resolve(w.path)
		if slices.Equal(now, steps) {
			return
		}
		steps, end = now, nowEnd
	}
	w.stale = true
}

// arm watches all steps and files, and removes all other watches.
func (w *watch) arm(steps []step, end string) {
	old := w.names
	oldFiles := w.files
	w.names, w.files = map[int32][]string{}, map[int32]struct{}{}
	var folder int32
	for _, s := range steps {
		id, ok := w.add(s.folder, nameEvents)
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
	if id, ok := w.add(w.path, fileEvents); ok {
		w.files[id] = struct{}{}
	}
	if w.held != nil {
		if id, ok := w.add(fmt.Sprintf("/proc/self/fd/%d", w.held.Fd()), fileEvents); ok {
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

// drop removes a watch that is not needed any more. The kernel may have removed it
// already.
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
		w.poll("watching "+path, err)
		return 0, false
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err == nil && slices.Contains(remote, stat.Type) {
		w.poll("watching "+path, errors.New("other machines may write to this file system"))
	}
	return int32(id), true
}

// isBlind says that files may be created and deleted between two scans without an event.
func (w *watch) isBlind() bool { return w.inotify == nil || w.slow || w.missed }

// drain handles pending events without waiting. It says whether one of them was about the
// file or the way to it.
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
			break // no more events; wait returns errors
		}
		concerned = w.handle(w.events[:n]) || concerned
	}
	w.unread.settle()
	w.noticed = w.noticed || concerned
	return concerned
}

// wait returns when an event has arrived since the last look began, or after the limit.
// Zero means no limit.
func (w *watch) wait(ctx context.Context, limit time.Duration) error {
	if w.noticed {
		return ctx.Err()
	}
	if w.slow && (limit == 0 || limit > pollInterval) {
		limit = pollInterval
	}
	if w.inotify == nil {
		return sleep(ctx, limit)
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
		if w.handle(w.events[:n]) {
			return nil
		}
	}
}

// handle handles events. It says whether one of them was about the file or the way to it.
func (w *watch) handle(events []byte) bool {
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
			w.handleName(string(name), mask, cookie)
		}
	}
	return concerned
}

// handleName handles an event of a name in the directory of the file.
func (w *watch) handleName(name string, mask, cookie uint32) {
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
