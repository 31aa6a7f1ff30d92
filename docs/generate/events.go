package main

import (
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/treat"
)

// eventPage returns the page about the Events of both programs.
func eventPage() string {
	p := newPage("Events", "Events", 74)
	p.add("This page lists the reasons of all Events that the controller and the agent write.")
	p.add("```sh\nkubectl events -n default --for node/worker-1\nkubectl get events --all-namespaces --field-selector reason=NodeRepair\n```")

	p.add("## Events of the controller")
	p.add("The controller writes an Event for each of the objects that exists, with almost the same message. A ConfigMap has the Events about the ConditionSets that it contains. " +
		"Events about a ConfigMap are in its namespace, all others in `default`. The `reportingComponent` is `autohealer-controller`.")
	p.header("reason", "type", "on", "when")
	kinds := treat.EventKinds()
	slices.SortFunc(kinds, func(a, b treat.EventKind) int { return strings.Compare(a.Reason, b.Reason) })
	for _, kind := range kinds {
		p.row(code(kind.Reason), kind.Type, kind.On, plain(kind.When))
	}

	p.add("## Events of the agent")
	p.add("All Events of the agent are on its Node. [Agent reports](agent-reporting.md#events) describes their fields.")
	types := map[finding.Severity]string{finding.Info: "Normal", finding.Warn: "Warning"}
	p.header("reason", "type", "when")
	for _, reason := range finding.Reasons() {
		if reason.Severity != "" {
			p.row(code(reason.Name), types[reason.Severity], plain(reason.When))
		}
	}

	p.add("### Conditions")
	p.add("Every change of the status or the reason of a condition is an Event with the reason of the condition. It is a Warning if the node becomes unhealthy, or Unknown after it was healthy; otherwise it is Normal.")
	p.add("The reason is that of the rule that matches. While the condition is healthy, the reason is that of the condition in its [file](agent-configuration.md). A [daemon](problem-reports.md) chooses its reasons itself. " +
		"If the agent cannot determine the condition, it is Unknown with one of these reasons. A `temporary` rule then makes a Warning: with the [reason of the rule](agent-plugins.md#answers) if a program has run, otherwise with one of these.")
	p.header("reason", "when")
	for _, reason := range finding.Reasons() {
		if reason.Severity == "" {
			p.row(code(reason.Name), plain(reason.When))
		}
	}

	p.add("### Problems without a condition")
	p.add("A match of a `temporary` rule is a Warning with the reason of the rule. A daemon chooses the reason and the type of its Events. The files that ship with the agent have these reasons:")
	p.header("reason", "reported by", "meaning")
	for _, event := range catalog.Events() {
		p.row(code(event.Reason), sourceNames(event.Sources), plain(event.Meaning))
	}
	return p.String()
}

func sourceNames(sources []catalog.Source) string {
	names := make([]string, len(sources))
	for i, source := range sources {
		names[i] = string(source)
	}
	return strings.Join(names, ", ")
}
