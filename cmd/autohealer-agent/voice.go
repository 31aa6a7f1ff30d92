package main

import (
	"os"
	"time"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/report"
)

// shortestLook bounds --k8s-exporter-heartbeat-period: each look is a request of each
// node of the cluster.
const shortestLook = 10 * time.Second

// connect finds the API server. Where there is none the agent serves and logs what it
// finds; one that was asked for and cannot be found is an error.
func (a *agent) connect(o options, getenv func(string) string) error {
	access, err := kubeapi.Find(o.kubeconfig, o.override, getenv)
	if err == nil {
		a.client, err = kubeapi.New(access, name+"/"+version)
	}
	switch {
	case err != nil && (o.kubeconfig != "" || o.override != ""):
		return err
	case err != nil:
		a.noClient = err
		if o.reporting.enable {
			a.log.Warn("nothing is reported to an api server", "err", err)
		}
		return nil
	case !o.reporting.enable:
		a.log.Info("nothing is reported to the api server", "why", "--enable-k8s-exporter=false")
		return nil
	}
	a.reporter, err = report.New(report.Config{
		API: a.client, Node: o.node, Holder: holder(o, getenv), LeaseNamespace: o.reporting.leases, EventNamespace: o.reporting.namespace,
		TakeOver: o.takeOver, WithoutConditions: !o.reporting.conditions, WithoutEvents: !o.reporting.events,
		LookEvery: max(o.reporting.heartbeat, shortestLook), Remembered: a.agreed(), Remember: a.agree, Logger: a.log,
	})
	return err
}

// holder is who holds the Lease.
func holder(o options, getenv func(string) string) string {
	if pod := getenv("POD_NAME"); pod != "" {
		return pod
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return o.node
}

// agreed is what the agent before this one had settled with other writers.
func (a *agent) agreed() report.State {
	var state report.State
	if note := a.memory.Note(); note != "" {
		var err error
		if a.unknownAgreed, err = format.ReadAll([]byte(note), &state); err != nil {
			a.log.Error("what was agreed upon with other writers cannot be read, it is settled anew", "err", err)
			return report.State{}
		}
	}
	return state
}

// agree remembers it.
func (a *agent) agree(state report.State) {
	text, err := a.unknownAgreed.Write(state)
	if err != nil {
		a.log.Error("what was agreed upon with other writers cannot be kept", "err", err)
		return
	}
	a.memory.KeepNote(string(text))
}

// reportMetrics are the figures of what was told to the API server.
func (a *agent) reportMetrics() []*metrictext.Family {
	if a.reporter == nil {
		return nil
	}
	family := func(name, kind, help string, labels ...string) *metrictext.Family {
		return &metrictext.Family{Name: "autohealer_agent_" + name, Kind: kind, Labels: labels, Help: help}
	}
	single := func(name, kind, help string, value float64) *metrictext.Family {
		f := family(name, kind, help)
		f.Add(value)
		return f
	}
	counts := a.reporter.Counts()
	requests := family("requests_total", metrictext.Counter, "Requests to the API server, by what they were for and what came of them.", "request", "result")
	for of, n := range counts.Requests {
		requests.Add(float64(n), of.Kind, of.Result)
	}
	dropped := family("dropped_total", metrictext.Counter, "What was found and will never stand in the API server, and why.", "kind", "why")
	for of, n := range counts.Dropped {
		dropped.Add(float64(n), of.Kind, of.Why)
	}
	yielded := family("condition_yielded", metrictext.Gauge, "Conditions that are left to another writer.", "condition", "manager")
	for kind, manager := range counts.Yielded {
		yielded.Add(1, kind, manager)
	}
	return []*metrictext.Family{
		requests, dropped, yielded,
		single("events_taken_total", metrictext.Counter, "Events that were to be sent: each is sent, summed up in one that was, dropped, or queued.", float64(counts.EventsTaken)),
		single("events_sent_total", metrictext.Counter, "Events that were sent.", float64(counts.EventsSent)),
		single("events_summed_total", metrictext.Counter, "Events that were summed up in one that was sent, of the same reason.", float64(counts.EventsSummed)),
		single("events_queued", metrictext.Gauge, "Events that wait to be sent, or to be summed up.", float64(counts.EventsQueued)),
		single("conditions_pending", metrictext.Gauge, "Whether the API server does not have the newest conditions yet.", number(counts.Pending)),
		single("conditions_mended_total", metrictext.Counter, "Conditions that others had changed, and that were put right.", float64(counts.Mended)),
		single("conditions_taken_over_total", metrictext.Counter, "Conditions that were another writer's.", float64(counts.TakenOver)),
		single("last_answer_timestamp_seconds", metrictext.Gauge, "When the API server answered last; 0 if it never did.", seconds(counts.LastAnswer)),
		single("lease_renewed_timestamp_seconds", metrictext.Gauge, "When the Lease was renewed last; 0 if it never was.", seconds(counts.LeaseRenewed)),
	}
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
