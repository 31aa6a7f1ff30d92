package main

import (
	"os"
	"time"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/report"
)

// minHeartbeat is the lower bound of --k8s-exporter-heartbeat-period, because each check is
// a request per node of the cluster.
const minHeartbeat = 10 * time.Second

// connect finds the API server. Without one the agent only serves and logs its findings. If
// the configured API server cannot be found, connect returns an error.
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
		LookEvery: max(o.reporting.heartbeat, minHeartbeat), Remembered: a.restoreReporter(), Remember: a.saveReporter, Logger: a.log,
	})
	return err
}

// holder returns the holder of the Lease.
func holder(o options, getenv func(string) string) string {
	if pod := getenv("POD_NAME"); pod != "" {
		return pod
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return o.node
}

// restoreReporter returns the reporter's state of the previous agent, which includes
// conditions that were left to other writers.
func (a *agent) restoreReporter() report.State {
	var state report.State
	if note := a.state.Note(); note != "" {
		var err error
		if a.unknownReporterFields, err = format.ReadAll([]byte(note), &state); err != nil {
			a.log.Error("stored state of the reporter cannot be read, starting without it", "err", err)
			return report.State{}
		}
	}
	return state
}

// saveReporter stores the reporter's state.
func (a *agent) saveReporter(state report.State) {
	text, err := a.unknownReporterFields.Write(state)
	if err != nil {
		a.log.Error("storing the state of the reporter failed", "err", err)
		return
	}
	a.state.KeepNote(string(text))
}

// reportMetrics returns the metrics of reports to the API server.
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
	requests := family("requests_total", metrictext.Counter, "Requests to the API server, by kind and result.", "request", "result")
	for of, n := range counts.Requests {
		requests.Add(float64(n), of.Kind, of.Result)
	}
	dropped := family("dropped_total", metrictext.Counter, "Findings that will never be in the API server, by reason.", "kind", "why")
	for of, n := range counts.Dropped {
		dropped.Add(float64(n), of.Kind, of.Why)
	}
	yielded := family("condition_yielded", metrictext.Gauge, "Conditions that are left to another writer.", "condition", "manager")
	for kind, manager := range counts.Yielded {
		yielded.Add(1, kind, manager)
	}
	return []*metrictext.Family{
		requests, dropped, yielded,
		single("events_taken_total", metrictext.Counter, "Events to send: each is sent, counted in an Event of the same reason, dropped or queued.", float64(counts.EventsTaken)),
		single("events_sent_total", metrictext.Counter, "Events sent.", float64(counts.EventsSent)),
		single("events_summed_total", metrictext.Counter, "Events that were counted in a sent Event of the same reason.", float64(counts.EventsSummed)),
		single("events_queued", metrictext.Gauge, "Events in the queue.", float64(counts.EventsQueued)),
		single("conditions_pending", metrictext.Gauge, "Whether the API server does not have the newest conditions yet.", boolValue(counts.Pending)),
		single("conditions_mended_total", metrictext.Counter, "Conditions that others changed and the agent restored.", float64(counts.Mended)),
		single("conditions_taken_over_total", metrictext.Counter, "Conditions that the agent took over from another writer.", float64(counts.TakenOver)),
		single("last_answer_timestamp_seconds", metrictext.Gauge, "Time of the last answer of the API server; 0 if there was none.", seconds(counts.LastAnswer)),
		single("lease_renewed_timestamp_seconds", metrictext.Gauge, "Time of the last renewal of the Lease; 0 if there was none.", seconds(counts.LeaseRenewed)),
	}
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
