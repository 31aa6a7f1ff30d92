package check

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/checkresult"
)

// isAway says whether a socket is not there because nothing of the node is where it should
// be. In a folder of the node, one that is not there is one that somebody has not made.
func isAway(socket string) bool {
	_, err := os.Stat(socket)
	return errors.Is(err, fs.ErrNotExist) && !isOfTheNode(filepath.Dir(socket), "/")
}

func notMounted(name, socket string) checkresult.Result {
	return unknown(notFound, "asking %s: %s is not that of the node; mount it, or name another socket", name, filepath.Dir(socket))
}

// isOfTheNode says whether a folder is there, and not only because the image of a container
// has it: such a one lies on the container's root, which is an overlay.
func isOfTheNode(folder, root string) bool {
	var at, above unix.Stat_t
	if unix.Stat(folder, &at) != nil || at.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false
	}
	var kind unix.Statfs_t
	if unix.Stat(root, &above) != nil || unix.Statfs(root, &kind) != nil {
		return true
	}
	return at.Dev != above.Dev || kind.Type != unix.OVERLAYFS_SUPER_MAGIC
}
