package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
)

// MountTable is the mount table of the first process. In a pod it is the node's with hostPID, and
// otherwise the agent's own.
const MountTable = "/proc/1/mountinfo"

// Readonly checks the mount table for filesystems that the kernel has made read-only after an
// error.
func Readonly(table string) periodic.Check {
	return func(context.Context) periodic.Result {
		text, err := os.ReadFile(table)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return unknown(notAllowed, "reading the mount table: %v", err)
		case err != nil:
			return unknown(notFound, "reading the mount table: %v", err)
		}
		mounts, err := procfs.ParseMounts(text)
		switch {
		case err != nil:
			return unknown(notFound, "reading %s: %v", table, err)
		case table == MountTable && isPods(Proc, os.Getpid(), mounts):
			return unknown(notFound, "%s belongs to the pod, not to the node; set hostPID, or mount the node's mount table and set mountTable to its path", table)
		}
		return judgeMounts(mounts)
	}
}

// isPods returns whether the mount table belongs to a pod and shows nothing of the node. That is so
// if the agent is the first process, or if the namespace is not known to be different and the table
// contains no disk.
func isPods(proc string, pid int, mounts []procfs.Mount) bool {
	return pid == 1 || !isOtherNamespace(proc, "mnt") && !slices.ContainsFunc(mounts, onDisk)
}

func onDisk(m procfs.Mount) bool {
	return strings.HasPrefix(m.Source, "/dev/") || m.Kind == "zfs" || slices.Contains(turning, m.Kind)
}

// turning are the filesystems that turn read-only when they detect damage. All others are read-only
// only on request: images (squashfs, iso9660), virtual filesystems, and XFS, which shuts down
// instead.
var turning = []string{
	"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "gfs2", "hfsplus", "jfs", "msdos", "nilfs2", "ntfs3", "ocfs2", "reiserfs", "vfat",
}

// judgeMounts finds filesystems that are read-only and were not mounted so. If a user mounts a
// filesystem read-only, both the mount and the filesystem have the option. A read-only bind mount
// leaves the filesystem writable. Only the kernel makes the filesystem read-only under a writable
// mount. Newer kernels add an option for it.
func judgeMounts(mounts []procfs.Mount) periodic.Result {
	var found []string
	for _, m := range widest(mounts) {
		if slices.Contains(turning, m.Kind) && isBroken(m) {
			found = append(found, fmt.Sprintf("%s on %s (%s)", m.Source, m.Point, m.Kind))
		}
	}
	switch {
	case len(found) == 0:
		return healthy("no filesystem has been made read-only")
	case len(found) > 3:
		found = append(found[:3], fmt.Sprintf("and %d more", len(found)-3))
	}
	return unhealthy("made read-only by the kernel: %s", strings.Join(found, ", "))
}

// widest returns one representative mount of each filesystem: the one that shows most of it, and of
// several the oldest, which the kernel lists first. Later mounts may be bind mounts, which stay
// writable when a user remounts the first one read-only.
func widest(mounts []procfs.Mount) []procfs.Mount {
	var chosen []procfs.Mount
	place := map[string]int{} // by device
	for _, m := range mounts {
		at, known := place[m.Device]
		switch {
		case !known:
			place[m.Device] = len(chosen)
			chosen = append(chosen, m)
		case len(m.Root) < len(chosen[at].Root):
			chosen[at] = m
		}
	}
	return chosen
}

// isBroken returns whether the mount is writable and its filesystem is not.
func isBroken(m procfs.Mount) bool {
	if slices.Contains(m.Super, "emergency_ro") || slices.Contains(m.Super, "shutdown") {
		return true // an option of the filesystem, so all its mounts have it
	}
	return slices.Contains(m.Super, "ro") && !slices.Contains(m.Options, "ro")
}
