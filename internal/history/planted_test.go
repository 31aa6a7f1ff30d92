package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// Every recording here has exactly one violation.
func TestPlanted(t *testing.T) {
	judge(t, fiveNodes, testConfig, map[string]tale{
		"one node more than the percentage":               caught(CapExceeded, "3 of 5 selected nodes carry it, at most 2 may", `deadlocked n1 n2; condition n3 KernelDeadlock=True; we n3 +deadlock=$out`),
		"one node more than the number":                   caught(CapExceeded, "2 of 5 selected nodes carry it, at most 1 may", `set one {"type":"O","effect":"NoExecute","taintKey":"example.com/one","maxUnhealthy":1,"conditions":{"Other":{"status":true}}}; condition n1 Other=True; we n1 +one=example.com/one:NoExecute; condition n2 Other=True; we n2 +one=example.com/one:NoExecute`),
		"one node with a bound of 0":                      caught(CapExceeded, "at most 0 may", `set none {"type":"O","effect":"NoExecute","taintKey":"example.com/none","maxUnhealthy":"0%","conditions":{"Other":{"status":true}}}; pass 1m; condition n1 Other=True; we n1 +none=example.com/none:NoExecute`),
		"a promotion without room":                        caught(CapExceeded, "3 of 5", `deadlocked n1 n2 n3; we n3 -deadlock=$back +deadlock=$out`),
		"one node in addition to taints of other writers": caught(CapExceeded, "3 of 5 selected nodes carry it, at most 2 may", `foreign n4 $out; foreign n5 $out; pass 2s; deadlocked n1`),
		"one node after the records are lost":             caught(CapExceeded, "3 of 5 selected nodes carry it, at most 2 may", `deadlocked n1 n2; annotateNode admin n1 $record=; annotateNode admin n2 $record=; pass 2s; deadlocked n3=$out`),
		"a bound that shrank long ago":                    caught(CapExceeded, "2 of 3 selected nodes carry it, at most 1 may", `deadlocked n1; deleteNode admin n4; deleteNode admin n5; pass 2s; condition n2 KernelDeadlock=True; we n2 +deadlock=$out`),
		"a percentage of the selected nodes":              caught(CapExceeded, "2 of 3 selected nodes carry it, at most 1 may", `set web {"type":"W","effect":"NoExecute","taintKey":"example.com/web","selector":{"matchLabels":{"pool":"web"}},"conditions":{"Other":{"status":true}}}; label n4 pool lab; label n5 pool lab; pass 1m; condition n1 Other=True; we n1 +web=example.com/web:NoExecute; condition n2 Other=True; we n2 +web=example.com/web:NoExecute`),

		// A writer that does not know the deletion yet is still bound.
		"a deleted set": caught(CapExceeded, "3 of 5", `deadlocked n1 n2; condition n3 KernelDeadlock=True; deleteSet admin deadlock; we n3 +deadlock=$out; we n1 -deadlock=$out; we n2 -deadlock=$out; we n3 -deadlock=$out`),

		"another writer's taint removed": caught(ForeignTouched, "example.com/theirs:NoSchedule, which was not ours", `foreign n1 example.com/theirs:NoSchedule; condition n1 KernelDeadlock=True`, func(s *story) {
			s.we("n1", s.place("deadlock", out), func(n *corev1.Node, _ *form) { dropTaint(n, "example.com/theirs:NoSchedule") })
		}),
		"another writer's taint with our key removed": caught(ForeignTouched, out, `foreign n1 $out; takeAway us n1 $out`),
		"another writer's taint changed":              caught(ForeignTouched, "changed or removed", `foreign n1 example.com/theirs:NoSchedule`, func(s *story) { s.edit(us, "n1", func(n *corev1.Node) { n.Spec.Taints[0].Value = "ours" }) }),
		"our taint that another writer had replaced": caught(ForeignTouched, out, `condition n1 KernelDeadlock=True; we n1 +deadlock=$out`, func(s *story) {
			s.edit(admin, "n1", func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = new(metav1.NewTime(s.now.Add(time.Hour))) })
		}, `condition n1 KernelDeadlock=False; we n1 -deadlock=$out`),
		"a taint placed again that another writer has just removed": caught(ForeignTouched, "placed again the taint", `foreign n1 example.com/theirs:NoSchedule`, func(s *story) {
			theirs := s.nodes["n1"].Spec.Taints[0]
			s.takeAway(admin, "n1", "example.com/theirs:NoSchedule")
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out), func(n *corev1.Node, _ *form) { n.Spec.Taints = append(n.Spec.Taints, theirs) })
		}),
		// It adopts the existing taint.
		"another writer's taint claimed": caught(ForeignTouched, "claimed", `foreign n1 $out; condition n1 KernelDeadlock=True; we n1 +deadlock=$out`),
		"a label":                        caught(ForeignTouched, "labels", `label n1 healed yes; by us`),
		"an annotation":                  caught(ForeignTouched, "annotations", `annotateNode us n1 healed=yes`),
		"a finalizer":                    caught(ForeignTouched, "metadata", func(s *story) { s.edit(us, "n1", func(n *corev1.Node) { n.Finalizers = []string{"example.com/wait"} }) }),
		"the spec":                       caught(ForeignTouched, "spec", func(s *story) { s.edit(us, "n1", func(n *corev1.Node) { n.Spec.Unschedulable = true }) }),
		"the status":                     caught(ForeignTouched, "status", func(s *story) { s.edit(us, "n1", func(n *corev1.Node) { n.Status.Conditions[0].Message = "fine" }) }),
		"a node deleted":                 caught(ForeignTouched, "deleted the node", `deleteNode us n1`),
		"a node created":                 caught(ForeignTouched, "created the node", `node n6; by us`),
		"the spec of a set":              caught(ForeignTouched, "spec of the set", `set deadlock $deadlock^Deadlock"^Other"; by us`),
		"a set deleted":                  caught(ForeignTouched, "deleted the set", `deleteSet us deadlock`),
		"a set created":                  caught(ForeignTouched, "created the set", `set more $ntp; by us`),

		"a taint placed again": caught(DoneTwice, "again while it existed", `deadlocked n1; we n1 -deadlock=$out +deadlock=$out`),
		// Allowed for a writer that does not know the new set yet; but this is not.
		"a taint that flaps":                             caught(DoneTwice, "again", `set ntp $ntp; pass 1m; condition n1 NTPProblem=True; we n1 +ntp=$late; pass 1m; deleteSet admin ntp; we n1 -ntp=$late; set ntp $ntp; we n1 +ntp=$late; we n1 -ntp=$late; we n1 +ntp=$late`),
		"a NoExecute that flaps":                         caught(DoneTwice, "again", `deadlocked n1; pass 1m; deleteSet admin deadlock; we n1 -deadlock=$out; set deadlock $deadlock; we n1 +deadlock=$out; we n1 -deadlock=$out; we n1 +deadlock=$out`),
		"a write that changes nothing":                   caught(DoneTwice, "changed nothing", `deadlocked n1; we n1`),
		"a record with the same content in another form": caught(DoneTwice, "changed nothing", `deadlocked n1`, func(s *story) { s.edit(us, "n1", func(n *corev1.Node) { n.Annotations[recordAnnotation] += " " }) }),
		"an unchanged status":                            caught(DoneTwice, "changed nothing", `writeAgain set deadlock`),
		"a memory that changes without a cause":          caught(DoneTwice, "remembers", `deadlocked n1; we n1 remember=deadlock/KernelDeadlock; we n1 forget`),

		"a taint on a healthy node":                                    caught(Unjustified, "do not match", `we n1 +deadlock=$out; we n1 -deadlock=$out`),
		"a taint for one condition of two":                             caught(Unjustified, "do not match", `set both {"type":"B","effect":"NoSchedule","taintKey":"example.com/b","conditions":{"A":{"status":true},"B":{"status":"unknown"}}}; condition n1 A=True B=True; we n1 +both=example.com/b:NoSchedule; we n1 -both=example.com/b:NoSchedule`),
		"a taint for a missing condition":                              caught(Unjustified, "do not match", `set no {"type":"B","effect":"NoSchedule","taintKey":"example.com/b","conditions":{"A":{"status":false}}}; we n1 +no=example.com/b:NoSchedule; we n1 -no=example.com/b:NoSchedule`),
		"a new taint while Unknown":                                    caught(Unjustified, "nothing may start", `condition n1 KernelDeadlock=Unknown; we n1 +deadlock=$out; condition n1 KernelDeadlock=False; we n1 -deadlock=$out`),
		"a promotion while Unknown":                                    caught(Unjustified, "nothing may start", `deadlocked n1 n2 n3; condition n3 KernelDeadlock=Unknown; condition n1 KernelDeadlock=False; we n1 -deadlock=$out; we n3 -deadlock=$back +deadlock=$out`),
		"a taint for a silent agent":                                   caught(Unjustified, "nothing may start", `set runtime $runtime; condition n1 Runtime=Unknown/AgentSilent; we n1 +runtime=example.com/r:NoSchedule; condition n1 Runtime=False; we n1 -runtime=example.com/r:NoSchedule`),
		"a taint before its duration has passed":                       caught(Unjustified, "long enough", `set slow $slow; condition n1 A=True; pass 4m; we n1 +slow=example.com/slow:NoSchedule; pass 2m`),
		"a clock that a recovery did not stop":                         caught(Unjustified, "long enough", `set slow $slow; condition n1 A=True; pass 2m; condition n1 A=False; pass 2m; condition n1 A=True; pass 2m; we n1 +slow=example.com/slow:NoSchedule; pass 10m`),
		"a taint of a set that never existed":                          caught(Unjustified, "the set does not exist", `we n1 +ghost=$out; we n1 -ghost=$out`),
		"a taint of a set that was deleted long ago":                   caught(Unjustified, "the set does not exist", `deleteSet admin deadlock; condition n1 KernelDeadlock=True; pass 2s; we n1 +deadlock=$out; we n1 -deadlock=$out`),
		"a taint of a set in dry run":                                  caught(Unjustified, "dry run", `set dry {"type":"S","effect":"NoSchedule","taintKey":"example.com/dry","dryRun":true,"conditions":{"A":{"status":true}}}; condition n1 A=True; we n1 +dry=example.com/dry:NoSchedule; we n1 -dry=example.com/dry:NoSchedule`),
		"NoExecute outside the windows":                                caught(Unjustified, "windows of the set are closed", `set night $night; pass 1m; condition n1 A=True; we n1 +night=example.com/night:NoExecute`),
		"a taint of an invalid set":                                    caught(Unjustified, "belongs to Kubernetes", `set native {"type":"S","effect":"NoSchedule","taintKey":"node.kubernetes.io/not-ready","conditions":{"A":{"status":true}}}; condition n1 A=True; we n1 +native=node.kubernetes.io/not-ready:NoSchedule; we n1 -native=node.kubernetes.io/not-ready:NoSchedule`),
		"a taint with another key":                                     caught(Unjustified, "asks for", `condition n1 KernelDeadlock=True; we n1 +deadlock=example.com/else:NoExecute; we n1 -deadlock=example.com/else:NoExecute +deadlock=$out`),
		"a taint with a stronger effect":                               caught(Unjustified, "asks for", `set ntp $ntp; condition n1 NTPProblem=True; we n1 +ntp=example.com/ntp:NoExecute; we n1 -ntp=example.com/ntp:NoExecute +ntp=$late`),
		"a taint on a node that is not selected":                       caught(Unjustified, "does not select", `set lab {"type":"L","effect":"NoSchedule","taintKey":"example.com/lab","selector":{"matchLabels":{"pool":"lab"}},"conditions":{"A":{"status":true}}}; condition n1 A=True; we n1 +lab=example.com/lab:NoSchedule; we n1 -lab=example.com/lab:NoSchedule`),
		"a superseded taint":                                           caught(Unjustified, "superseded by deadlock", `set ntp $ntp; pass 1m; condition n1 NTPProblem=True KernelDeadlock=True; we n1 +ntp=$late +deadlock=$out; we n1 -ntp=$late`),
		"a taint that is superseded by a fallback":                     caught(Unjustified, "superseded by deadlock", `set ntp $ntp; pass 1m; deadlocked n1 n2 n3; condition n3 NTPProblem=True; we n3 +ntp=$late; we n3 -ntp=$late`),
		"NoExecute on the control plane":                               caught(Unjustified, "control plane", `label n1 $controlPlane ""; condition n1 KernelDeadlock=True; we n1 +deadlock=$out; we n1 -deadlock=$out +deadlock=$back`),
		"NoExecute on a control plane with the old label":              caught(Unjustified, "control plane", `label n1 $master ""; condition n1 KernelDeadlock=True; we n1 +deadlock=$out; we n1 -deadlock=$out +deadlock=$back`),
		"NoExecute on a control plane that the selector does not name": caught(Unjustified, "control plane", `set all {"type":"A","effect":"NoExecute","taintKey":"example.com/all","selector":{"matchExpressions":[{"key":"node-role.kubernetes.io/control-plane","operator":"NotIn","values":["no"]}]},"conditions":{"A":{"status":true}}}; label n1 $controlPlane ""; condition n1 A=True; we n1 +all=example.com/all:NoExecute; we n1 -all=example.com/all:NoExecute +all=example.com/all:NoSchedule`),
		"a taint removed from an unhealthy node":                       caught(Unjustified, "removed the taint example.com/deadlock:NoExecute, but the conditions of the set match", `deadlocked n1; we n1 -deadlock=$out; we n1 +deadlock=$out`),
		"a taint removed while Unknown":                                caught(Unjustified, "existing taints stay", `deadlocked n1; condition n1 KernelDeadlock=Unknown; we n1 -deadlock=$out`),
		"a taint removed by a weaker set":                              caught(Unjustified, "we removed the taint", `set ntp $ntp; set prefer {"type":"P","effect":"PreferNoSchedule","taintKey":"example.com/p","conditions":{"A":{"status":true}}}; pass 1m; condition n1 NTPProblem=True; we n1 +ntp=$late; condition n1 A=True; we n1 -ntp=$late; we n1 +ntp=$late`),
		"NoExecute weakened while there is room":                       caught(Unjustified, "we removed the taint", `deadlocked n1; we n1 -deadlock=$out +deadlock=$back; pass 1m; we n1 -deadlock=$back +deadlock=$out`),
		"a fallback removed from an unhealthy node":                    caught(Unjustified, "we removed the taint", `deadlocked n1 n2 n3; we n3 -deadlock=$back; we n3 +deadlock=$back`),
		"a taint that an existing taint supersedes while Unknown":      caught(Unjustified, "superseded by deadlock", `set ntp $ntp; pass 1m; deadlocked n1; condition n1 KernelDeadlock=Unknown NTPProblem=True; we n1 +ntp=$late; we n1 -ntp=$late`),
		"a rule of an unknown kind": caught(Unjustified, "the set does not exist", `condition n1 KernelDeadlock=True; we n1 +deadlock=$out`, func(s *story) {
			shared := func(n *corev1.Node, f *form) {
				f.Taints = append(f.Taints, formTaint{"Whim/deadlock", keyOf(out), noExecute, n.Spec.Taints[0].TimeAdded.UTC()})
			}
			s.we("n1", shared)
			s.we("n1", func(_ *corev1.Node, f *form) { f.Taints = f.Taints[:1] })
		}),

		"NoExecute without the ledger":                       caught(Unrecorded, "does not name it", `condition n1 KernelDeadlock=True; weUnrecorded n1 +deadlock=$out`),
		"NoExecute on another version than the ledger names": caught(Unrecorded, "does not name it", `enterNode ConditionSet/deadlock n1; condition n1 KernelDeadlock=True; weUnrecorded n1 +deadlock=$out`),
		"NoExecute for another set than the ledger names":    caught(Unrecorded, "does not name it", `condition n1 KernelDeadlock=True; enterNode ConditionSet/other n1; weUnrecorded n1 +deadlock=$out`),
		"NoExecute on another node with the name in the ledger": caught(Unrecorded, "does not name it", `condition n1 KernelDeadlock=True`, func(s *story) {
			s.enter(grant{"ConditionSet/deadlock", "n1", "uid-of-another", s.nodes["n1"].ResourceVersion, ""})
		}, `weUnrecorded n1 +deadlock=$out`),
		"a ledger that no longer names it": caught(Unrecorded, "does not name it", `condition n1 KernelDeadlock=True; enterNode ConditionSet/deadlock n1; enter; weUnrecorded n1 +deadlock=$out`),

		"a taint without an entry in the record": caught(Misrecorded, "does not have it", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "example.com/x", Effect: "NoSchedule"}} })
		}),
		"a taint with another time than the record": caught(Misrecorded, "", `condition n1 KernelDeadlock=True`, func(s *story) {
			s.we("n1", s.place("deadlock", out), func(n *corev1.Node, _ *form) {
				n.Spec.Taints[0].TimeAdded = new(metav1.NewTime(s.now.Add(time.Hour)))
			})
		}, `we n1 unrecord`),
		"an entry in the record without a taint": caught(Misrecorded, "is not there", `condition n1 KernelDeadlock=True; we n1 +deadlock=$out untaint; pass 1m; we n1 unrecord +deadlock=$out`),
		"a removed taint whose entry stays":      caught(Misrecorded, "is not there", `deadlocked n1; condition n1 KernelDeadlock=False; we n1 untaint; we n1 unrecord`),
		"a removed entry whose taint stays":      caught(Misrecorded, "no longer has it", `deadlocked n1; condition n1 KernelDeadlock=False; we n1 unrecord`),
		"a record that cannot be read":           caught(Misrecorded, "cannot be read", `annotateNode us n1 $record={; annotateNode us n1 $record=`),

		"a node that became unhealthy later goes first":    caught(OutOfTurn, "n3 has waited", `deadlocked n1 n2 n3 n4; pass 1m; condition n1 KernelDeadlock=False; we n1 -deadlock=$out; we n4 -deadlock=$back +deadlock=$out`),
		"a node that has just become unhealthy goes first": caught(OutOfTurn, "n3 has waited", `deadlocked n1 n2 n3; pass 1m; condition n1 KernelDeadlock=False; condition n5 KernelDeadlock=True; we n1 -deadlock=$out; we n5 +deadlock=$out`),

		"a taint is missing":                                      caught(WrongEnd, "is missing", `condition n1 KernelDeadlock=True`),
		"a taint whose duration has passed is missing":            caught(WrongEnd, "is missing", `set slow $slow; condition n1 A=True; pass 6m; node n6`),
		"a taint is left on a healthy node":                       caught(WrongEnd, "do not match", `deadlocked n1; condition n1 KernelDeadlock=False`),
		"a taint of a deleted set is left":                        caught(WrongEnd, "the set does not exist", `deadlocked n1; deleteSet admin deadlock`),
		"a taint of a set in dry run is left":                     caught(WrongEnd, "dry run", `deadlocked n1; set deadlock $deadlock^"type"^"dryRun":true,"type"`),
		"a taint of a node that is no longer selected is left":    caught(WrongEnd, "does not select", `deadlocked n1; set deadlock $deadlock^"type"^"selector":{"matchLabels":{"pool":"lab"}},"type"`),
		"a superseded taint is left":                              caught(WrongEnd, "higher effect", `set ntp $ntp; condition n1 NTPProblem=True; we n1 +ntp=$late; condition n1 KernelDeadlock=True; we n1 +deadlock=$out`),
		"a superseded taint does not affect the order":            caught(WrongEnd, "is missing", `set ntp $ntp; condition n1 NTPProblem=True KernelDeadlock=True; we n1 +deadlock=$out; condition n1 KernelDeadlock=False; we n1 -deadlock=$out`),
		"the old key is left":                                     caught(WrongEnd, "asks for example.com/dead", `deadlocked n1; set deadlock $deadlock^example.com/deadlock^example.com/dead`),
		"the fallback is left beside the taint":                   caught(WrongEnd, "2 taints", `deadlocked n1=$back; we n1 +deadlock=$out`),
		"room is left":                                            caught(WrongEnd, "1 of 5 selected nodes carry NoExecute and 2 may", `deadlocked n1=$out n2=$back`),
		"NoExecute is left on the control plane":                  caught(WrongEnd, "control plane", `deadlocked n1; label n1 $controlPlane ""`),
		"a fence is left":                                         caught(WrongEnd, "fence", `we n1 fence=replica-1`),
		"a memory of a deleted set is left":                       caught(WrongEnd, "remembers", `we n1 remember=ghost/KernelDeadlock`),
		"a memory of a healthy condition is left":                 caught(WrongEnd, "remembers", `condition n1 KernelDeadlock=Unknown; we n1 remember=deadlock/KernelDeadlock; condition n1 KernelDeadlock=False`),
		"an entry of a taint that another writer removed is left": caught(WrongEnd, "is not there", `deadlocked n1; condition n1 KernelDeadlock=False; takeAway admin n1 $out`),
		"an empty record is left":                                 caught(WrongEnd, "empty", `condition n1 KernelDeadlock=Unknown; we n1 remember=deadlock/KernelDeadlock; annotateNode us n1 $record={}`),
		"an unreadable record is left":                            caught(WrongEnd, "cannot be read", `annotateNode admin n1 $record={`),

		"taints changed by an unknown author":    caught(UnknownAuthor, "the audit log ends here", `foreign n1 example.com/theirs:NoSchedule; by unknown`),
		"our placement without proof":            caught(UnknownAuthor, "the audit log ends here", `deadlocked n1; by unknown`),
		"taints changed by another client or us": caught(UnknownAuthor, "the audit log ends here", `foreign n1 example.com/theirs:NoSchedule; suspects admin us`),
		"a node deleted by an unknown author":    caught(UnknownAuthor, "deleted", `deleteNode unknown n1`),
	})
}

// Delays within the lag are tolerated, longer delays are not.
func TestDelaysWithinTheLagAreTolerated(t *testing.T) {
	s := fiveNodes(t).tell("condition n1 KernelDeadlock=True; deleteSet admin deadlock; pass 3s; we n1 +deadlock=$out; we n1 -deadlock=$out")
	cfg := testConfig
	cfg.Lag = 5 * time.Second
	s.hasNoViolation(cfg)
	cfg.Lag = time.Second
	s.caught(cfg, Unjustified)
}

func TestConfig(t *testing.T) {
	t.Run("any turn", func(t *testing.T) {
		s := fiveNodes(t).tell("deadlocked n1 n2 n3 n4; condition n1 KernelDeadlock=False; we n1 -deadlock=$out; we n4 -deadlock=$back +deadlock=$out")
		cfg := testConfig
		cfg.AnyTurn = true
		s.hasNoViolation(cfg)
	})
	t.Run("no ledger", func(t *testing.T) {
		s := fiveNodes(t).tell("condition n1 KernelDeadlock=True; weUnrecorded n1 +deadlock=$out")
		s.hasNoViolation(Config{Us: UserAgent("autohealer-controller")})
	})
	t.Run("a set that was to be refused", func(t *testing.T) {
		cfg := testConfig
		cfg.Refused = func(set string, _ int64) bool { return set == "deadlock" }
		s := fiveNodes(t).tell("condition n1 KernelDeadlock=True")
		s.hasNoViolation(cfg)
		s.caught(testConfig, WrongEnd)
		s.we("n1", s.place("deadlock", out))
		s.hasNoViolation(testConfig)
		s.caught(cfg, Unjustified)
	})
	t.Run("an unfinished run", func(t *testing.T) {
		s := fiveNodes(t).tell("condition n1 KernelDeadlock=True")
		cfg := testConfig
		cfg.Unfinished = true
		s.hasNoViolation(cfg)
	})
	t.Run("a later end", func(t *testing.T) {
		s := fiveNodes(t).tell("set slow $slow; condition n1 A=True")
		s.hasNoViolation(testConfig)
		cfg := testConfig
		cfg.EndAt = s.now.Add(6 * time.Minute)
		s.caught(cfg, WrongEnd)
	})
	t.Run("the fields of another manager", func(t *testing.T) {
		s := fiveNodes(t).tell("condition n1 KernelDeadlock=True; we n1 +deadlock=$out; by unknown; managedBy another-writer")
		cfg := testConfig
		cfg.FieldManager = us.FieldManager
		if report := s.hasNoViolation(cfg); report.Writes != 0 || report.Unproved != 1 {
			t.Errorf("another client's write counts as ours: %s", report)
		}
	})
}

func TestInvalidRecordingsAreErrors(t *testing.T) {
	validRecording := func() testbed.Recording {
		s := fiveNodes(t)
		s.condition("n1", "Ready=False")
		return s.made
	}
	for name, test := range map[string]struct {
		want  string
		spoil func(testbed.Recording, *Config) testbed.Recording
	}{
		"Us is missing":            {"there is no Us", func(r testbed.Recording, c *Config) testbed.Recording { c.Us = nil; return r }},
		"a negative lag":           {"less than 0", func(r testbed.Recording, c *Config) testbed.Recording { c.Lag = -1; return r }},
		"half a ledger":            {"needs a namespace", func(r testbed.Recording, c *Config) testbed.Recording { c.Ledger.Namespace = ""; return r }},
		"no number":                {"resourceVersion \"x\"", func(r testbed.Recording, _ *Config) testbed.Recording { r[1].ResourceVersion = "x"; return r }},
		"out of order":             {"the one before has", func(r testbed.Recording, _ *Config) testbed.Recording { r[1], r[2] = r[2], r[1]; return r }},
		"no object":                {"no object", func(r testbed.Recording, _ *Config) testbed.Recording { r[1].Object = nil; return r }},
		"the beginning is missing": {"creation was not recorded", func(r testbed.Recording, _ *Config) testbed.Recording { return r[1:] }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig
			recording := test.spoil(validRecording(), &cfg)
			if _, err := Check(recording, cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want an error with %q", err, test.want)
			}
		})
	}
}

// recordedFailures keeps the failures of a test.
type recordedFailures struct {
	testing.TB
	said []string
}

func (c *recordedFailures) Helper() {}
func (c *recordedFailures) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

func TestRequireFailsATest(t *testing.T) {
	s := fiveNodes(t).tell("condition n1 KernelDeadlock=True")
	c := &recordedFailures{TB: t}
	Require(c, s.made, testConfig, Counts{Evictions: 1, Changes: 5})
	if got := strings.Join(c.said, "\n"); len(c.said) != 2 || !strings.Contains(got, "WrongEnd") || !strings.Contains(got, "0 placements of NoExecute, want at least 1") {
		t.Errorf("it says\n%s", got)
	}
	for range 40 {
		s.edit(us, "n2", func(n *corev1.Node) { n.Labels["x"] += "x" })
	}
	c = &recordedFailures{TB: t}
	Require(c, s.made, testConfig, Counts{})
	if last := c.said[len(c.said)-1]; len(c.said) != maxPrinted+1 || !strings.Contains(last, "and 16 more") {
		t.Errorf("%d failures, the last is %q", len(c.said), last)
	}
	c = &recordedFailures{TB: t}
	Require(c, nil, testConfig, Counts{})
	if len(c.said) == 0 {
		t.Error("an empty recording passes")
	}
}
