package check

import (
	"os"
	"path/filepath"
)

// apart says whether the first process is known to live in another namespace of a kind
// ("mnt", "net") than this one. Without hostPID the first process is one of the pod's, and
// without the rights to look at it nothing is known.
func apart(proc, kind string) bool {
	own, err := os.Readlink(filepath.Join(proc, "self/ns", kind))
	if err != nil {
		return false
	}
	first, err := os.Readlink(filepath.Join(proc, "1/ns", kind))
	return err == nil && own != first
}
