package triage

import (
	"iter"
	"slices"
	"strconv"
	"time"
)

// CorrelatedFailure says when unhealthy nodes probably have a common cause, which a treatment
// of each node does not remove: more nodes with the same value of a label than Threshold, and at
// least MinNodes, are unhealthy and became so within Window of each other. No treatment of these
// nodes begins then.
//
// Whether a common cause is likely follows from the unhealthy nodes of now alone, so that a
// successor process finds the same. Only rules count that treat nodes or place NoExecute, and are
// not on dry run: a harmless condition on many nodes must not hold their repair. A node that was
// never ready for work counts only when a treatment is due, because every node begins like that.
type CorrelatedFailure struct {
	Threshold Limit
	MinNodes  int
	Window    time.Duration
	Labels    []string
	Image     bool // also nodes with the same [Node.Image]
	// LongestHold ends a hold, although the nodes are still unhealthy. Nodes that became unhealthy
	// before that do not count again. Zero means no end.
	LongestHold time.Duration
	// Released is until when treatments may begin nevertheless.
	Released time.Time
}

func (f *CorrelatedFailure) validate() error {
	if f == nil {
		return nil
	}
	if err := f.Threshold.validate(); err != nil {
		return within("threshold", err)
	}
	switch {
	case f.Threshold.Healthy:
		return &FieldError{Field: "threshold", Value: f.Threshold.String(), Problem: "want a number of unhealthy nodes"}
	case f.MinNodes < 1:
		return &FieldError{Field: "minNodes", Value: strconv.Itoa(f.MinNodes), Problem: "want at least one node"}
	case f.Window <= 0:
		return &FieldError{Field: "window", Value: f.Window.String(), Problem: "want a positive duration"}
	case f.LongestHold < 0:
		return &FieldError{Field: "longestHold", Value: f.LongestHold.String(), Problem: "a duration cannot be negative"}
	}
	return nil
}

func (f *CorrelatedFailure) clone() *CorrelatedFailure {
	if f = copied(f); f != nil {
		f.Labels = slices.Clone(f.Labels)
	}
	return f
}

// failures is the state of [Rails.CorrelatedFailure].
type failures struct {
	labels  []symbol // of the labels, and of imageKey
	image   symbol
	domains map[label]*failureDomain
	changed []*failureDomain
	held    int // domains that hold treatments
	// next is when time alone changes a hold; 0 for never.
	next  int64
	timer queueItem
}

// imageKey is the key of a domain of nodes with the same image.
const imageKey = "image"

// failureDomain is the nodes with one value of a label, or with the same image.
type failureDomain struct {
	label
	nodes     int
	failed    map[*node]bool // unhealthy nodes
	starts    *sortedTimes   // when they became unhealthy
	holds     bool
	windowEnd int64 // the end of a window that shows a common cause
	until     int64 // the end of the hold by LongestHold; 0 if there is none
	waiting   queue
	isChanged bool
}

// loadFailures counts all nodes anew under the labels of the rails.
func (c *Core) loadFailures() {
	f := &c.rails.failures
	for _, d := range f.domains {
		c.releaseLabel(d.label)
	}
	for _, key := range f.labels {
		c.symbols.release(key)
	}
	f.timer.leave()
	*f = failures{domains: map[label]*failureDomain{}, timer: queueItem{rails: true}}
	spec := c.rails.spec.CorrelatedFailure
	if spec == nil {
		return
	}
	for _, key := range spec.Labels {
		f.labels = append(f.labels, c.symbols.acquire(key))
	}
	if f.image = noSymbol; spec.Image {
		f.image = c.symbols.acquire(imageKey)
		f.labels = append(f.labels, f.image)
	}
	for _, n := range c.walk() {
		n.failedSince = c.failedSince(n)
		c.enterFailureDomains(n)
	}
}

func (c *Core) releaseLabel(l label) {
	c.symbols.release(l.key)
	c.symbols.release(l.value)
}

// failureLabels returns the labels of the domains of a node.
func (c *Core) failureLabels(n *node) iter.Seq[label] {
	return func(yield func(label) bool) {
		f := &c.rails.failures
		for _, key := range f.labels {
			value, has := n.label(key)
			if key == f.image {
				value, has = n.image, n.image != noSymbol
			}
			if has && !yield(label{key, value}) {
				return
			}
		}
	}
}

// enterFailureDomains adds a node to its domains.
func (c *Core) enterFailureDomains(n *node) {
	f := &c.rails.failures
	for l := range c.failureLabels(n) {
		d := f.domains[l]
		if d == nil {
			c.symbols.acquire(c.symbols.name(l.key))
			c.symbols.acquire(c.symbols.name(l.value))
			d = &failureDomain{label: l, failed: map[*node]bool{}, starts: newSortedTimes(nil)}
			f.domains[l] = d
		}
		d.nodes++
		d.add(n)
		f.markChanged(d)
	}
}

// leaveFailureDomains removes a node from its domains.
func (c *Core) leaveFailureDomains(n *node) {
	f := &c.rails.failures
	for l := range c.failureLabels(n) {
		d := f.domains[l]
		d.nodes--
		d.remove(n)
		f.markChanged(d)
		if d.nodes == 0 {
			c.setHolds(d, false)
			delete(f.domains, l)
			c.releaseLabel(l)
		}
	}
}

// add counts an unhealthy node.
func (d *failureDomain) add(n *node) {
	if n.failedSince != 0 {
		d.failed[n] = true
		d.starts.add(n.failedSince)
	}
}

func (d *failureDomain) remove(n *node) {
	if n.failedSince != 0 {
		delete(d.failed, n)
		d.starts.remove(n.failedSince)
	}
}

// markChanged records that a hold may begin or end.
func (f *failures) markChanged(d *failureDomain) {
	if !d.isChanged {
		d.isChanged = true
		f.changed = append(f.changed, d)
	}
}

// updateFailure updates since when a node is unhealthy.
func (c *Core) updateFailure(n *node) {
	f := &c.rails.failures
	if len(f.labels) == 0 {
		return
	}
	since := c.failedSince(n)
	if since == n.failedSince {
		return
	}
	for l := range c.failureLabels(n) {
		d := f.domains[l]
		d.remove(n)
		if since != 0 {
			d.failed[n] = true
			d.starts.add(since)
		}
		f.markChanged(d)
	}
	n.failedSince = since
}

// failedSince is since when a node is unhealthy under some rule; 0 if it is not.
func (c *Core) failedSince(n *node) (first int64) {
	for _, ep := range n.episodes {
		isDue := ep.active || ep.verdict == holds && ep.eligible <= c.now
		if !ep.unhealthy || !ep.rule.takesSlots() || !n.initialized && !isDue {
			continue
		}
		if since := ep.matchedSince(); since != 0 && (first == 0 || since < first) {
			first = since
		}
	}
	return first
}

// matchedSince is since when the conditions of the rule have matched; 0 if no clock runs.
func (ep *episode) matchedSince() (since int64) {
	for _, k := range ep.clocks {
		if since == 0 || ep.rule.spec.When.All == (k.since > since) {
			since = k.since
		}
	}
	return since
}

// needed is how many nodes of a domain show a common cause.
func (f *CorrelatedFailure) needed(nodes int) int { return max(f.Threshold.Of(nodes)+1, f.MinNodes) }

// updateFailures begins and ends holds. It runs once per call, after all changes of the call
// are counted.
func (c *Core) updateFailures() {
	f, spec := &c.rails.failures, c.rails.spec.CorrelatedFailure
	if spec == nil {
		return
	}
	if f.next != 0 && f.next <= c.now {
		for _, d := range f.domains {
			f.markChanged(d)
		}
	}
	if len(f.changed) == 0 {
		return
	}
	released := nanos(spec.Released)
	for _, d := range f.changed {
		d.isChanged = false
		c.setHolds(d, released <= c.now && d.findCause(spec, c.now))
	}
	f.changed = f.changed[:0]
	f.next = 0
	if released > c.now {
		f.next = released
	}
	if spec.LongestHold > 0 && f.held > 0 {
		for _, d := range f.domains {
			if d.holds && (f.next == 0 || d.until < f.next) {
				f.next = d.until
			}
		}
	}
	f.timer.leave()
	if f.next != 0 {
		c.timers.push(f.next, &f.timer)
	}
}

// findCause says whether the unhealthy nodes show a common cause.
func (d *failureDomain) findCause(spec *CorrelatedFailure, now int64) bool {
	needed := spec.needed(d.nodes)
	if d.starts.total < needed {
		return false
	}
	window := int64(spec.Window)
	if d.holds && spec.LongestHold == 0 && d.starts.before(d.windowEnd+1)-d.starts.before(d.windowEnd-window) >= needed {
		return true // the nodes that have shown it are still unhealthy
	}
	starts := slices.Concat(d.starts.chunks...)
	for last := needed - 1; last < len(starts); last++ {
		if starts[last]-starts[last-needed+1] > window {
			continue
		}
		d.windowEnd, d.until = starts[last], 0
		if spec.LongestHold == 0 {
			return true
		}
		if d.until = later(starts[last], spec.LongestHold); d.until > now {
			return true
		}
		after, _ := slices.BinarySearch(starts, d.until+1)
		starts, last = starts[after:], needed-2
	}
	return false
}

// setHolds begins or ends the hold of a domain.
func (c *Core) setHolds(d *failureDomain, holds bool) {
	if d.holds == holds {
		return
	}
	d.holds = holds
	c.rails.failures.held += sign(holds)
	for n := range d.failed {
		for _, ep := range n.episodes {
			c.schedule(ep)
		}
		c.wake(n)
	}
	c.sortWoken()
}

// failureOf returns the first domain of a node that holds its treatments; nil for none.
func (c *Core) failureOf(n *node) *failureDomain {
	f := &c.rails.failures
	if f.held == 0 {
		return nil
	}
	for l := range c.failureLabels(n) {
		if d := f.domains[l]; d.holds {
			return d
		}
	}
	return nil
}

// nameFailure adds the numbers of a correlated failure to a reason.
func (c *Core) nameFailure(reason *Reason, n *node) {
	d := c.failureOf(n)
	reason.Have, reason.Of, reason.Limit = d.starts.total, d.nodes, c.rails.spec.CorrelatedFailure.needed(d.nodes)-1
	reason.Other, reason.Until = c.nameOf(d.label), instant(d.until)
}
