package triage

import (
	"iter"
	"math"
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
	held    int     // domains that hold treatments
	found   []int64 // scratch of updateFailure
	// next is when time alone changes a hold; 0 for never.
	next  int64
	timer queueItem
}

// imageKey is the key of a domain of nodes with the same image.
const imageKey = "image"

// failureDomain is the nodes with one value of a label, or with the same image.
type failureDomain struct {
	label
	nodes  int
	failed []*node // unhealthy nodes, in no order
	// windows is nil while too few nodes are unhealthy for a hold, so that a change costs little then.
	windows   *failureWindows
	holds     bool
	together  int   // most nodes that became unhealthy within a window, while it holds
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
	if spec != nil {
		for _, key := range spec.Labels {
			f.labels = append(f.labels, c.symbols.acquire(key))
		}
	}
	if f.image = noSymbol; spec != nil && spec.Image {
		f.image = c.symbols.acquire(imageKey)
		f.labels = append(f.labels, f.image)
	}
	for _, n := range c.walk() {
		if n.failures, n.failureDomains = n.failures[:0], n.failureDomains[:0]; spec != nil {
			n.failures = c.appendFailures(n.failures, n)
			c.enterFailureDomains(n)
		}
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

// failureMember is a node in a domain.
type failureMember struct {
	domain *failureDomain
	at     int // index in failureDomain.failed, -1 while the node is healthy
}

// enterFailureDomains adds a node to its domains.
func (c *Core) enterFailureDomains(n *node) {
	f := &c.rails.failures
	for l := range c.failureLabels(n) {
		d := f.domains[l]
		if d == nil {
			c.symbols.acquire(c.symbols.name(l.key))
			c.symbols.acquire(c.symbols.name(l.value))
			d = &failureDomain{label: l}
			f.domains[l] = d
		}
		d.nodes++
		n.failureDomains = append(n.failureDomains, failureMember{d, -1})
		f.markChanged(d)
	}
	c.countFailures(n, +1)
	n.setFailed(len(n.failures) > 0)
}

// leaveFailureDomains removes a node from its domains.
func (c *Core) leaveFailureDomains(n *node) {
	f := &c.rails.failures
	c.countFailures(n, -1)
	n.setFailed(false)
	for _, member := range n.failureDomains {
		d := member.domain
		d.nodes--
		f.markChanged(d)
		if d.nodes == 0 {
			c.setHolds(d, false)
			delete(f.domains, d.label)
			c.releaseLabel(d.label)
		}
	}
	n.failureDomains = n.failureDomains[:0]
}

// countFailures adds or removes since when a node is unhealthy, in each of its domains.
func (c *Core) countFailures(n *node, by int) {
	for _, member := range n.failureDomains {
		if w := member.domain.windows; w != nil {
			w.count(n.failures, by)
		}
	}
}

// setFailed records whether a node is one of the unhealthy nodes of its domains.
func (n *node) setFailed(is bool) {
	for i := range n.failureDomains {
		member := &n.failureDomains[i]
		d := member.domain
		switch {
		case is == (member.at >= 0):
		case is:
			member.at = len(d.failed)
			d.failed = append(d.failed, n)
		default: // the last one takes its place
			end := len(d.failed) - 1
			last := d.failed[end]
			of := slices.IndexFunc(last.failureDomains, func(m failureMember) bool { return m.domain == d })
			d.failed[member.at], last.failureDomains[of].at = last, member.at
			d.failed[end] = nil
			d.failed, member.at = d.failed[:end], -1
		}
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
	if f.found = c.appendFailures(f.found[:0], n); slices.Equal(f.found, n.failures) {
		return
	}
	c.countFailures(n, -1)
	n.failures = append(n.failures[:0], f.found...)
	c.countFailures(n, +1)
	n.setFailed(len(n.failures) > 0)
	for _, member := range n.failureDomains {
		f.markChanged(member.domain)
	}
}

// maxStart is how long a node may need to become ready. A node that became unhealthy later has been
// ready, also if only an earlier process saw it.
const maxStart = 15 * time.Minute

// appendFailures appends since when a node is unhealthy under each rule, in order. An older problem
// of a node does not hide that the node has just failed together with others.
func (c *Core) appendFailures(to []int64, n *node) []int64 {
	for _, ep := range n.episodes {
		since := ep.matchedSince()
		if !ep.unhealthy || !ep.rule.takesSlots() || since == 0 {
			continue
		}
		mayBeStarting := !n.initialized && since < later(n.created, maxStart)
		if isDue := ep.active || ep.verdict == holds && ep.eligible <= c.now; mayBeStarting && !isDue {
			continue
		}
		to = append(to, since)
	}
	slices.Sort(to)
	return slices.Compact(to)
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
	switch failed := len(d.failed); {
	case failed < needed/2: // not sooner, because a new tree visits all unhealthy nodes
		d.windows = nil
		return false
	case d.windows != nil:
	case failed < 2*needed/3: // sooner than a hold needs, so that RailUse shows how close it is
		return false
	default:
		d.windows = d.windowsAfter(math.MinInt64, spec.Window)
	}
	for w := d.windows; w.most() >= needed; w = d.windowsAfter(d.until, spec.Window) {
		d.together, d.until = w.most(), 0
		if spec.LongestHold == 0 {
			return true
		}
		if d.until = later(w.first(needed), spec.LongestHold); d.until > now {
			return true
		}
	}
	return false
}

// failedTogether is the largest number of nodes that became unhealthy within a window.
func (d *failureDomain) failedTogether() int {
	if d.holds {
		return d.together
	}
	return d.windows.most()
}

// windowsAfter counts the nodes that became unhealthy after a time. It visits all unhealthy nodes.
func (d *failureDomain) windowsAfter(at int64, window time.Duration) *failureWindows {
	w := &failureWindows{window: window}
	for _, n := range d.failed {
		from := 0
		for from < len(n.failures) && n.failures[from] <= at {
			from++
		}
		w.count(n.failures[from:], +1)
	}
	return w
}

// setHolds begins or ends the hold of a domain.
func (c *Core) setHolds(d *failureDomain, holds bool) {
	if d.holds == holds {
		return
	}
	d.holds = holds
	c.rails.failures.held += sign(holds)
	for _, n := range d.failed {
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
	for _, m := range n.failureDomains {
		if m.domain.holds {
			return m.domain
		}
	}
	return nil
}

// nameFailure adds the numbers of a correlated failure to a reason.
func (c *Core) nameFailure(reason *Reason, n *node) {
	d, spec := c.failureOf(n), c.rails.spec.CorrelatedFailure
	reason.Have, reason.Of, reason.Limit = d.together, d.nodes, spec.needed(d.nodes)-1
	reason.Other, reason.Within, reason.Until = c.nameOf(d.label), spec.Window, instant(d.until)
}
