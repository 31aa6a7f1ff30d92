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

// listenAddr is an address to listen on.
type listenAddr struct {
	network, address string
	owner            string // the source that has this socket for itself, or empty
	uid, gid         int    // owner of the socket file, -1 for the agent's own user and group
}

func (addr listenAddr) String() string { return addr.network + ":" + addr.address }

// listenAddrs returns the addresses to listen on.
func (s Setup) listenAddrs() []listenAddr {
	var list []listenAddr
	shared, tokens := false, false
	for i := range s.Sources {
		source := &s.Sources[i]
		if source.isShared() {
			shared, tokens = true, tokens || source.TokenFile != ""
			continue
		}
		list = append(list, source.listenAddr())
	}
	if shared && s.Socket != "" {
		list = append(list, listenAddr{"unix", s.Socket, "", -1, -1})
	}
	if tokens && s.TCP != "" {
		list = append(list, listenAddr{"tcp", s.TCP, "", -1, -1})
	}
	return list
}

// listenAddr returns the address of the source's own socket.
func (s *Source) listenAddr() listenAddr {
	return listenAddr{"unix", s.Socket, s.Name, idOrUnset(s.UID), idOrUnset(s.GID)}
}

func idOrUnset(id *int) int {
	if id == nil {
		return -1
	}
	return *id
}

// open listens on the address. It replaces a socket without a listener, and never one with a
// listener.
func (addr listenAddr) open() (net.Listener, error) {
	if addr.network == "tcp" {
		listener, err := net.Listen(addr.network, addr.address)
		if err != nil {
			return nil, fmt.Errorf("listening for problem reports: %w", err)
		}
		return listener, nil
	}
	if err := os.MkdirAll(filepath.Dir(addr.address), 0o755); err != nil {
		return nil, fmt.Errorf("creating the directory of a socket: %w", err)
	}
	if err := removeStale(addr.address); err != nil {
		return nil, err
	}
	listener, err := bind(addr.address)
	if err != nil {
		return nil, fmt.Errorf("listening for problem reports: %w", err)
	}
	file, err := addr.setAccess()
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &socket{Listener: listener, path: addr.address, file: file}, nil
}

// bind creates a socket that no other user may connect to yet. It sets the mode before the
// file exists, so the umask has no effect.
func bind(path string) (net.Listener, error) {
	private := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	listener, err := private.Listen(context.Background(), "unix", path) // does not block
	if unlinks, ok := listener.(*net.UnixListener); ok {
		unlinks.SetUnlinkOnClose(false) // another file may have this path by then
	}
	return listener, err //nolint:wrapcheck // it names the path
}

// setAccess lets the sources of the socket connect. A shared socket is open to all users,
// because the intake identifies them by their connection. A source that is root in its
// container may have replaced the file meanwhile, so setAccess follows no link.
func (addr listenAddr) setAccess() (fs.FileInfo, error) {
	const action = "setting the permissions of a socket: %w"
	fd, err := unix.Open(addr.address, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf(action, &fs.PathError{Op: "open", Path: addr.address, Err: err})
	}
	file := os.NewFile(uintptr(fd), addr.address)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf(action, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf(action, fmt.Errorf("%s is no longer a socket", addr.address))
	}
	mode, err := addr.setOwner(fd)
	if err != nil {
		return nil, fmt.Errorf(action, err)
	}
	if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode); err != nil {
		return nil, fmt.Errorf(action, err)
	}
	return info, nil
}

// setOwner sets the user and group of a socket, and returns the mode that it should have.
func (addr listenAddr) setOwner(fd int) (fs.FileMode, error) {
	const allUsers = 0o666
	if addr.owner == "" {
		return allUsers, nil
	}
	err := unix.Fchownat(fd, "", addr.uid, addr.gid, unix.AT_EMPTY_PATH)
	switch {
	case errors.Is(err, unix.EPERM) && (addr.uid >= 0 || addr.gid >= 0):
		// Root without capabilities cannot change the owner. The intake checks the user and
		// group of each connection anyway, as on the shared socket.
		return allUsers, nil
	case err != nil:
		return 0, &fs.PathError{Op: "chown", Path: addr.address, Err: err}
	case addr.gid >= 0:
		return 0o660, nil
	}
	return 0o600, nil
}

// socket is a listener on a Unix socket that remembers its file.
type socket struct {
	net.Listener

	path   string
	file   fs.FileInfo // unique while the socket is open
	remove sync.Once
}

// checkFile returns an error if clients can no longer find the socket.
func (s *socket) checkFile() error {
	found, err := os.Lstat(s.path)
	switch {
	case err != nil:
		return fmt.Errorf("checking the socket: %w", err)
	case !os.SameFile(found, s.file):
		return fmt.Errorf("another file has replaced %s", s.path)
	}
	return nil
}

// Close removes the socket file, unless another file has replaced it.
func (s *socket) Close() error {
	s.remove.Do(func() {
		if s.checkFile() == nil {
			_ = os.Remove(s.path) // a leftover file refuses connections
		}
	})
	return s.Listener.Close() //nolint:wrapcheck // net/http compares it with net.ErrClosed
}

// removeStale removes a socket without a listener.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("checking the path of a socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: remove it, or configure another path", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close() // only a test whether there is a listener
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("another process listens on %s: stop it, or configure another path", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing a socket without a listener: %w", err)
	}
	return nil
}
