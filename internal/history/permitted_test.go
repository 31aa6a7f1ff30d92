package history

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestPermittedTaintsHaveNoViolation(t *testing.T) {
	s := fiveNodes(t).tell("set ntp $ntp; foreign n1 example.com/theirs:NoSchedule; pass 1m")
	// The bound is two: the third and the fourth node fall back, and wait.
	s.tell("deadlocked n1 n2 n4 n3")
	// Unknown changes nothing. The record remembers the start time.
	s.tell("condition n1 KernelDeadlock=Unknown/ProbeTimedOut; we n1 remember=deadlock/KernelDeadlock; pass 10s")
	// The node recovers, and n4 has waited longest.
	s.tell("condition n1 KernelDeadlock=False; we n1 -deadlock=$out forget; we n4 +deadlock=$out -deadlock=$back; pass 1m")
	// A higher effect is placed, and removed.
	s.tell("condition n5 NTPProblem=True; we n5 +ntp=$late; condition n5 KernelDeadlock=True; we n5 +deadlock=$back -ntp=$late; pass 1m")
	s.tell("condition n5 KernelDeadlock=False; we n5 -deadlock=$back +ntp=$late")
	// Another writer removes our taint, and we place it again.
	s.tell("pass 1m; takeAway admin n2 $out; we n3 +deadlock=$out -deadlock=$back; we n2 unrecord +deadlock=$back; pass 1m")
	// The set is edited: another key, then dry run, then it is deleted.
	s.tell("set deadlock $deadlock^example.com/deadlock^example.com/dead; we n3 -deadlock=$out +deadlock=example.com/dead:NoExecute")
	s.tell("we n4 -deadlock=$out +deadlock=example.com/dead:NoExecute; we n2 -deadlock=$back +deadlock=example.com/dead:NoSchedule; pass 1m")
	s.tell(`set deadlock {"type":"Deadlock","effect":"NoExecute","taintKey":"example.com/dead","dryRun":true,"conditions":{"KernelDeadlock":{"status":true}}}`)
	s.tell("we n3 -deadlock=example.com/dead:NoExecute; we n4 -deadlock=example.com/dead:NoExecute; we n2 fence=replica-2; we n2 -deadlock=example.com/dead:NoSchedule fence=")
	s.tell("deleteSet admin ntp; we n5 -ntp=$late; deleteNode admin n1")

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
	judge(t, fiveNodes, testConfig, map[string]tale{
		"a taint stays while its condition is Unknown": fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; condition n1 KernelDeadlock=Unknown`),
		// The taint stays.
		"Unknown, which the set names":           fine(`set runtime $runtime; condition n1 Runtime=Unknown/ProbeTimedOut; we n1 +runtime=example.com/r:NoSchedule; condition n1 Runtime=Unknown/AgentSilent`),
		"a silent agent, which the set asks for": fine(`set silent {"type":"S","effect":"NoSchedule","taintKey":"example.com/s","conditions":{"Runtime":{"status":"unknown","evenSilent":true}}}; condition n1 Runtime=Unknown/AgentSilent; we n1 +silent=example.com/s:NoSchedule`),
		"a silent agent, which no set asks for":  fine(`set runtime $runtime; condition n1 Runtime=Unknown/AgentSilent`),
		"a condition of two that is missing":     fine(`set both {"type":"B","effect":"NoExecute","taintKey":"example.com/b","conditions":{"A":{"status":true},"B":{"status":false}}}; condition n1 A=True`),
		// The clock continues.
		"a duration that has passed":                                      fine(`set slow $slow; condition n1 A=True; pass 3m; condition n1 A=Unknown; condition n1 A=True; pass 2m; we n1 +slow=example.com/slow:NoSchedule`),
		"a duration that has passed according to the timestamp":           fine(`set slow $slow; stamped n1 now-1h A=True; stamped n2 now-1h A=True; we n1 +slow=example.com/slow:NoSchedule`), // both readings are accepted
		"a recovery too short to be seen":                                 fine(`set slow $slow; condition n1 A=True; pass 4m; condition n1 A=False; condition n1 A=True; pass 2m; we n1 +slow=example.com/slow:NoSchedule`),
		"sets with equal effects that each place their own taint":         fine(`set other {"type":"O","effect":"NoExecute","taintKey":"example.com/other","conditions":{"Other":{"status":true}}}; condition n1 KernelDeadlock=True Other=True; we n1 +deadlock=$out +other=example.com/other:NoExecute`),
		"two sets that share a taint":                                     fine(`set twin {"type":"T","effect":"NoExecute","taintKey":"example.com/deadlock","conditions":{"Other":{"status":true}}}; condition n1 KernelDeadlock=True; we n1 +deadlock=$out; pass 1m; condition n1 Other=True; we n1 +twin=$out; condition n1 KernelDeadlock=False; we n1 -deadlock=$out`),
		"NoSchedule outside the windows":                                  fine(`set night $night; pass 1m; condition n1 A=True; we n1 +night=example.com/night:NoSchedule`),
		"NoExecute inside a window":                                       fine(`set night $night; pass 10h; condition n1 A=True; we n1 +night=example.com/night:NoExecute; pass 5h`),
		"a control plane that the set does not select":                    fine(`label n1 $controlPlane ""; condition n1 KernelDeadlock=True; we n1 +deadlock=$back`),
		"a control plane that is selected":                                fine(`set masters {"type":"M","effect":"NoExecute","taintKey":"example.com/m","selector":{"matchExpressions":[{"key":"node-role.kubernetes.io/control-plane","operator":"Exists"}]},"conditions":{"Other":{"status":true}}}; label n1 $controlPlane ""; condition n1 Other=True; we n1 +masters=example.com/m:NoExecute`),
		"a selected control plane with the old label":                     fine(`set masters {"type":"M","effect":"NoExecute","taintKey":"example.com/m","selector":{"matchLabels":{"node-role.kubernetes.io/master":""}},"conditions":{"Other":{"status":true}}}; label n1 $master ""; condition n1 Other=True; we n1 +masters=example.com/m:NoExecute`),
		"another writer's taint in place of ours":                         fine(`foreign n1 $out; condition n1 KernelDeadlock=True`),
		"a set that was deleted a moment ago":                             fine(`condition n1 KernelDeadlock=True; deleteSet admin deadlock; we n1 +deadlock=$out; we n1 -deadlock=$out`),
		"a bound that was larger a moment ago":                            fine(`condition n1 KernelDeadlock=True; condition n2 KernelDeadlock=True; we n1 +deadlock=$out; deleteNode admin n5; we n2 +deadlock=$out`),
		"existing taints when the bound shrinks":                          fine(`condition n1 KernelDeadlock=True; condition n2 KernelDeadlock=True; we n1 +deadlock=$out; we n2 +deadlock=$out; pass 1m; deleteNode admin n5; deleteNode admin n4; pass 1m`),
		"a taint given up when the bound shrinks":                         fine(`condition n1 KernelDeadlock=True; condition n2 KernelDeadlock=True; we n1 +deadlock=$out; we n2 +deadlock=$out; pass 1m; deleteNode admin n5; deleteNode admin n4; pass 1m; we n2 -deadlock=$out +deadlock=$back`),
		"a taint that is removed after the node was healthy for a moment": fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; condition n1 KernelDeadlock=False; condition n1 KernelDeadlock=Unknown; we n1 -deadlock=$out`),
		"an invalid set keeps its taints":                                 fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; pass 1m; set deadlock {"type":"D","effect":"NoExecute","taintKey":"example.com/deadlock","conditions":{"KernelDeadlock":{"status":"maybe"}}}`),
		"a node that was recreated with the same name":                    fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; deleteNode admin n1; node n1; condition n1 KernelDeadlock=True; we n1 +deadlock=$out`),
		"a node that is no longer selected":                               fine(`set web {"type":"W","effect":"NoSchedule","taintKey":"example.com/web","selector":{"matchLabels":{"pool":"web"}},"conditions":{"Other":{"status":true}}}; condition n1 Other=True; we n1 +web=example.com/web:NoSchedule; label n1 pool lab; we n1 -web=example.com/web:NoSchedule`),
		"a bound of 0":                                                    fine(`set never {"type":"N","effect":"NoExecute","taintKey":"example.com/never","maxUnhealthy":"0%","conditions":{"Other":{"status":true}}}; condition n1 Other=True; we n1 +never=example.com/never:NoSchedule`),
		"taints changed by one of two others":                             fine(`foreign n1 example.com/theirs:NoSchedule; suspects admin kubelet`),
		"a percentage that is rounded up to 1":                            fine(`set few {"type":"F","effect":"NoExecute","taintKey":"example.com/few","maxUnhealthy":"1%","conditions":{"Other":{"status":true}}}; condition n1 Other=True; we n1 +few=example.com/few:NoExecute`),
		"an Unknown condition that still supersedes":                      fine(`set ntp $ntp; pass 1m; condition n1 KernelDeadlock=True NTPProblem=True; we n1 +deadlock=$out; condition n1 KernelDeadlock=Unknown; pass 1m`),
		"an Unknown condition that is superseded":                         fine(`set ntp $ntp; pass 1m; condition n1 NTPProblem=True; we n1 +ntp=$late; condition n1 KernelDeadlock=True NTPProblem=Unknown; we n1 +deadlock=$out -ntp=$late`),
		"an edit of the key while Unknown":                                fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; condition n1 KernelDeadlock=Unknown; set deadlock $deadlock^example.com/deadlock^example.com/dead; pass 1m; we n1 -deadlock=$out +deadlock=example.com/dead:NoExecute`),
		"a taint that is removed while Unknown after the set was edited":  fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; condition n1 KernelDeadlock=Unknown; set deadlock $deadlock^"type"^"maxUnhealthy":1,"type"; pass 1m; we n1 -deadlock=$out`),
		"a memory that an edit of the set requires":                       fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; pass 1m; we n1 fence=replica-2; we n1 fence=; set deadlock $deadlock^true}^true,"duration":"5s"}`, func(s *story) { s.we("n1", remember("deadlock", "KernelDeadlock", s.now.Add(-time.Minute))) }),
		"another writer's taint in place of a fallback":                   fine(`deadlocked n1 n2 n3; foreign n3 $out; condition n1 KernelDeadlock=False; we n1 -deadlock=$out; we n3 -deadlock=$back`),
		"another writer's taint that uses up room":                        fine(`foreign n1 $out; condition n1 KernelDeadlock=True; deadlocked n2=$out n3=$back`),
		// The other writer's taint uses up the room of one of these.
		"a node with another writer's taint does not wait":              fine(`deadlocked n1 n2 n3 n4; foreign n3 $out; pass 1m; condition n1 KernelDeadlock=False; we n1 -deadlock=$out; condition n2 KernelDeadlock=False; we n2 -deadlock=$out; we n4 -deadlock=$back +deadlock=$out`),
		"a node that lost its taint to another writer waits at the end": fine(`deadlocked n1 n2 n3; pass 1m; takeAway admin n1 $out; we n3 -deadlock=$back +deadlock=$out; we n1 unrecord +deadlock=$back; pass 1m; condition n4 KernelDeadlock=True; we n4 +deadlock=$back; takeAway admin n2 $out; we n1 -deadlock=$back +deadlock=$out; pass 1m; we n2 unrecord +deadlock=$back; pass 1m; condition n1 KernelDeadlock=False; we n1 -deadlock=$out; we n4 -deadlock=$back +deadlock=$out`), // n2 is unhealthy for longer, but waits for less time
		"a newly selected node waits behind the others":                 fine(`set web {"type":"W","effect":"NoExecute","taintKey":"example.com/web","maxUnhealthy":1,"selector":{"matchLabels":{"pool":"web"}},"conditions":{"Other":{"status":true}}}; label n1 pool lab; pass 1m; condition n1 Other=True; pass 1m; condition n2 Other=True; pass 1m; condition n3 Other=True; we n2 +web=example.com/web:NoExecute; we n3 +web=example.com/web:NoSchedule; pass 1m; label n1 pool web; we n1 +web=example.com/web:NoSchedule; pass 1m; condition n2 Other=False; we n2 -web=example.com/web:NoExecute; we n3 -web=example.com/web:NoSchedule +web=example.com/web:NoExecute`),
		"a status of a set":                         fine(func(s *story) { s.sets["deadlock"].Object["status"] = map[string]any{"matched": int64(1)} }, `writeAgain set deadlock`),
		"a write that only the managedFields prove": fine(`condition n1 KernelDeadlock=True; we n1 +deadlock=$out; by unknown; managedBy autohealer-controller`),
	})
}
