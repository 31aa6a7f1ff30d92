package stats

import "github.com/resourcestack/autohealer/internal/metrictext"

// metric describes a metric.
type metric struct {
	part, id, kind, help string
	labels               []string
}

// Short names of the types.
const (
	counter = metrictext.Counter
	gauge   = metrictext.Gauge
)

// The labels, which are public names.
var (
	none         []string
	byState      = []string{"state"}
	byDevice     = []string{"device_name"}
	byDirection  = []string{"device_name", "direction"}
	byFilesystem = []string{"device_name", "fs_type", "mount_option", "state"}
	byInterface  = []string{"interface_name"}
)

// metrics are all metrics in the order of the output.
var metrics = []metric{
	{"cpu", "cpu/runnable_task_count", gauge, "Tasks that run or wait for a processor, on average over the last minute.", none},
	{"cpu", "cpu/load_1m", gauge, "Load of the machine, on average over the last minute.", none},
	{"cpu", "cpu/load_5m", gauge, "Load of the machine, on average over the last five minutes.", none},
	{"cpu", "cpu/load_15m", gauge, "Load of the machine, on average over the last fifteen minutes.", none},
	{"cpu", "cpu/usage_time", counter, "Time of all processors by what they did with it, in hundredths of a second.", byState},
	{"cpu", "system/cpu_stat", counter, "Time of each processor by what it did with it, in seconds.", []string{"cpu", "stage"}},
	{"cpu", "system/interrupts_total", counter, "Interrupts since the boot.", none},
	{"cpu", "system/processes_total", counter, "Processes and threads that were started since the boot.", none},
	{"cpu", "system/procs_running", gauge, "Tasks that can run.", none},
	{"cpu", "system/procs_blocked", gauge, "Tasks that wait for a disk.", none},

	{"disk", "disk/io_time", counter, "Time in which a disk had something to do, in milliseconds.", byDevice},
	{"disk", "disk/weighted_io", counter, "Time that all requests to a disk have taken together, in milliseconds.", byDevice},
	{"disk", "disk/avg_queue_len", gauge, "Requests that a disk had to do, on average since the last reading.", byDevice},
	{"disk", "disk/operation_count", counter, "Reads and writes of a disk.", byDirection},
	{"disk", "disk/merged_operation_count", counter, "Reads and writes of a disk that were made one with others beside them.", byDirection},
	{"disk", "disk/operation_bytes_count", counter, "Bytes read from and written to a disk.", byDirection},
	{"disk", "disk/operation_time", counter, "Time that reads and writes of a disk have taken, in milliseconds.", byDirection},
	{"disk", "disk/bytes_used", gauge, "Bytes of a filesystem that are used, and that users may still use.", byFilesystem},
	{"disk", "disk/percent_used", gauge, "Part of a filesystem that is used, of what users may use.", byDevice},

	{"host", "host/uptime", gauge, "Time since the boot, in seconds.", []string{"kernel_version", "os_version"}},

	{"memory", "memory/bytes_used", gauge, "Memory by what it is used for, in bytes; together, all that there is.", byState},
	{"memory", "memory/percent_used", gauge, "Part of the memory that is used for neither files nor the kernel's caches.", byState},
	{"memory", "memory/anonymous_used", gauge, "Memory of programs that no file stands behind, in bytes.", byState},
	{"memory", "memory/page_cache_used", gauge, "Memory that holds what files hold, in bytes.", byState},
	{"memory", "memory/unevictable_used", gauge, "Memory that cannot be reclaimed, in bytes.", none},
	{"memory", "memory/dirty_used", gauge, "Memory that has to be, or is being, written to a disk, in bytes.", byState},

	{"osFeature", "system/os_feature", gauge, "Whether the system has a feature.", []string{"os_feature", "value"}},

	{"net", "net/rx_bytes", counter, "Bytes that an interface has received.", byInterface},
	{"net", "net/rx_packets", counter, "Packets that an interface has received.", byInterface},
	{"net", "net/rx_errors", counter, "Packets that an interface could not receive for an error.", byInterface},
	{"net", "net/rx_dropped", counter, "Packets that an interface has received and dropped.", byInterface},
	{"net", "net/rx_fifo", counter, "Packets that an interface could not receive for want of buffers.", byInterface},
	{"net", "net/rx_frame", counter, "Packets that an interface has received with a broken frame.", byInterface},
	{"net", "net/rx_compressed", counter, "Compressed packets that an interface has received.", byInterface},
	{"net", "net/rx_multicast", counter, "Multicast packets that an interface has received.", byInterface},
	{"net", "net/tx_bytes", counter, "Bytes that an interface has sent.", byInterface},
	{"net", "net/tx_packets", counter, "Packets that an interface has sent.", byInterface},
	{"net", "net/tx_errors", counter, "Packets that an interface could not send for an error.", byInterface},
	{"net", "net/tx_dropped", counter, "Packets that an interface has dropped and not sent.", byInterface},
	{"net", "net/tx_fifo", counter, "Packets that an interface could not send for want of buffers.", byInterface},
	{"net", "net/tx_collisions", counter, "Collisions that an interface has seen.", byInterface},
	{"net", "net/tx_carrier", counter, "Times that an interface had no carrier to send on.", byInterface},
	{"net", "net/tx_compressed", counter, "Compressed packets that an interface has sent.", byInterface},
}

// reading contains the values of the wanted metrics.
type reading struct {
	wanted map[string]bool // by ID
	values map[string][]value
}

type value struct {
	number float64
	labels []string
}

// wants returns whether any of these metrics is wanted. Otherwise the monitor need not read its
// source.
func (r *reading) wants(ids ...string) bool {
	for _, id := range ids {
		if r.wanted[id] {
			return true
		}
	}
	return false
}

// add records a value if the metric is wanted.
func (r *reading) add(id string, number float64, labels ...string) {
	if r.wanted[id] {
		r.values[id] = append(r.values[id], value{number, labels})
	}
}
