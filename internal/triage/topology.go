package triage

import (
	"slices"
	"strings"
)

// topology counts the nodes in treatment by the values of labels.
type topology struct {
	labels  []symbol       // of Rails.Topology
	values  map[symbol]int // by label: how many values the nodes have
	domains map[label]*domain
	changed []*domain // domains whose waiting episodes may have room
}

// domain is the nodes with one value of a label.
type domain struct {
	label
	limit     Limit
	created   *sortedTimes // of its nodes
	treated   int          // nodes in treatment, with deleted nodes that are not replaced yet
	departed  int          // deleted nodes that are not replaced yet
	waiting   queue
	isChanged bool
}

// count changes the number of nodes in treatment in some domains.
func (t *topology) count(domains []*domain, by int) {
	for _, d := range domains {
		d.treated += by
		t.markChanged(d)
	}
}

// markChanged records that the free slots of a domain may have changed.
func (t *topology) markChanged(d *domain) {
	if !d.isChanged {
		d.isChanged = true
		t.changed = append(t.changed, d)
	}
}

// unmark forgets which domains have changed.
func (t *topology) unmark() {
	for _, d := range t.changed {
		d.isChanged = false
	}
	t.changed = t.changed[:0]
}

// loadTopology counts all nodes anew under the labels of the rails.
func (c *Core) loadTopology() {
	t := &c.rails.topology
	for _, d := range t.domains {
		c.releaseLabel(d.label)
	}
	for _, key := range t.labels {
		c.symbols.release(key)
	}
	*t = topology{values: map[symbol]int{}, domains: map[label]*domain{}}
	for _, share := range c.rails.spec.Topology {
		t.labels = append(t.labels, c.symbols.acquire(share.Label))
	}
	for _, n := range c.walk() {
		n.domains = nil
		c.enterDomains(n)
	}
	for _, gone := range c.rails.departed {
		gone.domains = nil
		c.enterDomainsOf(gone)
	}
}

// domainOf returns the domain of a label value, and creates it if necessary.
func (c *Core) domainOf(l label, limit Limit) *domain {
	t := &c.rails.topology
	d := t.domains[l]
	if d == nil {
		c.symbols.acquire(c.symbols.name(l.key))
		c.symbols.acquire(c.symbols.name(l.value))
		d = &domain{label: l, limit: limit, created: newSortedTimes(nil)}
		t.domains[l] = d
	}
	return d
}

// dropIfEmpty deletes a domain without nodes. The caller schedules episodes that wait in it.
func (c *Core) dropIfEmpty(d *domain) {
	if d.created.total == 0 && d.treated == 0 {
		delete(c.rails.topology.domains, d.label)
		c.releaseLabel(d.label)
	}
}

// enterDomains adds a node to the domains of its labels.
func (c *Core) enterDomains(n *node) {
	t := &c.rails.topology
	for i, key := range t.labels {
		value, has := n.label(key)
		if !has {
			continue
		}
		d := c.domainOf(label{key, value}, c.rails.spec.Topology[i].Limit)
		if d.created.total == 0 {
			t.setValues(key, t.values[key]+1)
		}
		d.created.add(n.countedCreation())
		n.domains = append(n.domains, d)
		if n.inTreatment {
			d.treated++
		}
		t.markChanged(d)
	}
}

// leaveDomains removes a node from its domains.
func (c *Core) leaveDomains(n *node) {
	t := &c.rails.topology
	for _, d := range n.domains {
		d.created.remove(n.countedCreation())
		if d.created.total == 0 {
			t.setValues(d.key, t.values[d.key]-1)
		}
		if n.inTreatment {
			d.treated--
		}
		t.markChanged(d)
		c.dropIfEmpty(d)
	}
	n.domains = nil
}

// setValues changes how many values of a label the nodes have. A label with a single value
// has no limit.
func (t *topology) setValues(key symbol, values int) {
	wasIgnored := t.isIgnored(key)
	if t.values[key] = values; values == 0 {
		delete(t.values, key)
	}
	if t.isIgnored(key) == wasIgnored {
		return
	}
	for _, d := range t.domains {
		if d.key == key {
			t.markChanged(d)
		}
	}
}

func (t *topology) isIgnored(key symbol) bool { return t.values[key] < 2 }

// departedNode is a deleted node that is not replaced yet.
type departedNode struct {
	departures int
	topology   string // as in [Grant]
	domains    []*domain
}

// enterDomainsOf counts a deleted node in the domains of its labels.
func (c *Core) enterDomainsOf(gone *departedNode) {
	for requirement := range strings.SplitSeq(gone.topology, ",") {
		key, value, _ := strings.Cut(requirement, "=")
		at := slices.IndexFunc(c.rails.spec.Topology, func(s Share) bool { return s.Label == key })
		if at < 0 {
			continue
		}
		share := c.rails.spec.Topology[at]
		l := label{c.symbols.acquire(share.Label), c.symbols.acquire(value)}
		d := c.domainOf(l, share.Limit)
		c.symbols.release(l.key)
		c.symbols.release(l.value)
		d.departed++
		d.treated++
		gone.domains = append(gone.domains, d)
		c.rails.topology.markChanged(d)
	}
}

// leaveDomainsOf removes a deleted node from its domains.
func (c *Core) leaveDomainsOf(gone *departedNode) {
	for _, d := range gone.domains {
		d.departed--
		d.treated--
		c.rails.topology.markChanged(d)
		c.dropIfEmpty(d)
	}
	gone.domains = nil
}

// topologyOf returns the labels of a node that the rails name, as in [Grant].
func (c *Core) topologyOf(n *node) string {
	labels := make([]string, 0, len(n.domains))
	for _, d := range n.domains {
		labels = append(labels, c.nameOf(d.label))
	}
	return strings.Join(labels, ",")
}

func (c *Core) nameOf(l label) string { return c.symbols.name(l.key) + "=" + c.symbols.name(l.value) }

// fullDomain returns the first domain of the node without room; nil for none.
func (s *railState) fullDomain(n *node) *domain {
	at := slices.IndexFunc(n.domains, func(d *domain) bool { return !s.domainHasRoom(d) })
	if at < 0 {
		return nil
	}
	return n.domains[at]
}

func (s *railState) domainHasRoom(d *domain) bool {
	return s.topology.isIgnored(d.key) || d.treated < d.limit.Of(s.base(d.limit, d.created, d.departed))
}
