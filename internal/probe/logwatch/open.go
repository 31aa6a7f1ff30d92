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
		if err := reader.PassedOver(); err != nil {
			c.Logger.Info("the kernel's log is read from another place than the last one", "monitor", c.Key, "because", err)
		}
		return reader, nil
	case config.Journald:
		return given(journal.Open(journal.Config{
			Path: c.Monitor.LogPath, Identifier: c.Monitor.PluginConfig["source"], From: from, Since: since, Log: c.Logger.With("monitor", c.Key),
		}))
	case config.Filelog:
		return given(filelog.Open(filelog.Config{Path: c.Monitor.LogPath, From: from, Log: c.Logger.With("monitor", c.Key)}))
	}
	return nil, fmt.Errorf("there is no plugin %q: write %s, %s or %s", c.Monitor.Plugin, config.Kmsg, config.Journald, config.Filelog)
}

// log names what open opens, so that another log under the same key is noticed.
func (w *Watch) log() string {
	words := []string{w.cfg.Monitor.Plugin, w.cfg.Monitor.LogPath}
	if w.cfg.Monitor.Plugin == config.Journald {
		words = append(words, w.cfg.Monitor.PluginConfig["source"])
	}
	return strings.Join(words, " ")
}

// withoutLines takes the lines out of what a monitor remembers: a pattern must not match
// half in one log and half in another.
func withoutLines(remembered json.RawMessage) json.RawMessage {
	var parts map[string]json.RawMessage
	if json.Unmarshal(remembered, &parts) != nil {
		return remembered // it is for the monitor to say what is wrong with it
	}
	delete(parts, "window")
	text, err := json.Marshal(parts)
	if err != nil {
		return nil
	}
	return text
}

// given returns a reader only if there is one: a nil pointer would look like one.
func given[R logs.Reader](reader R, err error) (logs.Reader, error) {
	if err != nil {
		return nil, err
	}
	return reader, nil
}

// translator returns the one that a log of plain lines needs.
func translator(m config.LogMonitor) (logs.Translator, error) {
	if m.Plugin != config.Filelog {
		return nil, nil //nolint:nilnil // the records of the others need none
	}
	return filelog.NewTranslator(m.PluginConfig, time.Now)
}

// checkPath says what is wrong with the path of a log.
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

// counted returns what a reader has counted: lines that it cut, and gaps that nobody can
// count.
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
