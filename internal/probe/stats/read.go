package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"

	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// read reads the wanted statistics. Values that cannot be read are missing, and the error is logged
// per section.
func (m *Monitor) read(now time.Time) (*reading, error) {
	r := &reading{wanted: m.wanted, values: map[string][]value{}}
	proc, err := procfs.NewFS(m.cfg.Monitor.ProcPath)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", m.cfg.Monitor.ProcPath, err)
	}
	m.logChange("cpu", m.readCPU(r, proc))
	m.logChange("memory", m.readMemory(r, proc))
	m.logChange("host", m.readHost(r))
	m.logChange("osFeature", m.readFeatures(r, proc))
	m.logChange("net", m.readNet(r, proc))
	m.logChange("disk", m.readDisks(r, proc, now))
	return r, nil
}

func (m *Monitor) readCPU(r *reading, proc procfs.FS) error {
	var wrong []error
	if r.wants("cpu/runnable_task_count", "cpu/load_1m", "cpu/load_5m", "cpu/load_15m") {
		if load, err := proc.LoadAvg(); err != nil {
			wrong = append(wrong, fmt.Errorf("reading the load: %w", err))
		} else {
			loads(r, *load)
		}
	}
	if r.wants("cpu/usage_time", "system/cpu_stat", "system/interrupts_total", "system/processes_total", "system/procs_running", "system/procs_blocked") {
		if stat, err := proc.Stat(); err != nil {
			wrong = append(wrong, fmt.Errorf("reading what the processors did: %w", err))
		} else {
			processors(r, &stat)
		}
	}
	return errors.Join(wrong...)
}

func (m *Monitor) readMemory(r *reading, proc procfs.FS) error {
	if len(m.cfg.Monitor.Metrics["memory"]) == 0 {
		return nil
	}
	info, err := proc.Meminfo()
	if err != nil {
		return fmt.Errorf("reading what the memory is used for: %w", err)
	}
	memory(r, info)
	return nil
}

func (m *Monitor) readHost(r *reading) error {
	if !r.wants("host/uptime") {
		return nil
	}
	text, err := os.ReadFile(m.proc("uptime"))
	if err != nil {
		return fmt.Errorf("reading the time since the boot: %w", err)
	}
	uptime, err := parseUptime(string(text))
	if err != nil {
		return fmt.Errorf("reading the time since the boot: %s: %w", m.proc("uptime"), err)
	}
	kernel, err := os.ReadFile(m.proc("sys/kernel/osrelease"))
	if err != nil {
		return fmt.Errorf("reading the version of the kernel: %w", err)
	}
	r.add("host/uptime", uptime, strings.TrimSpace(string(kernel)), m.osVersion())
	return nil
}

// osVersion returns the version of the node's OS if its files are visible, and otherwise that of
// the agent's image. It may be empty.
func (m *Monitor) osVersion() string {
	for _, path := range []string{m.proc("1/root/etc/os-release"), "/etc/os-release", "/usr/lib/os-release"} {
		if text, err := os.ReadFile(path); err == nil {
			return parseOSVersion(string(text))
		}
	}
	return ""
}

func (m *Monitor) readFeatures(r *reading, proc procfs.FS) error {
	if !r.wants("system/os_feature") {
		return nil
	}
	var wrong []error
	if words, err := proc.CmdLine(); err != nil {
		wrong = append(wrong, fmt.Errorf("reading what the kernel was told at its boot: %w", err))
	} else {
		_, err := os.Stat(m.sys("fs/cgroup/cgroup.controllers"))
		features(r, words, err == nil)
	}
	text, err := os.ReadFile(m.proc("modules"))
	// A kernel without module support has no such file.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(append(wrong, fmt.Errorf("reading the modules of the kernel: %w", err))...)
	}
	known, err := m.knownModules()
	if err != nil {
		// No module is known then, so all third-party modules are reported as unknown.
		wrong = append(wrong, err)
	}
	modules(r, parseModules(string(text)), known)
	return errors.Join(wrong...)
}

func (m *Monitor) knownModules() ([]string, error) {
	path := m.cfg.Monitor.KnownModulesPath
	if path == "" {
		return nil, nil
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(m.cfg.File), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading which modules are known: %w", err)
	}
	known, err := parseKnownModules(text)
	if err != nil {
		return nil, fmt.Errorf("reading which modules are known: %s: %w", path, err)
	}
	return known, nil
}

// readNet reads the interfaces of the first process. They are the node's with hostPID, even if the
// agent has its own network namespace.
func (m *Monitor) readNet(r *reading, proc procfs.FS) error {
	if len(m.cfg.Monitor.Metrics["net"]) == 0 {
		return nil
	}
	interfaces, err := firstNet(proc)
	if err != nil {
		interfaces, err = proc.NetDev()
	}
	if err != nil {
		return fmt.Errorf("reading what the interfaces did: %w", err)
	}
	networks(r, interfaces, m.exclude)
	return nil
}

func firstNet(proc procfs.FS) (procfs.NetDev, error) {
	first, err := proc.Proc(1)
	if err != nil {
		return nil, err
	}
	return first.NetDev()
}

func (m *Monitor) readDisks(r *reading, proc procfs.FS, now time.Time) error {
	if len(m.cfg.Monitor.Metrics["disk"]) == 0 {
		return nil
	}
	var wrong []error
	mounted, err := m.mounted(proc)
	if err != nil {
		wrong = append(wrong, err)
	}
	if err := m.readIO(r, mounted, now); err != nil {
		wrong = append(wrong, err)
	}
	if r.wants("disk/bytes_used", "disk/percent_used") {
		paths := make([]string, 0, len(mounted))
		for _, f := range mounted {
			paths = append(paths, f.mounted)
		}
		// The monitor is silent while it waits, which must be shorter than CheckInterval.
		answers, silent := m.asker.ask(paths, min(m.cfg.Monitor.LsblkTimeout, supervise.CheckInterval/2))
		wrong = append(wrong, silent...)
		for _, f := range mounted {
			if u, ok := answers[f.mounted]; ok {
				space(r, f, u)
			}
		}
	}
	return errors.Join(wrong...)
}

// mounted returns the disk filesystems that the agent can see; it cannot measure others. A file or
// folder of the node that is mounted into the pod represents its whole filesystem.
func (m *Monitor) mounted(proc procfs.FS) ([]filesystem, error) {
	self, err := proc.Self()
	if err != nil {
		return nil, fmt.Errorf("reading what is mounted: %w", err)
	}
	table, err := self.MountInfo()
	if err != nil {
		return nil, fmt.Errorf("reading what is mounted: %w", err)
	}
	return filesystems(table, func(numbers string) string {
		// The target is the kernel's folder of the device. Its last part is the name.
		link, err := os.Readlink(m.sys("dev/block", numbers))
		if err != nil {
			return ""
		}
		return filepath.Base(link)
	}), nil
}

func (m *Monitor) readIO(r *reading, mounted []filesystem, now time.Time) error {
	block, err := blockdevice.NewFS(m.cfg.Monitor.ProcPath, m.cfg.SysPath)
	if err != nil {
		return fmt.Errorf("reading what the disks did: %w", err)
	}
	all, err := block.ProcDiskstats()
	if err != nil {
		return fmt.Errorf("reading what the disks did: %w", err)
	}
	chosen := map[string]bool{}
	for i := range all {
		if m.cfg.Monitor.IncludeRootBlk && m.isWholeDisk(&all[i]) {
			chosen[all[i].DeviceName] = true
		}
	}
	for _, f := range mounted {
		if m.cfg.Monitor.IncludeAllAttachedBlk {
			chosen[filepath.Base(f.device)] = true
		}
	}
	m.queues = disks(r, all, chosen, m.queues, now)
	return nil
}

// isWholeDisk returns whether a disk is neither a partition nor composed of other disks. lsblk
// lists these at its top level.
func (m *Monitor) isWholeDisk(d *blockdevice.Diskstats) bool {
	if d.MajorNumber == ramdev {
		return false
	}
	size, err := os.ReadFile(m.sys("block", d.DeviceName, "size"))
	if err != nil || strings.TrimSpace(string(size)) == "0" {
		return false
	}
	made, err := os.ReadDir(m.sys("block", d.DeviceName, "slaves"))
	return err != nil || len(made) == 0
}

func (m *Monitor) proc(name string) string { return filepath.Join(m.cfg.Monitor.ProcPath, name) }

func (m *Monitor) sys(names ...string) string {
	return filepath.Join(append([]string{m.cfg.SysPath}, names...)...)
}
