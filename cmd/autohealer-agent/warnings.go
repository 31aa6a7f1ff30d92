package main

import (
	"log/slog"
	"slices"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/settings"
)

// warnings logs each possible mistake in the files once.
type warnings struct {
	log              *slog.Logger
	versions         map[string]string // by file, the version whose warnings were logged
	sharedConditions []string          // warnings about conditions of both a daemon and a monitor
	duplicateMetrics []string          // metrics of more than one file
}

func newWarnings(log *slog.Logger) warnings {
	return warnings{log: log, versions: map[string]string{}}
}

// logFile logs the warnings of each version of a file once.
func (w *warnings) logFile(s *settings.Setting) {
	key := s.String()
	if w.versions[key] == s.Version {
		return
	}
	w.versions[key] = s.Version
	for _, warning := range s.Warnings {
		w.log.Warn("configuration file may contain a mistake", "file", s.Path, "warning", warning)
	}
}

// logSharedConditions logs conditions that both a daemon and a monitor report, when they
// change.
func (w *warnings) logSharedConditions(p plan) {
	monitors := map[string][]config.Condition{}
	for name, t := range p.tasks {
		monitors[name] = t.conditions
	}
	both := sharedConditions(p.sources, monitors)
	if !slices.Equal(both, w.sharedConditions) {
		for _, warning := range both {
			w.log.Warn("configuration files may contain a mistake", "warning", warning)
		}
	}
	w.sharedConditions = both
}

// logDuplicateMetrics logs metrics of more than one file, when they change.
func (w *warnings) logDuplicateMetrics(p plan) {
	twice := p.duplicateMetrics()
	if !slices.Equal(twice, w.duplicateMetrics) && len(twice) > 0 {
		w.log.Warn("several files have the same metrics; only the first file by path serves them", "metrics", twice)
	}
	w.duplicateMetrics = twice
}
