package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another process keeps its state in the folder.
var ErrInUse = errors.New("in use by another agent")

// The files of the folder.
const (
	stateFile = "state.json"
	newFile   = "state.json.new"
	badFile   = "state.json.bad"
	lockFile  = "lock"
)

// folder is what is asked of a file system, step by step, so that a test can pull the
// plug between any two of them.
type folder interface {
	// Lock makes the folder ready to be written and keeps others out of it. It may be
	// called again.
	Lock() error
	Unlock() error
	Read(name string) ([]byte, error)
	Create(name string) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync has the names of the files reach the disk.
	Sync() error
	// Lasts says why what is written there is gone after a restart, nil if it is not.
	Lasts() error
}

type file interface {
	io.WriteCloser
	// Sync has what was written reach the disk.
	Sync() error
}

// replace writes the state so that there is a whole one at every moment, the old or
// the new, and that it is the new one when there is no error.
func replace(in folder, text []byte) error {
	if err := in.Lock(); err != nil {
		return err
	}
	to, err := in.Create(newFile)
	if err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	_, err = to.Write(text)
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	if err := in.Rename(newFile, stateFile); err != nil {
		return fmt.Errorf("replacing the state: %w", err)
	}
	if err := in.Sync(); err != nil {
		return fmt.Errorf("replacing the state: %w", err)
	}
	return nil
}

// directory is a folder of the real file system.
type directory struct {
	path string
	root string // of all files
	lock *os.File
}

func (d *directory) Lock() error {
	if d.lock != nil {
		return nil
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return fmt.Errorf("making the state folder %s: %w", d.path, err)
	}
	lock, err := os.OpenFile(d.in(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("locking the state folder %s: %w", d.path, err)
	}
	if err := d.claim(lock); err != nil {
		lock.Close()
		return err
	}
	d.lock = lock
	return nil
}

// claim takes the lock, which the kernel takes back when the process ends, however it
// does. What is in the file is only there to be told: a pid, and the host that it is of,
// which is the pod's name in a container that has pids of its own.
func (d *directory) claim(lock *os.File) error {
	err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, err := io.ReadAll(io.LimitReader(lock, 300))
		if err != nil || len(bytes.TrimSpace(holder)) == 0 {
			holder = []byte("of an unknown pid")
		}
		return fmt.Errorf("state folder %s: %w (%s): stop that one, or give this one a folder of its own with --state-dir", d.path, ErrInUse, bytes.TrimSpace(holder))
	}
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		host, _ := os.Hostname() // better none than no lock
		_, err = fmt.Fprintf(lock, "pid %d on %s\n", os.Getpid(), host)
	}
	if err != nil {
		return fmt.Errorf("locking the state folder %s: %w", d.path, err)
	}
	return nil
}

func (d *directory) Unlock() error {
	if d.lock == nil {
		return nil
	}
	lock := d.lock
	d.lock = nil
	return lock.Close()
}

// Read returns nothing, and no error, where there is no such file.
func (d *directory) Read(name string) ([]byte, error) {
	text, err := os.ReadFile(d.in(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	return text, err
}

func (d *directory) Create(name string) (file, error) {
	return os.OpenFile(d.in(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (d *directory) Rename(from, to string) error { return os.Rename(d.in(from), d.in(to)) }

func (d *directory) Remove(name string) error {
	if err := os.Remove(d.in(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *directory) Sync() error {
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Lasts finds out whether the folder is one of the container itself: on an overlay that
// is also the root. One of the host has another device, though it may be on an overlay
// of its own, as where nodes are containers.
func (d *directory) Lasts() error {
	var system unix.Statfs_t
	var here, root unix.Stat_t
	err := errors.Join(unix.Statfs(d.path, &system), unix.Stat(d.path, &here), unix.Stat(d.root, &root))
	if err == nil && system.Type == unix.OVERLAYFS_SUPER_MAGIC && here.Dev == root.Dev {
		return fmt.Errorf("the state folder %s is the container's own, and goes with it: mount one of the host there, or name one with --state-dir", d.path)
	}
	return nil // who cannot be asked is not accused
}

func (d *directory) in(name string) string { return filepath.Join(d.path, name) }
