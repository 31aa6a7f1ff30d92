package stats

import (
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"

	ownprocfs "github.com/resourcestack/autohealer/internal/probe/procfs"
)

const (
	sector = 512 // the kernel's unit in bytes, whatever the disk uses
	ramdev = 1   // the major number of RAM disks
)

// queues is the accumulated request time of each disk at a moment.
type queues struct {
	at    time.Time
	taken map[string]uint64 // milliseconds
}

// disks records the statistics of the chosen disks, or of all disks if none is chosen. It returns
// the values that the next reading needs.
func disks(r *reading, all []blockdevice.Diskstats, chosen map[string]bool, before queues, now time.Time) queues {
	after := queues{at: now, taken: map[string]uint64{}}
	passed := float64(now.Sub(before.at).Milliseconds())
	for i := range all {
		d := &all[i]
		name := d.DeviceName
		if len(chosen) > 0 && !chosen[name] {
			continue
		}
		r.add("disk/io_time", float64(d.IOsTotalTicks), name)
		r.add("disk/weighted_io", float64(d.WeightedIOTicks), name)
		after.taken[name] = d.WeightedIOTicks
		// The counter may restart, and a new disk may have the same name.
		if taken, ok := before.taken[name]; ok && taken <= d.WeightedIOTicks && passed > 0 {
			r.add("disk/avg_queue_len", float64(d.WeightedIOTicks-taken)/passed, name)
		}
		for _, count := range []struct {
			id          string
			read, write uint64
		}{
			{"disk/operation_count", d.ReadIOs, d.WriteIOs},
			{"disk/merged_operation_count", d.ReadMerges, d.WriteMerges},
			{"disk/operation_bytes_count", d.ReadSectors * sector, d.WriteSectors * sector},
			{"disk/operation_time", d.ReadTicks, d.WriteTicks},
		} {
			r.add(count.id, float64(count.read), name, "read")
			r.add(count.id, float64(count.write), name, "write")
		}
	}
	return after
}

// filesystem is a filesystem on a block device of the machine.
type filesystem struct {
	device, kind, options string
	mounted               string // the mount point
}

// filesystems returns the filesystems of a mount table that are on a disk, each once. It skips
// network and FUSE filesystems, because they can block the caller. The device has the kernel's name
// if there is one for its numbers, so /dev/root and /dev/mapper/x have the same name as in the disk
// statistics.
func filesystems(table []*procfs.MountInfo, kernelName func(numbers string) string) []filesystem {
	var found []filesystem
	seen := map[string]bool{}
	for _, m := range table {
		device, ok := strings.CutPrefix(m.Source, "/dev/")
		if !ok || strings.HasPrefix(m.FSType, "fuse") {
			continue
		}
		if name := kernelName(m.MajorMinorVer); name != "" {
			device = name
		}
		if seen[device] {
			continue
		}
		seen[device] = true
		found = append(found, filesystem{device, m.FSType, options(m), ownprocfs.UnescapePath(m.MountPoint)})
	}
	return found
}

// mountOptions are the mount options in the kernel's order.
var mountOptions = []string{"rw", "ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "nosymfollow", "idmapped"}

// options returns the options of a mount in node-problem-detector's format.
func options(m *procfs.MountInfo) string {
	var list []string
	for _, option := range mountOptions {
		if _, ok := m.Options[option]; ok {
			list = append(list, option)
		}
	}
	if m.Root != "/" {
		list = append(list, "bind")
	}
	return strings.Join(list, ",")
}

// space records how full a filesystem is.
func space(r *reading, f filesystem, u usage) {
	r.add("disk/bytes_used", u.free, f.device, f.kind, f.options, "free")
	r.add("disk/bytes_used", u.used, f.device, f.kind, f.options, "used")
	if u.used+u.free > 0 {
		r.add("disk/percent_used", 100*u.used/(u.used+u.free), f.device)
	}
}
