package triage_test

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

func (t *naiveCore) SetRails(now time.Time, rails triage.Rails) error {
	if err := rails.Validate(); err != nil {
		return err
	}
	t.advanceTo(now)
	t.rails = rails
	t.decide()
	return nil
}

func (t *naiveCore) ResumeStarts(now time.Time, starts []triage.Start) {
	t.advanceTo(now)
	for _, s := range starts {
		t.addStart(s)
	}
	t.decide()
}

func (t *naiveCore) Starts() []triage.Start { return t.starts }

// addStart counts treatments that began, by second.
func (t *naiveCore) addStart(s triage.Start) {
	if t.rails.Pace == nil {
		return
	}
	s.At = s.At.Truncate(t.paceInterval())
	for i := range t.starts {
		if t.starts[i].At.Equal(s.At) {
			t.starts[i].Treatments += s.Treatments
			return
		}
	}
	t.starts = append(t.starts, s)
	slices.SortFunc(t.starts, func(a, b triage.Start) int { return a.At.Compare(b.At) })
}

// giveBack forgets the start of a treatment for which nothing was written.
func (t *naiveCore) giveBack(c *ruleState) {
	for i := range t.starts {
		if !c.paced.IsZero() && t.starts[i].At.Equal(c.paced) {
			t.starts[i].Treatments--
			t.saw["places in the pace given back"]++
		}
	}
	t.starts = slices.DeleteFunc(t.starts, func(s triage.Start) bool { return s.Treatments == 0 })
}

func (t *naiveCore) NoteSent(node string, id triage.RuleID) {
	if p := t.nodes[node]; p != nil && p.ruleStates[id] != nil {
		p.ruleStates[id].paced = time.Time{}
	}
}

// RailUse counts only the nodes that wait for the work of others.
func (t *naiveCore) RailUse() triage.RailUse {
	respected := 0
	for _, p := range t.nodes {
		isHeld := func(rule triage.Rule) bool {
			c := p.ruleState(rule.ID)
			if !t.loaded || rule.DryRun || len(rule.Response.Ladder) == 0 || c.active || !c.unhealthy || t.verdict(p, rule) != holds {
				return false
			}
			if eligible, _ := t.eligible(p, rule); later(eligible, c.notBefore).After(t.now) {
				return false
			}
			reason, _ := t.obstacle(p, rule)
			veto, _ := vetoOf(p.facts, rule, 0)
			return reason.Code == triage.Vetoed && veto.Respected
		}
		if slices.ContainsFunc(slices.Collect(maps.Values(t.rules)), isHeld) {
			respected++
			t.saw["work of others"]++
		}
	}
	return triage.RailUse{Rails: []triage.RailCount{{Rail: triage.Vetoed, Held: respected}}}
}

// dropStarts forgets treatments that the pace no longer counts.
func (t *naiveCore) dropStarts() {
	t.starts = slices.DeleteFunc(t.starts, func(s triage.Start) bool { return t.rails.Pace == nil || !t.startEnd(s).After(t.now) })
}

// startEnd is when the pace stops counting treatments.
func (t *naiveCore) startEnd(s triage.Start) time.Time {
	return s.At.Add(t.paceInterval() + t.rails.Pace.Period)
}

// paceInterval is the precision of the pace: a sixtieth, in whole seconds.
func (t *naiveCore) paceInterval() time.Duration {
	return max(time.Second, (t.rails.Pace.Period / 60).Truncate(time.Second))
}

// hold says why a rule may begin nothing new.
func (t *naiveCore) hold(rule triage.Rule) string {
	if rule.Hold != "" {
		return rule.Hold
	}
	return t.rails.Hold[rule.Stage]
}

// nodeHold says why nothing new may begin on a node.
func (t *naiveCore) nodeHold(p *nodeState) (triage.Reason, bool) {
	until := p.facts.HoldUntil
	return triage.Reason{Code: triage.NodePaused, Other: p.facts.Hold, Until: until}, p.facts.Hold != "" && (until.IsZero() || t.now.Before(until))
}

// isDisrupted says that a node has a NoExecute taint or a treatment, or will have one.
func (t *naiveCore) isDisrupted(p *nodeState) bool {
	for _, c := range p.ruleStates {
		if c.active {
			return true
		}
	}
	for _, rule := range t.rules {
		if selects(rule, p.facts) && t.hasForeignTaint(p, rule) {
			return true
		}
	}
	return false
}

// isOpen says that a node is ready for work, open to new pods and not in treatment.
func (t *naiveCore) isOpen(p *nodeState) bool {
	ready, _ := rowOf(p.facts, triage.Ready)
	return ready.Status == triage.True && !p.facts.Starting && !p.facts.Closed && !p.facts.Dedicated && !p.mayClose && !t.isDisrupted(p)
}

// syncClosed updates whether taints may close a node, from its facts.
func (t *naiveCore) syncClosed(p *nodeState) {
	is := slices.ContainsFunc(p.facts.Taints, func(taint triage.Taint) bool { return taint.Effect >= triage.NoSchedule })
	if is || p.closedByUs {
		p.mayClose = is
		for _, c := range p.ruleStates {
			p.mayClose = p.mayClose || c.active && !c.treatment
		}
	}
	p.closedByUs = is
}

// closes says that a rule closes the node to new pods.
func (t *naiveCore) closes(p *nodeState, rule triage.Rule) bool {
	taint := rule.Response.Taint
	return taint != nil && !rule.DryRun && taint.Effect >= triage.NoSchedule && (!wantsNoExecute(rule) || !slices.Contains(p.facts.Foreign, taint.Key) || excludesNode(rule, p.facts))
}

// closingRail says which rail prevents a taint that closes the node.
func (t *naiveCore) closingRail(p *nodeState) (triage.Reason, bool) {
	open, closed := 0, 0
	for _, other := range t.nodes {
		if t.isOpen(other) {
			open++
		}
		if other.facts.Closed || other.mayClose {
			closed++
		}
	}
	if t.rails.KeepLast && t.isOpen(p) && open == 1 {
		return triage.Reason{Code: triage.LastNode}, true
	}
	if limit := t.rails.Unschedulable; limit != nil {
		r := t.railCount(*limit, func(*nodeState) bool { return true }, func(triage.Grant) bool { return false })
		r.Code, r.Have = triage.MaxUnschedulable, closed
		if p.facts.Closed {
			return r, closed > r.Limit
		}
		return r, closed >= r.Limit
	}
	return triage.Reason{}, false
}

// holdsUnusedPermission says that a node may be closed, and nothing closes it or is decided to.
func (t *naiveCore) holdsUnusedPermission(p *nodeState) bool {
	if !p.mayClose || p.closedByUs {
		return false
	}
	for _, c := range p.ruleStates {
		if c.active && !c.treatment {
			return false
		}
	}
	for _, rule := range t.rules {
		if t.wantedEffect(p, rule) >= triage.NoSchedule {
			return false
		}
	}
	return true
}

// whyNotClosed says why a taint that closes the node is not placed.
func (t *naiveCore) whyNotClosed(p *nodeState, rule triage.Rule) triage.Reason {
	c := p.ruleState(rule.ID)
	pause, paused := t.nodeHold(p)
	switch {
	case rule.Hold != "":
		return triage.Reason{Code: triage.OnHold, Other: rule.Hold}
	case t.hold(rule) != "":
		r := triage.Reason{Code: triage.OnHold, Other: t.hold(rule)}
		t.nameWould(&r, p, rule)
		return r
	case paused:
		return pause
	case c.notBefore.After(t.now):
		return triage.Reason{Code: triage.Retrying, Until: c.notBefore}
	case !t.loaded:
		return triage.Reason{Code: triage.OnHold, Other: "the nodes are still being loaded"}
	}
	r, stopped := t.closingRail(p)
	if !stopped {
		panic("nothing blocks the taint, and it was not granted")
	}
	return r
}

// goneNodes are the deleted nodes that are not replaced yet, each once.
func (t *naiveCore) goneNodes() map[[2]string]triage.Grant {
	gone := map[[2]string]triage.Grant{}
	for _, d := range t.departed {
		gone[[2]string{d.Node, d.UID}] = d
	}
	return gone
}

// railCount counts the nodes in treatment among the nodes and deleted nodes that belong, and
// how many nodes the limit refers to.
func (t *naiveCore) railCount(limit triage.Limit, belongs func(*nodeState) bool, belonged func(triage.Grant) bool) triage.Reason {
	return t.railCountFor(nil, limit, belongs, belonged)
}

// railCountFor counts as railCount, as if nothing was decided to delete one of the nodes.
func (t *naiveCore) railCountFor(except *nodeState, limit triage.Limit, belongs func(*nodeState) bool, belonged func(triage.Grant) bool) triage.Reason {
	var first time.Time // the first decision to delete a node
	for _, p := range t.nodes {
		for _, c := range p.ruleStates {
			if p != except && c.needsReplacement() && (first.IsZero() || c.since.Before(first)) {
				first = c.since
			}
		}
	}
	for _, d := range t.departed {
		if first.IsZero() || d.Since.Before(first) {
			first = d.Since
		}
	}
	going := len(t.departed)
	for _, p := range t.nodes {
		for _, c := range p.ruleStates {
			if p != except && c.needsReplacement() {
				going++
			}
		}
	}
	var r triage.Reason
	all := 0
	for _, d := range t.goneNodes() {
		if belonged(d) {
			r.Departed++
		}
	}
	r.Have = r.Departed
	if isAll(&limit) {
		r.Of = r.Departed
	}
	for _, p := range t.nodes {
		if !belongs(p) {
			continue
		}
		if t.isDisrupted(p) {
			r.Have++
		}
		all++
		if isAll(&limit) || first.IsZero() || p.isReplacement || p.created.Before(first.Truncate(time.Second)) {
			r.Of++
		}
	}
	if !isAll(&limit) {
		r.Of = max(r.Of, all-going)
	}
	r.Limit = allows(&limit, r.Of)
	return r
}

// rail says which rail prevents a disruptive response.
func (t *naiveCore) rail(p *nodeState, rule triage.Rule) (triage.Reason, bool) {
	all := func(*nodeState) bool { return true }
	allGone := func(triage.Grant) bool { return true }
	if r, correlated := t.correlatedFailure(p); correlated {
		return r, true
	}
	if !t.isDisrupted(p) {
		open := 0
		for _, other := range t.nodes {
			if t.isOpen(other) {
				open++
			}
		}
		if t.rails.KeepLast && t.isOpen(p) && open == 1 {
			return triage.Reason{Code: triage.LastNode}, true
		}
		if limit := t.rails.InTreatment; limit != nil {
			if r := t.railCount(*limit, all, allGone); r.Have >= r.Limit {
				r.Code = triage.MaxInTreatment
				return r, true
			}
		}
		for _, share := range t.rails.Topology {
			if r, full := t.fullShare(p, nil, share); full {
				return r, true
			}
		}
	}
	if pace := t.rails.Pace; pace != nil && len(rule.Response.Ladder) > 0 {
		begun, limit := 0, max(pace.AtLeast, t.railCount(pace.Limit, all, allGone).Limit)
		var ends []time.Time
		for _, s := range t.starts {
			if t.startEnd(s).After(t.now) {
				begun += s.Treatments
				ends = append(ends, slices.Repeat([]time.Time{t.startEnd(s)}, s.Treatments)...)
			}
		}
		if begun >= limit {
			r := triage.Reason{Code: triage.Paced, Have: begun, Limit: limit, Other: pace.Period.String()}
			if limit > 0 {
				r.Until = ends[begun-limit]
			}
			return r, true
		}
	}
	return triage.Reason{}, false
}

// isObservedInTreatment says that the facts show a node in a disruptive treatment.
func (t *naiveCore) isObservedInTreatment(p *nodeState) bool {
	for id, c := range p.ruleStates {
		if c.active && takesSlot(p.facts, id) {
			return true
		}
	}
	for _, rule := range t.rules {
		if selects(rule, p.facts) && t.hasForeignTaint(p, rule) {
			return true
		}
	}
	return false
}

// exceedsTreatment says that a limit on treatments is exceeded, with a node that is not in treatment
// by its facts.
func (t *naiveCore) exceedsTreatment(p *nodeState) bool {
	if !t.isDisrupted(p) || t.isObservedInTreatment(p) {
		return false
	}
	if limit := t.rails.InTreatment; limit != nil {
		if r := t.railCountFor(p, *limit, func(*nodeState) bool { return true }, func(triage.Grant) bool { return true }); r.Have > r.Limit {
			return true
		}
	}
	return slices.ContainsFunc(t.rails.Topology, func(share triage.Share) bool {
		r, _ := t.fullShare(p, p, share)
		return r.Have > r.Limit
	})
}

// takesLast says that no node is open, and this one is by its facts.
func (t *naiveCore) takesLast(p *nodeState) bool {
	for _, other := range t.nodes {
		if t.isOpen(other) {
			return false
		}
	}
	ready, _ := rowOf(p.facts, triage.Ready)
	return t.rails.KeepLast && ready.Status == triage.True && !p.facts.Starting && !p.facts.Closed && !p.facts.Dedicated && !p.closedByUs && !t.isObservedInTreatment(p)
}

func (t *naiveCore) ExceedsRails(node string) bool {
	p := t.nodes[node]
	return p != nil && (t.exceedsTreatment(p) || t.takesLast(p))
}

func (t *naiveCore) ExceedsClosing(node string) bool {
	p, limit := t.nodes[node], t.rails.Unschedulable
	if p == nil || limit == nil || !p.mayClose || p.closedByUs {
		return false
	}
	closed := 0
	for _, other := range t.nodes {
		if other.facts.Closed || other.mayClose {
			closed++
		}
	}
	return closed > t.railCount(*limit, func(*nodeState) bool { return true }, func(triage.Grant) bool { return false }).Limit
}

func (t *naiveCore) CallOff(now time.Time, node string, treatmentInFlight bool) {
	t.advanceTo(now)
	if p := t.nodes[node]; p != nil {
		isLast := !treatmentInFlight && t.takesLast(p)
		treatments, taints := isLast || !treatmentInFlight && t.exceedsTreatment(p), isLast || t.ExceedsClosing(node)
		for id, c := range p.ruleStates {
			if c.active && !takesSlot(p.facts, id) && (treatments || taints && !c.treatment) {
				t.giveBack(c)
				c.response, c.healthySince = response{}, time.Time{}
				c.notBefore = times.Min(c.notBefore, t.now)
				t.saw["called off above the rails"]++
			}
		}
		if taints && p.mayClose && !p.closedByUs {
			p.mayClose = false
			t.saw["permissions called off above the rails"]++
		}
		if isLast {
			t.saw["called off for the last node"]++
		}
	}
	t.decide()
}

// fullShare says whether the share of a node's label value has no room.
func (t *naiveCore) fullShare(p, except *nodeState, share triage.Share) (triage.Reason, bool) {
	value, has := p.facts.Labels[share.Label]
	values := map[string]bool{}
	for _, other := range t.nodes {
		if v, has := other.facts.Labels[share.Label]; has {
			values[v] = true
		}
	}
	if !has || len(values) < 2 {
		return triage.Reason{}, false
	}
	r := t.railCountFor(except, share.Limit, func(other *nodeState) bool {
		v, has := other.facts.Labels[share.Label]
		return has && v == value
	}, func(d triage.Grant) bool {
		return slices.Contains(strings.Split(d.Topology, ","), share.Label+"="+value)
	})
	r.Code, r.Other = triage.MaxInTopology, share.Label+"="+value
	return r, r.Have >= r.Limit
}

// topologyOf is the labels of a node that the rails name.
func (t *naiveCore) topologyOf(p *nodeState) string {
	var labels []string
	for _, share := range t.rails.Topology {
		if value, has := p.facts.Labels[share.Label]; has {
			labels = append(labels, share.Label+"="+value)
		}
	}
	return strings.Join(labels, ",")
}

func (t *naiveCore) Closings() []triage.Grant {
	var grants []triage.Grant
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		if p := t.nodes[name]; p.mayClose && !p.closedByUs {
			grants = append(grants, triage.Grant{Node: name, UID: p.facts.UID, Taint: true, Closes: true})
		}
	}
	return grants
}

// correlatedFailure says whether nodes like this one became unhealthy together.
func (t *naiveCore) correlatedFailure(p *nodeState) (triage.Reason, bool) {
	spec := t.rails.CorrelatedFailure
	if spec == nil || !t.loaded || spec.Released.After(t.now) {
		return triage.Reason{}, false
	}
	for _, key := range slices.Concat(spec.Labels, []string{"image"}) {
		value, has := domainValue(p.facts, spec, key)
		if !has {
			continue
		}
		r := triage.Reason{Code: triage.CorrelatedFailed, Other: key + "=" + value, Within: spec.Window}
		var ends []time.Time
		var failures [][]time.Time // by node
		for _, other := range t.nodes {
			if v, has := domainValue(other.facts, spec, key); !has || v != value {
				continue
			}
			r.Of++
			if since := t.failures(other); len(since) > 0 {
				ends, failures = append(ends, since...), append(failures, since)
			}
		}
		slices.SortFunc(ends, time.Time.Compare)
		r.Limit = max(allows(&spec.Threshold, r.Of), spec.MinNodes-1)
		var ignored time.Time // failures until then
		// together counts the nodes that became unhealthy within a window that ends then.
		together := func(end time.Time) (nodes int) {
			for _, since := range failures {
				within := 0
				for _, at := range since {
					if at.After(ignored) && !at.After(end) && end.Sub(at) <= spec.Window {
						within++
					}
				}
				if within > 0 {
					nodes++
				}
				if within > 1 {
					t.saw["nodes that failed twice within a window"]++
				}
			}
			return nodes
		}
		for _, end := range ends {
			if !end.After(ignored) || together(end) <= r.Limit {
				continue
			}
			if spec.LongestHold > 0 {
				r.Until = end.Add(spec.LongestHold)
			}
			if spec.LongestHold == 0 || r.Until.After(t.now) {
				for _, end := range ends {
					r.Have = max(r.Have, together(end))
				}
				if r.Have < len(failures) {
					t.saw["correlated failures beside older ones"]++
				}
				t.saw["correlated failures"]++
				return r, true
			}
			ignored = r.Until
			t.saw["correlated failures that were held long enough"]++
		}
	}
	return triage.Reason{}, false
}

// domainValue is the value of a label or the image of a node.
func domainValue(node triage.Node, spec *triage.CorrelatedFailure, key string) (string, bool) {
	if key == "image" {
		return node.Image, spec.Image && node.Image != ""
	}
	value, has := node.Labels[key]
	return value, has
}

// failures is since when a node is unhealthy under each rule, as correlated failures count it.
func (t *naiveCore) failures(p *nodeState) (all []time.Time) {
	for id, c := range p.ruleStates {
		rule, known := t.rules[id]
		if !known || rule.DryRun || !c.unhealthy || len(rule.Response.Ladder) == 0 && !wantsNoExecute(rule) {
			continue
		}
		since := c.matchedSince(rule)
		mayBeStarting := !p.initialized && since.Before(p.created.Add(15*time.Minute))
		if eligible, _ := t.eligible(p, rule); mayBeStarting && !c.active && (t.verdict(p, rule) != holds || eligible.After(t.now)) {
			continue
		}
		if !since.IsZero() && !slices.ContainsFunc(all, since.Equal) {
			all = append(all, since)
		}
	}
	return all
}

// matchedSince is since when the conditions of a rule have matched.
func (c *ruleState) matchedSince(rule triage.Rule) (since time.Time) {
	for _, clock := range c.clocks {
		if since.IsZero() || rule.When.All == clock.at.After(since) {
			since = clock.at
		}
	}
	return since
}

// givenUp says whether a node was treated as often as the rails allow, and when they allow more. A
// treatment that was begun since the conditions match may begin again.
func (t *naiveCore) givenUp(p *nodeState, rule triage.Rule) (triage.Reason, bool) {
	limit := t.rails.MaxAttempts
	if limit == nil {
		return triage.Reason{}, false
	}
	var ends []time.Time
	isRecent := false
	since := p.ruleState(rule.ID).matchedSince(rule)
	if since.Nanosecond() == 0 { // with the precision of a transition time
		since = since.Add(time.Second)
	}
	for _, a := range p.facts.Attempts {
		isOfCase := a.Rule == rule.ID && !a.Began.Before(since)
		isRecent = isRecent || isOfCase
		if isOfCase && !a.Inherited {
			if len(p.facts.Attempts) >= limit.Limit {
				t.saw["attempts that continue"]++
			}
			return triage.Reason{}, false
		}
		if end := a.Began.Add(limit.Window); end.After(t.now) {
			ends = append(ends, end)
		}
	}
	if len(ends) < limit.Limit {
		return triage.Reason{}, false
	}
	slices.SortFunc(ends, time.Time.Compare)
	t.saw["given up"]++
	if isRecent {
		t.saw["given up after an inherited attempt"]++
	}
	return triage.Reason{Code: triage.GivenUp, Have: len(ends), Limit: limit.Limit, Other: limit.Window.String(), Until: ends[len(ends)-limit.Limit]}, true
}
