package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/agentlease"
)

const (
	// reportInterval is how often the Leases of agents are read. They change too often to be watched.
	reportInterval = 5 * time.Second
	// settleTime lets changes that come together be reported together.
	settleTime = 500 * time.Millisecond
	// oldEvents is how many of the Events before the report are printed.
	oldEvents = 10
)

// reportKinds follows what reports say, and prints nothing.
func reportKinds(events *eventLog) func(ctx context.Context, w *watcher, c client.WithWatch) []cache.InformerSynced {
	return func(ctx context.Context, w *watcher, c client.WithWatch) []cache.InformerSynced {
		return []cache.InformerSynced{
			follow(ctx, w, c, &corev1.NodeList{}, func(was, is *corev1.Node) { update(w.state.nodes, was, is) }),
			follow(ctx, w, c, &v1alpha1.ConditionSetList{}, func(was, is *v1alpha1.ConditionSet) { update(w.state.sets, was, is) }),
			follow(ctx, w, c, &remediationv1alpha1.NodeHealthCheckList{}, func(was, is *remediationv1alpha1.NodeHealthCheck) { update(w.state.checks, was, is) }),
			follow(ctx, w, c, &v1alpha1.RepairPolicyList{}, func(was, is *v1alpha1.RepairPolicy) { update(w.state.policies, was, is) }),
			follow(ctx, w, c, &v1alpha1.GuardrailsList{}, func(_, is *v1alpha1.Guardrails) { w.state.guardrails = is }),
			follow(ctx, w, c, &eventsv1.EventList{}, func(_, is *eventsv1.Event) { events.add(is) }),
		}
	}
}

// eventLog has the Events that are not printed yet.
type eventLog struct{ waiting []*eventsv1.Event }

// add stores an Event of the controller or of an agent.
func (l *eventLog) add(event *eventsv1.Event) {
	if event == nil || isRepeated(event) {
		return
	}
	if event.ReportingController == controllerName || slices.ContainsFunc(catalog.Conditions(), func(c catalog.Condition) bool { return string(c.Source) == event.ReportingController }) {
		l.waiting = append(l.waiting, event)
	}
}

// take returns the newest waiting Events, oldest first.
func (l *eventLog) take(most int) []*eventsv1.Event {
	events := l.waiting
	l.waiting = nil
	slices.SortStableFunc(events, func(a, b *eventsv1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	return events[max(0, len(events)-most):]
}

func eventTime(event *eventsv1.Event) time.Time {
	if event.Series != nil {
		return event.Series.LastObservedTime.Time
	}
	if !event.EventTime.IsZero() {
		return event.EventTime.Time
	}
	return cmp.Or(event.DeprecatedLastTimestamp.Time, event.CreationTimestamp.Time)
}

// agents are the nodes with a pod of the agent: those whose agent renews its Lease, and the others.
type agents struct{ reporting, silent []string }

func readAgents(ctx context.Context, c kubernetes.Interface, now time.Time) (found agents, err error) {
	is := metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: agentlease.LeaseLabels()})}
	pods, err := c.CoreV1().Pods("").List(ctx, is)
	if err != nil {
		return found, fmt.Errorf("listing the pods of agents: %w", err)
	}
	leases, err := c.CoordinationV1().Leases("").List(ctx, is)
	if err != nil {
		return found, fmt.Errorf("listing the Leases of agents: %w", err)
	}
	for _, pod := range pods.Items {
		renews := slices.ContainsFunc(leases.Items, func(stored coordinationv1.Lease) bool {
			lease, ok := agentlease.Read(&stored)
			return ok && lease.Node == pod.Spec.NodeName && now.Before(lease.Renewed.Add(lease.Duration))
		})
		if renews {
			found.reporting = append(found.reporting, pod.Spec.NodeName)
		} else {
			found.silent = append(found.silent, cmp.Or(pod.Spec.NodeName, "a pod without a node"))
		}
	}
	slices.Sort(found.silent)
	return found, nil
}

func (a agents) String() string {
	text := fmt.Sprintf("%d of %d report", len(a.reporting), len(a.reporting)+len(a.silent))
	if len(a.silent) > 0 {
		text += "; no report from " + joinNames(firstOf(a.silent, 5))
	}
	return text
}

// firstOf returns the first names, and how many more there are.
func firstOf(names []string, most int) []string {
	if len(names) <= most {
		return names
	}
	return append(slices.Clone(names[:most]), fmt.Sprintf("%d more", len(names)-most))
}

// fact is one line of a report. The id identifies it in the next report.
type fact struct {
	id, subject, text string
	// gone is printed when a later report does not have this fact; empty prints nothing.
	gone string
}

// policyStatus is what the statuses of all kinds of policies have.
type policyStatus struct {
	kind, name string
	object     metav1.Object
	observed   int64
	conditions []metav1.Condition
	nodes      []v1alpha1.MatchedNode
}

// policyStatuses returns all policies by kind and name.
func (s *state) policyStatuses() (all []policyStatus) {
	for _, p := range s.sets {
		all = append(all, policyStatus{"ConditionSet", p.Name, p, p.Status.ObservedGeneration, p.Status.Conditions, p.Status.Nodes})
	}
	for _, p := range s.checks {
		status := policyStatus{"NodeHealthCheck", p.Name, p, p.Status.ObservedGeneration, p.Status.Conditions, nil}
		for _, node := range p.Status.UnhealthyNodes {
			status.nodes = append(status.nodes, v1alpha1.MatchedNode{Name: node.Name, Reason: node.Reason, Message: node.Message})
		}
		all = append(all, status)
	}
	for _, p := range s.policies {
		status := policyStatus{"RepairPolicy", p.Name, p, p.Status.ObservedGeneration, p.Status.Conditions, nil}
		for _, node := range p.Status.UnhealthyNodes {
			status.nodes = append(status.nodes, v1alpha1.MatchedNode{Name: node.Name, Reason: node.Reason, Message: node.Message})
		}
		all = append(all, status)
	}
	slices.SortFunc(all, func(a, b policyStatus) int {
		return cmp.Or(strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name))
	})
	return all
}

// unreported returns what has no status of the controller yet.
func (s *state) unreported() (names []string) {
	if s.guardrails != nil && s.guardrails.Status.ObservedGeneration != s.guardrails.Generation {
		names = append(names, "Guardrails/"+s.guardrails.Name)
	}
	for _, p := range s.policyStatuses() {
		if p.observed != p.object.GetGeneration() {
			names = append(names, p.kind+"/"+p.name)
		}
	}
	return names
}

// facts returns what a report says.
func (s *state) facts(agents agents) []fact {
	var nodes, policies []fact
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		if bad := unhealthyConditions(s.nodes[name]); bad != "" {
			nodes = append(nodes, fact{id: "Node/" + name, subject: name, text: bad, gone: "all conditions are healthy, or the node is gone"})
		}
	}
	for _, p := range s.policyStatuses() {
		text := "no status yet"
		if ready := meta.FindStatusCondition(p.conditions, v1alpha1.Ready); ready != nil {
			text = ready.Message
		}
		id := p.kind + "/" + p.name
		policies = append(policies, fact{id, p.name, p.kind + ": " + text, "the " + p.kind + " is gone"})
		for _, node := range p.nodes {
			policies = append(policies, fact{id: id + "/" + node.Name, subject: node.Name, text: fmt.Sprintf("%s: %s: %s", node.Reason, id, node.Message)})
		}
	}
	all := append([]fact{{id: "nodes", subject: "nodes", text: fmt.Sprintf("%d, %d with an unhealthy condition", len(s.nodes), len(nodes))}}, nodes...)
	all = append(all, fact{id: "agents", subject: "agents", text: agents.String()})
	rails := "none; the flag --default-mode of the controller is in effect"
	if s.guardrails != nil {
		rails = railsSummary(s.guardrails)
	}
	all = append(all, fact{id: "guardrails", subject: "guardrails", text: rails})
	if len(policies) == 0 {
		all = append(all, fact{id: "policies", subject: "policies", text: "none, so Autohealer would do nothing"})
	}
	return append(all, policies...)
}

// unhealthyConditions describes the conditions of a node that are not healthy, or returns an empty
// string.
func unhealthyConditions(node *corev1.Node) string {
	var bad []string
	for _, c := range node.Status.Conditions {
		healthy := catalog.False
		if known, ok := catalog.Lookup(string(c.Type)); ok {
			healthy = known.Healthy
		} else if strings.HasSuffix(string(c.Type), "Ready") { // for example NetworkingReady on EKS
			healthy = catalog.True
		}
		if string(c.Status) != string(healthy) {
			bad = append(bad, fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason))
		}
	}
	return strings.Join(bad, ", ")
}

// reporter prints reports: all facts first, then those that have changed.
type reporter struct {
	printer *printer
	last    map[string]fact
}

func (r *reporter) print(facts []fact, events []*eventsv1.Event) {
	now := map[string]fact{}
	for _, f := range facts {
		now[f.id] = f
		if r.last[f.id].text != f.text {
			r.printer.line(f.subject, "%s", f.text)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.last)) {
		if f := r.last[id]; now[id].id == "" && f.gone != "" {
			r.printer.line(f.subject, "%s", f.gone)
		}
	}
	r.last = now
	for _, event := range events {
		ago := ""
		if age := time.Since(eventTime(event)); age > time.Minute {
			ago = " (" + duration.HumanDuration(age) + " ago)"
		}
		r.printer.line(event.Regarding.Name, "Event %s: %s%s", event.Reason, event.Note, ago)
	}
}

// watch prints what Autohealer sees, now and on change, until ctx ends; with once only now.
func (r *inCluster) watch(ctx context.Context) error {
	var events eventLog
	var w *watcher
	err := withTimeout(ctx, listTimeout, func(ctx context.Context) (err error) {
		w, err = watchCluster(ctx, r.config, r.printer, reportKinds(&events))
		return err
	})
	if err != nil {
		return fmt.Errorf("%w; all CRDs of Autohealer must be installed, and the user must have the right to list them, nodes and Events", err)
	}
	defer w.stop()
	all := reporter{printer: r.printer}
	deadline, waitsFor := time.Now().Add(r.patience), ""
	var agents agents
	for read := (time.Time{}); ; {
		var err error
		if time.Since(read) >= reportInterval {
			read = time.Now()
			if agents, err = readAgents(ctx, r.client, read); err != nil && ctx.Err() == nil {
				r.printer.say("%v; retrying", err)
			}
		}
		w.mu.Lock()
		changed, missing, facts := w.changed, w.state.unreported(), w.state.facts(agents)
		missing = append(missing, agents.silent...)
		isFirst := all.last == nil
		isComplete := len(missing) == 0 || time.Now().After(deadline)
		var fresh []*eventsv1.Event
		switch {
		case isFirst && isComplete:
			fresh = events.take(oldEvents)
		case !isFirst:
			fresh = events.take(len(events.waiting))
		}
		w.mu.Unlock()
		switch {
		case isFirst && !isComplete:
			if text := joinNames(firstOf(missing, 5)); text != waitsFor && text != "" {
				r.printer.say("waiting for the status of %s", text)
				waitsFor = text
			}
		case isFirst:
			r.printer.print("")
			r.printer.say("what Autohealer sees:")
			r.printer.print("")
			r.printer.startInteractive()
			fallthrough
		default:
			all.print(facts, fresh)
		}
		if isFirst && isComplete {
			if slices.ContainsFunc(facts, func(f fact) bool { return f.id == "policies" }) {
				r.printer.print("\nTo see what the default sets would do:\n\n  kubectl apply -f deploy/defaults")
			}
			r.printer.print("")
			if r.once {
				return nil
			}
			r.printer.say("changes follow until Ctrl-C")
			r.printer.print("")
		}
		select {
		case <-changed:
		case <-time.After(reportInterval):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(settleTime):
		case <-ctx.Done():
			return nil
		}
	}
}
