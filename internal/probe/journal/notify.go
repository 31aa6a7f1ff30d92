package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// notifier waits for changes in directories. Journald writes through a memory mapping,
// which causes no inotify events. But after each write it truncates the file to its
// current length, and that does.
type notifier struct {
	inotify  *os.File // nil if inotify is not available: then wait only uses the interval
	interval time.Duration
	events   [4 << 10]byte
}

// pollInterval is how often the reader looks without an event. Files may appear in
// unwatched directories, and some systems have no inotify. Journald signals its writes up
// to half a second late, so polling more often would cost more than it gains.
const pollInterval = 2 * time.Second

const watchMask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &notifier{interval: pollInterval}, os.NewSyscallError("inotify_init1", err)
	}
	return &notifier{inotify: os.NewFile(uintptr(fd), "inotify"), interval: pollInterval}, nil
}

func (b *notifier) close() error {
	if b.inotify == nil {
		return nil
	}
	return b.inotify.Close()
}

// add watches a directory. Adding it again has no effect.
func (b *notifier) add(folder string) error {
	if b.inotify == nil {
		return nil
	}
	connection, err := b.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = connection.Control(func(fd uintptr) {
		_, failed = unix.InotifyAddWatch(int(fd), folder, watchMask)
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("inotify_add_watch", failed)
}

// wait returns after an event, after the interval, or when the context ends. It returns
// true if files may have been created, deleted or renamed. That includes the end of the interval.
func (b *notifier) wait(ctx context.Context) (moved bool) {
	n, err := b.read(ctx)
	switch {
	case err == nil:
		return namesChange(b.events[:n])
	case !errors.Is(err, os.ErrDeadlineExceeded): // inotify does not work
		timer := time.NewTimer(b.interval)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return true
}

func (b *notifier) read(ctx context.Context) (int, error) {
	if b.inotify == nil {
		return 0, os.ErrClosed
	}
	if err := b.inotify.SetReadDeadline(time.Now().Add(b.interval)); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = b.inotify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	return b.inotify.Read(b.events[:])
}

// namesChange says whether an event is about more than the content of a file. An overflow
// of the event queue counts as well.
func namesChange(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		if binary.NativeEndian.Uint32(events[4:])&^unix.IN_MODIFY != 0 {
			return true
		}
		length := unix.SizeofInotifyEvent + uint64(binary.NativeEndian.Uint32(events[12:]))
		events = events[min(length, uint64(len(events))):]
	}
	return false
}
