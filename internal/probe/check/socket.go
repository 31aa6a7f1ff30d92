package check

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// isNotMounted returns whether a socket is missing because the node's directory is not mounted. If
// the directory is the node's, its component has not created the socket.
func isNotMounted(socket string) bool {
	_, err := os.Stat(socket)
	return errors.Is(err, fs.ErrNotExist) && !isOfTheNode(filepath.Dir(socket), "/")
}

func notMounted(name, socket string) periodic.Result {
	return unknown(notFound, "asking %s: %s is not a directory of the node; mount it, or configure another socket", name, filepath.Dir(socket))
}

// isOfTheNode returns whether a folder exists and is not just part of the container image. A folder
// of the image lies on the container's root, which is an overlay.
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
