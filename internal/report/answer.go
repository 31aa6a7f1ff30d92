package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/times"
)

// Results of a request. They are labels of a metric.
const (
	resultOK           = "ok"
	resultUnreachable  = "unreachable"  // no response
	resultUnauthorized = "unauthorized" // the API server does not accept the agent's credentials
	resultBusy         = "busy"         // the API server asks the agent to wait
	resultForbidden    = "forbidden"
	resultNotFound     = "not found"
	resultConflict     = "conflict"
	resultInvalid      = "invalid"
	resultServerError  = "error"
	resultUnreadable   = "unreadable" // the response cannot be parsed
)

const (
	forbiddenWait      = 5 * time.Minute
	leaseForbiddenWait = time.Hour
	invalidWait        = time.Minute
	// earlyCheckWithin is the time within which the agent checks the Node after an outage or
	// another cause for doubt.
	earlyCheckWithin = 30 * time.Second
	// maxClockError is the difference up to which two clocks count as equal: the Date header
	// has a resolution of one second.
	maxClockError = 2 * time.Second
)

func resultOf(err error) string {
	var refused *kubeapi.StatusError
	switch {
	case err == nil:
		return resultOK
	case !errors.As(err, &refused):
		return resultUnreachable
	case refused.Code == http.StatusUnauthorized:
		return resultUnauthorized
	case refused.Code == http.StatusTooManyRequests, refused.Code == http.StatusServiceUnavailable && refused.RetryAfter > 0:
		return resultBusy
	case refused.Code == http.StatusForbidden:
		return resultForbidden
	case refused.Code == http.StatusNotFound:
		return resultNotFound
	case refused.Code == http.StatusConflict:
		return resultConflict
	case refused.Code >= 400 && refused.Code < 500 && refused.Code != http.StatusRequestTimeout:
		return resultInvalid
	default:
		return resultServerError
	}
}

// answer handles the result of a request.
func (c *core) answer(now time.Time, req *request, got kubeapi.Answer, err error) {
	result := resultOf(err)
	var refused *kubeapi.StatusError
	if result == resultConflict && req.kind == requestEvent && errors.As(err, &refused) && refused.Reason == "AlreadyExists" {
		// An earlier attempt created the Event, or an earlier agent, which may have raised the
		// count since. So the next repetition becomes an Event of its own.
		result, err, req.event.stored = resultOK, nil, nil
	}
	var seen nodeView
	if result == resultOK && req.readsNode {
		if seen, err = parseNode(got.Body); err != nil {
			result = resultUnreadable
		}
	}
	c.counts.Requests[Outcome{req.kind, result}]++
	if result == resultUnreachable || result == resultUnauthorized || result == resultBusy {
		c.startOutage(now, result, err)
		c.requeue(req)
		return
	}
	c.serverAnswered(now, got)
	if req.repeats && (result == resultNotFound || result == resultForbidden || result == resultInvalid) {
		c.repeatRefused(now, req, result, err)
		return
	}
	c.noteRefusal(req.kind, result, err)
	own := c.backoffs[req.kind]
	switch result {
	case resultOK:
		if own.logged {
			c.log.Info("request accepted again", "request", req.kind)
		}
		*own = backoff{}
		if req.readsNode {
			c.nodeRead(now, req, &seen)
			return
		}
		c.requestSucceeded(now, req, got)
		return
	case resultConflict:
		c.conflictFound(now, req, err)
		c.requeue(req)
		return
	case resultInvalid:
		if req.kind == requestEvent { // other Events may be valid
			c.eventRejected(req, err)
			return
		}
		own.pause(now, jitter(invalidWait, c.random))
	case resultForbidden:
		own.failForbidden(now, maxBackoff(req.kind), c.random)
	case resultNotFound:
		if req.kind == requestLease || req.kind == requestEvent { // the namespace does not exist
			own.failForbidden(now, maxBackoff(req.kind), c.random)
			break
		}
		own.fail(now, maxBackoffWait, c.random) // the node has not joined yet
	default:
		own.fail(now, maxBackoffWait, c.random)
	}
	c.requestRefused(now, req, result)
	if own.firstLog() {
		c.log.Warn("a request is refused, retrying", "request", req.kind, "result", result, "err", err)
	}
	c.requeue(req)
}

// noteRefusal notes why the API server takes no conditions of the node, and what to do.
func (c *core) noteRefusal(kind, result string, err error) {
	switch {
	case kind == requestEvent || kind == requestLease:
	case result == resultNotFound:
		c.missing = fmt.Sprintf("the cluster has no node %s: set NODE_NAME or --hostname-override to the name of the Node: %v", c.cfg.Node, err)
	case kind == requestConditions && result == resultForbidden:
		c.forbidden = fmt.Sprintf("the API server forbids the agent to report about node %s: check that this is its own node, and its rights: %v", c.cfg.Node, err)
	case result == resultOK:
		c.missing = ""
		if kind == requestConditions {
			c.forbidden = ""
		}
	}
}

// maxBackoff returns the longest wait after the API server forbids a request of this kind.
func maxBackoff(kind string) time.Duration {
	if kind == requestLease {
		return leaseForbiddenWait
	}
	return forbiddenWait
}

// startOutage delays all requests, because the API server cannot be reached or asks the agent
// to wait.
func (c *core) startOutage(now time.Time, result string, err error) {
	c.outage.fail(now, maxBackoffWait, c.random)
	var refused *kubeapi.StatusError
	if errors.As(err, &refused) && refused.RetryAfter > 0 {
		// Every agent gets the same Retry-After. No agent returns earlier, and a random extra
		// delay spreads them. Long values are capped, because the Lease would expire.
		delay := min(refused.RetryAfter, maxBackoffWait)
		c.outage.until = latest(c.outage.until, now.Add(delay+time.Duration(c.random()*float64(delay)/2)))
	}
	if c.outage.firstLog() {
		c.log.Warn("cannot report to the api server", "result", result, "err", err)
	}
}

// serverAnswered records that the API server has answered, and ends an outage.
func (c *core) serverAnswered(now time.Time, got kubeapi.Answer) {
	c.counts.LastAnswer = now
	c.lease.setClock(now, got.Date)
	if c.outage.failures > 0 {
		c.log.Info("api server reachable again", "outage", now.Sub(c.outage.began).Round(time.Millisecond))
		c.outage = backoff{}
		c.checkSoon(now)
	}
}

func (c *core) checkSoon(now time.Time) {
	c.checkAt = times.Earliest(c.checkAt, now.Add(time.Duration(c.random()*float64(earlyCheckWithin))))
}

// requestSucceeded updates the state after a successful request.
func (c *core) requestSucceeded(now time.Time, req *request, got kubeapi.Answer) {
	switch req.kind {
	case requestConditions:
		c.conditionsApplied(now, req)
		c.conditions.hasPlaceholder = c.conditions.hasPlaceholder || req.placeholder
		c.nodeWritten(now, got)
	case requestPlaceholder:
		c.conditions.hasPlaceholder = false
		c.nodeWritten(now, got)
	case requestHandover:
		r := &c.conditions
		r.removal.needsHandover, r.removal.handover, r.hasPlaceholder = false, nil, r.hasPlaceholder || req.placeholder
		if c.nodeWritten(now, got); r.removal.plan != nil { // the only write since the Node was read
			r.removal.plan.version, r.removal.plan.safe = r.version, r.version != ""
		}
	case requestOrphans:
		c.conditions.orphans.markDeleted(req.orphans)
		c.log.Info("orphaned conditions deleted", "conditions", req.orphans.kinds)
		c.nodeWritten(now, got)
	case requestLease:
		c.lease.dueAt = now.Add(jitter(renewEvery, c.random))
		c.counts.LeaseRenewed = now
		c.leaseRenewed(now, got)
	case requestEvent:
		c.events.delivered(req.queue, req.event)
		if req.event.stored != nil {
			c.events.remember(now, req.event.stored, req.event.count())
		}
	}
}

// nodeRead handles a Node that was read.
func (c *core) nodeRead(now time.Time, req *request, seen *nodeView) {
	c.setUID(now, seen.uid)
	c.conditions.forgetDeleted(seen)
	c.conditions.hasPlaceholder = c.conditions.hasPlaceholder || req.fresh && seen.conditions[placeholder] != nil // an agent stopped before it deleted it
	switch req.kind {
	case requestRead:
		c.compareNode(now, req, seen)
	case requestHandover:
		c.planHandover(now, seen)
	case requestOrphans:
		c.findOrphans(seen)
	}
}

// conditionsApplied records that the API server has the conditions of the agent, and counts
// those that other managers had changed.
func (c *core) conditionsApplied(now time.Time, req *request) {
	r := &c.conditions
	for _, kind := range r.changedByOthers {
		if _, written := req.conditions[kind]; written {
			c.counts.Restored++
		}
	}
	if req.removes {
		r.removal.unremovable.times = 0
	}
	r.removal.unremovable.othersAccepted(now)
	r.applied, r.needsRewrite, r.force, r.changedByOthers, r.removal.plan = req.conditions, false, false, nil, nil
	r.owned = map[string]bool{}
	for kind := range r.applied {
		r.owned[kind] = true
	}
	for _, preserved := range []map[string]apiCondition{r.removal.unremovable.conditions, r.awaited.values} {
		for kind := range preserved {
			r.owned[kind] = true
		}
	}
}

// requestRefused handles a request that the API server refuses. Conditions that cannot be
// handed over or removed must not block the other conditions.
func (c *core) requestRefused(now time.Time, req *request, result string) {
	r := &c.conditions
	switch {
	case req.kind == requestHandover && req.readsNode && result == resultForbidden:
		r.removal.readForbidden = true
	case (req.kind == requestHandover && !req.readsNode || req.kind == requestConditions && req.removes) && (result == resultForbidden || result == resultInvalid):
		r.removal.handover = nil
		if kinds := r.keepUnremovable(now); len(kinds) > 0 {
			c.log.Warn("cannot remove or hand over conditions: they stay unchanged so that the other conditions can be written", "conditions", kinds)
		}
	case req.kind == requestHandover && !req.readsNode:
		r.removal.handover = nil // look again
	case req.kind == requestConditions:
		r.removal.plan = nil
	}
}

// requeue restores the state after a failed request. The request may have succeeded although
// its response was lost, so the agent does not know which conditions the API server has.
func (c *core) requeue(req *request) {
	switch req.kind {
	case requestEvent:
		c.events.requeue(req.queue, req.event)
	case requestConditions:
		c.conditions.needsRewrite = true
	}
}

// repeatRefused handles a stored Event whose count cannot be raised, because the API server has
// deleted it, or because the agent has the rights of an older version. The agent creates a new
// Event. If the stored Event may already count the repetition, the agent tries again for a while,
// because an API server that has just started may not know the rights yet, and then drops it.
func (c *core) repeatRefused(now time.Time, req *request, result string, err error) {
	if result == resultForbidden && req.retry && req.event.forbidden < maxForbidden {
		req.event.forbidden++
		c.backoffs[requestEvent].failForbidden(now, maxBackoff(req.kind), c.random)
		c.requeue(req)
		return
	}
	if result == resultForbidden && !c.logged.uncounted {
		c.logged.uncounted = true
		c.log.Warn("the API server forbids the agent to raise the count of an Event, so the agent creates each Event: grant it the verb patch on events", "err", err)
	}
	req.event.stored.until = time.Time{}
	if req.retry && result != resultNotFound {
		c.eventRejected(req, err)
		return
	}
	req.event.stored = nil
	c.requeue(req)
}

// eventRejected drops an Event that the API server will never accept.
func (c *core) eventRejected(req *request, err error) {
	c.events.rejected(req.queue, req.event)
	if !c.logged.rejected {
		c.logged.rejected = true
		c.log.Error("event dropped: the api server rejects it", "reason", req.event.Reason, "err", err)
	}
}

// leaseRenewed records the new resourceVersion of the Lease.
func (c *core) leaseRenewed(now time.Time, got kubeapi.Answer) {
	var lease struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(got.Body, &lease); err != nil || lease.Metadata.ResourceVersion == "" {
		return // the renewal succeeded anyway
	}
	c.checkVersion(now, "leases", lease.Metadata.ResourceVersion, c.lease.version)
	c.lease.version = lease.Metadata.ResourceVersion
}

// checkVersion compares the resourceVersion of a write with that of the previous write to the
// same resource. Different resources may be in different stores (--etcd-servers-overrides).
// Versions grow unless the store was restored from a backup. In that case conditions may be
// lost, so the agent soon reads the Node, bypassing the cache.
func (c *core) checkVersion(now time.Time, resource, version, before string) {
	if older(version, before) {
		c.log.Warn("resourceVersion went backwards, the store was probably restored from a backup: checking conditions", "resource", resource, "version", version, "before", before)
		c.bypassCache = true
		c.checkSoon(now)
	}
}

// nodeWritten records the version of the Node after a write by the agent.
func (c *core) nodeWritten(now time.Time, got kubeapi.Answer) {
	before := c.conditions.version
	v, err := parseNode(got.Body)
	if c.conditions.version = v.version; err != nil {
		return // the write succeeded, only its version is unknown
	}
	c.checkVersion(now, "nodes", v.version, before)
	c.conditions.forgetDeleted(&v)
	c.conditions.orphans.possible = c.conditions.orphans.possible || len(c.conditions.withoutWriter(&v)) > 0
	c.setUID(now, v.uid)
}

// setUID records the UID of the Node. A recreated Node needs a new Lease owner at once.
func (c *core) setUID(now time.Time, uid string) {
	if uid == "" || uid == c.uid {
		return
	}
	if c.uid != "" {
		c.log.Info("node was recreated", "uid", uid)
		c.lease.dueAt = now
	}
	c.uid = uid
}

// compareNode compares the Node with the conditions that the agent wrote.
func (c *core) compareNode(now time.Time, req *request, v *nodeView) {
	c.checkAt = now.Add(c.checkInterval())
	c.conditions.orphans.possible = c.conditions.orphans.possible || len(c.conditions.orphaned(v)) > 0
	if c.conditions.applied == nil {
		return
	}
	if older(v.version, c.conditions.version) {
		if !req.fresh {
			c.bypassCache = true
			c.checkSoon(now) // the cache is behind the agent's last write
			return
		}
		c.log.Warn("api server lost the agent's writes: its store was reset to an earlier state", "version", v.version, "written", c.conditions.version)
		c.conditions.version = v.version
	} else {
		c.detectSecondAgent(v)
	}
	c.bypassCache = false
	if found := c.conditions.changed(v); len(found) > 0 && !c.conditions.dirty() {
		c.log.Info("conditions were changed by other managers, writing them again", "conditions", found)
		c.conditions.needsRewrite, c.conditions.changedByOthers = true, found
	}
	_, differs := c.conditions.fieldsToHandOver(v)
	if differs || len(c.conditions.sharing.released(v)) > 0 || len(c.conditions.abandoned(v, now)) > 0 {
		c.conditions.removal.needsHandover, c.conditions.removal.handover = true, nil
	}
}

// detectSecondAgent logs once that another agent reports on this node: it finds conditions
// under the agent's field manager that this agent did not write.
func (c *core) detectSecondAgent(v *nodeView) {
	if c.logged.secondAgent || c.conditions.dirty() {
		return
	}
	if found := c.conditions.writtenByOtherAgent(v); len(found) > 0 {
		c.logged.secondAgent = true
		c.log.Warn("a second agent writes conditions of this node as the same field manager, and each removes the other's conditions: run only one agent on the node",
			"manager", FieldManager, "conditions", found)
	}
}

// planHandover computes which fields must be handed over, from a Node that was read past the
// cache.
func (c *core) planHandover(now time.Time, v *nodeView) {
	r := &c.conditions
	r.owned = v.conditionsOwnedBy(FieldManager)
	r.removal.readForbidden, r.removal.handover, r.removal.plan = false, nil, nil
	r.saveAwaited(v)
	if r.applied == nil && len(r.owned) == 0 && len(r.toApply()) == 0 {
		r.applied, r.needsRewrite = map[string]condition{}, false // there is nothing to write, and nothing was written
	}
	freed, abandoned := r.sharing.released(v), r.abandoned(v, now)
	if len(freed)+len(abandoned) > 0 {
		for _, kind := range freed {
			c.reclaim(kind, "the manager no longer owns it")
		}
		for _, kind := range abandoned {
			c.reclaim(kind, "the manager has stopped writing it")
			delete(r.sharing.state.Taken, kind) // the agent may take its fields over once more
		}
		// Keep the fields that were handed over until the agent has written the conditions
		// again. Otherwise they would vanish in between.
		r.removal.needsHandover = false
		c.checkSoon(now)
		return
	}
	r.planRemoval(v)
	left, differs := r.fieldsToHandOver(v)
	if r.removal.needsHandover = differs; !differs {
		r.removal.plan.safe = true
		return
	}
	r.removal.handover = &handover{conditions: left, version: v.version}
}

func (c *core) reclaim(kind, because string) {
	if manager, yielded := c.conditions.sharing.reclaim(kind); yielded {
		c.log.Info("taking back a yielded condition", "condition", kind, "manager", manager, "because", because)
	}
}

// findOrphans records the orphaned conditions of a Node that was read past the cache.
func (c *core) findOrphans(v *nodeView) {
	found := c.conditions.orphaned(v)
	if len(found) == 0 {
		c.conditions.orphans.possible, c.conditions.orphans.found = false, nil
		return
	}
	c.conditions.orphans.found = &orphanConditions{kinds: found, version: v.version}
}

// conflictFound handles a write that conflicts with another manager's write.
func (c *core) conflictFound(now time.Time, req *request, err error) {
	var refused *kubeapi.StatusError
	errors.As(err, &refused)
	switch req.kind {
	case requestHandover:
		c.conditions.removal.handover = nil // read the Node again
		c.backoffs[requestHandover].fail(now, maxBackoffWait, c.random)
		return
	case requestOrphans:
		c.conditions.orphans.found = nil // read the Node again
	case requestConditions:
		found := parseConflicts(refused)
		taken, again, yielded := c.conditions.resolveConflicts(found)
		c.counts.TakenOver += uint64(len(taken) + len(again))
		for _, conflict := range taken {
			c.log.Info("condition taken over from another manager", "condition", conflict.kind, "manager", conflict.manager)
		}
		for _, conflict := range yielded {
			c.log.Warn("condition yielded to another manager that keeps writing it: stop that manager, or set --take-over",
				"condition", conflict.kind, "manager", conflict.manager)
		}
		if len(found) > 0 {
			c.conditions.lastApply = time.Time{} // the conflict is resolved, so apply at once
			return
		}
	}
	c.backoffs[req.kind].fail(now, maxBackoffWait, c.random)
}

// latest returns the latest of the given times.
func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}
