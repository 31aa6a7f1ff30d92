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

// The directories of journald. The first is lost at a reboot.
const (
	volatileDir   = "/run/log/journal"
	persistentDir = "/var/log/journal"
)

// journalFile is a journal file in a directory.
type journalFile struct {
	path     string
	volatile bool
	inode    inode
}

// inode identifies a file independently of its name. The system may reuse it after the
// file is deleted.
type inode struct{ device, number uint64 }

func inodeOf(info fs.FileInfo) inode {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return inode{device: uint64(s.Dev), number: s.Ino} //nolint:unconvert // the type of Dev depends on the platform
	}
	return inode{}
}

// hasNoName says whether an open file was deleted.
func hasNoName(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink == 0
}

// root is a directory or a file in which to look for the journal.
type root struct {
	path     string
	volatile bool
}

func rootsOf(path string) []root {
	if path == "" {
		return []root{{volatileDir, true}, {persistentDir, false}}
	}
	return []root{{path, false}}
}

// list returns the journal files of the root, and the directories that contain or may
// contain them: the root and its subdirectories named by a machine ID. If the root is a
// file, it returns that file. With an error it returns what it could list.
func (r root) list() (files []journalFile, folders []string, err error) {
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		return []journalFile{{path: r.path, volatile: r.volatile, inode: inodeOf(info)}}, []string{filepath.Dir(r.path)}, nil
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

// choose adds the journal files of a directory.
func (r root) choose(files []journalFile, folder string, names []fs.DirEntry) []journalFile {
	for _, name := range names {
		if !isJournal(name.Name()) || name.IsDir() {
			continue
		}
		info, err := name.Info()
		if err != nil { // deleted meanwhile
			continue
		}
		files = append(files, journalFile{path: filepath.Join(folder, name.Name()), volatile: r.volatile, inode: inodeOf(info)})
	}
	return files
}

// isMachine says whether a directory has the name of a machine ID. Directories of journal
// namespaces have a suffix and are ignored.
func isMachine(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == hex.EncodedLen(len(id{}))
}

// isJournal says whether a name is that of a journal file: in use, archived, or renamed by
// journald because it was not closed properly.
func isJournal(name string) bool {
	return strings.HasSuffix(name, ".journal") || strings.HasSuffix(name, ".journal~")
}

// isRenamed says whether journald has renamed the file, so that it does not grow any
// more.
func isRenamed(path string) bool {
	name := filepath.Base(path)
	return strings.Contains(name, "@") || strings.HasSuffix(name, "~")
}
