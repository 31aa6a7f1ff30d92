package stats

import (
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"

	"github.com/resourcestack/autohealer/internal/probe/mountinfo"
)

const (
	sector = 512 // bytes that the kernel counts in, whatever the disk has
	ramdev = 1   // the major number of disks in memory
)

// queues is how much time requests to each disk had taken, and when.
type queues struct {
	at    time.Time
	taken map[string]uint64 // milliseconds
}

// disks notes what the chosen disks did, or all if none is chosen, and returns what the
// next reading has to know of this one.
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
		// The count may begin anew, as may a disk of the same name.
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

// filesystem is one that is mounted from a block device of the machine.
type filesystem struct {
	device, kind, options string
	mounted               string // where
}

// filesystems finds in a mount table those that lie on a disk, each once. What comes over a
// network, or from a program, has no place there: it can keep whoever asks it waiting. The
// name of a device is the kernel's where it has one for the numbers, so that what is
// /dev/root or /dev/mapper/x here is called as among the disks.
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
		found = append(found, filesystem{device, m.FSType, options(m), mountinfo.Unescape(m.MountPoint)})
	}
	return found
}

// mountOptions are those that a mount can have, in the order in which the kernel has them.
var mountOptions = []string{"rw", "ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "nosymfollow", "idmapped"}

// options returns the options of a mount as node-problem-detector writes them.
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

// space notes how full a filesystem is.
func space(r *reading, f filesystem, u usage) {
	r.add("disk/bytes_used", u.free, f.device, f.kind, f.options, "free")
	r.add("disk/bytes_used", u.used, f.device, f.kind, f.options, "used")
	if u.used+u.free > 0 {
		r.add("disk/percent_used", 100*u.used/(u.used+u.free), f.device)
	}
}
