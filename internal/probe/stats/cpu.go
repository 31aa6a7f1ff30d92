package stats

import (
	"strconv"

	"github.com/prometheus/procfs"
)

// perSecond is in how many pieces node-problem-detector counts a second of cpu/usage_time,
// though it calls them seconds. Whoever draws it has got used to that.
const perSecond = 100

func loads(r *reading, load procfs.LoadAvg) {
	r.add("cpu/runnable_task_count", load.Load1)
	r.add("cpu/load_1m", load.Load1)
	r.add("cpu/load_5m", load.Load5)
	r.add("cpu/load_15m", load.Load15)
}

// processors notes what the machine's processors did. Where node-problem-detector adds up
// what the kernel has added up already, these are the kernel's own sums.
func processors(r *reading, stat *procfs.Stat) {
	all := stat.CPUTotal
	for _, spent := range []struct {
		state   string
		seconds float64
	}{
		{"user", all.User}, {"nice", all.Nice}, {"system", all.System}, {"idle", all.Idle}, {"iowait", all.Iowait},
		{"irq", all.IRQ}, {"softirq", all.SoftIRQ}, {"steal", all.Steal}, {"guest", all.Guest}, {"guest_nice", all.GuestNice},
	} {
		r.add("cpu/usage_time", spent.seconds*perSecond, spent.state)
	}
	r.add("system/interrupts_total", float64(stat.IRQTotal))
	r.add("system/processes_total", float64(stat.ProcessCreated))
	r.add("system/procs_running", float64(stat.ProcessesRunning))
	r.add("system/procs_blocked", float64(stat.ProcessesBlocked))
	if !r.wants("system/cpu_stat") {
		return
	}
	for number, one := range stat.CPU {
		name := "cpu" + strconv.FormatInt(number, 10)
		for _, spent := range []struct {
			stage   string
			seconds float64
		}{
			{"user", one.User}, {"nice", one.Nice}, {"system", one.System}, {"idle", one.Idle}, {"iowait", one.Iowait},
			{"iRQ", one.IRQ}, {"softIRQ", one.SoftIRQ}, {"steal", one.Steal}, {"guest", one.Guest}, {"guestNice", one.GuestNice},
		} {
			r.add("system/cpu_stat", spent.seconds, name, spent.stage)
		}
	}
}
