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

// ErrInUse says that another process uses the state directory.
var ErrInUse = errors.New("in use by another agent")

// Names of the files in the state directory.
const (
	stateFile = "state.json"
	newFile   = "state.json.new"
	badFile   = "state.json.bad"
	lockFile  = "lock"
)

// storage is the directory of the state file. Its methods are single steps, so that a test
// can crash between any two of them.
type storage interface {
	// Lock makes the directory writable and locks out other processes. It may be called
	// again.
	Lock() error
	Unlock() error
	Read(name string) ([]byte, error)
	Create(name string) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync flushes the file names to the disk.
	Sync() error
	// CheckPersistent returns an error if files in the directory do not survive a restart.
	CheckPersistent() error
}

type file interface {
	io.WriteCloser
	// Sync flushes the written data to the disk.
	Sync() error
}

// replace writes the state. At every moment the disk holds either the old or the new state
// in full. If replace returns no error, it holds the new one.
func replace(in storage, text []byte) error {
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

// directory is a storage in the real file system.
type directory struct {
	path string
	root string // root directory of the process
	lock *os.File
}

func (d *directory) Lock() error {
	if d.lock != nil {
		return nil
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return fmt.Errorf("creating the state directory %s: %w", d.path, err)
	}
	lock, err := os.OpenFile(d.in(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("locking the state directory %s: %w", d.path, err)
	}
	if err := d.acquire(lock); err != nil {
		lock.Close()
		return err
	}
	d.lock = lock
	return nil
}

// acquire takes the lock. The kernel releases it when the process ends for any reason. The
// content of the file is only for messages: the PID and the host name, which in a
// container is the name of the pod.
func (d *directory) acquire(lock *os.File) error {
	err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, err := io.ReadAll(io.LimitReader(lock, 300))
		if err != nil || len(bytes.TrimSpace(holder)) == 0 {
			holder = []byte("unknown pid")
		}
		return fmt.Errorf("state directory %s: %w (%s): stop the other agent, or give this agent its own directory with --state-dir", d.path, ErrInUse, bytes.TrimSpace(holder))
	}
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		host, _ := os.Hostname() // the lock matters more than the name
		_, err = fmt.Fprintf(lock, "pid %d on %s\n", os.Getpid(), host)
	}
	if err != nil {
		return fmt.Errorf("locking the state directory %s: %w", d.path, err)
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

// Read returns nil and no error if the file does not exist.
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

// CheckPersistent detects a directory inside the container's own file system: an overlay
// with the same device as the root directory. A directory of the host has another device,
// even if the host's own file system is an overlay because nodes are containers.
func (d *directory) CheckPersistent() error {
	var system unix.Statfs_t
	var here, root unix.Stat_t
	err := errors.Join(unix.Statfs(d.path, &system), unix.Stat(d.path, &here), unix.Stat(d.root, &root))
	if err == nil && system.Type == unix.OVERLAYFS_SUPER_MAGIC && here.Dev == root.Dev {
		return fmt.Errorf("the state directory %s is inside the container and is deleted with it: mount a host directory there, or set --state-dir", d.path)
	}
	return nil // cannot tell, so assume that it is persistent
}

func (d *directory) in(name string) string { return filepath.Join(d.path, name) }
