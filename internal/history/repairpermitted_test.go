package history

import (
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestAPermittedRepairHasNoViolation(t *testing.T) {
	s := fiveClaims(t)
	s.policy("rest", `{"selector":{},"repair":{"maxUnhealthy":2}}`)
	s.policies["rest"].Object["status"] = map[string]any{"nodes": int64(0)}
	s.record("MODIFIED", PoliciesResource, us, s.policies["rest"])

	// A node is replaced by force.
	s.breakDisks("n1", "n2", "n3")
	s.marksAndDeletes("n1", onPool)
	s.readyNodes("blue", "n6")
	s.finishDeletion("n1")
	// The next node recovers just in time, and the following node is replaced.
	s.marks("n2", onPool, s.now)
	s.condition("n2", "Disk=False")
	s.unmarks("n2")
	s.marksAndDeletes("n3", onPool)
	s.finishDeletion("n3")
	// No node replaces it, and after a while another node may go, gracefully.
	s.pool("blue", withRepair(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
	s.pass(15 * time.Minute)
	s.breakDisks("n4")
	s.marks("n4", onPool, s.now.Add(5*time.Minute))
	s.deletes(us, "n4")
	s.finishDeletion("n4")
	s.readyNodes("blue", "n7")
	// A node never becomes ready.
	s.startingNodes("blue", "n8")
	s.pass(10 * time.Minute)
	s.marks("n8", timedOut, s.now.Add(5*time.Minute))
	s.deletes(us, "n8")
	s.finishDeletion("n8")

	report := s.hasNoViolation(repairCfg)
	want := Counts{Changes: len(s.made), Marks: 5, Unmarks: 1, Terminations: 4, PolicyStatuses: 1}
	if diff := gocmp.Diff(want, report.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if report.Peak["NodePool/blue"] != 1 {
		t.Errorf("peak %v, want 1", report.Peak)
	}
	for _, want := range []string{"5 claims marked, 1 unmarked, 4 deleted, 1 statuses of repair policies"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("%s does not say %q", report, want)
		}
	}
}

// Each case is a reading of the rules that the checker must accept.
func TestPermittedRepairs(t *testing.T) {
	const disk = `"policies":[{"conditionType":"Disk","conditionStatus":"true","toleration":"1m"}]`
	unbudgeted := withRepair(strings.Replace(badDisk, `"50%"`, `"100%"`, 1), `"maxUnhealthy":"100%"`)
	both := func(s *repairStory, rule string) {
		s.breakDisks("n1", "n2")
		s.marksAndDeletes("n1", rule)
		s.marksAndDeletes("n2", rule)
	}
	under := func(budgets string) func(s *repairStory) {
		return func(s *repairStory) {
			s.pool("blue", strings.Replace(unbudgeted, `[{"nodes":"100%"}]`, budgets, 1))
			s.pass(time.Minute)
			both(s, onPool)
		}
	}
	for name, tell := range map[string]func(s *repairStory){
		"nothing happens": func(*repairStory) {},
		"a duration that has passed according to the timestamp": func(s *repairStory) {
			s.stamped("n1", s.now.Add(-time.Minute), "Disk=True")
			s.marksAndDeletes("n1", onPool)
		},
		"the provider's recommended toleration": func(s *repairStory) {
			s.condition("n1", "KernelReady=False")
			s.pass(30 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		},
		"the shorter time of one reason": func(s *repairStory) {
			s.pool("blue", strings.Replace(badDisk, `"policies":[`, `"policies":[{"conditionType":"Disk","reason":"Dead","toleration":"1s"},`, 1))
			s.condition("n1", "Disk=True/Dead")
			s.pass(2 * time.Second)
			s.marksAndDeletes("n1", onPool)
		},
		"a policy for every listed status": func(s *repairStory) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Ready","toleration":"2m"}]}}`)
			s.condition("n1", "Ready=Unknown")
			s.pass(2 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		},
		"a recovery a moment before the mark": func(s *repairStory) {
			s.breakDisks("n1")
			s.condition("n1", "Disk=False")
			s.marksAndDeletes("n1", onPool)
		},
		"a node that was deleted a moment before the mark": func(s *repairStory) {
			s.breakDisks("n1")
			mark := map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: s.now.Format(time.RFC3339)}
			s.enter(grant{onPool, "n1", string(s.nodes["n1"].UID), s.versionOf("c-n1"), claimInLedger + "c-n1"})
			s.deleteNode(admin, "n1")
			s.changeClaim(us, "c-n1", annotated(mark))
			s.deletes(us, "n1")
		},
		"a veto that came with the mark": func(s *repairStory) {
			s.breakDisks("n1")
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[ourVeto] = "true" })
			s.marksAndDeletes("n1", onPool)
		},
		"annotation values that are no veto": func(s *repairStory) {
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[ourVeto], n.Annotations[theirVeto] = "false", "yes" })
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		},
		"a running repair continues when the condition becomes Unknown": func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.condition("n1", "Disk=Unknown")
			s.pass(time.Minute)
			s.deletes(us, "n1")
		},
		"an earlier deadline of another writer": func(s *repairStory) {
			s.changeClaim(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2026-03-01T12:00:00Z"}))
			s.breakDisks("n1")
			s.marks("n1", onPool)
			s.deletes(us, "n1")
		},
		"gracefully, for as long as it takes": func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"termination":"Graceful"`))
			s.breakDisks("n1")
			s.marks("n1", onPool)
			s.deletes(us, "n1")
		},
		"by force, when the policy has become graceful a moment ago": func(s *repairStory) {
			s.breakDisks("n1")
			s.pool("blue", withRepair(badDisk, `"termination":"Graceful"`))
			s.marksAndDeletes("n1", onPool)
		},
		"the previous deadline is restored": func(s *repairStory) {
			s.changeClaim(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2030-01-01T00:00:00Z"}))
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: "", deadlineAnnotation: "2030-01-01T00:00:00Z"}))
		},
		"a policy that names the pool": func(s *repairStory) {
			s.pool("blue", `{}`)
			s.policy("p", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", "Repair/RepairPolicy/p")
		},
		"a policy that selects": func(s *repairStory) {
			s.pool("blue", `{}`)
			s.policy("p", `{"selector":{"matchLabels":{"pool":"web"}},"repair":{`+disk+`}}`)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", "Repair/RepairPolicy/p/blue")
		},
		"the last valid version": func(s *repairStory) {
			s.pool("blue", `{"repair":{"defaultTolerationDuration":"-1m"}}`)
			s.pass(time.Minute)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		},
		"with a bound that was lowered a moment ago": func(s *repairStory) {
			s.pool("blue", unbudgeted)
			s.pass(time.Minute)
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.pool("blue", withRepair(strings.Replace(badDisk, `"50%"`, `"100%"`, 1), `"maxUnhealthy":1`))
			s.marksAndDeletes("n2", onPool)
		},
		"with a node that is replaced before it is gone": func(s *repairStory) {
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.readyNodes("blue", "n6")
			s.finishDeletion("n1")
			s.marksAndDeletes("n2", onPool)
		},
		"with a node that was not replaced for a long time": func(s *repairStory) {
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.finishDeletion("n1")
			s.pass(15 * time.Minute)
			s.marksAndDeletes("n2", onPool)
		},
		"with a node of another pool": func(s *repairStory) {
			s.pool("red", badDisk)
			s.readyNodes("red", "r1", "r2")
			s.breakDisks("n1", "r1")
			s.marksAndDeletes("n1", onPool)
			s.marksAndDeletes("r1", "Repair/NodePool/red")
		},
		"with a node that another client removes": func(s *repairStory) {
			s.breakDisks("n1")
			s.deletes(admin, "n3")
			s.pass(time.Minute)
			s.marksAndDeletes("n1", onPool)
		},
		"with a budget that was used up a moment ago": func(s *repairStory) {
			s.pool("blue", strings.Replace(badDisk, `"50%"`, `"1"`, 1))
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.deletes(admin, "n3")
			s.deletes(us, "n1")
		},
		"with a node that never was in service and needs no budget": func(s *repairStory) {
			s.pool("blue", strings.Replace(badDisk, `"50%"`, `"0"`, 1))
			s.startingNodes("blue", "n6")
			s.breakDisks("n6")
			s.marksAndDeletes("n6", onPool)
		},
		"with a NotReady node that does not count against itself": func(s *repairStory) {
			s.pool("blue", `{"repair":{"defaultTolerationDuration":"1m"}}`) // the default budget is 10%
			s.condition("n1", "Ready=False")
			s.pass(time.Minute)
			s.marksAndDeletes("n1", onPool)
		},
		"with a percentage that is rounded up": under(`[{"nodes":"25%"}]`),
		"with no budget at all":                under(`[]`),
		"with a budget for another reason":     under(`[{"nodes":"0","reasons":["Drifted"]}]`),
		"with a budget for no reason":          under(`[{"nodes":"0","reasons":[]}]`),
		"with a budget whose window is over":   under(`[{"nodes":"0","schedule":"0 12 * * *","duration":"1h"}]`),
		"with a machine that is already being terminated": func(s *repairStory) {
			s.pool("blue", strings.Replace(badDisk, `"50%"`, `"1"`, 1))
			s.deletes(admin, "n3")
			s.setClaimCondition("c-n3", "InstanceTerminating=True")
			s.pass(time.Minute)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		},
		"a timeout of nodes with startup taints": func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.condition("n6", "Ready=True")
			s.pass(10 * time.Minute)
			s.marksAndDeletes("n6", timedOut)
		},
		"a timeout of a node that was ready for a moment": func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.edit(karpenter, "n6", func(n *corev1.Node) { n.Spec.Taints = nil })
			s.condition("n6", "Ready=True")
			s.condition("n6", "Ready=False")
			s.pass(10 * time.Minute)
			s.marksAndDeletes("n6", timedOut)
		},
		"a fourth timeout after a node that became ready": func(s *repairStory) {
			s.startingNodes("blue", "n6", "n7", "n8", "n9")
			s.pass(time.Hour)
			for i, name := range []string{"n6", "n7", "n8", "n9"} {
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
				if i < 2 {
					s.startingNodes("blue", "new-"+name)
					s.condition("new-"+name, "Ready=True")
				} else {
					s.readyNodes("blue", "new-"+name)
				}
			}
		},
		"timeouts of nodes from an old template, which do not count for the new template": func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"maxUnhealthy":10`))
			s.changeTemplate("blue", "1")
			s.startingNodes("blue", "n6", "n7", "n8", "n9", "n10")
			s.pass(time.Hour)
			for _, name := range []string{"n6", "n7", "n8"} {
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
			}
			s.changeTemplate("blue", "2") // the pool is no longer paused
			s.startingNodes("blue", "n11", "n12", "n13")
			s.pass(10 * time.Minute)
			for _, name := range []string{"n9", "n10", "n11", "n12", "n13"} {
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
			}
		},
		"a fourth timeout after the wait": func(s *repairStory) {
			s.startingNodes("blue", "n6", "n7", "n8", "n9")
			s.pass(time.Hour)
			for _, name := range []string{"n6", "n7", "n8", "n9"} {
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
				s.pass(16 * time.Minute)
			}
		},
		"Karpenter's own repair": func(s *repairStory) {
			s.breakDisks("n1", "n2", "n3")
			for _, name := range []string{"n1", "n2", "n3"} {
				s.setClaimCondition("c-"+name, "DisruptionReason=True")
				s.changeClaim(karpenter, "c-"+name, annotated(map[string]string{deadlineAnnotation: "2026-03-01T12:00:00Z"}))
				s.deletes(karpenter, name)
				s.finishDeletion(name)
			}
		},
		"a mark on a claim that Karpenter then deletes": func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.deletes(karpenter, "n1")
		},
		"a justified deletion by an unknown author": func(s *repairStory) {
			s.breakDisks("n1")
			s.marksAs(unknownAuthor, "n1", onPool, s.now)
			s.deletes(unknownAuthor, "n1")
			s.finishDeletion("n1")
		},
		"other writes of an unknown author": func(s *repairStory) {
			s.changeClaim(unknownAuthor, "c-n1", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{poolLabel: "blue", "x": "y"}) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fiveClaims(t)
			tell(s)
			s.hasNoViolation(repairCfg)
		})
	}
}

func TestRepairsUnderOtherFlags(t *testing.T) {
	t.Run("nodes of a pool without a policy", func(t *testing.T) {
		s := fiveClaims(t)
		s.pool("blue", `{}`)
		s.condition("n1", "Ready=False")
		s.pass(30 * time.Minute)
		s.marksAndDeletes("n1", onPool)
		cfg := repairCfg
		cfg.Repairs.WithoutPolicy = true
		s.hasNoViolation(cfg)
		s.caught(repairCfg, Unjustified)
	})
	for name, garble := range map[string]func(s *repairStory){
		"a block":                           func(s *repairStory) { s.pool("red", `{"repair":{"enabled":false,"readyTimeout":"soon"}}`) },
		"a policy for the pool":             func(s *repairStory) { s.policy("p", `{"nodePool":"red","repair":{"readyTimeout":"soon"}}`) },
		"a policy for the nodes":            func(s *repairStory) { s.policy("p", `{"selector":{},"repair":{"readyTimeout":"soon"}}`) },
		"a policy with an unclear selector": func(s *repairStory) { s.policy("p", `{"repair":{}}`) },
		"a policy that cannot be parsed":    func(s *repairStory) { s.policy("p", `{"selector":{"matchLabels":5},"repair":{}}`) },
	} {
		t.Run("no default in place of an invalid rule: "+name, func(t *testing.T) {
			for rule, falls := range map[string]func(s *repairStory){
				"Repair/NodePool/red": func(s *repairStory) {
					s.readyNodes("red", "r1", "r2", "r3", "r4", "r5")
					s.condition("r1", "Ready=False")
				},
				"ReadyTimeout/red": func(s *repairStory) {
					s.readyNodes("red", "r2", "r3", "r4", "r5")
					s.startingNodes("red", "r1")
				},
			} {
				cfg := repairCfg
				cfg.Repairs.WithoutPolicy = true
				tell := func(isGarbled bool) *repairStory {
					s := fiveClaims(t)
					s.pool("red", `{}`)
					if isGarbled {
						garble(s)
					}
					falls(s)
					s.pass(30 * time.Minute)
					s.marksAndDeletes("r1", rule)
					return s
				}
				tell(false).hasNoViolation(cfg)
				tell(true).caught(cfg, Unjustified)
			}
		})
	}
	t.Run("the conditions of a file", func(t *testing.T) {
		s := fiveClaims(t)
		s.condition("n1", "Fan=True")
		s.pass(5 * time.Minute)
		s.marksAndDeletes("n1", onPool)
		cfg := repairCfg
		cfg.Repairs.Machines = map[string]time.Duration{"Fan=True": 5 * time.Minute}
		s.hasNoViolation(cfg)
		s.caught(repairCfg, Unjustified)
	})
	t.Run("a block that is lost and restored", func(t *testing.T) {
		s := fiveClaims(t)
		s.write(karpenter, s.pools, "NodePool", "blue", `{"disruption":{"budgets":[{"nodes":"50%"}]}}`)
		s.pass(time.Minute)
		s.breakDisks("n1")
		s.marksAndDeletes("n1", onPool)
		s.write(us, s.pools, "NodePool", "blue", badDisk)
		cfg := repairCfg
		cfg.Repairs.SchemaLost, cfg.Repairs.MayRestore = true, true
		if report := s.hasNoViolation(cfg); report.Restores != 1 {
			t.Errorf("%d restored, want 1", report.Restores)
		}
		if report := s.check(repairCfg); len(report.Of(Unjustified)) == 0 || len(report.Of(ForeignTouched)) == 0 {
			t.Errorf("found %s", report)
		}
	})
	t.Run("a longer hold", func(t *testing.T) {
		s := fiveClaims(t)
		s.startingNodes("blue", "n6", "n7", "n8", "n9")
		s.pass(time.Hour)
		for _, name := range []string{"n6", "n7", "n8", "n9"} {
			s.marksAndDeletes(name, timedOut)
			s.finishDeletion(name)
			s.pass(16 * time.Minute)
		}
		cfg := repairCfg
		cfg.Repairs.HeldFor = time.Hour
		s.hasNoViolation(repairCfg)
		s.caught(cfg, TooSoon)
	})
}
