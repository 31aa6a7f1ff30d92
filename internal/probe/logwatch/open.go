package logwatch

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/filelog"
	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/probe/kmsg"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// open opens the log that the configuration names.
func (c Config) open(from logs.Position, since time.Time) (logs.Reader, error) {
	switch c.Monitor.Plugin {
	case config.Kmsg:
		reader, err := kmsg.Open(kmsg.Config{Path: c.Monitor.LogPath, From: from, Since: since, Boot: c.Boot})
		if err != nil {
			return nil, err
		}
		if err := reader.ResumeError(); err != nil {
			c.Logger.Info("cannot continue the kernel log at the stored position", "monitor", c.Key, "because", err)
		}
		return reader, nil
	case config.Journald:
		return asReader(journal.Open(journal.Config{
			Path: c.Monitor.LogPath, Identifier: c.Monitor.PluginConfig["source"], From: from, Since: since, Log: c.Logger.With("monitor", c.Key),
		}))
	case config.Filelog:
		return asReader(filelog.Open(filelog.Config{Path: c.Monitor.LogPath, From: from, Log: c.Logger.With("monitor", c.Key)}))
	}
	return nil, fmt.Errorf("unknown plugin %q: use %s, %s or %s", c.Monitor.Plugin, config.Kmsg, config.Journald, config.Filelog)
}

// log identifies the log that open opens, so that restore notices another log under the
// same key.
func (w *Watch) log() string {
	words := []string{w.cfg.Monitor.Plugin, w.cfg.Monitor.LogPath}
	if w.cfg.Monitor.Plugin == config.Journald {
		words = append(words, w.cfg.Monitor.PluginConfig["source"])
	}
	return strings.Join(words, " ")
}

// withoutLines removes the lines from the stored state of a monitor: a pattern must not
// match half in one log and half in another.
func withoutLines(remembered json.RawMessage) json.RawMessage {
	var parts map[string]json.RawMessage
	if json.Unmarshal(remembered, &parts) != nil {
		return remembered // logmonitor.New reports the error
	}
	delete(parts, "window")
	text, err := json.Marshal(parts)
	if err != nil {
		return nil
	}
	return text
}

// asReader returns an untyped nil with an error: a nil pointer in the interface would not
// equal nil.
func asReader[R logs.Reader](reader R, err error) (logs.Reader, error) {
	if err != nil {
		return nil, err
	}
	return reader, nil
}

// translator returns the translator of a file, nil for logs whose records are parsed
// already.
func translator(m config.LogMonitor) (logs.Translator, error) {
	if m.Plugin != config.Filelog {
		return nil, nil //nolint:nilnil // other logs need no translator
	}
	return filelog.NewTranslator(m.PluginConfig, time.Now)
}

// checkPath validates the path of a log.
func checkPath(m config.LogMonitor) error {
	var err error
	switch m.Plugin {
	case config.Filelog:
		err = filelog.Config{Path: m.LogPath}.Validate()
	case config.Journald:
		err = journal.Config{Path: m.LogPath}.Validate()
	}
	if err != nil {
		return fmt.Errorf("logPath: %w", err)
	}
	return nil
}

// counted returns the counters of a reader: truncated lines, and losses of an unknown
// number of lines.
func counted(reader logs.Reader) (cut, gaps uint64) {
	switch r := reader.(type) {
	case *filelog.Reader:
		counts := r.Counts()
		return counts.LongLines, counts.Gaps
	case *journal.Reader:
		return r.Cut(), 0
	}
	return 0, 0
}
