package journal

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// The folders of journald: what is lost at the next boot, and what stays.
const (
	volatileFolder   = "/run/log/journal"
	persistentFolder = "/var/log/journal"
)

// found is a file of the journal in a folder.
type found struct {
	path     string
	volatile bool
	inode    inode
}

// inode is by which the system knows a file, whatever its name. It may be given again
// when the file is gone.
type inode struct{ device, number uint64 }

func inodeOf(info fs.FileInfo) inode {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return inode{device: uint64(s.Dev), number: s.Ino} //nolint:unconvert // the type of Dev depends on the platform
	}
	return inode{}
}

// hasNoName says whether a file has been deleted, though somebody holds it open.
func hasNoName(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink == 0
}

// root is where files of the journal are looked for.
type root struct {
	path     string
	volatile bool
}

func rootsOf(path string) []root {
	if path == "" {
		return []root{{volatileFolder, true}, {persistentFolder, false}}
	}
	return []root{{path, false}}
}

// list returns the files below the root and the folders in which they are or may come:
// itself, and those that are named by the id of a machine. A root that is a file is all
// there is. What can be listed is returned beside an error, too.
func (r root) list() (files []found, folders []string, err error) {
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		return []found{{path: r.path, volatile: r.volatile, inode: inodeOf(info)}}, []string{filepath.Dir(r.path)}, nil
	}
	names, err := os.ReadDir(r.path)
	if err != nil {
		return nil, nil, err
	}
	folders = []string{r.path}
	files = r.choose(files, r.path, names)
	for _, name := range names {
		if !name.IsDir() || !isMachine(name.Name()) {
			continue
		}
		below := filepath.Join(r.path, name.Name())
		names, failure := os.ReadDir(below)
		if failure != nil {
			if !errors.Is(failure, fs.ErrNotExist) {
				err = failure
			}
			continue
		}
		folders = append(folders, below)
		files = r.choose(files, below, names)
	}
	return files, folders, err
}

// choose adds the files of a folder that are of the journal.
func (r root) choose(files []found, folder string, names []fs.DirEntry) []found {
	for _, name := range names {
		if !isJournal(name.Name()) || name.IsDir() {
			continue
		}
		info, err := name.Info()
		if err != nil { // it has gone meanwhile
			continue
		}
		files = append(files, found{path: filepath.Join(folder, name.Name()), volatile: r.volatile, inode: inodeOf(info)})
	}
	return files
}

// isMachine says whether a folder has the name of a machine. Those of namespaces have a
// suffix, and are not what is asked for.
func isMachine(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == hex.EncodedLen(len(id{}))
}

// isJournal says whether a file is one of the journal: in use, archived, or put aside
// by journald because it was not closed well.
func isJournal(name string) bool {
	return strings.HasSuffix(name, ".journal") || strings.HasSuffix(name, ".journal~")
}

// isPutAside says by its name that nothing is written to a file any more.
func isPutAside(path string) bool {
	name := filepath.Base(path)
	return strings.Contains(name, "@") || strings.HasSuffix(name, "~")
}
