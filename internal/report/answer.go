package report

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/resourcestack/autohealer/internal/kubeapi"
)

// What can come of a request.
const (
	fine        = "ok"
	unreachable = "unreachable"  // no answer
	stranger    = "unauthorized" // the server does not know who asks
	busy        = "busy"         // the server asks for patience
	forbidden   = "forbidden"
	absent      = "not found"
	conflict    = "conflict"
	invalid     = "invalid"
	ailing      = "error"      // of the server
	unreadable  = "unreadable" // and so no answer
)

const (
	forbiddenWait = 5 * time.Minute
	noLeaseWait   = time.Hour
	invalidWait   = time.Minute
	// lookSoon is within which time a look follows what gives reason to doubt.
	lookSoon = 30 * time.Second
	// clocksAgree is how far apart clocks are that agree: the server tells seconds.
	clocksAgree = 2 * time.Second
)

func resultOf(err error) string {
	var refused *kubeapi.StatusError
	switch {
	case err == nil:
		return fine
	case !errors.As(err, &refused):
		return unreachable
	case refused.Code == http.StatusUnauthorized:
		return stranger
	case refused.Code == http.StatusTooManyRequests, refused.Code == http.StatusServiceUnavailable && refused.RetryAfter > 0:
		return busy
	case refused.Code == http.StatusForbidden:
		return forbidden
	case refused.Code == http.StatusNotFound:
		return absent
	case refused.Code == http.StatusConflict:
		return conflict
	case refused.Code >= 400 && refused.Code < 500 && refused.Code != http.StatusRequestTimeout:
		return invalid
	default:
		return ailing
	}
}

// answer takes in what came of a request.
func (c *core) answer(now time.Time, asked *request, got kubeapi.Answer, err error) {
	result := resultOf(err)
	var refused *kubeapi.StatusError
	if result == conflict && asked.kind == forEvent && errors.As(err, &refused) && refused.Reason == "AlreadyExists" {
		result, err = fine, nil // it has been sent before
	}
	var seen view
	if result == fine && asked.reads {
		if seen, err = parseNode(got.Body); err != nil {
			result = unreadable
		}
	}
	c.counts.Requests[Outcome{asked.kind, result}]++
	if result == unreachable || result == stranger || result == busy {
		c.cutOff(now, result, err)
		c.unsent(asked)
		return
	}
	c.heard(now, got)
	own := c.paces[asked.kind]
	switch result {
	case fine:
		if own.told {
			c.log.Info("what was refused is granted again", "request", asked.kind)
		}
		*own = pace{}
		if asked.reads {
			c.read(now, asked, &seen)
			return
		}
		c.granted(now, asked, got)
		return
	case conflict:
		c.contradicted(now, asked, err)
		c.unsent(asked)
		return
	case invalid:
		if asked.kind == forEvent { // the next one may be better
			c.rejected(asked, err)
			return
		}
		own.pause(now, jitter(invalidWait, c.random))
	case forbidden:
		own.turnedAway(now, patience(asked.kind), c.random)
	case absent:
		if asked.kind == forLease || asked.kind == forEvent { // a namespace
			own.turnedAway(now, patience(asked.kind), c.random)
			break
		}
		own.fail(now, longestWait, c.random) // a node that is about to join
	default:
		own.fail(now, longestWait, c.random)
	}
	c.balked(now, asked, result)
	if own.firstTime() {
		c.log.Warn("a request is refused, and is made again from time to time", "request", asked.kind, "result", result, "err", err)
	}
	c.unsent(asked)
}

// patience is how long one waits in the end who is turned away.
func patience(kind string) time.Duration {
	if kind == forLease {
		return noLeaseWait
	}
	return forbiddenWait
}

// cutOff notes that nothing at all can be sent for a while.
func (c *core) cutOff(now time.Time, result string, err error) {
	c.outage.fail(now, longestWait, c.random)
	var refused *kubeapi.StatusError
	if errors.As(err, &refused) && refused.RetryAfter > 0 {
		// All are asked to come back at the same time: none comes sooner, and not all do then.
		// Who says hours means somebody else than one whose Lease would lapse.
		asked := min(refused.RetryAfter, longestWait)
		c.outage.until = latest(c.outage.until, now.Add(asked+time.Duration(c.random()*float64(asked)/2)))
	}
	if c.outage.firstTime() {
		c.log.Warn("the api server cannot be told anything", "result", result, "err", err)
	}
}

// heard notes that the API server has answered.
func (c *core) heard(now time.Time, got kubeapi.Answer) {
	c.counts.LastAnswer = now
	if !got.Date.IsZero() {
		c.skew = got.Date.Sub(now)
		if c.skew.Abs() <= clocksAgree {
			c.skew = 0
		}
	}
	if c.outage.failures > 0 {
		c.log.Info("the api server answers again", "away", now.Sub(c.outage.began).Round(time.Millisecond))
		c.outage = pace{}
		c.lookSoonAt(now)
	}
}

func (c *core) lookSoonAt(now time.Time) {
	c.lookAt = earlier(c.lookAt, now.Add(time.Duration(c.random()*float64(lookSoon))))
}

// granted takes in that a request was carried out.
func (c *core) granted(now time.Time, asked *request, got kubeapi.Answer) {
	switch asked.kind {
	case forRows:
		c.told(now, asked)
		c.rows.erase = c.rows.erase || asked.placeholder
		c.wrote(now, got)
	case forErase:
		c.rows.erase = false
		c.wrote(now, got)
	case forHand:
		c.rows.handing, c.rows.bequest, c.rows.erase = false, nil, c.rows.erase || asked.placeholder
		if c.wrote(now, got); c.rows.parting != nil { // nothing but this was written since
			c.rows.parting.version, c.rows.parting.safe = c.rows.version, c.rows.version != ""
		}
	case forSweep:
		c.rows.isSwept(asked.litter)
		c.log.Info("conditions that nobody keeps any more are deleted", "conditions", asked.litter.kinds)
		c.wrote(now, got)
	case forLease:
		c.leased = now.Add(jitter(renewEvery, c.random))
		c.counts.LeaseRenewed = now
		c.renewed(now, got)
	case forEvent:
		c.lanes.delivered(asked.lane, asked.event)
	}
}

// read takes in a look at the Node.
func (c *core) read(now time.Time, asked *request, seen *view) {
	c.learn(now, seen.uid)
	c.rows.forgive(seen)
	c.rows.erase = c.rows.erase || asked.fresh && seen.rows[placeholder] != nil // of one who was stopped in between
	switch asked.kind {
	case forLook:
		c.looked(now, asked, seen)
	case forHand:
		c.weigh(now, seen)
	case forSweep:
		c.sort(seen)
	}
}

// told notes that our rows are as they shall be, and those that others had changed right.
func (c *core) told(now time.Time, asked *request) {
	r := &c.rows
	for _, kind := range r.broken {
		if _, said := asked.rows[kind]; said {
			c.counts.Mended++
		}
	}
	if asked.parts {
		r.spared.times = 0
	}
	r.spared.proved(now)
	r.said, r.mend, r.force, r.broken, r.parting = asked.rows, false, false, nil, nil
	r.held = map[string]bool{}
	for kind := range r.said {
		r.held[kind] = true
	}
	for _, stays := range []map[string]wireRow{r.spared.rows, r.kept} {
		for kind := range stays {
			r.held[kind] = true
		}
	}
}

// balked notes that a request is refused as it is. What cannot be handed over, or left,
// must not hold up the rest.
func (c *core) balked(now time.Time, asked *request, result string) {
	r := &c.rows
	switch {
	case asked.kind == forHand && asked.reads && result == forbidden:
		r.blind = true
	case (asked.kind == forHand && !asked.reads || asked.kind == forRows && asked.parts) && (result == forbidden || result == invalid):
		r.bequest = nil
		if kinds := r.spare(now); len(kinds) > 0 {
			c.log.Warn("conditions cannot be removed or left to others, and stay as they are, so that the rest can be told", "conditions", kinds)
		}
	case asked.kind == forHand && !asked.reads:
		r.bequest = nil // look again
	case asked.kind == forRows:
		r.parting = nil
	}
}

// unsent puts back what a request has not brought to its goal. Perhaps it has, and only
// the answer was lost: what the API server knows of our rows is not known then.
func (c *core) unsent(asked *request) {
	switch asked.kind {
	case forEvent:
		c.lanes.failed(asked.lane, asked.event)
	case forRows:
		c.rows.mend = true
	}
}

// rejected drops an Event that the API server will never take.
func (c *core) rejected(asked *request, err error) {
	c.lanes.refused(asked.lane, asked.event)
	if !c.toldRejected {
		c.toldRejected = true
		c.log.Error("an event is dropped, because the api server does not take it", "reason", asked.event.Reason, "err", err)
	}
}

// renewed notes the version that the Lease has now.
func (c *core) renewed(now time.Time, got kubeapi.Answer) {
	var lease struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(got.Body, &lease); err != nil || lease.Metadata.ResourceVersion == "" {
		return // that it was renewed is certain
	}
	c.checkVersion(now, "leases", lease.Metadata.ResourceVersion, c.leaseVersion)
	c.leaseVersion = lease.Metadata.ResourceVersion
}

// checkVersion compares the version that a write was given with that of the write before
// to the same resource: another one may be in another store (--etcd-servers-overrides).
// Versions grow, unless the store was restored from a backup. Then our rows may be as they
// were long ago, and the Node is looked at soon, and past the cache.
func (c *core) checkVersion(now time.Time, resource, version, before string) {
	if older(version, before) {
		c.log.Warn("the api server gives older versions than before: its store was restored from a backup; looking whether conditions are lost", "resource", resource, "version", version, "before", before)
		c.doubt = true
		c.lookSoonAt(now)
	}
}

// wrote notes the version of the Node that we have made.
func (c *core) wrote(now time.Time, got kubeapi.Answer) {
	before := c.rows.version
	v, err := parseNode(got.Body)
	if c.rows.version = v.version; err != nil {
		return // that it was written is certain, of which version is not
	}
	c.checkVersion(now, "nodes", v.version, before)
	c.rows.forgive(&v)
	c.rows.stray = c.rows.stray || len(c.rows.keeperless(&v)) > 0
	c.learn(now, v.uid)
}

// learn notes who the Node is. One that was made anew has nothing of ours.
func (c *core) learn(now time.Time, uid string) {
	if uid == "" || uid == c.uid {
		return
	}
	if c.uid != "" {
		c.log.Info("the node was made anew", "uid", uid)
		c.leased = now
	}
	c.uid = uid
}

// looked compares the Node with what was said of it.
func (c *core) looked(now time.Time, asked *request, v *view) {
	c.lookAt = now.Add(c.lookEvery())
	c.rows.stray = c.rows.stray || len(c.rows.strays(v)) > 0
	if c.rows.said == nil {
		return
	}
	if older(v.version, c.rows.version) {
		if !asked.fresh {
			c.doubt = true
			c.lookSoonAt(now) // the server's cache is behind what we wrote
			return
		}
		c.log.Warn("the api server has forgotten what was written: its store was set back", "version", v.version, "written", c.rows.version)
		c.rows.version = v.version
	} else {
		c.meet(v)
	}
	c.doubt = false
	if found := c.rows.changed(v); len(found) > 0 && !c.rows.dirty() {
		c.log.Info("conditions were changed by others", "conditions", found)
		c.rows.mend, c.rows.broken = true, found
	}
	_, differs := c.rows.inherit(v)
	if differs || len(c.rows.released(v)) > 0 || len(c.rows.abandoned(v, now)) > 0 {
		c.rows.handing, c.rows.bequest = true, nil
	}
}

// meet says once that another agent reports on this node: what we did not say, and is
// under our name.
func (c *core) meet(v *view) {
	if c.met || c.rows.dirty() {
		return
	}
	if found := c.rows.forged(v); len(found) > 0 {
		c.met = true
		c.log.Warn("another agent writes conditions of this node under the same name, and each removes what the other says: let one alone run on the node",
			"manager", FieldManager, "conditions", found)
	}
}

// weigh works out what has to be handed over, by what is certain.
func (c *core) weigh(now time.Time, v *view) {
	r := &c.rows
	r.held, r.blind, r.bequest, r.parting = v.rowsOf(FieldManager), false, nil, nil
	r.keep(v)
	if r.said == nil && len(r.held) == 0 && len(r.shall()) == 0 {
		r.said, r.mend = map[string]row{}, false // there is nothing to say, and nothing was said
	}
	freed, abandoned := r.released(v), r.abandoned(v, now)
	if len(freed)+len(abandoned) > 0 {
		for _, kind := range freed {
			c.reclaim(kind, "he keeps it no longer")
		}
		for _, kind := range abandoned {
			c.reclaim(kind, "he has not written it for a while")
			delete(r.state.Taken, kind) // what he owns of it may be taken from him once more
		}
		// What was handed over stays until the rows are said: they would be gone in between.
		r.handing = false
		c.lookSoonAt(now)
		return
	}
	r.part(v)
	left, differs := r.inherit(v)
	if r.handing = differs; !differs {
		r.parting.safe = true
		return
	}
	r.bequest = &bequest{rows: left, version: v.version}
}

func (c *core) reclaim(kind, because string) {
	if manager, yielded := c.rows.state.Yielded[kind]; yielded {
		c.log.Info("a condition that was left to another manager is ours again", "condition", kind, "manager", manager, "because", because)
		c.rows.reclaim(kind)
		c.stateChanged = true
	}
}

// sort works out which rows nobody keeps, by what is certain.
func (c *core) sort(v *view) {
	found := c.rows.strays(v)
	if len(found) == 0 {
		c.rows.stray, c.rows.litter = false, nil
		return
	}
	c.rows.litter = &litter{kinds: found, version: v.version}
}

// contradicted is told that somebody else has written what was to be written.
func (c *core) contradicted(now time.Time, asked *request, err error) {
	var refused *kubeapi.StatusError
	errors.As(err, &refused)
	switch asked.kind {
	case forHand:
		c.rows.bequest = nil // look again
		c.paces[forHand].fail(now, longestWait, c.random)
		return
	case forSweep:
		c.rows.litter = nil // look again
	case forRows:
		found := contests(refused)
		taken, again, yielded := c.rows.settle(found)
		c.counts.TakenOver += uint64(len(taken) + len(again))
		for _, one := range taken {
			c.log.Info("a condition is taken over from another manager", "condition", one.kind, "manager", one.manager)
		}
		for _, one := range yielded {
			c.log.Warn("a condition is left to another manager, who writes it again and again: stop him, or give --take-over",
				"condition", one.kind, "manager", one.manager)
		}
		c.stateChanged = c.stateChanged || len(taken)+len(yielded) > 0
		if len(found) > 0 {
			c.rows.last = time.Time{} // it is decided, and can be told at once
			return
		}
	}
	c.paces[asked.kind].fail(now, longestWait, c.random)
}

// latest is the last of some times.
func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}
