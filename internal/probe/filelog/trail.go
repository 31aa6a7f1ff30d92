package filelog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mostLinks is how many links a path may lead through, as for the kernel.
const mostLinks = 40

// step is a name in a folder that the way to a file leads through. Whatever happens to
// it may change where the path leads.
type step struct {
	folder, name string
}

// trail walks to a file as the kernel does. It returns all steps, up to the first that
// leads nowhere, and where the path ends, which need not be there.
func trail(path string) (steps []step, end string, err error) {
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
		if links++; links > mostLinks {
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
