package stats

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/supervise"
)

// Unreadable is the reason if the monitor cannot read any statistics.
const Unreadable = "FiguresUnreadable"

// Config configures a Monitor.
type Config struct {
	// Key identifies the monitor in the log.
	Key string
	// File is the path of the configuration file. Relative paths in it start at its folder.
	File    string
	Monitor config.StatsMonitor
	// SysPath is where the machine's /sys is mounted. The default is /sys.
	SysPath string
	Logger  *slog.Logger
}

// Monitor reads statistics of the machine.
type Monitor struct {
	cfg        Config
	names      map[string]string // metric names by ID
	wanted     map[string]bool   // by ID
	exclude    *regexp.Regexp
	asker      *asker
	queues     queues            // of the previous reading
	lastErrors map[string]string // the last read error by section

	mu   sync.Mutex // guards the following fields, which scrapes read
	last *reading
}

// New returns a monitor that has not read anything yet.
func New(cfg Config) (*Monitor, error) {
	if _, err := Check(cfg.Monitor); err != nil {
		return nil, err
	}
	if cfg.SysPath == "" {
		cfg.SysPath = "/sys"
	}
	m := &Monitor{
		cfg: cfg, names: named(cfg.Monitor), wanted: map[string]bool{}, lastErrors: map[string]string{},
		asker: &asker{measure: measure, asked: map[string]bool{}},
	}
	for id := range m.names {
		m.wanted[id] = true
	}
	if cfg.Monitor.ExcludeInterface != "" {
		exclude, err := regexp.Compile(cfg.Monitor.ExcludeInterface)
		if err != nil {
			return nil, fmt.Errorf("net.excludeInterfaceRegexp: %w", err)
		}
		m.exclude = exclude
	}
	return m, nil
}

// Run reads the statistics at once and then every invokeInterval, until ctx ends.
func (m *Monitor) Run(ctx context.Context, reporter supervise.Reporter) error {
	due := time.NewTicker(m.cfg.Monitor.InvokeInterval)
	defer due.Stop()
	breath := time.NewTicker(supervise.CheckInterval / 2)
	defer breath.Stop()
	m.look(reporter)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
			m.look(reporter)
		case <-breath.C:
			reporter.Heartbeat()
		}
	}
}

// look reads the statistics once.
func (m *Monitor) look(reporter supervise.Reporter) {
	reporter.Heartbeat()
	r, err := m.read(time.Now())
	if err != nil {
		reporter.CannotObserve(Unreadable, err)
	} else {
		reporter.CanObserve()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = r
}

// logChange logs an error of a section once, and when it has ended.
func (m *Monitor) logChange(part string, err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	before := m.lastErrors[part]
	if m.lastErrors[part] = now; now == before {
		return
	}
	if now == "" {
		m.cfg.Logger.Info("metrics of the machine can be read again", "monitor", m.cfg.Key, "part", part)
		return
	}
	m.cfg.Logger.Warn("some metrics of the machine cannot be read", "monitor", m.cfg.Key, "part", part, "err", err)
}

// Families returns the latest values of the monitors. If several monitors export the same name, the
// first one counts.
func Families(monitors ...*Monitor) []*metrictext.Family {
	var families []*metrictext.Family
	for _, m := range monitors {
		for _, f := range m.families() {
			if !slices.ContainsFunc(families, func(other *metrictext.Family) bool { return other.Name == f.Name }) {
				families = append(families, f)
			}
		}
	}
	return families
}

func (m *Monitor) families() []*metrictext.Family {
	m.mu.Lock()
	last := m.last
	m.mu.Unlock()
	if last == nil {
		return nil
	}
	list := make([]*metrictext.Family, 0, len(m.names))
	for _, f := range metrics {
		if len(last.values[f.id]) == 0 {
			continue
		}
		family := &metrictext.Family{Name: m.names[f.id], Help: f.help, Kind: f.kind, Labels: f.labels}
		for _, v := range last.values[f.id] {
			family.Add(v.number, v.labels...)
		}
		list = append(list, family)
	}
	return list
}
