package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const folderPrefix = "autohealer-testbed-"

// maxFolder keeps the path of etcd's socket within the kernel's limit of 108 bytes.
const maxFolder = 90

// folder has all files of a cluster.
type folder struct {
	path string
	lock *os.File // held while this process uses the folder
}

// newFolder creates a folder in parent, and removes the folders of killed processes, so
// that their data does not pile up.
func newFolder(parent string) (*folder, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("creating the cluster's folder: %w", err)
	}
	sweep(parent)
	path, err := os.MkdirTemp(parent, folderPrefix)
	if err != nil {
		return nil, fmt.Errorf("creating the cluster's folder: %w", err)
	}
	f := &folder{path: path}
	if err := f.prepare(); err != nil {
		f.remove()
		return nil, fmt.Errorf("preparing the cluster's folder: %w", err)
	}
	return f, nil
}

func (f *folder) prepare() error {
	if len(f.path) > maxFolder {
		return fmt.Errorf("%s is longer than %d characters, too long for a socket in it", f.path, maxFolder)
	}
	for _, sub := range []string{"logs", "conf"} {
		if err := os.Mkdir(f.at(sub), 0o700); err != nil {
			return err
		}
	}
	// The file is locked before it gets its final name. Otherwise a sweep of another
	// process could find it unlocked.
	lock, err := os.Create(f.at("lock.new"))
	if err != nil {
		return err
	}
	f.lock = lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	return os.Rename(f.at("lock.new"), f.at("lock"))
}

// at returns a path in the folder.
func (f *folder) at(elements ...string) string {
	return filepath.Join(append([]string{f.path}, elements...)...)
}

// log returns the file for the output of a part.
func (f *folder) log(name string) string { return f.at("logs", name+".log") }

// write writes a file into conf, readable by this user only, and returns its path.
func (f *folder) write(name string, content []byte) (string, error) {
	path := f.at("conf", name)
	return path, os.WriteFile(path, content, 0o600)
}

// remove deletes everything.
func (f *folder) remove() {
	f.unlock()
	_ = os.RemoveAll(f.path)
}

// keepLogs deletes everything except the logs and returns their folder. No sweep removes a
// folder without a lock file.
func (f *folder) keepLogs() string {
	entries, _ := os.ReadDir(f.path)
	for _, entry := range entries {
		if entry.Name() != "logs" {
			_ = os.RemoveAll(f.at(entry.Name()))
		}
	}
	f.unlock()
	return f.at("logs")
}

func (f *folder) unlock() {
	if f.lock != nil {
		_ = f.lock.Close()
	}
}

// sweep removes the folders in parent whose lock is free.
func sweep(parent string) {
	locks, _ := filepath.Glob(filepath.Join(parent, folderPrefix+"*", "lock"))
	for _, path := range locks {
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			// A folder with kept logs loses its lock file before the lock is released.
			if _, err := os.Stat(path); err == nil {
				_ = os.RemoveAll(filepath.Dir(path))
			}
		}
		_ = lock.Close()
	}
}
