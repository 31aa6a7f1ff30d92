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
	if c, _ := p.condition("KernelDeadlock"); c.LastTransitionTime != before.LastTransitionTime {
		t.Errorf("the condition is since %s, want %s", c.LastTransitionTime, before.LastTransitionTime)
	}
	p.waitFor("what was written meanwhile", func() bool { return p.logged("problem found", "OOMKilling") == 1 })

	// The same holds if the agent starts while the file is missing.
	p.stop()
	testkit.Must(t, os.Rename(s.config, s.config+".away"))
	p = start(t, args...)
	p.waitFor("that it is missed", func() bool { return p.logged(s.config, "ConfigRemoved") == 1 })
	testkit.Must(t, os.Rename(s.config+".away", s.config))
	p.waitFor("the condition of before", p.is("KernelDeadlock", "True", "DockerHung"))
	if n := p.logged("condition changed"); n != 0 {
		t.Errorf("%d changes of the condition are reported, want none", n)
	}
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
		if p.logged("level=ERROR", "ConfigInvalid", "the last good version stays in force", s.config) != 1 {
			t.Error("the bad file is not logged exactly once")
		}
		if got := p.metric(`autohealer_agent_config_valid{file="` + s.config + `"}`); got != "0" {
			t.Errorf("config_valid is %s", got)
		}
		if code, body := get(t, p.statusURL+"/healthz"); code != http.StatusOK {
			t.Errorf("while the last good version is in force, /healthz returns %d %q", code, body)
		}
	}
	s.log.write(oom)
	p.waitFor("a problem that the last good version knows", func() bool { return p.logged("problem found", "OOMKilling") == 1 })
	put(t, s.config, kernelMonitor(s.log.path, ""))
	p.waitFor("that the file is good again", func() bool { return p.logged("ConfigLoaded") == 1 })
	if n := p.logged("a monitor is replaced"); n != 0 {
		t.Error("the monitor was replaced")
	}
}

func TestFlappingLabelDoesNotClearConditions(t *testing.T) {
	s := newScene(t)
	put(t, s.config, kernelMonitor(s.log.path, `"nodeSelector": "gpu=true",`))
	a, err := newAgent(options{stateDir: s.state}, none, slog.New(slog.DiscardHandler))
	testkit.Must(t, err)
	t.Cleanup(func() {
		a.supervisor.Stop()
		if err := a.state.Close(); err != nil {
			t.Error(err)
		}
	})
	shelf := settings.New(settings.Config{Names: []settings.Name{{Kind: config.SystemLog, Path: s.config}}, Judge: checkFile})
	a.applyFiles(t.Context(), shelf.Read(), shelf.Settings())
	deadlock := func() (status catalog.Status) {
		for _, c := range a.aggregate.Conditions() {
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
	if status := deadlock(); status != "" {
		t.Errorf("on an unselected node the status is %s", status)
	}
	a.setLabels(t.Context(), gpu)
	testkit.Until(t, "the first word of it", func() bool { return deadlock() != "" })
	if status := deadlock(); status != catalog.True {
		t.Errorf("when the label is back the status is %s", status)
	}
}
