package provider

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/resourcestack/autohealer/internal/dialect"
)

// readInterval is how often the file of the user is read. The kubelet needs a minute to write
// a changed ConfigMap into a pod.
const readInterval = 5 * time.Second

// Source has the statements of the providers and of the user's newest valid file. It is safe for
// concurrent use.
type Source struct {
	path    string // empty without a file
	log     *slog.Logger
	inForce prometheus.Gauge

	mu      sync.Mutex
	latest  *dialect.Statements
	changed chan struct{} // closed at the next change
}

// NewSource reads the file of the user; an empty path means none.
func NewSource(path string, log *slog.Logger) (*Source, error) {
	s := &Source{path: path, log: log, changed: make(chan struct{}), inForce: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "autohealer_repair_statements_in_force",
		Help: "Whether the newest version of the file of --repair-statements is in force (1), or it is missing or has a mistake (0): then earlier statements stay in force. 1 without a file.",
	})}
	if path == "" {
		s.set(File{})
		return s, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading statements: %w", err)
	}
	return s, s.parse(text)
}

// Latest returns the newest statements, and a channel that is closed when there are newer ones.
func (s *Source) Latest() (*dialect.Statements, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest, s.changed
}

// Metrics says whether the newest version of the file is in force.
func (s *Source) Metrics() prometheus.Collector { return s.inForce }

func (s *Source) set(file File) {
	statements := Statements(file)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = &statements
	close(s.changed)
	s.changed = make(chan struct{})
	s.inForce.Set(1)
}

func (s *Source) parse(text []byte) error {
	file, err := Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.set(file)
	return nil
}

// Run reads the file again when it changes, until ctx ends. While the file is missing or
// invalid, the statements stay.
func (s *Source) Run(ctx context.Context) error {
	if s.path == "" {
		return nil
	}
	every := time.NewTicker(readInterval)
	defer every.Stop()
	last, err := os.ReadFile(s.path)
	if err == nil {
		err = s.parse(last) // it may have changed since the program started
	}
	for {
		if err != nil {
			s.inForce.Set(0)
			s.log.Error("repair statements not reloaded: correct the file; the previous statements stay in force", "file", s.path, "err", err)
		}
		text := last
		for bytes.Equal(text, last) {
			select {
			case <-ctx.Done():
				return nil
			case <-every.C:
			}
			if text, err = os.ReadFile(s.path); err != nil {
				text = nil // reported once
			}
		}
		if last = text; err == nil {
			if err = s.parse(text); err == nil {
				s.log.Info("repair statements reloaded", "file", s.path)
			}
		}
	}
}
