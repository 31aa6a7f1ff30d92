package report

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// noise is one of many events of a rule.
func noise(reason string, i int) finding.Report {
	return finding.Report{Source: "kernel-monitor", Events: []finding.Event{{
		ID: digest(fmt.Sprint(reason, i)), Severity: finding.Warn, Time: time.Now(), Reason: reason, Message: fmt.Sprintf("100%% %s %d", reason, i),
	}}}
}

// flip is an event of a changed condition.
func flip(kind string, i int) finding.Report {
	r := noise("Flipped", i)
	r.Events[0].ID = digest(kind + strconv.Itoa(i))
	r.Events[0].Condition, r.Events[0].Severity = kind, finding.Info
	return r
}

// balanced checks that every event is accounted for.
func balanced(t testkit.TB, c Counts) {
	t.Helper()
	dropped := c.Dropped[Drop{"event", "queue full"}] + c.Dropped[Drop{"event", "refused"}] + c.Dropped[Drop{"event", "stopped"}] +
		c.Dropped[Drop{"change", "queue full"}] + c.Dropped[Drop{"change", "refused"}] + c.Dropped[Drop{"change", "stopped"}]
	testkit.Same(t, c.EventsTaken, c.EventsSent+c.EventsSummed+dropped+c.EventsQueued,
		"the events: %d sent, %d merged, %d dropped and %d queued", c.EventsSent, c.EventsSummed, dropped, c.EventsQueued)
}

func TestEvents(t *testing.T) {
	inBubble(t, "writes an event with the fields of the finding", nil, func(r *running) {
		r.Complete()
		synctest.Wait()
		r.takes(noise("OOMKilling", 1), 0)
		name := "n." + digest("OOMKilling1")[:16]
		e := r.api.event(name)
		testkit.Require(r, e != nil, "there is no %s in %v", name, r.api.events)
		if e["message"] != "100% OOMKilling 1" || e["type"] != "Warning" || e["reason"] != "OOMKilling" ||
			fmt.Sprint(e["source"]) != "map[component:kernel-monitor host:n]" || fmt.Sprint(e["involvedObject"]) != "map[apiVersion:v1 kind:Node name:n uid:uid-1]" {
			r.Errorf("the event is %v", e)
		}
	})
	inBubble(t, "a flood of one reason displaces no other reason and no change of a condition", nil, func(r *running) {
		for i := range 10_000 {
			r.Take(noise("Flood", i))
		}
		synctest.Wait()
		r.Take(noise("Rare", 0))
		r.takes(flip("A", 0), 0)
		for _, id := range []string{"Rare0", "A0"} {
			testkit.Check(r, r.api.event("n."+digest(id)[:16]) != nil, "%s was not sent", id)
		}
		testkit.Between(r, r.api.stored(), 0, reasonBurst+2, "sent events")
		pass(reasonEvery)
		last := r.api.lastEvent()
		message, _ := last["message"].(string)
		testkit.Check(r, strings.Contains(message, "100% Flood 9999 (and 9989 more since "), "the merged event has message %q", message)
		testkit.Same[any](r, last["count"], float64(9990), "the count")
		c := r.Counts()
		balanced(r, c)
		testkit.Check(r, c.EventsSummed == 9989 && c.EventsQueued == 0, "%+v", c)
	})
	inBubble(t, "queues changes of a condition without merging them", nil, func(r *running) {
		for i := range maxQueuedChanges {
			r.Take(flip("A", i))
		}
		pass(2 * time.Minute)
		testkit.Same(r, r.api.stored(), maxQueuedChanges, "changes that got through")
		balanced(r, r.Counts())
	})
	inBubble(t, "limits the number of queues for many reasons", nil, func(r *running) {
		for i := range 5_000 {
			r.Take(noise(fmt.Sprint("Reason", i), i))
		}
		synctest.Wait()
		if sources := r.core.events.sources; len(sources) != 1 || len(sources[0].reasons) != maxReasons+1 {
			r.Errorf("%d source queues, and %d reason queues in the first", len(sources), len(sources[0].reasons))
		}
		pass(time.Hour)
		r.takes(noise("New", 1), 0)
		testkit.Check(r, r.api.event("n."+digest("New1")[:16]) != nil, "after all queues are idle, a new reason has no queue of its own")
		balanced(r, r.Counts())
	})
	// again reports another occurrence with the same text.
	again := func(r *running, id int) {
		repeated := noise("OOMKilling", 1)
		repeated.Events[0].ID = digest(strconv.Itoa(id))
		r.takes(repeated, time.Minute)
	}
	inBubble(t, "raises the count of the stored event when it is repeated", nil, func(r *running) {
		began := time.Now().UTC()
		for i := range 15 {
			again(r, i)
		}
		first := r.api.lastEvent()
		testkit.Check(r, r.api.stored() == 1 && first["count"] == 15.0 && first["reportingInstance"] == "n" &&
			first["firstTimestamp"] == began.Format(time.RFC3339) && first["lastTimestamp"] == began.Add(14*time.Minute).Format(time.RFC3339), "the event is %v", first)
		pass(repeatWithin)
		again(r, 15)
		testkit.Check(r, r.api.stored() == 2 && r.api.lastEvent()["count"] == 1.0, "after a long time: %v", r.api.events)
		r.api.expireEvents()
		again(r, 16)
		again(r, 17)
		testkit.Check(r, r.api.stored() == 1 && r.api.lastEvent()["count"] == 2.0, "after its deletion: %v", r.api.events)
		r.api.refuseWith(answers("PATCH /api/v1/namespaces/default/events", 403)) // rights of an older version
		again(r, 18)
		again(r, 19)
		testkit.Check(r, r.api.stored() == 3 && r.logged("grant it the verb patch on events") == 1, "without the right to patch: %v\n%s", r.api.events, r.log)
		c := r.Counts()
		testkit.Check(r, c.EventsSent == 20 && c.EventsQueued == 0, "%+v", c)
	})
	inBubble(t, "writes the repetitions of an outage in one request", nil, func(r *running) {
		again(r, 0)
		r.api.refuseWith(away)
		for i := range 1000 {
			r.Take(finding.Report{Source: "kernel-monitor", Events: []finding.Event{{ID: digest(strconv.Itoa(i + 1)), Severity: finding.Warn, Time: time.Now(), Reason: "OOMKilling", Message: "100% OOMKilling 1"}}})
		}
		pass(time.Minute)
		r.api.refuseWith(nil)
		pass(2 * maxBackoffWait)
		c := r.Counts()
		balanced(r, c)
		testkit.Check(r, r.api.stored() == 1 && r.api.lastEvent()["count"] == 1001.0 && c.EventsQueued == 0 && c.EventsSent <= 3, "%v, %+v", r.api.events, c)
	})
	inBubble(t, "counts a repetition once although its response was lost", nil, func(r *running) {
		again(r, 0)
		r.api.loseWith(away)
		again(r, 1) // the API server counts it
		testkit.Same[any](r, r.api.lastEvent()["count"], 2.0, "the count before the response arrives")
		again(r, 2)
		r.api.loseWith(nil)
		pass(2 * maxBackoffWait)
		testkit.Same[any](r, r.api.lastEvent()["count"], 3.0, "the count")
		r.api.loseWith(away)
		again(r, 3)
		r.api.expireEvents()
		r.api.loseWith(nil)
		pass(2 * maxBackoffWait)
		testkit.Check(r, r.api.stored() == 1 && r.api.lastEvent()["count"] == 1.0, "only the repetition without a response is counted again: %v", r.api.events)
		forbidden := answers("PATCH /api/v1/namespaces/default/events", 403)
		r.api.loseWith(away)
		again(r, 4)
		r.api.refuseWith(forbidden) // the API server starts and does not know the rights yet
		r.api.loseWith(nil)
		pass(10 * time.Second)
		r.api.refuseWith(nil)
		pass(2 * maxBackoffWait)
		testkit.Check(r, r.api.stored() == 1 && r.api.eventTotal() == 2, "a repetition that was forbidden for a while is not counted: %v", r.api.events)
		r.api.loseWith(away)
		again(r, 5)
		r.api.refuseWith(forbidden)
		r.api.loseWith(nil)
		pass(time.Hour)
		c := r.Counts()
		testkit.Check(r, r.api.stored() == 1 && r.api.eventTotal() == 3 && c.Dropped[Drop{"event", "refused"}] == 1, "no repetition is counted twice without the right to patch: %v, %+v", r.api.events, c)
		balanced(r, c)
	})
	inBubble(t, "does not lower the count of an earlier agent's event", nil, func(r *running) {
		r.api.events["n."+digest("0")[:16]] = map[string]any{"count": 5.0}
		again(r, 0) // read again after a restart
		again(r, 1)
		again(r, 2)
		testkit.Check(r, r.api.eventTotal() == 5+2 && r.api.stored() == 2, "%v", r.api.events)
	})
	inBubble(t, "counts an existing event as delivered", nil, func(r *running) {
		r.takes(noise("OOMKilling", 1), 0)
		r.takes(noise("OOMKilling", 1), 0)
		c := r.Counts()
		testkit.Check(r, c.EventsSent == 2 && r.api.stored() == 1 && c.EventsQueued == 0, "%+v", c)
	})
	inBubble(t, "drops and counts a rejected event, and sends the next one", nil, func(r *running) {
		r.api.refuseWith(func(q kubeapi.Request) error {
			if strings.Contains(string(q.Body), "Bad") {
				return &kubeapi.StatusError{Code: 422, Message: "no"}
			}
			return nil
		})
		for i := range 3 {
			r.Take(noise("Bad", i))
			r.Take(noise("Good", i))
		}
		synctest.Wait()
		c := r.Counts()
		testkit.Check(r, c.EventsSent == 3 && c.Dropped[Drop{"event", "refused"}] == 3 && r.logged("rejects it") == 1, "%+v\n%s", c, r.log)
		balanced(r, c)
	})
	inBubble(t, "sends what it can when it stops, and counts the rest", nil, func(r *running) {
		r.Complete()
		synctest.Wait()
		pass(time.Hour)
		r.Take(reportOf(newCondition("A", catalog.True, "Last", time.Now())))
		for i := range 20 {
			r.Take(noise("Flood", i))
		}
		r.stop()
		c := r.Counts()
		balanced(r, c)
		if r.api.condition("A")["reason"] != "Last" || c.EventsSent != reasonBurst || c.Dropped[Drop{"event", "stopped"}] != 20-reasonBurst || c.EventsQueued != 0 {
			r.Errorf("A is %v, %+v", r.api.condition("A"), c)
		}
	})
	inBubble(t, "counts events merged into a rejected event as dropped", nil, func(r *running) {
		r.Complete()
		synctest.Wait()
		for i := range 100 {
			r.Take(noise("Flood", i))
		}
		r.api.refuseWith(answers("POST", 422))
		pass(reasonEvery)
		c := r.Counts()
		balanced(r, c)
		if c.EventsSummed != 0 || c.Dropped[Drop{"event", "refused"}] == 0 || c.EventsSent+c.Dropped[Drop{"event", "refused"}] != 100 || r.api.eventTotal() != c.EventsSent {
			r.Errorf("%d are stored: %+v", r.api.eventTotal(), c)
		}
	})
	inBubble(t, "writes neither events nor conditions if both are disabled", func(c *Config) { c.WithoutConditions, c.WithoutEvents = true, true }, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.True, "R", time.Now())))
		r.starts(noise("X", 1), time.Hour)
		n := r.api.count("POST") + r.api.count(patchStatusPath)
		testkit.Check(r, n == 0 && r.api.renewals() >= 20, "%d writes, %d renewals: %v", n, r.api.renewals(), r.api.requests)
	})
}

func TestOutages(t *testing.T) {
	inBubble(t, "retries within minutes if the server asks to wait for hours", nil, func(r *running) {
		r.starts(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), 30*time.Second)
		r.api.refuseWith(func(kubeapi.Request) error { return &kubeapi.StatusError{Code: 503, RetryAfter: 2 * time.Hour} })
		r.takes(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())), 0)
		r.api.refuseWith(nil)
		pass(2 * maxBackoffWait)
		testkit.Same(r, r.api.condition("A")["reason"], "Unhealthy", "the reason of A after %s", 2*maxBackoffWait)
	})
	inBubble(t, "sends few requests during a long outage, and the newest state after it", nil, func(r *running) {
		r.starts(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), time.Minute)
		r.api.refuseWith(away)
		before := r.api.count("")
		for i := range 600 { // ten hours
			r.Take(reportOf(newCondition("A", catalog.True, fmt.Sprint("Unhealthy", i), time.Now())))
			for j := range 5 {
				r.Take(noise("Flood", 5*i+j))
			}
			r.takes(flip("A", i), time.Minute)
		}
		testkit.Between(r, r.api.count("")-before, 10*60, 10*60*3, "requests in ten hours")
		for hour := range 10 { // at no time more than a few a minute
			n := 0
			for _, at := range r.api.times[before:] {
				if minute := r.api.times[before].Add(time.Duration(hour) * time.Hour).Add(5 * time.Minute); !at.Before(minute) && at.Before(minute.Add(time.Minute)) {
					n++
				}
			}
			testkit.Check(r, n <= 12, "%d requests in a minute", n)
		}
		queued := 0
		for _, source := range r.core.events.sources {
			queued += source.eventCount()
		}
		if c := r.Counts(); queued > maxQueuedChanges+reasonBurst+2 || c.EventsQueued != maxQueuedChanges+5*600 || !c.Pending {
			r.Errorf("%d are queued: %+v", queued, c)
		}
		r.api.refuseWith(nil)
		pass(maxBackoffWait + 2*time.Second)
		testkit.Same(r, r.api.condition("A")["reason"], "Unhealthy599", "the reason of A")
		pass(5 * time.Minute)
		c := r.Counts()
		balanced(r, c)
		testkit.Check(r, c.EventsQueued == 0 && !c.Pending && c.Dropped[Drop{"change", "queue full"}] == 600-maxQueuedChanges, "%+v", c)
		testkit.Check(r, r.api.event("n."+digest("A599")[:16]) != nil, "the event of the newest change did not get through")
		a, b := r.logged("cannot report to the api server"), r.logged("reachable again")
		testkit.Check(r, a == 1 && b == 1, "logged %d and %d times:\n%s", a, b, r.log)
	})
	inBubble(t, "waits as long as the server asks", nil, func(r *running) {
		r.starts(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), 30*time.Second)
		r.api.refuseWith(func(kubeapi.Request) error { return &kubeapi.StatusError{Code: 429, RetryAfter: 40 * time.Second} })
		r.takes(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())), 0)
		r.api.refuseWith(nil)
		n := r.api.count("")
		pass(39 * time.Second)
		testkit.Same(r, r.api.count(""), n, "requests within 40 s")
		pass(22 * time.Second)
		testkit.Same(r, r.api.condition("A")["reason"], "Unhealthy", "the reason of A")
	})
	// Requests per hour: a new token may soon fix 401, while a missing permission usually stays.
	for code, most := range map[int]int{401: 120, 403: 4 * 12} {
		inBubble(t, fmt.Sprintf("after status %d it logs once and retries less often", code), nil, func(r *running) {
			r.api.refuseWith(answers("", code))
			r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
			r.starts(noise("X", 1), time.Hour)
			n := r.api.count("")
			for i := range 60 * 4 {
				r.takes(reportOf(newCondition("A", catalog.True, strconv.Itoa(i), time.Now())), time.Minute)
			}
			testkit.Between(r, r.api.count("")-n, 4*10, 4*most, "requests in four hours")
			if n := r.logged("level=WARN") + r.logged("level=ERROR"); n == 0 || n > 4 { // one per kind of request
				r.Errorf("logged %d times:\n%s", n, r.log)
			}
			testkit.Check(r, (code == 403) == strings.HasPrefix(r.Refusal(), "the API server forbids the agent to report about node n: "), "the refusal is %q", r.Refusal())
			r.api.refuseWith(nil)
			pass(10 * time.Minute)
			testkit.Equal(r, "the refusal", "", r.Refusal())
			got := r.api.condition("A")["reason"]
			testkit.Check(r, got == "239" && r.api.stored() == 1, "A is %s, events %v", got, r.api.events)
		})
	}
	inBubble(t, "waits for a node that does not exist yet", nil, func(r *running) {
		r.api.refuseWith(answers("", 404))
		r.starts(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), time.Hour)
		testkit.Between(r, r.api.count(""), 0, 300, "requests in an hour")
		testkit.Contains(r, r.Refusal(), "the cluster has no node n: set NODE_NAME or --hostname-override", "the refusal")
		r.api.refuseWith(nil)
		pass(maxBackoffWait)
		testkit.Equal(r, "the refusal", "", r.Refusal())
		testkit.Check(r, r.api.condition("A") != nil, "the node is there, and has no condition")
	})
	inBubble(t, "refused events do not delay conditions", nil, func(r *running) {
		r.api.refuseWith(answers("POST", 500))
		r.starts(noise("X", 1), time.Hour)
		r.takes(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())), 0)
		testkit.Same(r, r.api.condition("A")["reason"], "Unhealthy", "the reason of A")
		testkit.Between(r, r.api.count("POST"), 60, 200, "attempts in an hour")
	})
	inBubble(t, "repeats a request after a lost response without harm", nil, func(r *running) {
		r.api.loseWith(away)
		r.Take(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())))
		r.starts(noise("X", 1), 5*time.Minute)
		r.api.loseWith(nil)
		pass(2 * time.Minute)
		c := r.Counts()
		testkit.Check(r, r.api.condition("A")["reason"] == "Unhealthy" && r.api.stored() == 1 && c.EventsSent == 1 && !c.Pending && c.TakenOver == 0,
			"%v %+v", r.api.conditions, c)
	})
	inBubble(t, "removes a condition that was written although the response was lost", nil, func(r *running) {
		r.starts(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), time.Second)
		r.api.loseWith(away)
		r.takes(reportOf(newCondition("B", catalog.True, "Unhealthy", time.Now())), 0)
		testkit.Require(r, r.api.condition("B") != nil, "B was not written")
		r.Take(finding.Report{Gone: []string{"B"}})
		r.api.loseWith(nil)
		pass(maxBackoffWait)
		testkit.Check(r, r.api.condition("B") == nil, "B is there still")
	})
	inBubble(t, "checks the node after an outage", nil, func(r *running) {
		r.starts(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), time.Second)
		r.api.refuseWith(away)
		r.takes(reportOf(newCondition("B", catalog.False, "Fine", time.Now())), 5*time.Second)
		r.api.update("kubectl-edit", map[string]string{"type": "A", "status": "True"})
		r.api.refuseWith(nil)
		looks := r.api.count("GET")
		pass(10*time.Second + earlyCheckWithin) // before the next regular check
		testkit.Check(r, r.api.count("GET") != looks, "no request has read the object")
		testkit.Same(r, r.api.condition("A")["status"], "False", "the status of A")
	})
}

func TestLease(t *testing.T) {
	inBubble(t, "renews the Lease every two minutes or slightly earlier, with the node as owner", nil, func(r *running) {
		r.Complete()
		var times []time.Time
		last := 0
		for range 3600 {
			pass(time.Second)
			if r.api.renewals() > last {
				last = r.api.renewals()
				times = append(times, time.Now())
			}
		}
		testkit.Check(r, len(times) >= 30 && len(times) <= 34, "%d renewals in an hour", len(times))
		for i := 1; i < len(times); i++ {
			testkit.Between(r, times[i].Sub(times[i-1]), 107*time.Second, 121*time.Second, "the time between two renewals")
		}
		meta := r.api.lease["metadata"].(map[string]any)
		spec := r.api.lease["spec"].(map[string]any)
		if meta["name"] != "autohealer-agent-n" || meta["namespace"] != "autohealer-system" ||
			fmt.Sprint(meta["labels"]) != "map[app.kubernetes.io/name:autohealer-agent]" ||
			fmt.Sprint(meta["ownerReferences"]) != "[map[apiVersion:v1 kind:Node name:n uid:uid-1]]" ||
			spec["leaseDurationSeconds"] != float64(360) || spec["holderIdentity"] != "pod" {
			r.Errorf("the lease is %v", r.api.lease)
		}
	})
	inBubble(t, "sets a recreated node as the owner", nil, func(r *running) {
		r.starts(reportOf(newCondition("A", catalog.False, "Fine", time.Now())), time.Second)
		r.api.mu.Lock()
		r.api.uid, r.api.conditions, r.api.owners = "uid-2", map[string]map[string]string{}, map[string]map[string]map[string]bool{}
		r.api.version += 100
		r.api.mu.Unlock()
		pass(6 * time.Minute)
		owner := fmt.Sprint(r.api.lease["metadata"])
		testkit.Check(r, strings.Contains(owner, "uid-2") && r.api.condition("A") != nil, "%s %v", owner, r.api.conditions)
	})
	for _, code := range []int{403, 404} {
		inBubble(t, fmt.Sprintf("without permission or namespace (%d) it logs once and retries hourly", code), nil, func(r *running) {
			r.api.refuseWith(answers("PATCH /apis/coordination", code))
			r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
			r.Complete()
			for range 24 {
				pass(time.Hour)
			}
			first := 0
			for minBackoffWait<<first < leaseForbiddenWait {
				first++
			}
			testkit.Between(r, r.api.count("PATCH /apis/coordination"), 23+first, 28+first, "tries in a day")
			r.takes(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())), 0)
			testkit.Check(r, r.logged("level=WARN") == 1 && r.api.condition("A")["reason"] == "Unhealthy", "A is %v\n%s", r.api.condition("A"), r.log)
		})
	}
	// This happens after the start of an agent whose role is not bound yet, or of the API server.
	inBubble(t, "recovers from a short lack of permission before the Lease expires", nil, func(r *running) {
		r.api.refuseWith(answers("", 403))
		r.Take(reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now())))
		r.starts(noise("X", 1), 5*time.Second)
		r.api.refuseWith(nil)
		pass(time.Minute) // it may have been refused often in these seconds
		testkit.Check(r, r.api.condition("A") != nil && r.api.stored() == 1 && r.api.renewals() != 0,
			"A is %v, %d events and %d renewals", r.api.condition("A"), r.api.stored(), r.api.renewals())
	})
	inBubble(t, "uses the clock of the server for the Lease", nil, func(r *running) {
		r.mu.Lock()
		r.core.serverAnswered(time.Now(), kubeapi.Answer{Date: time.Now().Add(-time.Hour)})
		r.core.uid = "uid-1"
		r.mu.Unlock()
		r.Complete()
		pass(3 * time.Minute)
		renewed, err := time.Parse(time.RFC3339Nano, r.api.lease["spec"].(map[string]any)["renewTime"].(string))
		ago := time.Since(renewed)
		testkit.Check(r, err == nil && ago >= time.Hour && ago <= time.Hour+3*time.Minute, "renewed %s ago, by our clock: %v", ago, err)
	})
	inBubble(t, "has no Lease without a namespace", func(c *Config) { c.LeaseNamespace = "" }, func(r *running) {
		r.Complete()
		pass(time.Hour)
		testkit.Same(r, r.api.count("PATCH /apis/"), 0, "renewals")
	})
}
