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
func balanced(t interface {
	Helper()
	Errorf(string, ...any)
}, c Counts) {
	t.Helper()
	dropped := c.Dropped[Drop{"event", "queue full"}] + c.Dropped[Drop{"event", "refused"}] + c.Dropped[Drop{"event", "stopped"}] +
		c.Dropped[Drop{"change", "queue full"}] + c.Dropped[Drop{"change", "refused"}] + c.Dropped[Drop{"change", "stopped"}]
	if c.EventsTaken != c.EventsSent+c.EventsSummed+dropped+c.EventsQueued {
		t.Errorf("%d events were added, but %d sent, %d merged, %d dropped and %d queued", c.EventsTaken, c.EventsSent, c.EventsSummed, dropped, c.EventsQueued)
	}
}

func TestEvents(t *testing.T) {
	inBubble(t, "writes an event with the fields of the finding", nil, func(r *running) {
		r.Complete()
		synctest.Wait()
		r.Take(noise("OOMKilling", 1))
		synctest.Wait()
		name := "n." + digest("OOMKilling1")[:16]
		e := r.api.event(name)
		if e == nil {
			r.Fatalf("there is no %s in %v", name, r.api.events)
		}
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
		r.Take(flip("A", 0))
		synctest.Wait()
		for _, id := range []string{"Rare0", "A0"} {
			if r.api.event("n."+digest(id)[:16]) == nil {
				r.Errorf("%s was not sent", id)
			}
		}
		if n := r.api.stored(); n > reasonBurst+2 {
			r.Errorf("%d events went out", n)
		}
		pass(reasonEvery)
		last := r.api.lastEvent()
		if message, _ := last["message"].(string); !strings.Contains(message, "100% Flood 9999 (and 9989 more since ") {
			r.Errorf("the merged event has message %q", message)
		}
		if last["count"] != float64(9990) {
			r.Errorf("the count is %v", last["count"])
		}
		c := r.Counts()
		balanced(r, c)
		if c.EventsSummed != 9989 || c.EventsQueued != 0 {
			r.Errorf("%+v", c)
		}
	})
	inBubble(t, "queues changes of a condition without merging them", nil, func(r *running) {
		for i := range maxQueuedChanges {
			r.Take(flip("A", i))
		}
		pass(2 * time.Minute)
		if n := r.api.stored(); n != maxQueuedChanges {
			r.Errorf("%d of %d changes got through", n, maxQueuedChanges)
		}
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
		r.Take(noise("New", 1))
		synctest.Wait()
		if r.api.event("n."+digest("New1")[:16]) == nil {
			r.Error("after all queues are idle, a new reason has no queue of its own")
		}
		balanced(r, r.Counts())
	})
	inBubble(t, "counts an existing event as delivered", nil, func(r *running) {
		r.Take(noise("OOMKilling", 1))
		synctest.Wait()
		r.Take(noise("OOMKilling", 1))
		synctest.Wait()
		if c := r.Counts(); c.EventsSent != 2 || r.api.stored() != 1 || c.EventsQueued != 0 {
			r.Errorf("%+v", c)
		}
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
		if c.EventsSent != 3 || c.Dropped[Drop{"event", "refused"}] != 3 || r.logged("rejects it") != 1 {
			r.Errorf("%+v\n%s", c, r.log)
		}
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
		r.Take(noise("X", 1))
		r.Complete()
		pass(time.Hour)
		if n := r.api.count("POST") + r.api.count(patchStatusPath); n != 0 || r.api.renewals() < 20 {
			r.Errorf("%d writes, %d renewals: %v", n, r.api.renewals(), r.api.requests)
		}
	})
}

func TestOutages(t *testing.T) {
	inBubble(t, "retries within minutes if the server asks to wait for hours", nil, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(30 * time.Second)
		r.api.refuseWith(func(kubeapi.Request) error { return &kubeapi.StatusError{Code: 503, RetryAfter: 2 * time.Hour} })
		r.Take(reportOf(newCondition("A", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		r.api.refuseWith(nil)
		pass(2 * maxBackoffWait)
		if row := r.api.condition("A"); row["reason"] != "Sick" {
			r.Errorf("after %s it is not written: %v", 2*maxBackoffWait, row)
		}
	})
	inBubble(t, "sends few requests during a long outage, and the newest state after it", nil, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Minute)
		r.api.refuseWith(away)
		before := r.api.count("")
		for i := range 600 { // ten hours
			r.Take(reportOf(newCondition("A", catalog.True, fmt.Sprint("Sick", i), time.Now())))
			for j := range 5 {
				r.Take(noise("Flood", 5*i+j))
			}
			r.Take(flip("A", i))
			pass(time.Minute)
		}
		if n := r.api.count("") - before; n > 10*60*3 || n < 10*60 {
			r.Errorf("%d requests in ten hours", n)
		}
		for hour := range 10 { // at no time more than a few a minute
			n := 0
			for _, at := range r.api.times[before:] {
				if minute := r.api.times[before].Add(time.Duration(hour) * time.Hour).Add(5 * time.Minute); !at.Before(minute) && at.Before(minute.Add(time.Minute)) {
					n++
				}
			}
			if n > 12 {
				r.Errorf("%d requests in a minute", n)
			}
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
		if got := r.api.condition("A")["reason"]; got != "Sick599" {
			r.Errorf("A is %s", got)
		}
		pass(5 * time.Minute)
		c := r.Counts()
		balanced(r, c)
		if c.EventsQueued != 0 || c.Pending || c.Dropped[Drop{"change", "queue full"}] != 600-maxQueuedChanges {
			r.Errorf("%+v", c)
		}
		if r.api.event("n."+digest("A599")[:16]) == nil {
			r.Error("the event of the newest change did not get through")
		}
		if a, b := r.logged("cannot report to the api server"), r.logged("reachable again"); a != 1 || b != 1 {
			r.Errorf("logged %d and %d times:\n%s", a, b, r.log)
		}
	})
	inBubble(t, "waits as long as the server asks", nil, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(30 * time.Second)
		r.api.refuseWith(func(kubeapi.Request) error { return &kubeapi.StatusError{Code: 429, RetryAfter: 40 * time.Second} })
		r.Take(reportOf(newCondition("A", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		r.api.refuseWith(nil)
		n := r.api.count("")
		pass(39 * time.Second)
		if r.api.count("") != n {
			r.Error("req within 40 s")
		}
		pass(22 * time.Second)
		if got := r.api.condition("A")["reason"]; got != "Sick" {
			r.Errorf("A is %s", got)
		}
	})
	// Requests per hour: a new token may soon fix 401, while a missing permission usually stays.
	for code, most := range map[int]int{401: 120, 403: 4 * 12} {
		inBubble(t, fmt.Sprintf("after status %d it logs once and retries less often", code), nil, func(r *running) {
			r.api.refuseWith(answers("", code))
			r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
			r.Take(noise("X", 1))
			r.Complete()
			pass(time.Hour)
			n := r.api.count("")
			for i := range 60 * 4 {
				r.Take(reportOf(newCondition("A", catalog.True, strconv.Itoa(i), time.Now())))
				pass(time.Minute)
			}
			if n := r.api.count("") - n; n > 4*most || n < 4*10 {
				r.Errorf("%d requests in four hours", n)
			}
			if n := r.logged("level=WARN") + r.logged("level=ERROR"); n == 0 || n > 4 { // one per kind of request
				r.Errorf("logged %d times:\n%s", n, r.log)
			}
			r.api.refuseWith(nil)
			pass(10 * time.Minute)
			if got := r.api.condition("A")["reason"]; got != "239" || r.api.stored() != 1 {
				r.Errorf("A is %s, events %v", got, r.api.events)
			}
		})
	}
	inBubble(t, "waits for a node that does not exist yet", nil, func(r *running) {
		r.api.refuseWith(answers("", 404))
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Hour)
		if n := r.api.count(""); n > 300 {
			r.Errorf("%d requests in an hour", n)
		}
		r.api.refuseWith(nil)
		pass(maxBackoffWait)
		if r.api.condition("A") == nil {
			r.Error("the node is there, and has no condition")
		}
	})
	inBubble(t, "refused events do not delay conditions", nil, func(r *running) {
		r.api.refuseWith(answers("POST", 500))
		r.Take(noise("X", 1))
		r.Complete()
		pass(time.Hour)
		r.Take(reportOf(newCondition("A", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		if got := r.api.condition("A")["reason"]; got != "Sick" {
			r.Errorf("A is %s", got)
		}
		if n := r.api.count("POST"); n > 200 || n < 60 {
			r.Errorf("%d attempts in an hour", n)
		}
	})
	inBubble(t, "repeats a request after a lost response without harm", nil, func(r *running) {
		r.api.loseWith(away)
		r.Take(reportOf(newCondition("A", catalog.True, "Sick", time.Now())))
		r.Take(noise("X", 1))
		r.Complete()
		pass(5 * time.Minute)
		r.api.loseWith(nil)
		pass(2 * time.Minute)
		c := r.Counts()
		if r.api.condition("A")["reason"] != "Sick" || r.api.stored() != 1 || c.EventsSent != 1 || c.Pending || c.TakenOver != 0 {
			r.Errorf("%v %+v", r.api.conditions, c)
		}
	})
	inBubble(t, "removes a condition that was written although the response was lost", nil, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Second)
		r.api.loseWith(away)
		r.Take(reportOf(newCondition("B", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		if r.api.condition("B") == nil {
			r.Fatal("B was not written")
		}
		r.Take(finding.Report{Gone: []string{"B"}})
		r.api.loseWith(nil)
		pass(maxBackoffWait)
		if r.api.condition("B") != nil {
			r.Error("B is there still")
		}
	})
	inBubble(t, "checks the node after an outage", nil, func(r *running) {
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Second)
		r.api.refuseWith(away)
		r.Take(reportOf(newCondition("B", catalog.False, "Fine", time.Now())))
		pass(5 * time.Second)
		r.api.update("kubectl-edit", map[string]string{"type": "A", "status": "True"})
		r.api.refuseWith(nil)
		looks := r.api.count("GET")
		pass(10*time.Second + earlyCheckWithin) // before the next regular check
		if r.api.count("GET") == looks {
			r.Error("nobody has looked")
		}
		if got := r.api.condition("A")["status"]; got != "False" {
			r.Errorf("A is %s", got)
		}
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
		if len(times) < 30 || len(times) > 34 {
			r.Errorf("%d renewals in an hour", len(times))
		}
		for i := 1; i < len(times); i++ {
			if d := times[i].Sub(times[i-1]); d < 107*time.Second || d > 121*time.Second {
				r.Errorf("%s between two renewals", d)
			}
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
		r.Take(reportOf(newCondition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Second)
		r.api.mu.Lock()
		r.api.uid, r.api.conditions, r.api.owners = "uid-2", map[string]map[string]string{}, map[string]map[string]map[string]bool{}
		r.api.version += 100
		r.api.mu.Unlock()
		pass(6 * time.Minute)
		if owner := fmt.Sprint(r.api.lease["metadata"]); !strings.Contains(owner, "uid-2") || r.api.condition("A") == nil {
			r.Errorf("%s %v", owner, r.api.conditions)
		}
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
			if n := r.api.count("PATCH /apis/coordination"); n < 23+first || n > 28+first {
				r.Errorf("tried %d times in a day", n)
			}
			r.Take(reportOf(newCondition("A", catalog.True, "Sick", time.Now())))
			synctest.Wait()
			if r.logged("level=WARN") != 1 || r.api.condition("A")["reason"] != "Sick" {
				r.Errorf("A is %v\n%s", r.api.condition("A"), r.log)
			}
		})
	}
	// This happens after the start of an agent whose role is not bound yet, or of the API server.
	inBubble(t, "recovers from a short lack of permission before the Lease expires", nil, func(r *running) {
		r.api.refuseWith(answers("", 403))
		r.Take(reportOf(newCondition("A", catalog.True, "Sick", time.Now())))
		r.Take(noise("X", 1))
		r.Complete()
		pass(5 * time.Second)
		r.api.refuseWith(nil)
		pass(time.Minute) // it may have been refused often in these seconds
		if r.api.condition("A") == nil || r.api.stored() != 1 || r.api.renewals() == 0 {
			r.Errorf("A is %v, %d events and %d renewals", r.api.condition("A"), r.api.stored(), r.api.renewals())
		}
	})
	inBubble(t, "uses the clock of the server for the Lease", nil, func(r *running) {
		r.mu.Lock()
		r.core.serverAnswered(time.Now(), kubeapi.Answer{Date: time.Now().Add(-time.Hour)})
		r.core.uid = "uid-1"
		r.mu.Unlock()
		r.Complete()
		pass(3 * time.Minute)
		renewed, err := time.Parse(time.RFC3339Nano, r.api.lease["spec"].(map[string]any)["renewTime"].(string))
		if ago := time.Since(renewed); err != nil || ago < time.Hour || ago > time.Hour+3*time.Minute {
			r.Errorf("renewed %s ago, by our clock: %v", ago, err)
		}
	})
	inBubble(t, "has no Lease without a namespace", func(c *Config) { c.LeaseNamespace = "" }, func(r *running) {
		r.Complete()
		pass(time.Hour)
		if n := r.api.count("PATCH /apis/"); n != 0 {
			r.Errorf("%d renewals", n)
		}
	})
}
