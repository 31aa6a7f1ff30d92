package subprocess

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// look looks at the file of a program before it is started. It returns the interpreter
// that the file asks for, empty if it asks for none. Whoever calls it must expect that
// it never returns.
func look(path string) (interpreter string, fault *Result) {
	info, err := os.Stat(path)
	if err != nil {
		return "", refused(path, "", err)
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return "", wrong(failed(Folder, "running %s: it is a folder; write the path of a program in it", path))
	case !mode.IsRegular():
		return "", wrong(failed(NotAProgram, "running %s: it is no file (%s); write the path of a program", path, mode.Type()))
	case mode.Perm()&0o111 == 0:
		return "", wrong(failed(NotExecutable, "running %s: it is not executable (%s); chmod +x it, or in a ConfigMap volume set defaultMode to 0755", path, mode.Perm()))
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil // it may be executed and not read
	} else if err != nil {
		return "", refused(path, "", err)
	}
	defer file.Close()
	// As much as the kernel reads of the first line.
	var head [256]byte
	n, err := io.ReadFull(file, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", refused(path, "", err)
	}
	return shebang(head[:n]), nil
}

// shebang returns the interpreter that a script names.
func shebang(head []byte) string {
	line, isScript := bytes.CutPrefix(head, []byte("#!"))
	if !isScript {
		return ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

func wrong(r Result) *Result { return &r }

// refused says why a program cannot be started.
func refused(path, interpreter string, err error) *Result {
	// The path is in the words already.
	reason := err
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		reason = why.Err
	}
	var r Result
	switch {
	case errors.Is(err, fs.ErrNotExist) && interpreter != "":
		r = failed(Missing, "running %s: its interpreter %s is not there; add it to the image, or write the program for one that is", path, interpreter)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		r = failed(Missing, "running %s: there is no such file; %s", path, whereToLook(path))
	case errors.Is(err, fs.ErrPermission):
		r = failed(NotExecutable, "running %s: %w; chmod +x it, and mount its file system without noexec", path, reason)
	case errors.Is(err, syscall.ENOEXEC):
		r = failed(NotAProgram, "running %s: %w; begin a script with #! and the path of its interpreter, and build a program for this machine", path, reason)
	default:
		r = failed(NotStarted, "running %s: %w; it is tried again", path, reason)
	}
	return &r
}

// whereToLook is the way out if there is no file.
func whereToLook(path string) string {
	if strings.HasPrefix(path, "/") {
		return "mount it into the pod of the agent, or correct the path"
	}
	folder, err := os.Getwd()
	if err != nil {
		folder = "the working directory"
	}
	return fmt.Sprintf("the path begins at %s: mount it there, or write it from the root on", folder)
}
