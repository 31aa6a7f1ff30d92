package explore

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// errDenied is why the API server rejects a write.
var errDenied = errors.New("denied by an admission webhook")

// op is a kind of action.
type op uint8

// The actions. Those before hold are part of the prompt schedule: everything arrives in the
// order in which it was sent, a new replica starts when the leader has ended, and time passes
// only when nothing else happens. All others deviate from it, and so does each of the first ones if it
// is not the next.
const (
	claim       op = iota // a replica starts and claims the ledger
	list                  // a replica lists a kind, at the start or after it lost a watch
	deliver               // a watch delivers its next event
	arrive                // a write arrives, and its answer too
	resume                // a held watch goes on
	wait                  // time passes until something happens
	holdWatch             // a watch delivers nothing until it resumes
	loseWatch             // a watch ends; its events are lost, and the replica lists again
	holdWrite             // a write stays on its way
	failWrite             // a write is lost
	loseAnswer            // a write arrives, and its answer is lost
	refuse                // the API server rejects a write
	crash                 // a replica ends; its writes may still arrive
	arriveLate            // a write without a caller arrives
	environment           // another component changes something
)

// action is a step of a run. Actions of two runs are the same if they are equal.
type action struct {
	op      op
	replica int    // zero if the action is not about a replica
	what    string // the kind of a watch, the label of a write, or a change of the environment
}

// String describes the action in a transcript.
func (a action) String() string {
	who := "replica-" + string(rune('0'+a.replica))
	switch a.op {
	case claim:
		return who + " starts and claims the ledger"
	case list:
		return who + " lists " + strings.TrimSuffix(a.what, "s") + "s"
	case deliver:
		return who + " receives the next change of " + a.what
	case arrive:
		return a.what
	case resume:
		return "the watch of " + a.what + " of " + who + " resumes"
	case wait:
		return "time passes"
	case holdWatch:
		return "the watch of " + a.what + " of " + who + " is delayed"
	case loseWatch:
		return "the watch of " + a.what + " of " + who + " ends, and its changes are lost"
	case holdWrite:
		return a.what + ", and the request is delayed"
	case failWrite:
		return a.what + ", and the request is lost"
	case loseAnswer:
		return a.what + ", and the answer is lost"
	case refuse:
		return a.what + ", and the API server rejects the request"
	case crash:
		return who + " crashes"
	case arriveLate:
		return a.what + ": the delayed request arrives"
	}
	return a.what
}

// streamKinds returns the kinds that replicas watch.
// They watch the Guardrails too, and list them at the start. The Guardrails of a scenario change only
// if a user switches the mode, so other scenarios have no watch of them.
func (c *cluster) streamKinds() []string {
	if c.scenario.Switches {
		return []string{guardrailsKind, "Node", "Lease", rebootKind.Kind}
	}
	return []string{"Node", "Lease", rebootKind.Kind}
}

// next is something on its way.
type next struct {
	action
	order int
}

// onTheirWay returns everything that can arrive now, in order.
func (c *cluster) onTheirWay() (all []next) {
	for _, r := range c.replicas {
		if r.hasEnded {
			continue
		}
		for _, kind := range c.streamKinds() {
			switch s := r.streams[kind]; {
			case s.isHeld:
			case s.needsList && r.inboxOf(kind) != nil:
				all = append(all, next{action{list, r.id, kind}, s.listFrom})
			case !s.needsList && len(s.events) > 0:
				all = append(all, next{action{deliver, r.id, kind}, s.events[0].order})
			}
		}
	}
	for _, r := range c.waiting {
		if !r.isHeld {
			all = append(all, next{action{arrive, r.replica.id, r.label}, c.ranks[r]})
		}
	}
	slices.SortFunc(all, func(a, b next) int { return cmp.Compare(a.order, b.order) })
	return all
}

// prompt returns the next action of the prompt schedule. It returns false if the cluster is
// quiet.
func (c *cluster) prompt(all []next) (action, bool) {
	if n := len(c.replicas); n == 0 || c.replicas[n-1].hasEnded && n < maxStarts { // no leader: leader election finds one
		return action{op: claim, replica: n + 1}, true
	}
	if len(all) > 0 {
		return all[0].action, true
	}
	for _, r := range c.live() {
		for _, kind := range c.streamKinds() {
			if r.streams[kind].isHeld {
				return action{resume, r.id, kind}, true
			}
		}
	}
	return action{op: wait}, !c.isQuiet
}

// deviations returns all other actions that are possible now.
func (c *cluster) deviations(all []next, prompt action) (others []action) {
	add := func(a action) {
		if a != prompt {
			others = append(others, a)
		}
	}
	for _, next := range all {
		add(next.action)
	}
	for _, r := range c.live() {
		if len(c.replicas) < maxStarts {
			add(action{op: crash, replica: r.id})
		}
		for _, kind := range c.streamKinds() {
			switch s := r.streams[kind]; {
			case s.isHeld:
				add(action{resume, r.id, kind})
			case len(s.events) > 0:
				add(action{holdWatch, r.id, kind})
				add(action{loseWatch, r.id, kind})
			}
		}
	}
	if len(c.live()) < maxLive && len(c.replicas) < maxStarts {
		add(action{op: claim, replica: len(c.replicas) + 1})
	}
	for _, r := range c.waiting {
		add(action{arrive, r.replica.id, r.label}) // also if it is held
		if !r.isHeld {
			add(action{holdWrite, r.replica.id, r.label})
			add(action{loseAnswer, r.replica.id, r.label})
			add(action{failWrite, r.replica.id, r.label})
			if r.key.kind != "ConfigMap" { // only a misconfigured cluster rejects the ledger
				add(action{refuse, r.replica.id, r.label})
			}
		}
	}
	for _, r := range c.orphans {
		add(action{arriveLate, r.replica.id, r.label})
	}
	if len(all) > 0 {
		add(action{op: wait})
	}
	for _, change := range c.scenario.changes(c) {
		add(action{op: environment, what: change})
	}
	slices.SortFunc(others, func(a, b action) int {
		return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.replica, b.replica), cmp.Compare(a.what, b.what))
	})
	return slices.Compact(others)
}

// do performs an action. It returns false if the action is not possible.
func (c *cluster) do(a action) bool {
	if a.op != wait {
		c.isQuiet = false
	}
	if !c.perform(a) {
		return false
	}
	c.settle()
	return true
}

func (c *cluster) perform(a action) bool {
	switch a.op {
	case claim:
		c.claim()
	case wait:
		c.advance()
	case crash:
		c.replicas[a.replica-1].cancel()
	case list, deliver, resume, holdWatch, loseWatch:
		return c.watch(a)
	case environment:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.scenario.apply(c.model, a.what)
	case arriveLate:
		at := slices.IndexFunc(c.orphans, func(r *request) bool { return r.label == a.what })
		if at < 0 {
			return false
		}
		late := c.orphans[at]
		c.orphans = slices.Delete(c.orphans, at, at+1)
		c.apply(late)
	default:
		return c.respond(a)
	}
	return true
}

// watch performs an action on a watch.
func (c *cluster) watch(a action) bool {
	r := c.replicas[a.replica-1]
	s := r.streams[a.what]
	switch {
	case a.op == list && s.needsList && r.inboxOf(a.what) != nil:
		c.listAll(r, s)
	case a.op == deliver && !s.needsList && len(s.events) > 0:
		c.deliver(r, s)
	case a.op == resume:
		s.isHeld = false
	case a.op == holdWatch:
		s.isHeld = true
	case a.op == loseWatch:
		c.order++
		s.events, s.needsList, s.listFrom, s.isHeld = nil, true, c.order, false
	default:
		return false
	}
	return true
}

// respond performs an action on a waiting write.
func (c *cluster) respond(a action) bool {
	at := slices.IndexFunc(c.waiting, func(r *request) bool { return r.label == a.what })
	if at < 0 {
		return false
	}
	r := c.waiting[at]
	switch a.op {
	case arrive:
		c.answer(r, c.apply(r))
	case loseAnswer:
		c.apply(r)
		c.answer(r, answer{err: errNoAnswer})
	case failWrite:
		c.answer(r, answer{err: errNoAnswer})
	case refuse:
		c.noteRejection(r)
		c.answer(r, answer{err: apierrors.NewForbidden(r.key.resource(), r.key.name, errDenied)})
	case holdWrite:
		r.isHeld = true
	}
	return true
}
