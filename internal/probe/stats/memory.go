package stats

import "github.com/prometheus/procfs"

// memory records the memory statistics. Kernels may omit some of them.
func memory(r *reading, m procfs.Meminfo) {
	add := func(id string, bytes *uint64, labels ...string) {
		if bytes != nil {
			r.add(id, float64(*bytes), labels...)
		}
	}
	add("memory/bytes_used", m.MemFreeBytes, "free")
	add("memory/bytes_used", m.BuffersBytes, "buffered")
	add("memory/bytes_used", m.CachedBytes, "cached")
	add("memory/bytes_used", m.SlabBytes, "slab")
	if total, used, ok := rest(m); ok {
		r.add("memory/bytes_used", used, "used")
		r.add("memory/percent_used", 100*used/total, "used")
	}
	add("memory/anonymous_used", m.ActiveAnonBytes, "active")
	add("memory/anonymous_used", m.InactiveAnonBytes, "inactive")
	add("memory/page_cache_used", m.ActiveFileBytes, "active")
	add("memory/page_cache_used", m.InactiveFileBytes, "inactive")
	add("memory/unevictable_used", m.UnevictableBytes)
	add("memory/dirty_used", m.DirtyBytes, "dirty")
	add("memory/dirty_used", m.WritebackBytes, "writeback")
}

// rest returns the total memory and how much of it is neither free nor cache.
func rest(m procfs.Meminfo) (total, used float64, ok bool) {
	if m.MemTotalBytes == nil || *m.MemTotalBytes == 0 {
		return 0, 0, false
	}
	total = float64(*m.MemTotalBytes)
	used = total
	for _, part := range []*uint64{m.MemFreeBytes, m.BuffersBytes, m.CachedBytes, m.SlabBytes} {
		if part == nil {
			return 0, 0, false
		}
		used -= float64(*part)
	}
	// The kernel does not read all counters at the same moment.
	return total, max(used, 0), true
}
