package intake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// doorway is a place to listen.
type doorway struct {
	network, address string
	own              string // source, whose socket it is alone
	uid, gid         int    // to whom the socket belongs, -1 for the agent's own user and group
}

func (d doorway) String() string { return d.network + ":" + d.address }

// doorways returns where to listen.
func (s Setup) doorways() []doorway {
	var list []doorway
	shared, tokens := false, false
	for i := range s.Sources {
		source := &s.Sources[i]
		if source.isShared() {
			shared, tokens = true, tokens || source.TokenFile != ""
			continue
		}
		list = append(list, source.doorway())
	}
	if shared && s.Socket != "" {
		list = append(list, doorway{"unix", s.Socket, "", -1, -1})
	}
	if tokens && s.TCP != "" {
		list = append(list, doorway{"tcp", s.TCP, "", -1, -1})
	}
	return list
}

// doorway is the source's own.
func (s *Source) doorway() doorway {
	return doorway{"unix", s.Socket, s.Name, orNone(s.UID), orNone(s.GID)}
}

func orNone(id *int) int {
	if id == nil {
		return -1
	}
	return *id
}

// open listens there. A socket that somebody has left is replaced, one that somebody
// listens on is not.
func (d doorway) open() (net.Listener, error) {
	if d.network == "tcp" {
		listener, err := net.Listen(d.network, d.address)
		if err != nil {
			return nil, fmt.Errorf("listening for problem reports: %w", err)
		}
		return listener, nil
	}
	if err := os.MkdirAll(filepath.Dir(d.address), 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of a socket: %w", err)
	}
	if err := sweep(d.address); err != nil {
		return nil, err
	}
	listener, err := bind(d.address)
	if err != nil {
		return nil, fmt.Errorf("listening for problem reports: %w", err)
	}
	file, err := d.admit()
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &socket{Listener: listener, path: d.address, file: file}, nil
}

// bind makes a socket to which nobody else may connect yet: its file has the rights that
// the socket itself had before, whatever the umask.
func bind(path string) (net.Listener, error) {
	private := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	listener, err := private.Listen(context.Background(), "unix", path) // which does not wait
	if unlinks, ok := listener.(*net.UnixListener); ok {
		unlinks.SetUnlinkOnClose(false) // whatever has that path by then
	}
	return listener, err //nolint:wrapcheck // it names the path
}

// admit lets those connect whom the socket is for: one for all is for everybody, as who
// they are is seen when they do. A source that is root in its container may have put
// something else into the folder meanwhile, so that no link is followed.
func (d doorway) admit() (fs.FileInfo, error) {
	const action = "giving a socket to its sources: %w"
	fd, err := unix.Open(d.address, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf(action, &fs.PathError{Op: "open", Path: d.address, Err: err})
	}
	file := os.NewFile(uintptr(fd), d.address)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf(action, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf(action, fmt.Errorf("%s is no socket any more", d.address))
	}
	mode, err := d.give(fd)
	if err != nil {
		return nil, fmt.Errorf(action, err)
	}
	if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode); err != nil {
		return nil, fmt.Errorf(action, err)
	}
	return info, nil
}

// give gives a socket to its user and group, and returns the rights that it should have.
func (d doorway) give(fd int) (fs.FileMode, error) {
	const everybody = 0o666
	if d.own == "" {
		return everybody, nil
	}
	err := unix.Fchownat(fd, "", d.uid, d.gid, unix.AT_EMPTY_PATH)
	switch {
	case errors.Is(err, unix.EPERM) && (d.uid >= 0 || d.gid >= 0):
		// Root without its powers may give nothing away. Who connects is asked for user
		// and group all the same, as at the socket of all.
		return everybody, nil
	case err != nil:
		return 0, &fs.PathError{Op: "chown", Path: d.address, Err: err}
	case d.gid >= 0:
		return 0o660, nil
	}
	return 0o600, nil
}

// socket is a listener on a path that knows its file.
type socket struct {
	net.Listener

	path   string
	file   fs.FileInfo // no other is like it as long as it is listened on
	remove sync.Once
}

// missed says what is wrong if nobody finds the socket any more.
func (s *socket) missed() error {
	found, err := os.Lstat(s.path)
	switch {
	case err != nil:
		return fmt.Errorf("looking for the socket: %w", err)
	case !os.SameFile(found, s.file):
		return fmt.Errorf("something else is at %s by now", s.path)
	}
	return nil
}

// Close removes the socket, if it still is the one.
func (s *socket) Close() error {
	s.remove.Do(func() {
		if s.missed() == nil {
			_ = os.Remove(s.path) // whoever finds it finds that nobody listens
		}
	})
	return s.Listener.Close() //nolint:wrapcheck // the server looks whether it was closed already
}

// sweep removes a socket that nobody listens on.
func sweep(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("looking at what is in the place of a socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and no socket: take it away, or name another path", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close() // it was only to see who is there
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("somebody listens on %s already: end it, or name another path", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing a socket that nobody listens on: %w", err)
	}
	return nil
}
