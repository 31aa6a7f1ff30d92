package intake

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
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
		list = append(list, doorway{"unix", source.Socket, source.Name, orNone(source.UID), orNone(source.GID)})
	}
	if shared && s.Socket != "" {
		list = append(list, doorway{"unix", s.Socket, "", -1, -1})
	}
	if tokens && s.TCP != "" {
		list = append(list, doorway{"tcp", s.TCP, "", -1, -1})
	}
	return list
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
	listener, err := net.Listen(d.network, d.address)
	if err != nil {
		return nil, fmt.Errorf("listening for problem reports: %w", err)
	}
	if err := d.admit(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// admit lets those connect whom the socket is for: one for all is for everybody, as who
// they are is seen when they do.
func (d doorway) admit() error {
	mode := fs.FileMode(0o666)
	if d.own != "" {
		mode = 0o600
		if d.gid >= 0 {
			mode = 0o660
		}
		if err := os.Lchown(d.address, d.uid, d.gid); err != nil {
			return fmt.Errorf("giving a socket to its source: %w", err)
		}
	}
	if err := os.Chmod(d.address, mode); err != nil {
		return fmt.Errorf("opening a socket to its sources: %w", err)
	}
	return nil
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
