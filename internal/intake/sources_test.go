package intake

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

const disk = "DiskBadBlock"

var (
	well      = problem.Condition{Type: disk, Reason: "NoBadBlocks"}
	unhealthy = problem.Condition{Type: disk, Status: problem.True, Reason: "BadBlocksFound", Message: "3 of them"}
)

// bubble runs a test in a synctest bubble.
func bubble(t *testing.T, play func(t *testing.T, s *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.begin("boot-1", t.Output())
		play(t, s)
	})
}

func TestSourceReportsBecomesSilentAndReturns(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk))()
		c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
		testkit.Must(t, c.SetCondition(well))
		pass(time.Second)
		s.want(disk, "False NoBadBlocks")
		pass(time.Hour) // heartbeats are enough
		s.want(disk, "False NoBadBlocks")
		began := time.Now()
		testkit.Must(t, c.SetCondition(unhealthy))
		testkit.Must(t, c.Report(problem.Event{Reason: "BadBlock", Message: "at 17"}))
		pass(2 * time.Second)
		if since := s.want(disk, "True BadBlocksFound"); !since.Equal(began) {
			t.Errorf("it is unhealthy since %s, want %s", since, began)
		}
		testkit.Same(t, s.newEvents(), []string{"BadBlock", "Warning " + disk + "/BadBlocksFound"}, "reported Events")
		stop()
		pass(110 * time.Second)
		s.want(disk, "True BadBlocksFound")
		pass(30 * time.Second)
		since := s.want(disk, "Unknown SourceSilent")
		testkit.Between(t, since.Sub(began), 2*time.Minute, 150*time.Second, "it is silent after")
		testkit.Check(t, s.countsOf("disk-watch").Silent, "its silence is not counted")
		pass(time.Hour)
		testkit.Same(t, s.newEvents(), []string{disk + "/SourceSilent"}, "reported Events")

		c, stop = s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
		back := time.Now()
		testkit.Must(t, c.SetCondition(problem.Condition{Type: disk, Status: problem.True, Reason: "BadBlocksFound", Message: "3 of them", Transition: began}))
		pass(time.Second)
		since = s.want(disk, "True BadBlocksFound")
		testkit.Check(t, !since.Before(back), "it is known again since %s, want since %s: its status was unknown for an hour", since, back)
		known := s.want(disk, "True BadBlocksFound")
		testkit.Must(t, c.SetCondition(problem.Condition{Type: disk, Status: problem.True, Reason: "BadBlocksFound", Message: "4 of them", Transition: began}))
		pass(2 * time.Second)
		since = s.want(disk, "True BadBlocksFound")
		testkit.Check(t, since.Equal(known), "other words have made it begin at %s, it was %s", since, known)
		testkit.Must(t, c.SetCondition(well))
		pass(2 * time.Second)
		s.want(disk, "False NoBadBlocks")
		testkit.Same(t, s.newEvents(), []string{"Warning " + disk + "/BadBlocksFound", disk + "/NoBadBlocks"}, "reported Events")
		stop()
	})
}

// A type that the catalogue does not have, one that is True on a healthy node, and a daemon that
// cannot tell.
func TestDeclaredConditionTypes(t *testing.T) {
	declared := source("raid-watch", "RAIDDegraded", "FabricReady")
	declared.Declared = []catalog.Condition{{Type: "RAIDDegraded", Healthy: catalog.False, SurvivesReboot: true}, {Type: "FabricReady", Healthy: catalog.True}}
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		end := s.run(t.Context(), declared)
		c, stop := s.daemon(t.Context(), problem.Config{Source: "raid-watch"})
		report := func(status problem.ConditionStatus, reason string) {
			testkit.Must(t, c.SetCondition(problem.Condition{Type: "FabricReady", Status: status, Reason: reason}))
			pass(2 * time.Second)
		}
		testkit.Must(t, c.SetCondition(problem.Condition{Type: "RAIDDegraded", Status: problem.True, Reason: "DiskMissing"}))
		report(problem.True, "LinkUp")
		s.want("RAIDDegraded", "True DiskMissing")
		s.want("FabricReady", "True LinkUp")
		testkit.Same(t, s.newEvents(), []string{"Warning RAIDDegraded/DiskMissing"}, "Events of the first reports")
		report(problem.False, "LinkDown")
		s.want("FabricReady", "False LinkDown")
		report(problem.Unknown, "NoAnswer")
		s.want("FabricReady", "Unknown NoAnswer")
		testkit.Must(t, c.SetCondition(problem.Condition{Type: "FabricReady", Status: problem.Unknown, Reason: "NoAnswer", Message: "for a minute"}))
		pass(2 * time.Second)
		testkit.Check(t, slices.ContainsFunc(s.aggregate.Conditions(), func(c finding.Condition) bool { return c.Message == "for a minute" }), "the new message of an Unknown condition is not passed on")
		report(problem.True, "LinkUp")
		report(problem.Unknown, "NoAnswer")
		testkit.Same(t, s.newEvents(), []string{"Warning FabricReady/LinkDown", "FabricReady/NoAnswer", "FabricReady/LinkUp", "Warning FabricReady/NoAnswer"}, "Events of changes")
		report(problem.True, "LinkUp")
		stop()
		end()

		// The reboot does not end what a declaration says to survive it. The saved status of a type
		// whose healthy status was edited has another meaning.
		declared.Declared[1].Healthy = catalog.False
		s.begin("boot-2", t.Output())
		defer s.run(t.Context(), declared)()
		s.want("RAIDDegraded", "True DiskMissing")
		s.want("FabricReady", "Unknown SourceNotHeardYet")
	})
}

func TestSourceThatNeverReportsHasAGracePeriod(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk, "NTPProblem"))()
		since := s.want(disk, "Unknown SourceNotHeardYet")
		pass(119 * time.Second)
		s.want(disk, "Unknown SourceNotHeardYet")
		pass(25 * time.Second)
		got := s.want(disk, "Unknown SourceNeverHeard")
		testkit.Check(t, got.Equal(since), "it is Unknown since %s, and since %s by other words", since, got)
		c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
		defer stop()
		testkit.Must(t, c.SetCondition(well))
		pass(time.Second)
		s.want(disk, "False NoBadBlocks")
		s.want("NTPProblem", "Unknown SourceNeverHeard") // it lives, and does not say
		testkit.Same(t, s.newEvents(), []string{disk + "/NoBadBlocks"}, "reported Events")
	})
}

func TestUnreportedConditionOfALiveSourceIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk, "NTPProblem"))()
		c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
		defer stop()
		testkit.Must(t, c.SetCondition(well))
		pass(time.Minute)
		s.want("NTPProblem", "Unknown SourceNotHeardYet")
		pass(2 * time.Minute)
		s.want(disk, "False NoBadBlocks")
		s.want("NTPProblem", "Unknown SourceNeverHeard")
	})
}

// A live source that stops reporting a condition does not confirm it.
func TestOmittedConditionBecomesUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk, "NTPProblem"))()
		p := newPoster(t, s.dial("/run/disk-watch.sock"))
		defer p.client.CloseIdleConnections()
		body := status("disk-watch", condition(disk, true, 0), condition("NTPProblem", false, 0))
		for range 10 {
			p.expect(204, body)
			body = status("disk-watch", condition("NTPProblem", false, 0))
			pass(30 * time.Second)
		}
		s.want(disk, "Unknown SourceSilent")
		s.want("NTPProblem", "False NoBadBlocks")
		testkit.Check(t, !s.countsOf("disk-watch").Silent, "the source itself is not silent")
	})
}

// A restarted daemon knows that the disk is bad, but not since when.
func TestDaemonRestartIsNoTransition(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk))()
		var first time.Time
		for i := range 4 {
			c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
			worse := unhealthy
			worse.Message = strings.Repeat("more and ", i) + "more"
			testkit.Must(t, c.SetCondition(worse))
			pass(time.Minute)
			since := s.want(disk, "True BadBlocksFound")
			if i == 0 {
				first = since
			}
			testkit.Check(t, since.Equal(first), "it is unhealthy since %s, and told since %s", first, since)
			stop()
			pass(10 * time.Second)
		}
		testkit.Same(t, s.newEvents(), []string{"Warning " + disk + "/BadBlocksFound"}, "reported Events")
		// A delayed status of its second run arrives after a status of its fourth.
		p := newPoster(t, s.dial("/run/disk-watch.sock"))
		defer p.client.CloseIdleConnections()
		p.expect(409, status("disk-watch", condition(disk, false, 2*time.Minute)))
		p.expect(204, status("disk-watch", condition(disk, false, 0)))
		s.want(disk, "False NoBadBlocks")
	})
}

// A machine whose clock was wrong at boot has saved reports with times in the future.
func TestReportsAreAcceptedAfterTheClockWasSetBack(t *testing.T) {
	future := time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC) // in a bubble it is an hour earlier
	for _, same := range []bool{true, false} {
		bubble(t, func(t *testing.T, s *fixture) {
			t.Helper()
			old := finding.Condition{Type: disk, Status: catalog.True, Since: future, Reason: "BadBlocksFound"}
			text := testkit.Value(json.Marshal(savedState{Boot: "boot-1", Conditions: map[string]savedCondition{disk: {Told: old, Shown: old}}})).Must(t)
			s.kept["disk-watch"] = text
			defer s.run(t.Context(), source("disk-watch", disk))()
			since := s.want(disk, "True BadBlocksFound")
			testkit.Check(t, !since.After(time.Now()), "it stands since %s", since)
			pass(time.Minute)
			c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
			defer stop()
			want := map[bool]string{true: "True BadBlocksFound", false: "False NoBadBlocks"}[same]
			testkit.Must(t, c.SetCondition(map[bool]problem.Condition{true: unhealthy, false: well}[same]))
			pass(2 * time.Second)
			since = s.want(disk, want)
			testkit.Check(t, !since.After(time.Now()) && c.Err() == nil, "it stands since %s, %v", since, c.Err())
		})
	}
}

// The clock may be set back while the daemon runs.
func TestReportFromTheFutureDelaysNothingElse(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk, "NTPProblem"))()
		c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
		defer stop()
		ahead := unhealthy
		ahead.Transition = time.Now().Add(time.Hour)
		testkit.Must(t, c.SetCondition(ahead))
		testkit.Must(t, c.SetCondition(problem.Condition{Type: "NTPProblem", Status: problem.True, Reason: "NTPIsDown"}))
		testkit.Must(t, c.Report(problem.Event{Reason: "Early", Timestamp: time.Now().Add(time.Hour)}))
		pass(5 * time.Second)
		s.want(disk, "True BadBlocksFound")
		s.want("NTPProblem", "True NTPIsDown")
		got := s.newEvents()
		testkit.Check(t, slices.Contains(got, "Early"), "%q is told", got)
	})
}

func TestSilentConditionNamesRejectedStatuses(t *testing.T) {
	var log bytes.Buffer
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		s.begin("boot-1", &log)
		defer s.run(t.Context(), source("disk-watch", disk))()
		p := newPoster(t, s.dial("/run/disk-watch.sock"))
		p.expect(204, status("disk-watch", condition(disk, false, 0)))
		for range 30 {
			pass(10 * time.Second)
			p.expect(422, status("disk-watch", condition("DiskBadBlok", false, 0)))
			p.expect(400, `{`)
		}
		s.want(disk, "Unknown SourceSilent")
		s.mu.Lock()
		message := s.aggregate.Conditions()[0].Message
		s.mu.Unlock()
		if !strings.Contains(message, "statuses were refused, the last one with 400: this is no JSON") || !strings.Contains(message, "then it was False") {
			t.Errorf("it says %q", message)
		}
		p.expect(204, status("disk-watch", condition(disk, true, 0)))
		pass(3 * time.Minute)
		s.want(disk, "Unknown SourceSilent")
		s.mu.Lock()
		message = s.aggregate.Conditions()[0].Message
		s.mu.Unlock()
		testkit.Check(t, !strings.Contains(message, "refused"), "it says %q of what was before", message)
		p.client.CloseIdleConnections()
	})
	n := strings.Count(log.String(), "are rejected")
	testkit.Check(t, n == 2 && strings.Contains(log.String(), "DiskBadBlock?"), "of two kinds %d are logged:\n%s", n, log.String())
}

func TestAgentRestartKeepsTheState(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		end := s.run(t.Context(), source("disk-watch", disk))
		c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
		testkit.Must(t, c.SetCondition(unhealthy))
		pass(2 * time.Second)
		since := s.want(disk, "True BadBlocksFound")
		testkit.Same(t, s.urgent, 1, "urgent findings that were kept")
		stop()
		end()
		pass(time.Hour) // no agent runs

		again := func(boot string) *fixture {
			next := newFixture(t)
			next.kept = s.kept
			next.begin(boot, t.Output())
			return next
		}
		next := again("boot-1")
		end = next.run(t.Context(), source("disk-watch", disk))
		got := next.want(disk, "True BadBlocksFound")
		testkit.Check(t, got.Equal(since), "since %s, want %s", got, since)
		pass(119 * time.Second)
		next.want(disk, "True BadBlocksFound")
		told := next.newEvents()
		testkit.Check(t, told == nil, "%q is told once more", told)
		pass(25 * time.Second)
		next.want(disk, "Unknown SourceSilent")
		end()

		next = again("boot-1") // it was silent, and is, whatever else is told
		end = next.run(t.Context(), source("disk-watch", disk, "NTPProblem"))
		p := newPoster(t, next.dial("/run/disk-watch.sock"))
		p.expect(204, status("disk-watch", condition("NTPProblem", false, 0)))
		p.client.CloseIdleConnections()
		next.want(disk, "Unknown SourceSilent")
		end()

		next = again("boot-2") // a disk does not heal of a reboot
		end = next.run(t.Context(), source("disk-watch", disk))
		pass(time.Minute)
		is, _ := next.is(disk)
		testkit.Check(t, strings.HasPrefix(is, "Unknown") || strings.HasPrefix(is, "True"), "%s is %q", disk, is)
		end()
	})
}

// An agent that restarts more often than the silence limit adds up the time without reports.
func TestSilenceAddsUpAcrossAgentRestarts(t *testing.T) {
	for _, heartbeat := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *fixture) {
			t.Helper()
			end := s.run(t.Context(), source("disk-watch", disk, "NTPProblem"))
			c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch"})
			testkit.Must(t, c.SetCondition(well))
			pass(2 * time.Second)
			stop()
			pass(30 * time.Second)
			end()
			listened, lives := 30*time.Second, 1
			for got := ""; got != "Unknown SourceSilent"; lives++ {
				if listened > 10*time.Minute {
					if heartbeat {
						return // a source that reports once per run of the agent is not silent
					}
					t.Fatalf("after %s, in %d lives, it is %q", listened, lives, got)
				}
				pass(time.Hour) // no agent runs
				next := newFixture(t)
				next.kept = s.kept
				next.begin("boot-1", t.Output())
				end = next.run(t.Context(), source("disk-watch", disk, "NTPProblem"))
				got, _ = next.is(disk)
				if heartbeat {
					pass(20 * time.Second)
					next.want(disk, "False NoBadBlocks")
					p := newPoster(t, next.dial("/run/disk-watch.sock"))
					p.expect(204, status("disk-watch", condition(disk, false, 0)))
					p.client.CloseIdleConnections()
				}
				for range map[bool]int{false: 50, true: 14}[heartbeat] {
					if got != "Unknown SourceSilent" {
						pass(time.Second)
						listened += time.Second
						got, _ = next.is(disk)
					}
				}
				testkit.Same(t, next.countsOf("disk-watch").Silent, (got == "Unknown SourceSilent"), "the condition is %q; the source is silent", got)
				end()
			}
			t.Logf("noticed after %s of listening in %d lives", listened, lives)
			testkit.Check(t, !heartbeat && listened >= 2*time.Minute && listened <= 3*time.Minute,
				"it is silent after %s of listening, heard each time: %v", listened, heartbeat)
		})
	}
}

func TestRebootClearsConditionsThatItFixes(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		end := s.run(t.Context(), source("watch", disk, "NTPProblem"))
		c, stop := s.daemon(t.Context(), problem.Config{Source: "watch"})
		testkit.Must(t, c.SetCondition(unhealthy))
		testkit.Must(t, c.SetCondition(problem.Condition{Type: "NTPProblem", Status: problem.True, Reason: "NTPIsDown"}))
		pass(2 * time.Second)
		stop()
		end()
		next := newFixture(t)
		next.kept = s.kept
		next.begin("boot-2", t.Output())
		defer next.run(t.Context(), source("watch", disk, "NTPProblem"))()
		next.want(disk, "True BadBlocksFound")
		next.want("NTPProblem", "Unknown SourceNotHeardYet")
	})
}

func TestUnreadableSavedStateIsDropped(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		s.kept["disk-watch"] = []byte(`{"conditions": [`)
		defer s.run(t.Context(), source("disk-watch", disk))()
		s.want(disk, "Unknown SourceNotHeardYet")
	})
}

func TestSourcesAreAddedKeptAndRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("a", disk), source("b", "NTPProblem"))()
		c, stop := s.daemon(t.Context(), problem.Config{Source: "a"})
		defer stop()
		testkit.Must(t, c.SetCondition(unhealthy))
		pass(2 * time.Second)

		// b loses its condition to a new source, and a has another interval.
		faster := source("a", disk, "KernelDeadlock")
		faster.Silence, faster.Rate = 10*time.Second, 1
		testkit.Must(t, s.in.Apply(Setup{Sources: []Source{faster, source("c", "NTPProblem")}}))
		s.want(disk, "True BadBlocksFound")
		s.want("KernelDeadlock", "Unknown SourceNotHeardYet")
		testkit.Require(t, s.paths["/run/b.sock"] != nil && s.paths["/run/c.sock"] != nil, "there are no sockets")
		select {
		case <-s.paths["/run/b.sock"].closed:
		default:
			t.Error("the socket of b is still open")
		}
		pass(12 * time.Second) // a heartbeat is later than that
		s.want(disk, "Unknown SourceSilent")

		testkit.Must(t, s.in.Apply(Setup{Sources: []Source{source("c", "NTPProblem")}}))
		pass(time.Minute)
		s.want(disk, "")
		testkit.Same(t, s.gone, []string{"NTPProblem", disk, "KernelDeadlock"}, "removed conditions")
		testkit.Check(t, c.Err() != nil, "a is heard though it is gone")
	})
}

// A suspended machine or agent receives no reports. That time is no silence of the sources.
func TestTimeWhileTheAgentIsStoppedIsNotSilence(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		s.in.open = s.listen
		testkit.Must(t, s.in.Apply(Setup{Sources: []Source{source("disk-watch", disk)}}))
		p := newPoster(t, s.dial("/run/disk-watch.sock"))
		p.expect(204, status("disk-watch", condition(disk, false, 0)))
		for range 10 { // an hour goes by between two beats
			pass(time.Hour)
			s.in.tick(12*time.Second, time.Now())
		}
		s.want(disk, "False NoBadBlocks")
		s.in.tick(12*time.Second, time.Now())
		s.want(disk, "Unknown SourceSilent")
		p.client.CloseIdleConnections()
		s.in.shutdown(t.Context())
	})
}

func TestRepeatedEventIsEmittedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk))()
		p := newPoster(t, s.dial("/run/disk-watch.sock"))
		first, second := event("One", time.Minute), event("Two", time.Second)
		for _, body := range []string{status("disk-watch", first), status("disk-watch", first, second), status("disk-watch", first, first, second)} {
			p.expect(204, body)
		}
		s.mu.Lock()
		ids := map[string]bool{}
		for _, e := range s.events {
			ids[e.ID] = true
		}
		s.mu.Unlock()
		got := s.newEvents()
		testkit.Check(t, slices.Equal(got, []string{"One", "Two"}) && len(ids) == 2, "%q is told", got)
		// The number of remembered events is limited.
		for range 3 * maxRecentEvents / problem.MaxEvents {
			var many []string
			for i := range problem.MaxEvents {
				many = append(many, event("Many", time.Duration(problem.MaxEvents-i)*time.Microsecond))
			}
			p.expect(204, status("disk-watch", many...))
			pass(time.Minute)
		}
		src := s.in.sources[0]
		if got := len(s.newEvents()); got != 3*maxRecentEvents || len(src.recent.ids) != maxRecentEvents || len(src.recent.order) != maxRecentEvents {
			t.Errorf("%d are told, %d and %d remembered", got, len(src.recent.ids), len(src.recent.order))
		}
		p.client.CloseIdleConnections()
	})
}
