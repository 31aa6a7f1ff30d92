package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const folderPrefix = "autohealer-testbed-"

// maxFolder keeps etcd's socket within the 108 bytes that the kernel allows
// for the path of one.
const maxFolder = 90

// folder is where everything of one cluster stands.
type folder struct {
	path string
	lock *os.File // held for as long as this process uses the folder
}

// newFolder makes a folder in parent, and clears away those whose owners were
// killed before they could: their processes are gone, their data would pile up.
func newFolder(parent string) (*folder, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	sweep(parent)
	path, err := os.MkdirTemp(parent, folderPrefix)
	if err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
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
	// The lock is taken before the file gets the name by which a sweep of
	// another process looks for it, or that one would find it free.
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

// log returns the file that gets the output of a part.
func (f *folder) log(name string) string { return f.at("logs", name+".log") }

// write puts a file into conf, for the eyes of this user only, and returns its path.
func (f *folder) write(name string, content []byte) (string, error) {
	path := f.at("conf", name)
	return path, os.WriteFile(path, content, 0o600)
}

// remove deletes everything.
func (f *folder) remove() {
	f.unlock()
	_ = os.RemoveAll(f.path)
}

// keepLogs deletes everything but the logs and returns where they are. Without
// its lock file the folder is nobody's to sweep.
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

// sweep removes the folders in parent whose lock nobody holds any more.
func sweep(parent string) {
	locks, _ := filepath.Glob(filepath.Join(parent, folderPrefix+"*", "lock"))
	for _, path := range locks {
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			// Logs that are kept lose their lock file before the lock is let go.
			if _, err := os.Stat(path); err == nil {
				_ = os.RemoveAll(filepath.Dir(path))
			}
		}
		_ = lock.Close()
	}
}
