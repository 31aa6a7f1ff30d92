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

// checkFile checks the file of a program before it is started. It returns the interpreter
// that the file names, if any. It may block forever on an unresponsive file system.
func checkFile(path string) (interpreter string, fault *Result) {
	info, err := os.Stat(path)
	if err != nil {
		return "", startError(path, "", err)
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return "", ptr(failed(Folder, "running %s: it is a directory; configure the path of a program", path))
	case !mode.IsRegular():
		return "", ptr(failed(NotAProgram, "running %s: it is not a regular file (%s); configure the path of a program", path, mode.Type()))
	case mode.Perm()&0o111 == 0:
		return "", ptr(failed(NotExecutable, "running %s: it is not executable (%s); chmod +x it, or in a ConfigMap volume set defaultMode to 0755", path, mode.Perm()))
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil // executable but not readable
	} else if err != nil {
		return "", startError(path, "", err)
	}
	defer file.Close()
	// The kernel reads this many bytes of the first line.
	var head [256]byte
	n, err := io.ReadFull(file, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", startError(path, "", err)
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

func ptr(r Result) *Result { return &r }

// startError returns why a program cannot be started.
func startError(path, interpreter string, err error) *Result {
	// The messages already contain the path.
	reason := err
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		reason = why.Err
	}
	var r Result
	switch {
	case errors.Is(err, fs.ErrNotExist) && interpreter != "":
		r = failed(Missing, "running %s: its interpreter %s does not exist; add it to the image, or use another interpreter", path, interpreter)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		r = failed(Missing, "running %s: there is no such file; %s", path, whereToLook(path))
	case errors.Is(err, fs.ErrPermission):
		r = failed(NotExecutable, "running %s: %w; chmod +x it, and mount its file system without noexec", path, reason)
	case errors.Is(err, syscall.ENOEXEC):
		r = failed(NotAProgram, "running %s: %w; start a script with #! and the path of its interpreter; build a program for the node's architecture", path, reason)
	default:
		r = failed(NotStarted, "running %s: %w; the agent retries", path, reason)
	}
	return &r
}

// whereToLook tells the user how to fix a missing file.
func whereToLook(path string) string {
	if strings.HasPrefix(path, "/") {
		return "mount it into the pod of the agent, or correct the path"
	}
	folder, err := os.Getwd()
	if err != nil {
		folder = "the working directory"
	}
	return fmt.Sprintf("the path is relative to %s: mount it there, or use an absolute path", folder)
}
