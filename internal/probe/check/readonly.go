package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/probe/checkresult"
	"github.com/resourcestack/autohealer/internal/probe/mountinfo"
)

// MountTable is where the kernel lists what is mounted: of the first process, which in a
// pod is the node's with hostPID, and else the agent's own.
const MountTable = "/proc/1/mountinfo"

// Readonly examines the table of mounts for filesystems that the kernel has made
// read-only after an error.
func Readonly(table string) checkresult.Check {
	return func(context.Context) checkresult.Result {
		text, err := os.ReadFile(table)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return unknown(notAllowed, "reading the table of mounts: %v", err)
		case err != nil:
			return unknown(notFound, "reading the table of mounts: %v", err)
		}
		mounts, err := mountinfo.Parse(text)
		switch {
		case err != nil:
			return unknown(notFound, "reading %s: %v", table, err)
		case table == MountTable && isPods(Proc, os.Getpid(), mounts):
			return unknown(notFound, "%s is that of the pod and not of the node; set hostPID, or mount that of the node and name it as mountTable", table)
		}
		return judgeMounts(mounts)
	}
}

// isPods says whether the table of the first process is that of a pod, and shows nothing of
// the node: the first process is the agent, or nobody can say who it is, and there is no
// disk.
func isPods(proc string, pid int, mounts []mountinfo.Mount) bool {
	return pid == 1 || !apart(proc, "mnt") && !slices.ContainsFunc(mounts, onDisk)
}

func onDisk(m mountinfo.Mount) bool {
	return strings.HasPrefix(m.Source, "/dev/") || m.Kind == "zfs" || slices.Contains(turning, m.Kind)
}

// turning are the filesystems that turn read-only when they find themselves damaged. All
// others are as somebody wanted them: images (squashfs, iso9660), what is no disk at all,
// and XFS, which shuts down instead.
var turning = []string{
	"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "gfs2", "hfsplus", "jfs", "msdos", "nilfs2", "ntfs3", "ocfs2", "reiserfs", "vfat",
}

// judgeMounts finds filesystems that are read-only and were not mounted so. Who mounts or
// remounts one read-only makes both the mount and the filesystem so; a bind mount that is
// read-only leaves the filesystem writable; only the kernel takes the filesystem away
// under a writable mount. Newer kernels say so in a word of its own.
func judgeMounts(mounts []mountinfo.Mount) checkresult.Result {
	var found []string
	for _, m := range widest(mounts) {
		if slices.Contains(turning, m.Kind) && broken(m) {
			found = append(found, fmt.Sprintf("%s on %s (%s)", m.Source, m.Point, m.Kind))
		}
	}
	switch {
	case len(found) == 0:
		return well("no filesystem has been made read-only")
	case len(found) > 3:
		found = append(found[:3], fmt.Sprintf("and %d more", len(found)-3))
	}
	return sick("made read-only by the kernel: %s", strings.Join(found, ", "))
}

// widest returns the mount of each filesystem that speaks for it: the one that shows most
// of it, and of several the oldest, which the kernel lists first. Those that came later
// may be bind mounts, which stay writable when somebody makes the first one read-only.
func widest(mounts []mountinfo.Mount) []mountinfo.Mount {
	var chosen []mountinfo.Mount
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

// broken says whether a mount is writable in vain.
func broken(m mountinfo.Mount) bool {
	if slices.Contains(m.Super, "emergency_ro") || slices.Contains(m.Super, "shutdown") {
		return true // of the filesystem, so that all of its mounts have it
	}
	return slices.Contains(m.Super, "ro") && !slices.Contains(m.Options, "ro")
}
