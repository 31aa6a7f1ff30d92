package main

import (
	"maps"
	"slices"
	"sync"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
)

// counter is a monitor that counts its problems by reason. Each reason of a rule is present
// from the start.
type counter interface{ Problems() map[string]uint64 }

// problems counts the problems of all monitors, by reason. It keeps the counts of ended
// monitors, because a counter must not decrease.
type problems struct {
	mu       sync.Mutex
	counters map[string]counter // running monitors, by name
	retired  map[string]uint64  // counts of ended monitors
	reported map[string]uint64  // problems that daemons reported
}

const (
	// maxReported is how many reasons of daemons are counted apart. Each is a time series.
	maxReported = 100
	// otherReason counts all further reasons together.
	otherReason = "Other"
)

func newProblems() *problems {
	return &problems{counters: map[string]counter{}, retired: map[string]uint64{}, reported: map[string]uint64{}}
}

// count counts the problems in the report of a daemon: its warnings, and conditions that became
// True.
func (p *problems) count(r finding.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range r.Events {
		isTrue := func(c finding.Condition) bool { return c.Type == e.Condition && c.Status == catalog.True }
		if e.Severity != finding.Warn || e.Condition != "" && !slices.ContainsFunc(r.Conditions, isTrue) {
			continue
		}
		reason := e.Reason
		if _, known := p.reported[reason]; !known && len(p.reported) >= maxReported {
			reason = otherReason
		}
		p.reported[reason]++
	}
}

// replace counts the problems of a new monitor. If counts is nil, the monitor of that name
// has ended and has no successor.
func (p *problems) replace(name string, counts counter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended := p.counters[name]; ended != nil {
		addCounts(p.retired, ended.Problems())
	}
	delete(p.counters, name)
	if counts != nil {
		p.counters[name] = counts
	}
}

func addCounts(to, more map[string]uint64) {
	for reason, n := range more {
		to[reason] += n
	}
}

// sum returns the number of problems by reason.
func (p *problems) sum() map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := maps.Clone(p.retired)
	addCounts(sum, p.reported)
	for _, counts := range p.counters {
		addCounts(sum, counts.Problems())
	}
	return sum
}
