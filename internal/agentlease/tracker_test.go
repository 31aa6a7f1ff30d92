package agentlease

import (
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// noon is the start of every test.
var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

func TestRead(t *testing.T) {
	owner := func(name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d"}, {APIVersion: "v1", Kind: "Node", Name: name, UID: "u"}}
	}
	long := strings.Repeat("n", 240)
	for _, test := range []struct {
		name  string
		lease coordinationv1.Lease
		want  Lease
		ours  bool
	}{
		{"all of it", coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "autohealer-agent-n1", ResourceVersion: "7", OwnerReferences: owner("n1")},
			Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(30)), RenewTime: new(metav1.NewMicroTime(noon))},
		}, Lease{Name: "autohealer-agent-n1", Version: "7", Node: "n1", UID: "u", Renewed: noon, Duration: 30 * time.Second}, true},
		{"nothing but a name", coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autohealer-agent-n1"}},
			Lease{Name: "autohealer-agent-n1", Node: "n1", Duration: defaultDuration}, true},
		{"no time at all", coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autohealer-agent-n1"}, Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(-1))}},
			Lease{Name: "autohealer-agent-n1", Node: "n1", Duration: defaultDuration}, true},
		{"a shortened name", coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autohealer-agent-short", OwnerReferences: owner(long)}},
			Lease{Name: "autohealer-agent-short", Node: long, UID: "u", Duration: defaultDuration}, true},
		{"the name of another node", coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autohealer-agent-n1", OwnerReferences: owner("n2")}}, Lease{}, false},
		{"no agent's name", coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autohealer-controller", OwnerReferences: owner("n1")}}, Lease{}, false},
		{"no node's name", coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autohealer-agent-"}}, Lease{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ours := Read(&test.lease)
			if ours != test.ours || ours && got != test.want {
				t.Errorf("%+v, %t", got, ours)
			}
		})
	}
}

// story is a tracker with a clock.
type story struct {
	*Tracker
	t     *testing.T
	now   time.Time
	beats int
}

// unbroken is longer than the time between two lists.
const unbroken = 24 * time.Hour

func newStory(t *testing.T) *story {
	t.Helper()
	s := &story{Tracker: NewTracker(), t: t, now: noon}
	s.Listed(s.now, unbroken)
	return s
}

func (s *story) pass(d time.Duration) { s.now = s.now.Add(d) }

// renews makes an agent renew a Lease of six minutes.
func (s *story) renews(node string) (hasReturned bool) {
	s.beats++
	return s.Renewed(s.now, Lease{Name: "l-" + node, Node: node, Renewed: noon.Add(time.Duration(s.beats)), Duration: defaultDuration})
}

func (s *story) silent(nodes ...string) {
	s.t.Helper()
	due := s.Due(s.now)
	want := make([]string, len(nodes))
	for i, node := range nodes {
		want[i] = "l-" + node
	}
	if !slices.Equal(due, want) {
		s.t.Errorf("after %s the silent agents are %v, want %v", s.now.Sub(noon), due, want)
	}
}

// counts checks how many agents are alive and silent.
func (s *story) counts(alive, silent int) {
	s.t.Helper()
	if h, n := s.Count(); h != alive || n != silent {
		s.t.Errorf("%d alive, %d silent, want %d and %d", h, n, alive, silent)
	}
}

func TestSilenceStartsAtTheLastRenewal(t *testing.T) {
	s := newStory(t)
	s.renews("a")
	s.pass(time.Minute)
	s.renews("b")
	s.pass(5*time.Minute - 1)
	s.silent()
	s.pass(1)
	s.silent("a")
	s.pass(time.Minute)
	s.silent("a", "b") // the longest first
	s.MarkSilent(s.now, "l-a")
	s.silent("b")
	s.counts(1, 1)
	if s.renews("b") {
		t.Error("an agent is reported back that was never silent")
	}
	if !s.renews("a") {
		t.Error("a silent agent that renews its Lease is not reported back")
	}
	s.silent()
	s.counts(2, 0)
}

func TestWriteWithoutRenewalDoesNotCount(t *testing.T) {
	s := newStory(t)
	lease := Lease{Name: "l-a", Node: "a", Renewed: noon, Duration: defaultDuration}
	s.Renewed(s.now, lease)
	s.pass(defaultDuration - time.Second)
	s.Renewed(s.now, lease) // a changed label, or the same Lease listed again
	s.pass(time.Second)
	s.silent("a")
	s.MarkSilent(s.now, "l-a")
	if s.Renewed(s.now, lease) {
		t.Error("it is back although it was not renewed")
	}
}

func TestClockOfTheNodeIsIgnored(t *testing.T) {
	s := newStory(t)
	s.Renewed(s.now, Lease{Name: "l-a", Node: "a", Renewed: noon.Add(-24 * time.Hour), Duration: defaultDuration})
	s.Renewed(s.now, Lease{Name: "l-b", Node: "b", Renewed: noon.Add(24 * time.Hour), Duration: defaultDuration})
	s.silent()
	s.pass(defaultDuration)
	s.silent("a", "b")
}

func TestNoAgentIsSilentWhileListsFail(t *testing.T) {
	s := newStory(t)
	looked := func() {
		s.Unchanged([]byte("l-a"), nil)
		s.Listed(s.now, time.Minute)
	}
	s.renews("a")
	s.pass(time.Minute)
	looked()
	s.pass(time.Minute + 1)
	if s.ListedWithin(s.now, time.Minute) {
		t.Error("Leases count as listed, although the last list is too old")
	}
	s.pass(10 * time.Minute)
	looked()
	s.silent()
	for range 5 {
		s.pass(time.Minute)
		looked()
		s.silent()
	}
	s.pass(time.Minute - 1)
	looked()
	s.silent()
	s.pass(1)
	s.silent("a")
	s.ExtendAll(s.now)
	s.silent()
	s.pass(defaultDuration)
	s.silent("a")
}

func TestDeletedLeaseMakesTheAgentSilent(t *testing.T) {
	s := newStory(t)
	s.renews("a")
	s.renews("b")
	s.renews("c")
	s.Listed(s.now, unbroken)
	s.pass(2 * time.Minute)
	s.LeaseGone("l-a")
	if s.Unchanged([]byte("l-a"), nil) {
		t.Error("a deleted Lease is still known")
	}
	if !s.Unchanged([]byte("l-c"), nil) || s.Unchanged([]byte("l-c"), []byte("7")) || s.Unchanged([]byte("l-d"), nil) {
		t.Error("a Lease is known by its name and version")
	}
	s.Listed(s.now, unbroken) // without l-b
	for lease, is := range map[string]bool{"l-a": true, "l-b": true, "l-c": false} {
		if _, gone, _ := s.Get(lease); gone != is {
			t.Errorf("%s is gone: %t", lease, gone)
		}
	}
	s.silent()
	s.pass(4 * time.Minute)
	s.silent("a", "b", "c")
	s.MarkSilent(s.now, "l-a")
	s.MarkSilent(s.now, "l-b")
	s.MarkSilent(s.now, "l-c")
	s.counts(0, 1) // an agent without Lease is forgotten
	s.LeaseGone("l-c")
	s.counts(0, 0)
	s.LeaseGone("l-d") // unknown Lease
	s.silent()
}

func TestSilentAgentIsCheckedLessAndLessOften(t *testing.T) {
	s := newStory(t)
	s.renews("a")
	s.pass(defaultDuration)
	s.MarkSilent(s.now, "l-a")
	for _, minutes := range []int{6, 12, 24, 48, 60, 60} {
		s.pass(time.Duration(minutes)*time.Minute - 1)
		if unseen := s.DueAgain(s.now); unseen != nil {
			t.Errorf("%v are checked before %d minutes have passed", unseen, minutes)
		}
		s.pass(1)
		if unseen := s.DueAgain(s.now); !slices.Equal(unseen, []string{"l-a"}) {
			t.Errorf("%v are checked after %d minutes", unseen, minutes)
		}
		s.MarkSilent(s.now, "l-a")
	}
	s.counts(0, 1)
}

func TestLeaseOfAnAgentAliveWithoutItIsIgnored(t *testing.T) {
	s := newStory(t)
	s.renews("a")
	s.renews("b")
	if s.MarkAlive("l-a") || s.MarkAlive("l-c") {
		t.Error("an agent is reported back that was never silent")
	}
	s.pass(defaultDuration)
	s.MarkSilent(s.now, "l-a")
	s.MarkSilent(s.now, "l-b")
	if !s.MarkAlive("l-a") || !s.MarkAlive("l-b") {
		t.Error("a silent agent is not reported back")
	}
	s.pass(unbroken)
	s.silent()
	s.counts(2, 0)
	if unseen := s.DueAgain(s.now); unseen != nil {
		t.Errorf("unseen are %v", unseen)
	}
	s.LeaseGone("l-b")
	s.counts(1, 0) // an agent without Lease is not tracked
	if !s.renews("a") {
		t.Error("an agent that renews its Lease again is not reported back")
	}
	s.pass(defaultDuration)
	s.silent("a")
}

func TestRecreatedLeaseCountsAsRenewed(t *testing.T) {
	s := newStory(t)
	lease := Lease{Name: "l-a", Node: "a", UID: "1", Renewed: noon, Duration: defaultDuration}
	s.Renewed(s.now, lease)
	s.pass(4 * time.Minute)
	s.LeaseGone("l-a")
	s.Renewed(s.now, lease)
	s.pass(2 * time.Minute)
	s.silent()
	lease.UID = "2" // another node of that name
	s.Renewed(s.now, lease)
	s.pass(5 * time.Minute)
	s.silent()
	s.pass(time.Minute)
	s.silent("a")
	s.Postpone("l-a", s.now.Add(time.Minute))
	s.silent()
	s.pass(time.Minute)
	s.silent("a")
}

// TestTrackerAgreesWithFullHistory compares a tracker with a model that keeps all events and
// evaluates them each time.
func TestTrackerAgreesWithFullHistory(t *testing.T) {
	const patience = 4 * time.Minute
	calls, marks, looks := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		type event struct {
			at   time.Time
			what string
			of   int
		}
		var story []event
		tracker, now, beats := NewTracker(), noon, 0
		names := []string{"l-0", "l-1", "l-2"}
		lasts := func(of int) time.Duration { return time.Duration(of+2) * time.Minute }
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 150).Draw(t, "seconds")) * time.Second)
			e := event{now, rapid.SampledFrom([]string{"renew", "renew", "again", "look", "look", "look", "doubt", "lose", "call", "call", "mark alive", "mark alive"}).Draw(t, "what"), rapid.IntRange(0, 2).Draw(t, "of")}
			name := names[e.of]
			known, gone, there := tracker.Get(name)
			switch e.what {
			case "renew":
				beats++
				tracker.Renewed(now, Lease{Name: name, Node: "n", Renewed: noon.Add(time.Duration(beats)), Duration: lasts(e.of)})
			case "again":
				if !there || gone {
					continue
				}
				tracker.Renewed(now, known)
			case "look": // lists all existing Leases
				for _, name := range names {
					if is, gone, there := tracker.Get(name); there && !gone {
						tracker.Unchanged([]byte(name), []byte(is.Version))
					}
				}
				tracker.Listed(now, patience)
			case "doubt":
				tracker.ExtendAll(now)
			case "lose":
				tracker.LeaseGone(name)
			case "call":
				if !tracker.IsDue(name, now) {
					continue
				}
				tracker.MarkSilent(now, name)
				calls++
			case "mark alive":
				if !tracker.MarkAlive(name) {
					continue
				}
				marks++
			}
			story = append(story, e)
			due, unseen := tracker.Due(now), tracker.DueAgain(now)
			looks += len(unseen)
			for of, name := range names {
				var heard, sound, looked, call time.Time
				var called, markedAlive, lost bool
				for _, e := range story {
					switch {
					case e.what == "renew" && e.of == of:
						heard, called, markedAlive, lost = e.at, false, false, false
					case e.what == "call" && e.of == of:
						called, call = true, e.at
					case e.what == "mark alive" && e.of == of:
						called, markedAlive = false, true
					case e.what == "lose" && e.of == of:
						lost = true
					case e.what == "look":
						if sound.IsZero() || e.at.Sub(looked) > patience {
							sound = e.at
						}
						looked = e.at
					case e.what == "doubt":
						sound = e.at
					}
				}
				silent := !heard.IsZero() && !called && !markedAlive && !sound.IsZero() && now.Sub(heard) >= lasts(of) && now.Sub(sound) >= lasts(of)
				if silent != slices.Contains(due, name) {
					t.Fatalf("%s is silent: %t; due: %v", name, silent, due)
				}
				again := called && !lost && now.Sub(call) >= min(call.Sub(heard), time.Hour)
				if again != slices.Contains(unseen, name) {
					t.Fatalf("%s is due for a check: %t; due: %v", name, again, unseen)
				}
			}
		}
	})
	t.Logf("%d were marked silent, %d of them marked alive, %d checked again", calls, marks, looks)
	if calls == 0 || marks == 0 || looks == 0 {
		t.Error("the test proves nothing: no agent was marked silent, marked alive or checked again")
	}
}

func TestRenewalAllocatesNothing(t *testing.T) {
	s := newStory(t)
	lease := Lease{Name: "l-a", Node: "a", UID: "u", Duration: time.Minute}
	if allocations := testing.AllocsPerRun(100, func() {
		lease.Renewed = lease.Renewed.Add(time.Second)
		s.Renewed(s.now, lease)
	}); allocations > 0 {
		t.Errorf("a renewal takes %.0f allocations", allocations)
	}
}
