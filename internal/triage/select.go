package triage

import (
	"cmp"
	"slices"
)

// label is a label of a node or a label that a rule requires.
type label struct {
	key, value symbol
}

// compiledRequirement is a [Requirement] in symbols.
type compiledRequirement struct {
	key    symbol
	op     Operator
	values []symbol
}

// selectorIndex finds the rules that may select a node. A rule that selects only assigned nodes is
// indexed by its ID, and a rule that requires one of some values for a label by that label. The other
// rules are tried on every node.
type selectorIndex struct {
	assignedOnly map[RuleID]*rule
	byLabel      map[label][]*rule
	others       []*rule
}

// indexLabels returns the labels that the rule is indexed by; nil if it is not indexed.
func (r *rule) indexLabels() []label {
	for _, d := range r.requirements {
		if d.op == In {
			keys := make([]label, len(d.values))
			for i, value := range d.values {
				keys[i] = label{d.key, value}
			}
			return keys
		}
	}
	return nil
}

func (x *selectorIndex) add(r *rule) {
	if r.spec.AssignedOnly {
		x.assignedOnly[r.spec.ID] = r
		return
	}
	keys := r.indexLabels()
	if keys == nil {
		x.others = append(x.others, r)
	}
	for _, key := range keys {
		x.byLabel[key] = append(x.byLabel[key], r)
	}
}

func (x *selectorIndex) remove(r *rule) {
	if r.spec.AssignedOnly {
		delete(x.assignedOnly, r.spec.ID)
		return
	}
	without := func(rules []*rule) []*rule {
		return slices.DeleteFunc(rules, func(other *rule) bool { return other == r })
	}
	keys := r.indexLabels()
	if keys == nil {
		x.others = without(x.others)
	}
	for _, key := range keys {
		if x.byLabel[key] = without(x.byLabel[key]); len(x.byLabel[key]) == 0 {
			delete(x.byLabel, key)
		}
	}
}

// selects says whether the rule may select the node, and its labels meet all requirements.
func (r *rule) selects(n *node) bool {
	if r.spec.AssignedOnly && !slices.Contains(n.assigned, r.spec.ID) {
		return false
	}
	for _, d := range r.requirements {
		value, present := n.label(d.key)
		var met bool
		switch d.op {
		case In:
			met = present && slices.Contains(d.values, value)
		case NotIn:
			met = !present || !slices.Contains(d.values, value)
		case Exists:
			met = present
		case Absent:
			met = !present
		}
		if !met {
			return false
		}
	}
	return true
}

// label returns the value of a label of the node.
func (n *node) label(key symbol) (value symbol, has bool) {
	at, has := slices.BinarySearchFunc(n.labels, key, func(l label, key symbol) int { return cmp.Compare(l.key, key) })
	if !has {
		return 0, false
	}
	return n.labels[at].value, true
}

// updateLabels updates the labels and the image, and says whether any changed. The node then is in
// no failure domain.
func (c *Core) updateLabels(n *node, facts *Node) (changed bool) {
	labels := facts.Labels
	isSame := func(l label) bool {
		value, ok := labels[c.symbols.name(l.key)]
		return ok && value == c.symbols.name(l.value)
	}
	if len(labels) == len(n.labels) && c.imageOf(n) == facts.Image && !slices.ContainsFunc(n.labels, func(l label) bool { return !isSame(l) }) {
		return false
	}
	c.leaveFailureDomains(n)
	if before := n.image; facts.Image != c.imageOf(n) {
		if n.image = noSymbol; facts.Image != "" {
			n.image = c.symbols.acquire(facts.Image)
		}
		if before != noSymbol {
			c.symbols.release(before)
		}
	}
	old := slices.Clone(n.labels)
	n.labels = n.labels[:0]
	for key, value := range labels {
		n.labels = append(n.labels, label{c.symbols.acquire(key), c.symbols.acquire(value)})
	}
	slices.SortFunc(n.labels, func(a, b label) int { return cmp.Compare(a.key, b.key) })
	for _, l := range old {
		c.releaseLabel(l)
	}
	return true
}

// updateAssigned updates the rules that may select the node, and says whether any changed.
func (n *node) updateAssigned(facts *Node) (changed bool) {
	if slices.Equal(n.assigned, facts.Assigned) {
		return false
	}
	n.assigned = slices.Clone(facts.Assigned)
	return true
}

// imageOf returns the image of a node; empty if it is not known.
func (c *Core) imageOf(n *node) string {
	if n.image == noSymbol {
		return ""
	}
	return c.symbols.name(n.image)
}

// reselect updates the rules that select the node, and returns the rules that selected it
// before.
func (c *Core) reselect(n *node) (before []*rule) {
	var rules []*rule
	try := func(candidates []*rule) {
		for _, r := range candidates {
			if r.selects(n) {
				rules = append(rules, r)
			}
		}
	}
	for _, id := range n.assigned {
		if r := c.index.assignedOnly[id]; r != nil && r.selects(n) && !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	try(c.index.others)
	for _, l := range n.labels {
		try(c.index.byLabel[l])
	}
	before = slices.Clone(n.rules)
	for _, r := range before {
		if !slices.Contains(rules, r) {
			c.selectNode(n, r, true, false)
		}
	}
	for _, r := range rules {
		if !slices.Contains(before, r) {
			c.selectNode(n, r, false, true)
		}
	}
	return before
}

// selectNode records that a rule begins or stops selecting a node.
func (c *Core) selectNode(n *node, r *rule, was, is bool) {
	if was == is {
		return
	}
	by := 1
	at, _ := slices.BinarySearchFunc(n.rules, r, compareRules)
	if is {
		n.rules = slices.Insert(n.rules, at, r)
	} else {
		by = -1
		n.rules = slices.Delete(n.rules, at, at+1)
	}
	r.total.Selected += by
	r.zone(n.zone).Selected += by
	if r.creationTimes != nil {
		if is {
			r.creationTimes.add(n.countedCreation())
		} else {
			r.creationTimes.remove(n.countedCreation())
		}
	}
	c.markDirty(r)
}

func (n *node) selectedBy(r *rule) bool { return contains(n.rules, r) }

func contains(rules []*rule, r *rule) bool {
	for _, other := range rules {
		if other == r {
			return true
		}
	}
	return false
}

// compareRules compares rules by precedence.
func compareRules(a, b *rule) int {
	if a.spec.Precedence != b.spec.Precedence {
		return cmp.Compare(a.spec.Precedence, b.spec.Precedence)
	}
	return a.spec.ID.Compare(b.spec.ID)
}
