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

// noise is an event of a rule, one of many.
func noise(reason string, i int) finding.Report {
	return finding.Report{Source: "kernel-monitor", Events: []finding.Event{{
		ID: digest(fmt.Sprint(reason, i)), Severity: finding.Warn, Time: time.Now(), Reason: reason, Message: fmt.Sprintf("100%% %s %d", reason, i),
	}}}
}

// flip is an event of a change of a condition.
func flip(kind string, i int) finding.Report {
	r := noise("Flipped", i)
	r.Events[0].ID = digest(kind + strconv.Itoa(i))
	r.Events[0].Condition, r.Events[0].Severity = kind, finding.Info
	return r
}

// balanced says whether every event is accounted for.
func balanced(t interface {
	Helper()
	Errorf(string, ...any)
}, c Counts) {
	t.Helper()
	dropped := c.Dropped[Drop{"event", "queue full"}] + c.Dropped[Drop{"event", "refused"}] + c.Dropped[Drop{"event", "stopped"}] +
		c.Dropped[Drop{"change", "queue full"}] + c.Dropped[Drop{"change", "refused"}] + c.Dropped[Drop{"change", "stopped"}]
	if c.EventsTaken != c.EventsSent+c.EventsSummed+dropped+c.EventsQueued {
		t.Errorf("%d events were taken, but %d sent, %d summed up, %d dropped and %d wait", c.EventsTaken, c.EventsSent, c.EventsSummed, dropped, c.EventsQueued)
	}
}

func TestEvents(t *testing.T) {
	inBubble(t, "an event says what the symptom does", nil, func(r *running) {
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
	inBubble(t, "a flood of one reason swallows neither another nor the change of a condition", nil, func(r *running) {
		for i := range 10_000 {
			r.Take(noise("Flood", i))
		}
		synctest.Wait()
		r.Take(noise("Rare", 0))
		r.Take(flip("A", 0))
		synctest.Wait()
		for _, id := range []string{"Rare0", "A0"} {
			if r.api.event("n."+digest(id)[:16]) == nil {
				r.Errorf("%s did not get through", id)
			}
		}
		if n := r.api.stored(); n > burst+2 {
			r.Errorf("%d events went out", n)
		}
		pass(eventEvery)
		last := r.api.lastEvent()
		if message, _ := last["message"].(string); !strings.Contains(message, "100% Flood 9999 (and 9989 more since ") {
			r.Errorf("what was held back is told as %q", message)
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
	inBubble(t, "changes of a condition wait their turn and are not summed up", nil, func(r *running) {
		for i := range mostWaiting {
			r.Take(flip("A", i))
		}
		pass(2 * time.Minute)
		if n := r.api.stored(); n != mostWaiting {
			r.Errorf("%d of %d changes got through", n, mostWaiting)
		}
		balanced(r, r.Counts())
	})
	inBubble(t, "who invents reasons has a bound too", nil, func(r *running) {
		for i := range 5_000 {
			r.Take(noise(fmt.Sprint("Reason", i), i))
		}
		synctest.Wait()
		if roads := r.core.lanes.roads; len(roads) != 1 || len(roads[0].lanes) != mostLanes+1 {
			r.Errorf("%d roads, and %d lanes on the first", len(roads), len(roads[0].lanes))
		}
		pass(time.Hour)
		r.Take(noise("New", 1))
		synctest.Wait()
		if r.api.event("n."+digest("New1")[:16]) == nil {
			r.Error("when all is quiet again, a new reason has no lane of its own")
		}
		balanced(r, r.Counts())
	})
	inBubble(t, "what is there already is delivered", nil, func(r *running) {
		r.Take(noise("OOMKilling", 1))
		synctest.Wait()
		r.Take(noise("OOMKilling", 1))
		synctest.Wait()
		if c := r.Counts(); c.EventsSent != 2 || r.api.stored() != 1 || c.EventsQueued != 0 {
			r.Errorf("%+v", c)
		}
	})
	inBubble(t, "an event that nobody takes is dropped and counted, and the next one goes", nil, func(r *running) {
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
		if c.EventsSent != 3 || c.Dropped[Drop{"event", "refused"}] != 3 || r.logged("does not take it") != 1 {
			r.Errorf("%+v\n%s", c, r.log)
		}
		balanced(r, c)
	})
	inBubble(t, "who stops sends what is left, and counts the rest", nil, func(r *running) {
		r.Complete()
		synctest.Wait()
		pass(time.Hour)
		r.Take(conditions(condition("A", catalog.True, "Last", time.Now())))
		for i := range 20 {
			r.Take(noise("Flood", i))
		}
		r.stop()
		c := r.Counts()
		balanced(r, c)
		if r.api.row("A")["reason"] != "Last" || c.EventsSent != burst || c.Dropped[Drop{"event", "stopped"}] != 20-burst || c.EventsQueued != 0 {
			r.Errorf("A is %v, %+v", r.api.row("A"), c)
		}
	})
	inBubble(t, "what is summed up in an event that nobody takes is dropped with it", nil, func(r *running) {
		r.Complete()
		synctest.Wait()
		for i := range 100 {
			r.Take(noise("Flood", i))
		}
		r.api.refuseWith(answers("POST", 422))
		pass(eventEvery)
		c := r.Counts()
		balanced(r, c)
		if c.EventsSummed != 0 || c.Dropped[Drop{"event", "refused"}] == 0 || c.EventsSent+c.Dropped[Drop{"event", "refused"}] != 100 || r.api.told() != c.EventsSent {
			r.Errorf("%d are told: %+v", r.api.told(), c)
		}
	})
	inBubble(t, "events can be left out, and so can conditions", func(c *Config) { c.WithoutConditions, c.WithoutEvents = true, true }, func(r *running) {
		r.Take(conditions(condition("A", catalog.True, "R", time.Now())))
		r.Take(noise("X", 1))
		r.Complete()
		pass(time.Hour)
		if n := r.api.count("POST") + r.api.count(patchStatus); n != 0 || r.api.renewals() < 20 {
			r.Errorf("%d writes, %d renewals: %v", n, r.api.renewals(), r.api.asked)
		}
	})
}

func TestOutages(t *testing.T) {
	inBubble(t, "who is told to come back in hours comes back in minutes", nil, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(30 * time.Second)
		r.api.refuseWith(func(kubeapi.Request) error { return &kubeapi.StatusError{Code: 503, RetryAfter: 2 * time.Hour} })
		r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		r.api.refuseWith(nil)
		pass(2 * longestWait)
		if row := r.api.row("A"); row["reason"] != "Sick" {
			r.Errorf("after %s it is not told: %v", 2*longestWait, row)
		}
	})
	inBubble(t, "in a long one few requests are made, and in the end the newest state is there", nil, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Minute)
		r.api.refuseWith(away)
		before := r.api.count("")
		for i := range 600 { // ten hours
			r.Take(conditions(condition("A", catalog.True, fmt.Sprint("Sick", i), time.Now())))
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
		for _, road := range r.core.lanes.roads {
			queued += road.waiting()
		}
		if c := r.Counts(); queued > mostWaiting+burst+2 || c.EventsQueued != mostWaiting+5*600 || !c.Pending {
			r.Errorf("%d are queued: %+v", queued, c)
		}
		r.api.refuseWith(nil)
		pass(longestWait + 2*time.Second)
		if got := r.api.row("A")["reason"]; got != "Sick599" {
			r.Errorf("A is %s", got)
		}
		pass(5 * time.Minute)
		c := r.Counts()
		balanced(r, c)
		if c.EventsQueued != 0 || c.Pending || c.Dropped[Drop{"change", "queue full"}] != 600-mostWaiting {
			r.Errorf("%+v", c)
		}
		if r.api.event("n."+digest("A599")[:16]) == nil {
			r.Error("the event of the newest change did not get through")
		}
		if a, b := r.logged("cannot be told anything"), r.logged("answers again"); a != 1 || b != 1 {
			r.Errorf("said %d and %d times:\n%s", a, b, r.log)
		}
	})
	inBubble(t, "a server that asks for patience gets it", nil, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(30 * time.Second)
		r.api.refuseWith(func(kubeapi.Request) error { return &kubeapi.StatusError{Code: 429, RetryAfter: 40 * time.Second} })
		r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		r.api.refuseWith(nil)
		n := r.api.count("")
		pass(39 * time.Second)
		if r.api.count("") != n {
			r.Error("asked within 40 s")
		}
		pass(22 * time.Second)
		if got := r.api.row("A")["reason"]; got != "Sick" {
			r.Errorf("A is %s", got)
		}
	})
	// By the hour: one who is not known may be with the next token, one who may not hardly.
	for code, most := range map[int]int{401: 120, 403: 4 * 12} {
		inBubble(t, fmt.Sprintf("who is answered %d says so once and asks less often", code), nil, func(r *running) {
			r.api.refuseWith(answers("", code))
			r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
			r.Take(noise("X", 1))
			r.Complete()
			pass(time.Hour)
			n := r.api.count("")
			for i := range 60 * 4 {
				r.Take(conditions(condition("A", catalog.True, strconv.Itoa(i), time.Now())))
				pass(time.Minute)
			}
			if n := r.api.count("") - n; n > 4*most || n < 4*10 {
				r.Errorf("%d requests in four hours", n)
			}
			if said := r.logged("level=WARN") + r.logged("level=ERROR"); said == 0 || said > 4 { // a kind of request each
				r.Errorf("said %d times:\n%s", said, r.log)
			}
			r.api.refuseWith(nil)
			pass(10 * time.Minute)
			if got := r.api.row("A")["reason"]; got != "239" || r.api.stored() != 1 {
				r.Errorf("A is %s, events %v", got, r.api.events)
			}
		})
	}
	inBubble(t, "a node that is not there yet is waited for", nil, func(r *running) {
		r.api.refuseWith(answers("", 404))
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Hour)
		if n := r.api.count(""); n > 300 {
			r.Errorf("%d requests in an hour", n)
		}
		r.api.refuseWith(nil)
		pass(longestWait)
		if r.api.row("A") == nil {
			r.Error("the node is there, and has no condition")
		}
	})
	inBubble(t, "events that are not taken do not hold back conditions", nil, func(r *running) {
		r.api.refuseWith(answers("POST", 500))
		r.Take(noise("X", 1))
		r.Complete()
		pass(time.Hour)
		r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		if got := r.api.row("A")["reason"]; got != "Sick" {
			r.Errorf("A is %s", got)
		}
		if n := r.api.count("POST"); n > 200 || n < 60 {
			r.Errorf("%d attempts in an hour", n)
		}
	})
	inBubble(t, "a request that was carried out though its answer was lost does no harm", nil, func(r *running) {
		r.api.loseWith(away)
		r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
		r.Take(noise("X", 1))
		r.Complete()
		pass(5 * time.Minute)
		r.api.loseWith(nil)
		pass(2 * time.Minute)
		c := r.Counts()
		if r.api.row("A")["reason"] != "Sick" || r.api.stored() != 1 || c.EventsSent != 1 || c.Pending || c.TakenOver != 0 {
			r.Errorf("%v %+v", r.api.rows, c)
		}
	})
	inBubble(t, "what was told though its answer was lost is taken back", nil, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Second)
		r.api.loseWith(away)
		r.Take(conditions(condition("B", catalog.True, "Sick", time.Now())))
		synctest.Wait()
		if r.api.row("B") == nil {
			r.Fatal("B was not told")
		}
		r.Take(finding.Report{Gone: []string{"B"}})
		r.api.loseWith(nil)
		pass(longestWait)
		if r.api.row("B") != nil {
			r.Error("B is there still")
		}
	})
	inBubble(t, "after one, a look follows", nil, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Second)
		r.api.refuseWith(away)
		r.Take(conditions(condition("B", catalog.False, "Fine", time.Now())))
		pass(5 * time.Second)
		r.api.update("kubectl-edit", map[string]string{"type": "A", "status": "True"})
		r.api.refuseWith(nil)
		looks := r.api.count("GET")
		pass(10*time.Second + lookSoon) // sooner than the next look by itself
		if r.api.count("GET") == looks {
			r.Error("nobody has looked")
		}
		if got := r.api.row("A")["status"]; got != "False" {
			r.Errorf("A is %s", got)
		}
	})
}

func TestLease(t *testing.T) {
	inBubble(t, "it is renewed every two minutes or a little sooner, and belongs to the node", nil, func(r *running) {
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
	inBubble(t, "a node that is made anew owns it", nil, func(r *running) {
		r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
		r.Complete()
		pass(time.Second)
		r.api.mu.Lock()
		r.api.uid, r.api.rows, r.api.owners = "uid-2", map[string]map[string]string{}, map[string]map[string]map[string]bool{}
		r.api.version += 100
		r.api.mu.Unlock()
		pass(6 * time.Minute)
		if owner := fmt.Sprint(r.api.lease["metadata"]); !strings.Contains(owner, "uid-2") || r.api.row("A") == nil {
			r.Errorf("%s %v", owner, r.api.rows)
		}
	})
	for _, code := range []int{403, 404} {
		inBubble(t, fmt.Sprintf("without the right or the namespace (%d) the agent goes on, says so and asks hourly", code), nil, func(r *running) {
			r.api.refuseWith(answers("PATCH /apis/coordination", code))
			r.Take(conditions(condition("A", catalog.False, "Fine", time.Now())))
			r.Complete()
			for range 24 {
				pass(time.Hour)
			}
			first := 0
			for firstWait<<first < noLeaseWait {
				first++
			}
			if n := r.api.count("PATCH /apis/coordination"); n < 23+first || n > 28+first {
				r.Errorf("tried %d times in a day", n)
			}
			r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
			synctest.Wait()
			if r.logged("level=WARN") != 1 || r.api.row("A")["reason"] != "Sick" {
				r.Errorf("A is %v\n%s", r.api.row("A"), r.log)
			}
		})
	}
	// As after a start of an agent whose rights are on their way, or of the API server.
	inBubble(t, "who is turned away for a moment renews it before it is missed, and tells the rest sooner", nil, func(r *running) {
		r.api.refuseWith(answers("", 403))
		r.Take(conditions(condition("A", catalog.True, "Sick", time.Now())))
		r.Take(noise("X", 1))
		r.Complete()
		pass(5 * time.Second)
		r.api.refuseWith(nil)
		pass(time.Minute) // by chance it was turned away often in these seconds
		if r.api.row("A") == nil || r.api.stored() != 1 || r.api.renewals() == 0 {
			r.Errorf("A is %v, %d events and %d renewals", r.api.row("A"), r.api.stored(), r.api.renewals())
		}
	})
	inBubble(t, "its times are those of the server", nil, func(r *running) {
		r.mu.Lock()
		r.core.heard(time.Now(), kubeapi.Answer{Date: time.Now().Add(-time.Hour)})
		r.core.uid = "uid-1"
		r.mu.Unlock()
		r.Complete()
		pass(3 * time.Minute)
		renewed, err := time.Parse(time.RFC3339Nano, r.api.lease["spec"].(map[string]any)["renewTime"].(string))
		if ago := time.Since(renewed); err != nil || ago < time.Hour || ago > time.Hour+3*time.Minute {
			r.Errorf("renewed %s ago, by our clock: %v", ago, err)
		}
	})
	inBubble(t, "without a namespace there is none", func(c *Config) { c.LeaseNamespace = "" }, func(r *running) {
		r.Complete()
		pass(time.Hour)
		if n := r.api.count("PATCH /apis/"); n != 0 {
			r.Errorf("%d renewals", n)
		}
	})
}
