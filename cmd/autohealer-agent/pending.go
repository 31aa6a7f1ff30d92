package main

import (
	"maps"
	"slices"
)

// pending is what the agent waits for until it knows all conditions.
type pending struct {
	files      []string        // files that wait for the labels of the node
	monitors   map[string]bool // whether the conditions of a monitor are not known yet
	isComplete bool            // all conditions were known once
}

// await records which conditions are not known yet, and returns their types. before are the
// tasks until now.
func (w *pending) await(p plan, before map[string]task) []string {
	unknown, awaited := w.monitors, p.waitingConditions
	w.monitors = map[string]bool{}
	for name, t := range p.tasks {
		_, ran := before[name]
		w.monitors[name] = len(t.conditions) > 0 && (unknown[name] || !ran)
		if w.monitors[name] {
			awaited = append(awaited, t.conditionTypes()...)
		}
	}
	return awaited
}

// complete reports whether all conditions are known for the first time.
func (w *pending) complete() bool {
	if w.isComplete || len(w.files) > 0 || slices.Contains(slices.Collect(maps.Values(w.monitors)), true) {
		return false
	}
	w.isComplete = true
	return true
}
