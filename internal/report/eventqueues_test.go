package report

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// queueTest drives event queues second by second, and records the sent Events.
type queueTest struct {
	queues eventQueues
	now    time.Time
	n      int
	left   []sentEvent
}

type sentEvent struct {
	*queuedEvent
	at time.Time
}

func newQueueTest() *queueTest {
	return &queueTest{queues: newEventQueues(&Counts{Dropped: map[Drop]uint64{}}), now: time.Unix(1e9, 0)}
}

func (f *queueTest) post(source, reason, condition, message string) {
	f.n++
	f.queues.add(f.now, source, finding.Event{ID: strconv.Itoa(f.n), Time: f.now, Reason: reason, Condition: condition, Message: message})
}

// second sends all Events that may be sent now, and advances the clock by one second.
func (f *queueTest) second() {
	f.send()
	f.now = f.now.Add(time.Second)
}

func (f *queueTest) send() {
	for queue, event, _ := f.queues.next(f.now); event != nil; queue, event, _ = f.queues.next(f.now) {
		f.queues.delivered(queue, event)
		f.left = append(f.left, sentEvent{event, f.now})
	}
}

// delays returns the delay of each sent Event of a source, and how many were merged.
func (f *queueTest) delays(source string) (late []time.Duration, more uint64) {
	for _, d := range f.left {
		if d.source == source {
			late, more = append(late, d.at.Sub(d.Time)), more+d.merged
		}
	}
	return late, more
}

// most returns the largest number of matching Events sent within a minute.
func (f *queueTest) most(meant func(sentEvent) bool) int {
	most := 0
	var times []time.Time
	for _, d := range f.left {
		if !meant(d) {
			continue
		}
		times = append(times, d.at)
		for d.at.Sub(times[0]) >= time.Minute {
			times = times[1:]
		}
		most = max(most, len(times))
	}
	return most
}

func happened(d sentEvent) bool { return d.Condition == "" }

// A daemon that stays within its rate of 20 events a second may use any reasons.
func TestManyReasonsOfOneSourceDoNotDisplaceAnotherSource(t *testing.T) {
	for _, test := range []struct {
		name   string
		reason func(i int) string
	}{
		{"two hundred reasons", func(i int) string { return fmt.Sprint("Reason", i%200) }},
		{"the kernel's own reason", func(int) string { return "OOMKilling" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newQueueTest()
			for s := range 300 {
				for i := range 20 {
					f.post("chatty", test.reason(20*s+i), "", strconv.Itoa(20*s+i))
				}
				if s%30 == 0 {
					f.post("kernel-monitor", "OOMKilling", "", fmt.Sprint("Killed process ", s))
				}
				f.second()
			}
			late, more := f.delays("kernel-monitor")
			testkit.Check(t, len(late) == 10 && more == 0, "of ten Events of the kernel %d were sent, and %d were merged", len(late), more)
			for _, d := range late {
				testkit.Check(t, d <= 0, "an Event of the kernel was sent after %s", d)
			}
			n := f.most(func(d sentEvent) bool { return d.source == "chatty" })
			testkit.Check(t, n <= sourceBurst+20 && n != 0, "%d Events of the daemon were sent in a minute", n)
		})
	}
}

func TestManySourcesShareALimitAndTakeTurns(t *testing.T) {
	const daemons = 10
	f := newQueueTest()
	for s := range 600 {
		for d := range daemons {
			for i := range 20 {
				f.post(fmt.Sprint("daemon-", d), fmt.Sprint("Reason", 20*s+i), "", strconv.Itoa(20*s+i))
			}
		}
		if s%60 == 0 {
			f.send() // use up the limit of this second
			f.post("kernel-monitor", "OOMKilling", "", "Killed process 1")
			f.post("kernel-monitor", "DockerHung", "KernelDeadlock", "is now true")
		}
		f.second()
	}
	testkit.Between(t, f.most(happened), 60, nodeBurst+60, "Events were sent in a minute")
	told := map[string]int{}
	for _, d := range f.left {
		told[d.source]++
		if late := d.at.Sub(d.Time); d.source == "kernel-monitor" && (late > (daemons+1)*time.Second || d.merged > 0 || d.Condition != "" && late > 0) {
			t.Errorf("%q was sent after %s, with %d merged", d.Message, late, d.merged)
		}
	}
	for d := range daemons {
		if n := told[fmt.Sprint("daemon-", d)]; n < told["daemon-0"]-2 || n > told["daemon-0"]+2 {
			t.Errorf("daemon-%d has %d, and the first %d", d, n, told["daemon-0"])
		}
	}
	testkit.Same(t, told["kernel-monitor"], 20, "Events of the kernel")
}

func TestAFlappingSourceIsLimitedAndDelaysNoOther(t *testing.T) {
	f := newQueueTest()
	for s := range 300 {
		for i := range 20 {
			f.post("flapper", "Flap", fmt.Sprint("Condition", i), fmt.Sprint("is now true since ", s))
		}
		f.post("flapper", "Noise", "", strconv.Itoa(s))
		if s%30 == 0 {
			for _, source := range []string{"kernel-monitor", "flapper"} {
				f.post(source, "Rare", "RareCondition", "is now true")
			}
			f.post("kernel-monitor", "Flap", "Condition1", "is now true") // both sources report this condition
		}
		f.second()
	}
	n := f.most(func(d sentEvent) bool { return !happened(d) && d.source == "flapper" })
	testkit.Check(t, n <= changesBurst+60 && n >= 60, "%d changes of one source were sent in a minute", n)
	rare := 0
	for _, d := range f.left {
		late := d.at.Sub(d.Time)
		if d.Condition == "RareCondition" {
			rare++
			testkit.Check(t, late <= 21*time.Second, "%s's change was sent after %s", d.source, late)
		}
		testkit.Check(t, d.source != "kernel-monitor" || late <= 0, "a change of the kernel's %s was sent after %s", d.Condition, late)
	}
	if late, _ := f.delays("kernel-monitor"); len(late) != 20 || rare != 20 {
		t.Errorf("%d changes of the kernel's conditions were sent, and %d of the rare one", len(late), rare)
	}
}

func TestNumberOfSourceQueuesIsLimited(t *testing.T) {
	f := newQueueTest()
	for s := range 1000 {
		f.post(fmt.Sprint("source-", s), "R", "", "x")
		f.post(fmt.Sprint("source-", s), "R", "C", "is now true")
	}
	testkit.Between(t, len(f.queues.sources), 0, maxSources+2, "source queues")
	for range 3600 {
		f.second()
	}
	f.post("new", "R", "", "x")
	f.second()
	if late, _ := f.delays("new"); len(late) != 1 || late[0] > 0 || f.queues.queued != 0 || f.queues.find("new", false) == nil {
		t.Errorf("after all queues are idle, a new source has no queue: delay %s, %d queued", late, f.queues.queued)
	}
}

// Whatever the sources report and however sending fails: no source, and not all together,
// exceed their limits, sources take turns, and no Event is lost.
func TestEventQueuesKeepLimitsAndLoseNothing(t *testing.T) {
	summed, failures := uint64(0), 0
	rapid.Check(t, func(t *rapid.T) {
		f := newQueueTest()
		sources := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			source, reasons, condition := sources.Draw(t, "source"), rapid.IntRange(1, 100).Draw(t, "reasons"), ""
			same := rapid.SampledFrom([]int{1, 5, 200}).Draw(t, "same texts")
			if rapid.Bool().Draw(t, "change") {
				condition = "C"
			}
			for i := range rapid.IntRange(0, 200).Draw(t, "many") {
				f.post(source, fmt.Sprint("R", i%reasons), condition, strconv.Itoa(i/same))
			}
			if rapid.Bool().Draw(t, "fails") {
				if queue, event, _ := f.queues.next(f.now); event != nil {
					f.queues.requeue(queue, event)
					failures++
				}
			}
			for range rapid.IntRange(0, 30).Draw(t, "seconds") {
				f.second()
			}
		}
		for range 900 {
			f.second()
		}
		for _, source := range []string{"a", "b", "c", "d"} {
			n := f.most(func(d sentEvent) bool { return happened(d) && d.source == source })
			testkit.Require(t, n <= sourceBurst+20, "%d Events of one source were sent in a minute", n)
			n = f.most(func(d sentEvent) bool { return !happened(d) && d.source == source })
			testkit.Require(t, n <= changesBurst+60, "%d changes of one source were sent in a minute", n)
		}
		n := f.most(happened)
		testkit.Require(t, n <= nodeBurst+60, "%d Events were sent in a minute", n)
		c := f.queues.counts
		testkit.Require(t, f.queues.queued == 0 && c.EventsTaken == c.EventsSent+c.EventsSummed+c.Dropped[Drop{"change", "queue full"}],
			"%d are queued: %+v", f.queues.queued, c)
		summed += c.EventsSummed
	})
	t.Logf("%d were summed up, %d were not taken at first", summed, failures)
	testkit.Check(t, summed != 0 && failures != 0, "the random cases did not cover all behaviours")
}
