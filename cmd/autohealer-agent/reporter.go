package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/probe/statefile"
	"github.com/resourcestack/autohealer/internal/report"
)

// minHeartbeat is the lower bound of --k8s-exporter-heartbeat-period, because each check is
// a request per node of the cluster.
const minHeartbeat = 10 * time.Second

// reports merges the findings of all monitors and sources, and passes the result to the
// reporter.
type reports struct {
	log   *slog.Logger
	state *statefile.Store
	// mu keeps the order of findings between the aggregate and the reporter: the reporter
	// takes the last report as the newest.
	mu        sync.Mutex
	aggregate finding.Aggregate
	reporter  *report.Reporter // nil without reporting
	// unknownFields are fields of the reporter's state that a newer agent stored.
	unknownFields *format.Rest
}

// connect finds the API server, and returns its client and the function that reads the metadata
// of the node. Without an API server the agent only serves and logs its findings. If a flag needs
// an API server that cannot be found, connect returns an error.
func (r *reports) connect(o options, getenv func(string) string) (*kubeapi.Client, func(context.Context) (kubeapi.Metadata, error), error) {
	var client *kubeapi.Client
	access, err := kubeapi.Find(o.kubeconfig, o.override, getenv)
	if err == nil {
		client, err = kubeapi.New(access, name+"/"+version)
	}
	switch {
	case err != nil && o.metricsSecure:
		return nil, nil, fmt.Errorf("--metrics-secure needs an API server that knows the rights of clients: %w", err)
	case err != nil && (o.kubeconfig != "" || o.override != ""):
		return nil, nil, err
	case err != nil:
		if o.reporting.enable {
			r.log.Warn("nothing is reported to an api server", "err", err)
		}
		return nil, func(context.Context) (kubeapi.Metadata, error) { return kubeapi.Metadata{}, err }, nil
	}
	getNode := func(ctx context.Context) (kubeapi.Metadata, error) { return client.NodeMetadata(ctx, o.node) }
	if !o.reporting.enable {
		r.log.Info("nothing is reported to the api server", "why", "--enable-k8s-exporter=false")
		return client, getNode, nil
	}
	r.reporter, err = report.New(report.Config{
		API: client, Node: o.node, Holder: holder(o, getenv), LeaseNamespace: o.reporting.leases, EventNamespace: o.reporting.namespace,
		TakeOver: o.takeOver, WithoutConditions: !o.reporting.conditions, WithoutEvents: !o.reporting.events,
		LookEvery: max(o.reporting.heartbeat, minHeartbeat), Remembered: r.restore(), Remember: r.save, Logger: r.log,
	})
	return client, getNode, err
}

// start runs the reporter until the returned function is called. That function waits a
// moment until pending reports are written.
func (r *reports) start(ctx context.Context) (stop func()) {
	if r.reporter == nil {
		return func() {}
	}
	return background(ctx, r.reporter.Run)
}

// refusal says why the API server takes no report, empty if it does.
func (r *reports) refusal() string {
	if r.reporter == nil {
		return ""
	}
	return r.reporter.Refusal()
}

// add merges the findings of a monitor.
func (r *reports) add(monitor string, found finding.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(r.aggregate.Add(monitor, found))
}

// report logs the merged state of the node and passes it to the reporter.
func (r *reports) report(merged finding.Report) {
	for i := range merged.Conditions {
		c := &merged.Conditions[i]
		log := r.log.With("condition", c.Type, "status", c.Shown(), "reason", c.Reason, "since", c.Since)
		if c.Status == catalog.False {
			log.Debug("condition stands") // most conditions, at each start
		} else {
			log.Info("condition stands")
		}
	}
	for _, kind := range merged.Gone {
		r.log.Info("condition removed", "condition", kind)
	}
	if r.reporter != nil {
		r.reporter.Take(merged)
	}
}

// await makes the reporter keep the previous agent's rows of conditions that are not known
// yet.
func (r *reports) await(kinds []string) {
	if r.reporter != nil {
		r.reporter.Await(kinds...)
	}
}

// complete makes the reporter remove rows of the previous agent that no monitor reports.
func (r *reports) complete() {
	if r.reporter != nil {
		r.reporter.Complete()
	}
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

// restore returns the reporter's state of the previous agent, which includes
// conditions that were left to other writers.
func (r *reports) restore() report.State {
	var state report.State
	if note := r.state.Note(); note != "" {
		var err error
		if r.unknownFields, err = format.ReadAll([]byte(note), &state); err != nil {
			r.log.Error("stored state of the reporter cannot be read, starting without it", "err", err)
			return report.State{}
		}
	}
	return state
}

// save stores the reporter's state.
func (r *reports) save(state report.State) {
	text, err := r.unknownFields.Write(state)
	if err != nil {
		r.log.Error("storing the state of the reporter failed", "err", err)
		return
	}
	r.state.KeepNote(string(text))
}

// metrics returns the metrics of reports to the API server.
func (r *reports) metrics() []*metrictext.Family {
	if r.reporter == nil {
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
	counts := r.reporter.Counts()
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
		single("conditions_restored_total", metrictext.Counter, "Conditions that others changed and the agent restored.", float64(counts.Restored)),
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
