package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bell tells when something happens in folders. Journald maps its files, and to write
// to a mapping makes no noise; but it cuts each file to the length that it has anyway
// when it has written, so that those who listen hear of it.
type bell struct {
	inotify *os.File // nil if the system gives none: then only the clock wakes anybody
	events  [4 << 10]byte
}

const heard = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR

func newBell() (*bell, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &bell{}, os.NewSyscallError("inotify_init1", err)
	}
	return &bell{inotify: os.NewFile(uintptr(fd), "inotify")}, nil
}

func (b *bell) close() error {
	if b.inotify == nil {
		return nil
	}
	return b.inotify.Close()
}

// listen makes the bell ring for a folder. To ask twice changes nothing.
func (b *bell) listen(folder string) error {
	if b.inotify == nil {
		return nil
	}
	connection, err := b.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = connection.Control(func(fd uintptr) {
		_, failed = unix.InotifyAddWatch(int(fd), folder, heard)
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("inotify_add_watch", failed)
}

// wait returns when the bell rings, when the time is up or when the context ends. It
// tells whether files may have come, gone or changed their names: if only the clock
// knows, they may.
func (b *bell) wait(ctx context.Context, atMost time.Duration) (moved bool) {
	n, err := b.read(ctx, atMost)
	switch {
	case err == nil:
		return namesChange(b.events[:n])
	case !errors.Is(err, os.ErrDeadlineExceeded): // the bell is of no use
		timer := time.NewTimer(atMost)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return true
}

func (b *bell) read(ctx context.Context, atMost time.Duration) (int, error) {
	if b.inotify == nil {
		return 0, os.ErrClosed
	}
	if err := b.inotify.SetReadDeadline(time.Now().Add(atMost)); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = b.inotify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	return b.inotify.Read(b.events[:])
}

// namesChange says whether one of the events is of more than a file's content. An
// overrun of the events themselves is, too.
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
