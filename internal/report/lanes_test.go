package report

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/finding"
)

// traffic drives lanes second by second, and notes what leaves them.
type traffic struct {
	lanes lanes
	now   time.Time
	n     int
	left  []departure
}

type departure struct {
	*waiting
	at time.Time
}

func newTraffic() *traffic {
	return &traffic{lanes: newLanes(&Counts{Dropped: map[Drop]uint64{}}), now: time.Unix(1e9, 0)}
}

func (f *traffic) post(source, reason, condition, message string) {
	f.n++
	f.lanes.post(f.now, source, finding.Event{ID: strconv.Itoa(f.n), Time: f.now, Reason: reason, Condition: condition, Message: message})
}

// second sends all that may go now, and lets a second pass.
func (f *traffic) second() {
	f.send()
	f.now = f.now.Add(time.Second)
}

func (f *traffic) send() {
	for lane, one, _ := f.lanes.next(f.now); one != nil; lane, one, _ = f.lanes.next(f.now) {
		f.lanes.delivered(lane, one)
		f.left = append(f.left, departure{one, f.now})
	}
}

// delays are how late, and in how many words, what a source has said left.
func (f *traffic) delays(source string) (late []time.Duration, more uint64) {
	for _, d := range f.left {
		if d.source == source {
			late, more = append(late, d.at.Sub(d.Time)), more+d.more
		}
	}
	return late, more
}

// most is how many left within a minute, of those that are meant.
func (f *traffic) most(meant func(departure) bool) int {
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

func happened(d departure) bool { return d.Condition == "" }

// A daemon that keeps to its rate, 20 events a second, may call them what it likes.
func TestADaemonThatInventsReasonsIsNotHeardInsteadOfTheKernel(t *testing.T) {
	for _, test := range []struct {
		name   string
		reason func(i int) string
	}{
		{"two hundred reasons", func(i int) string { return fmt.Sprint("Reason", i%200) }},
		{"the kernel's own reason", func(int) string { return "OOMKilling" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newTraffic()
			for s := range 300 {
				for i := range 20 {
					f.post("chatty", test.reason(20*s+i), "", "x")
				}
				if s%30 == 0 {
					f.post("kernel-monitor", "OOMKilling", "", fmt.Sprint("Killed process ", s))
				}
				f.second()
			}
			late, more := f.delays("kernel-monitor")
			if len(late) != 10 || more != 0 {
				t.Errorf("of ten Events of the kernel %d left, and %d are summed up in them", len(late), more)
			}
			for _, d := range late {
				if d > 0 {
					t.Errorf("an Event of the kernel left after %s", d)
				}
			}
			if n := f.most(func(d departure) bool { return d.source == "chatty" }); n > sourceBurst+20 || n == 0 {
				t.Errorf("%d Events of the daemon left in a minute", n)
			}
		})
	}
}

func TestManySourcesTogetherHaveABoundAndEachHasItsTurn(t *testing.T) {
	const daemons = 10
	f := newTraffic()
	for s := range 600 {
		for d := range daemons {
			for i := range 20 {
				f.post(fmt.Sprint("daemon-", d), fmt.Sprint("Reason", 20*s+i), "", "x")
			}
		}
		if s%60 == 0 {
			f.send() // so that there is nothing left for this second
			f.post("kernel-monitor", "OOMKilling", "", "Killed process 1")
			f.post("kernel-monitor", "DockerHung", "KernelDeadlock", "is now true")
		}
		f.second()
	}
	if n := f.most(happened); n > nodeBurst+60 || n < 60 {
		t.Errorf("%d Events left in a minute", n)
	}
	told := map[string]int{}
	for _, d := range f.left {
		told[d.source]++
		if late := d.at.Sub(d.Time); d.source == "kernel-monitor" && (late > (daemons+1)*time.Second || d.more > 0 || d.Condition != "" && late > 0) {
			t.Errorf("%q left after %s, with %d more in it", d.Message, late, d.more)
		}
	}
	for d := range daemons {
		if n := told[fmt.Sprint("daemon-", d)]; n < told["daemon-0"]-2 || n > told["daemon-0"]+2 {
			t.Errorf("daemon-%d has %d, and the first %d", d, n, told["daemon-0"])
		}
	}
	if told["kernel-monitor"] != 20 {
		t.Errorf("%d Events of the kernel left", told["kernel-monitor"])
	}
}

func TestASourceThatFlapsHasABoundAndDelaysNobodyElse(t *testing.T) {
	f := newTraffic()
	for s := range 300 {
		for i := range 20 {
			f.post("flapper", "Flap", fmt.Sprint("Condition", i), "is now true")
		}
		f.post("flapper", "Noise", "", "x")
		if s%30 == 0 {
			for _, source := range []string{"kernel-monitor", "flapper"} {
				f.post(source, "Rare", "RareCondition", "is now true")
			}
			f.post("kernel-monitor", "Flap", "Condition1", "is now true") // which both keep
		}
		f.second()
	}
	if n := f.most(func(d departure) bool { return !happened(d) && d.source == "flapper" }); n > changesBurst+60 || n < 60 {
		t.Errorf("%d changes of one source left in a minute", n)
	}
	rare := 0
	for _, d := range f.left {
		late := d.at.Sub(d.Time)
		if d.Condition == "RareCondition" {
			if rare++; late > 21*time.Second {
				t.Errorf("%s's change left after %s", d.source, late)
			}
		}
		if d.source == "kernel-monitor" && late > 0 {
			t.Errorf("a change of the kernel's %s left after %s", d.Condition, late)
		}
	}
	if late, _ := f.delays("kernel-monitor"); len(late) != 20 || rare != 20 {
		t.Errorf("%d changes of the kernel's conditions left, and %d of the rare one", len(late), rare)
	}
}

func TestSourcesThatComeAndGoHaveABound(t *testing.T) {
	f := newTraffic()
	for s := range 1000 {
		f.post(fmt.Sprint("source-", s), "R", "", "x")
		f.post(fmt.Sprint("source-", s), "R", "C", "is now true")
	}
	if n := len(f.lanes.roads); n > mostRoads+2 {
		t.Errorf("%d roads", n)
	}
	for range 3600 {
		f.second()
	}
	f.post("new", "R", "", "x")
	f.second()
	if late, _ := f.delays("new"); len(late) != 1 || late[0] > 0 || f.lanes.queued != 0 || f.lanes.find("new", false) == nil {
		t.Errorf("when all is quiet again, a new source has no road: late %s, %d queued", late, f.lanes.queued)
	}
}

// Whoever says what, and whatever becomes of it: no source, and not all of them together,
// send more than they may, what has room leaves in its turn, and nothing is lost.
func TestLanesNeverSendMoreThanTheyMayAndLoseNothing(t *testing.T) {
	summed, failures := uint64(0), 0
	rapid.Check(t, func(t *rapid.T) {
		f := newTraffic()
		sources := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			source, reasons, condition := sources.Draw(t, "source"), rapid.IntRange(1, 100).Draw(t, "reasons"), ""
			if rapid.Bool().Draw(t, "change") {
				condition = "C"
			}
			for i := range rapid.IntRange(0, 200).Draw(t, "many") {
				f.post(source, fmt.Sprint("R", i%reasons), condition, "x")
			}
			if rapid.Bool().Draw(t, "fails") {
				if lane, one, _ := f.lanes.next(f.now); one != nil {
					f.lanes.failed(lane, one)
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
			if n := f.most(func(d departure) bool { return happened(d) && d.source == source }); n > sourceBurst+20 {
				t.Fatalf("%d Events of one source left in a minute", n)
			}
			if n := f.most(func(d departure) bool { return !happened(d) && d.source == source }); n > changesBurst+60 {
				t.Fatalf("%d changes of one source left in a minute", n)
			}
		}
		if n := f.most(happened); n > nodeBurst+60 {
			t.Fatalf("%d Events left in a minute", n)
		}
		c := f.lanes.counts
		if f.lanes.queued != 0 || c.EventsTaken != c.EventsSent+c.EventsSummed+c.Dropped[Drop{"change", "queue full"}] {
			t.Fatalf("%d are queued: %+v", f.lanes.queued, c)
		}
		summed += c.EventsSummed
	})
	t.Logf("%d were summed up, %d were not taken at first", summed, failures)
	if summed == 0 || failures == 0 {
		t.Error("this proves nothing")
	}
}
