package main

import (
	"log/slog"
	"net/http"
	"os"
	"testing"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// empty truncates the log, so that no agent finds its lines again.
func (l kernelLog) empty() {
	l.t.Helper()
	testkit.Must(l.t, os.Truncate(l.path, 0))
}

func TestMissingFileDoesNotClearConditions(t *testing.T) {
	s, other := newScene(t), newScene(t)
	args := append(s.args(), "--config.system-log-monitor="+other.config)
	p := start(t, args...)
	s.log.write(hung)
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	before, _ := p.condition("KernelDeadlock")
	s.log.empty()
	testkit.Must(t, os.Remove(s.config))
	p.waitFor("the end of its monitor", func() bool { return p.logged("a monitor is stopped") == 1 })
	s.log.write(oom) // while no monitor reads
	put(t, s.config, kernelMonitor(s.log.path, ""))
	p.waitFor("the condition of before", p.is("KernelDeadlock", "True", "DockerHung"))
	c, _ := p.condition("KernelDeadlock")
	testkit.Check(t, c.Transition == before.Transition, "the condition is since %s, want %s", c.Transition, before.Transition)
	p.waitFor("what was written meanwhile", func() bool { return p.logged("problem found", "OOMKilling") == 1 })

	// The same holds if the agent starts while the file is missing.
	p.stop()
	testkit.Must(t, os.Rename(s.config, s.config+".away"))
	p = start(t, args...)
	p.waitFor("that it is missed", func() bool { return p.logged(s.config, "ConfigRemoved") == 1 })
	testkit.Must(t, os.Rename(s.config+".away", s.config))
	p.waitFor("the condition of before", p.is("KernelDeadlock", "True", "DockerHung"))
	testkit.Same(t, p.logged("condition changed"), 0, "reported changes of the condition")
}

func TestBadEditAndRestartDoNotClearConditions(t *testing.T) {
	s := newScene(t)
	p := start(t, s.args()...)
	s.log.write(hung)
	p.waitFor("the condition", p.is("KernelDeadlock", "True", "DockerHung"))
	s.log.empty()
	put(t, s.config, "{")
	for range 3 { // the agent keeps the last good version across restarts
		p.stop()
		p = start(t, s.args()...)
		p.waitFor("the condition of before", p.is("KernelDeadlock", "True", "DockerHung"))
		testkit.Same(t, p.logged("level=ERROR", "ConfigInvalid", "the last good version stays in force", s.config), 1, "log lines of the bad file")
		testkit.Same(t, p.metric(`autohealer_agent_config_valid{file="`+s.config+`"}`), "0", "config_valid")
		answers(t, p.statusURL+"/healthz", http.StatusOK, "")
	}
	s.log.write(oom)
	p.waitFor("a problem that the last good version knows", func() bool { return p.logged("problem found", "OOMKilling") == 1 })
	put(t, s.config, kernelMonitor(s.log.path, ""))
	p.waitFor("that the file is good again", func() bool { return p.logged("ConfigLoaded") == 1 })
	testkit.Same(t, p.logged("a monitor is replaced"), 0, "replaced monitors")
}

func TestFlappingLabelDoesNotClearConditions(t *testing.T) {
	s := newScene(t)
	put(t, s.config, kernelMonitor(s.log.path, `"nodeSelector": "gpu=true",`))
	a := testkit.Value(newAgent(options{stateDir: s.state}, none, slog.New(slog.DiscardHandler))).Must(t)
	t.Cleanup(func() {
		a.supervisor.Stop()
		testkit.Must(t, a.state.Close())
	})
	files := settings.New(settings.Config{Names: []settings.Name{{Kind: config.SystemLog, Path: s.config}}, Parse: checkFile})
	a.applyFiles(t.Context(), files.Read(), files.Settings())
	deadlock := func() (status catalog.Status) {
		for _, c := range a.reports.aggregate.Conditions() {
			if c.Type == "KernelDeadlock" {
				status = c.Status
			}
		}
		return status
	}
	gpu := map[string]string{"gpu": "true"}
	a.setLabels(t.Context(), gpu)
	s.log.write(hung)
	testkit.Until(t, "the condition", func() bool { return deadlock() == catalog.True })
	s.log.empty()
	a.setLabels(t.Context(), map[string]string{})
	testkit.Same(t, deadlock(), "", "on an unselected node the status")
	a.setLabels(t.Context(), gpu)
	testkit.Until(t, "the first word of it", func() bool { return deadlock() != "" })
	testkit.Same(t, deadlock(), catalog.True, "when the label is back the status")
}
