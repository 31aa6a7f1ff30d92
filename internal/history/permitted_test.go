package history

import (
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/testbed"
)

const (
	deadlock = `{"type":"Deadlock","effect":"NoExecute","taintKey":"example.com/deadlock","conditions":{"KernelDeadlock":{"status":true}}}`
	ntp      = `{"type":"NTP","effect":"NoSchedule","taintKey":"example.com/ntp","conditions":{"NTPProblem":{"status":"true"}}}`

	out  = "example.com/deadlock:NoExecute"
	back = "example.com/deadlock:NoSchedule"
	late = "example.com/ntp:NoSchedule"
)

// fiveNodes returns a cluster of five nodes and the set on deadlocks, which may evict two
// at once.
func fiveNodes(tb testing.TB) *story {
	tb.Helper()
	s := newStory(tb)
	s.node("n1", "n2", "n3", "n4", "n5")
	s.set("deadlock", deadlock)
	s.pass(time.Minute)
	return s
}

func TestPermittedTaintsHaveNoViolation(t *testing.T) {
	s := fiveNodes(t)
	s.set("ntp", ntp)
	s.foreign("n1", "example.com/theirs:NoSchedule")
	s.pass(time.Minute)

	// The bound is two: the third and the fourth node fall back, and wait.
	for _, n := range []string{"n1", "n2"} {
		s.condition(n, "KernelDeadlock=True")
		s.we(n, s.place("deadlock", out))
		s.pass(10 * time.Second)
	}
	for _, n := range []string{"n4", "n3"} {
		s.condition(n, "KernelDeadlock=True")
		s.we(n, s.place("deadlock", back))
		s.pass(10 * time.Second)
	}
	// Unknown changes nothing. The record remembers the start time.
	since := s.now
	s.condition("n1", "KernelDeadlock=Unknown/ProbeTimedOut")
	s.we("n1", remember("deadlock", "KernelDeadlock", since))
	s.pass(10 * time.Second)
	// The node recovers, and n4 has waited longest.
	s.condition("n1", "KernelDeadlock=False")
	s.we("n1", s.remove("deadlock", out), forget)
	s.we("n4", s.place("deadlock", out), s.remove("deadlock", back))
	s.pass(time.Minute)
	// A higher effect is placed, and removed.
	s.condition("n5", "NTPProblem=True")
	s.we("n5", s.place("ntp", late))
	s.condition("n5", "KernelDeadlock=True")
	s.we("n5", s.place("deadlock", back), s.remove("ntp", late))
	s.pass(time.Minute)
	s.condition("n5", "KernelDeadlock=False")
	s.we("n5", s.remove("deadlock", back), s.place("ntp", late))
	// Another writer removes our taint, and we place it again.
	s.pass(time.Minute)
	s.takeAway(admin, "n2", out)
	s.we("n3", s.place("deadlock", out), s.remove("deadlock", back))
	s.we("n2", func(_ *corev1.Node, f *form) { f.Taints = nil }, s.place("deadlock", back))
	// The set is edited: another key, then dry run, then it is deleted.
	s.pass(time.Minute)
	s.set("deadlock", `{"type":"Deadlock","effect":"NoExecute","taintKey":"example.com/dead","conditions":{"KernelDeadlock":{"status":true}}}`)
	for _, n := range []string{"n3", "n4"} {
		s.we(n, s.remove("deadlock", out), s.place("deadlock", "example.com/dead:NoExecute"))
	}
	s.we("n2", s.remove("deadlock", back), s.place("deadlock", "example.com/dead:NoSchedule"))
	s.pass(time.Minute)
	s.set("deadlock", `{"type":"Deadlock","effect":"NoExecute","taintKey":"example.com/dead","dryRun":true,"conditions":{"KernelDeadlock":{"status":true}}}`)
	s.we("n3", s.remove("deadlock", "example.com/dead:NoExecute"))
	s.we("n4", s.remove("deadlock", "example.com/dead:NoExecute"))
	s.we("n2", fence("replica-2"))
	s.we("n2", s.remove("deadlock", "example.com/dead:NoSchedule"), fence(""))
	s.deleteSet(admin, "ntp")
	s.we("n5", s.remove("ntp", late))
	s.deleteNode(admin, "n1")

	report := s.hasNoViolation(testConfig)
	want := Counts{Changes: len(s.made), Writes: 20, Placements: 13, Evictions: 6, Fallbacks: 5, Removals: 12, Fences: 2}
	if diff := gocmp.Diff(want, report.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if report.Peak["deadlock"] != 2 {
		t.Errorf("peak %v, want 2", report.Peak)
	}
}

// Each case is a reading of the rules that the checker must accept.
func TestPermittedTaints(t *testing.T) {
	for name, tell := range map[string]func(s *story){
		"a taint stays while its condition is Unknown": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.condition("n1", "KernelDeadlock=Unknown")
		},
		"Unknown, which the set names": func(s *story) {
			s.set("runtime", `{"type":"R","effect":"NoSchedule","taintKey":"example.com/r","conditions":{"Runtime":{"status":"unknown"}}}`)
			s.condition("n1", "Runtime=Unknown/ProbeTimedOut")
			s.we("n1", s.place("runtime", "example.com/r:NoSchedule"))
			s.condition("n1", "Runtime=Unknown/AgentSilent") // the taint stays
		},
		"a silent agent, which the set asks for": func(s *story) {
			s.set("silent", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/s","conditions":{"Runtime":{"status":"unknown","evenSilent":true}}}`)
			s.condition("n1", "Runtime=Unknown/AgentSilent")
			s.we("n1", s.place("silent", "example.com/s:NoSchedule"))
		},
		"a silent agent, which no set asks for": func(s *story) {
			s.set("runtime", `{"type":"R","effect":"NoSchedule","taintKey":"example.com/r","conditions":{"Runtime":{"status":"unknown"}}}`)
			s.condition("n1", "Runtime=Unknown/AgentSilent")
		},
		"a condition of two that is missing": func(s *story) {
			s.set("both", `{"type":"B","effect":"NoExecute","taintKey":"example.com/b","conditions":{"A":{"status":true},"B":{"status":false}}}`)
			s.condition("n1", "A=True")
		},
		"a duration that has passed": func(s *story) {
			s.set("slow", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`)
			s.condition("n1", "A=True")
			s.pass(3 * time.Minute)
			s.condition("n1", "A=Unknown") // the clock continues
			s.condition("n1", "A=True")
			s.pass(2 * time.Minute)
			s.we("n1", s.place("slow", "example.com/slow:NoSchedule"))
		},
		"a duration that has passed according to the timestamp": func(s *story) {
			s.set("slow", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`)
			s.stamped("n1", s.now.Add(-time.Hour), "A=True")
			s.stamped("n2", s.now.Add(-time.Hour), "A=True") // both readings are accepted
			s.we("n1", s.place("slow", "example.com/slow:NoSchedule"))
		},
		"a recovery too short to be seen": func(s *story) {
			s.set("slow", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`)
			s.condition("n1", "A=True")
			s.pass(4 * time.Minute)
			s.condition("n1", "A=False")
			s.condition("n1", "A=True")
			s.pass(2 * time.Minute)
			s.we("n1", s.place("slow", "example.com/slow:NoSchedule"))
		},
		"sets with equal effects that each place their own taint": func(s *story) {
			s.set("other", `{"type":"O","effect":"NoExecute","taintKey":"example.com/other","conditions":{"Other":{"status":true}}}`)
			s.condition("n1", "KernelDeadlock=True", "Other=True")
			s.we("n1", s.place("deadlock", out), s.place("other", "example.com/other:NoExecute"))
		},
		"two sets that share a taint": func(s *story) {
			s.set("twin", `{"type":"T","effect":"NoExecute","taintKey":"example.com/deadlock","conditions":{"Other":{"status":true}}}`)
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.pass(time.Minute)
			s.condition("n1", "Other=True")
			s.we("n1", s.place("twin", out))
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
		},
		"a control plane that the set does not select": func(s *story) {
			s.label("n1", controlPlaneLabel, "")
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", back))
		},
		"a control plane that is selected": func(s *story) {
			s.set("masters", `{"type":"M","effect":"NoExecute","taintKey":"example.com/m","selector":{"matchExpressions":[{"key":"node-role.kubernetes.io/control-plane","operator":"Exists"}]},"conditions":{"Other":{"status":true}}}`)
			s.label("n1", controlPlaneLabel, "")
			s.condition("n1", "Other=True")
			s.we("n1", s.place("masters", "example.com/m:NoExecute"))
		},
		"a selected control plane with the old label": func(s *story) {
			s.set("masters", `{"type":"M","effect":"NoExecute","taintKey":"example.com/m","selector":{"matchLabels":{"node-role.kubernetes.io/master":""}},"conditions":{"Other":{"status":true}}}`)
			s.label("n1", masterLabel, "")
			s.condition("n1", "Other=True")
			s.we("n1", s.place("masters", "example.com/m:NoExecute"))
		},
		"another writer's taint in place of ours": func(s *story) {
			s.foreign("n1", out)
			s.condition("n1", "KernelDeadlock=True")
		},
		"a set that was deleted a moment ago": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.deleteSet(admin, "deadlock")
			s.we("n1", s.place("deadlock", out))
			s.we("n1", s.remove("deadlock", out))
		},
		"a bound that was larger a moment ago": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.condition("n2", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.deleteNode(admin, "n5")
			s.we("n2", s.place("deadlock", out))
		},
		"existing taints when the bound shrinks": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.condition("n2", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.we("n2", s.place("deadlock", out))
			s.pass(time.Minute)
			s.deleteNode(admin, "n5")
			s.deleteNode(admin, "n4")
			s.pass(time.Minute)
		},
		"a taint given up when the bound shrinks": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.condition("n2", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.we("n2", s.place("deadlock", out))
			s.pass(time.Minute)
			s.deleteNode(admin, "n5")
			s.deleteNode(admin, "n4")
			s.pass(time.Minute)
			s.we("n2", s.remove("deadlock", out), s.place("deadlock", back))
		},
		"a taint that is removed after the node was healthy for a moment": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.condition("n1", "KernelDeadlock=False")
			s.condition("n1", "KernelDeadlock=Unknown")
			s.we("n1", s.remove("deadlock", out))
		},
		"an invalid set keeps its taints": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.pass(time.Minute)
			s.set("deadlock", `{"type":"D","effect":"NoExecute","taintKey":"example.com/deadlock","conditions":{"KernelDeadlock":{"status":"maybe"}}}`)
		},
		"a node that was recreated with the same name": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.deleteNode(admin, "n1")
			s.node("n1")
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
		},
		"a node that is no longer selected": func(s *story) {
			s.set("web", `{"type":"W","effect":"NoSchedule","taintKey":"example.com/web","selector":{"matchLabels":{"pool":"web"}},"conditions":{"Other":{"status":true}}}`)
			s.condition("n1", "Other=True")
			s.we("n1", s.place("web", "example.com/web:NoSchedule"))
			s.label("n1", "pool", "lab")
			s.we("n1", s.remove("web", "example.com/web:NoSchedule"))
		},
		"a bound of 0": func(s *story) {
			s.set("never", `{"type":"N","effect":"NoExecute","taintKey":"example.com/never","maxUnhealthy":"0%","conditions":{"Other":{"status":true}}}`)
			s.condition("n1", "Other=True")
			s.we("n1", s.place("never", "example.com/never:NoSchedule"))
		},
		"taints changed by one of two others": func(s *story) {
			s.foreign("n1", "example.com/theirs:NoSchedule")
			s.made[len(s.made)-1].Author, s.made[len(s.made)-1].Suspects = unknownAuthor, []testbed.Author{admin, kubelet}
		},
		"a percentage that is rounded up to 1": func(s *story) {
			s.set("few", `{"type":"F","effect":"NoExecute","taintKey":"example.com/few","maxUnhealthy":"1%","conditions":{"Other":{"status":true}}}`)
			s.condition("n1", "Other=True")
			s.we("n1", s.place("few", "example.com/few:NoExecute"))
		},
		"an Unknown condition that still supersedes": func(s *story) {
			s.set("ntp", ntp)
			s.pass(time.Minute)
			s.condition("n1", "KernelDeadlock=True", "NTPProblem=True")
			s.we("n1", s.place("deadlock", out))
			s.condition("n1", "KernelDeadlock=Unknown")
			s.pass(time.Minute)
		},
		"an Unknown condition that is superseded": func(s *story) {
			s.set("ntp", ntp)
			s.pass(time.Minute)
			s.condition("n1", "NTPProblem=True")
			s.we("n1", s.place("ntp", late))
			s.condition("n1", "KernelDeadlock=True", "NTPProblem=Unknown")
			s.we("n1", s.place("deadlock", out), s.remove("ntp", late))
		},
		"an edit of the key while Unknown": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.condition("n1", "KernelDeadlock=Unknown")
			s.set("deadlock", strings.Replace(deadlock, "example.com/deadlock", "example.com/dead", 1))
			s.pass(time.Minute)
			s.we("n1", s.remove("deadlock", out), s.place("deadlock", "example.com/dead:NoExecute"))
		},
		"a taint that is removed while Unknown after the set was edited": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.condition("n1", "KernelDeadlock=Unknown")
			s.set("deadlock", strings.Replace(deadlock, `"type"`, `"maxUnhealthy":1,"type"`, 1))
			s.pass(time.Minute)
			s.we("n1", s.remove("deadlock", out))
		},
		"a memory that an edit of the set requires": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.pass(time.Minute)
			s.we("n1", fence("replica-2"))
			s.we("n1", fence(""))
			s.set("deadlock", strings.Replace(deadlock, `true}`, `true,"duration":"5s"}`, 1))
			s.we("n1", remember("deadlock", "KernelDeadlock", s.now.Add(-time.Minute)))
		},
		"another writer's taint in place of a fallback": func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3")
			s.foreign("n3", out)
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
			s.we("n3", s.remove("deadlock", back))
		},
		"another writer's taint that uses up room": func(s *story) {
			s.foreign("n1", out)
			s.condition("n1", "KernelDeadlock=True")
			becomeUnhealthy(s, map[string]string{"n2": out, "n3": back}, "n2", "n3")
		},
		"a node with another writer's taint does not wait": func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3", "n4")
			s.foreign("n3", out)
			s.pass(time.Minute)
			for _, n := range []string{"n1", "n2"} { // the other writer's taint uses up the room of one of these
				s.condition(n, "KernelDeadlock=False")
				s.we(n, s.remove("deadlock", out))
			}
			s.we("n4", s.remove("deadlock", back), s.place("deadlock", out))
		},
		"a node that lost its taint to another writer waits at the end": func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3")
			s.pass(time.Minute)
			s.takeAway(admin, "n1", out)
			s.we("n3", s.remove("deadlock", back), s.place("deadlock", out))
			s.we("n1", func(_ *corev1.Node, f *form) { f.Taints = nil }, s.place("deadlock", back))
			s.pass(time.Minute)
			s.condition("n4", "KernelDeadlock=True")
			s.we("n4", s.place("deadlock", back))
			s.takeAway(admin, "n2", out)
			s.we("n1", s.remove("deadlock", back), s.place("deadlock", out))
			s.pass(time.Minute)
			s.we("n2", func(_ *corev1.Node, f *form) { f.Taints = nil }, s.place("deadlock", back))
			s.pass(time.Minute)
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
			s.we("n4", s.remove("deadlock", back), s.place("deadlock", out)) // n2 is unhealthy for longer, but waits for less time
		},
		"a newly selected node waits behind the others": func(s *story) {
			s.set("web", `{"type":"W","effect":"NoExecute","taintKey":"example.com/web","maxUnhealthy":1,"selector":{"matchLabels":{"pool":"web"}},"conditions":{"Other":{"status":true}}}`)
			s.label("n1", "pool", "lab")
			for _, n := range []string{"n1", "n2", "n3"} {
				s.pass(time.Minute)
				s.condition(n, "Other=True")
			}
			s.we("n2", s.place("web", "example.com/web:NoExecute"))
			s.we("n3", s.place("web", "example.com/web:NoSchedule"))
			s.pass(time.Minute)
			s.label("n1", "pool", "web")
			s.we("n1", s.place("web", "example.com/web:NoSchedule"))
			s.pass(time.Minute)
			s.condition("n2", "Other=False")
			s.we("n2", s.remove("web", "example.com/web:NoExecute"))
			s.we("n3", s.remove("web", "example.com/web:NoSchedule"), s.place("web", "example.com/web:NoExecute"))
		},
		"a status of a set": func(s *story) {
			object := s.sets["deadlock"]
			object.Object["status"] = map[string]any{"matched": int64(1)}
			s.record("MODIFIED", SetsResource, us, object)
		},
		"a write that only the managedFields prove": func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			change := &s.made[len(s.made)-1]
			change.Author = unknownAuthor
			change.Object.Object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": us.FieldManager, "operation": "Update", "time": "2026-03-01T12:00:00Z"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fiveNodes(t)
			tell(s)
			cfg := testConfig
			cfg.FieldManager = us.FieldManager
			s.hasNoViolation(cfg)
		})
	}
}
