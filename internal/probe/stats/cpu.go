package stats

import (
	"strconv"

	"github.com/prometheus/procfs"
)

// perSecond converts seconds to the unit of cpu/usage_time in node-problem-detector, which is
// hundredths although it is called seconds. Existing dashboards rely on it.
const perSecond = 100

func loads(r *reading, load procfs.LoadAvg) {
	r.add("cpu/runnable_task_count", load.Load1)
	r.add("cpu/load_1m", load.Load1)
	r.add("cpu/load_5m", load.Load5)
	r.add("cpu/load_15m", load.Load15)
}

// processors records the CPU times. node-problem-detector adds up the kernel's sums again; these
// values are the kernel's own sums.
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
