package filelog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks limits the number of links in a path, as in the kernel.
const maxLinks = 40

// step is a name in a directory on the way to a file. A change of it may change where the
// path leads.
type step struct {
	folder, name string
}

// resolve follows a path like the kernel does. It returns all steps, up to the first name
// that does not exist, and the resolved path, which need not exist.
func resolve(path string) (steps []step, end string, err error) {
	names := strings.Split(path, "/")
	here := "/"
	for links := 0; len(names) > 0; {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			here = filepath.Dir(here)
			continue
		}
		steps = append(steps, step{here, name})
		next := filepath.Join(here, name)
		info, err := os.Lstat(next)
		if err != nil {
			end = filepath.Join(append([]string{next}, names...)...)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
				err = nil
			}
			return steps, end, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			here = next
			continue
		}
		if links++; links > maxLinks {
			return steps, next, &fs.PathError{Op: "following", Path: path, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return steps, next, err
		}
		if filepath.IsAbs(target) {
			here = "/"
		}
		names = append(strings.Split(target, "/"), names...)
	}
	return steps, here, nil
}
