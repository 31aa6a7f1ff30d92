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

// Unreadable is why a monitor that cannot see the machine at all is blind.
const Unreadable = "FiguresUnreadable"

// Config is what a monitor of figures needs to know.
type Config struct {
	// Key under which it is known to the log.
	Key string
	// File is the path of the configuration file: what that names is found from there.
	File    string
	Monitor config.StatsMonitor
	// SysPath is where the machine's /sys is; there, if it is empty.
	SysPath string
	Logger  *slog.Logger
}

// Monitor reads figures of the machine.
type Monitor struct {
	cfg     Config
	names   map[string]string // of the metrics, by ID
	wanted  map[string]bool   // IDs
	exclude *regexp.Regexp
	asker   *asker
	queues  queues            // of the reading before
	said    map[string]string // what could not be read, by part, when it was last looked at

	mu   sync.Mutex // of what follows, which is read while it is shown
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
		cfg: cfg, names: named(cfg.Monitor), wanted: map[string]bool{}, said: map[string]string{},
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

// Run reads the figures now and every invokeInterval until ctx ends.
func (m *Monitor) Run(ctx context.Context, desk supervise.Reporter) error {
	due := time.NewTicker(m.cfg.Monitor.InvokeInterval)
	defer due.Stop()
	breath := time.NewTicker(supervise.CheckInterval / 2)
	defer breath.Stop()
	m.look(desk)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
			m.look(desk)
		case <-breath.C:
			desk.Here()
		}
	}
}

// look reads the figures once.
func (m *Monitor) look(desk supervise.Reporter) {
	desk.Here()
	r, err := m.read(time.Now())
	if err != nil {
		desk.Blind(Unreadable, err)
	} else {
		desk.Sees()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = r
}

// tell says to the log what of a part cannot be read, once, and that it can be again.
func (m *Monitor) tell(part string, err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	before := m.said[part]
	if m.said[part] = now; now == before {
		return
	}
	if now == "" {
		m.cfg.Logger.Info("figures of the machine can be read again", "monitor", m.cfg.Key, "part", part)
		return
	}
	m.cfg.Logger.Warn("some figures of the machine cannot be read", "monitor", m.cfg.Key, "part", part, "err", err)
}

// Families returns the figures that monitors have read last. One that several show under
// the same name is that of the first.
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
	for _, f := range figures {
		if len(last.values[f.id]) == 0 {
			continue
		}
		family := &metrictext.Family{Name: m.names[f.id], Help: f.help, Kind: f.kind, Labels: f.labels}
		for _, v := range last.values[f.id] {
			family.Add(v.figure, v.labels...)
		}
		list = append(list, family)
	}
	return list
}
