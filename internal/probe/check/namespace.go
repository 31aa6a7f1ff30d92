package check

import (
	"os"
	"path/filepath"
)

// isOtherNamespace returns whether the first process is known to live in another namespace of a
// kind ("mnt", "net") than this process. Without hostPID the first process belongs to the pod.
// Without permission to look at it, nothing is known.
func isOtherNamespace(proc, kind string) bool {
	own, err := os.Readlink(filepath.Join(proc, "self/ns", kind))
	if err != nil {
		return false
	}
	first, err := os.Readlink(filepath.Join(proc, "1/ns", kind))
	return err == nil && own != first
}
