package history

import (
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestALawfulRepairHasNoViolation(t *testing.T) {
	s := garage(t)
	s.policy("rest", `{"selector":{},"repair":{"maxUnhealthy":2}}`)
	s.policies["rest"].Object["status"] = map[string]any{"nodes": int64(0)}
	s.record("MODIFIED", PoliciesResource, us, s.policies["rest"])

	// One is replaced, by force.
	s.breaks("n1", "n2", "n3")
	s.ends("n1", onPool)
	s.machine("blue", "n6")
	s.leaves("n1")
	// The next one recovers just in time, and the one after that is replaced.
	s.marks("n2", onPool, s.now)
	s.condition("n2", "Disk=False")
	s.spares("n2")
	s.ends("n3", onPool)
	s.leaves("n3")
	// Nothing takes its place, and after a while another one may go, gracefully.
	s.pool("blue", with2(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
	s.pass(15 * time.Minute)
	s.breaks("n4")
	s.marks("n4", onPool, s.now.Add(5*time.Minute))
	s.deletes(us, "n4")
	s.leaves("n4")
	s.machine("blue", "n7")
	// One never becomes ready.
	s.begin("blue", "n8")
	s.pass(10 * time.Minute)
	s.marks("n8", timedOut, s.now.Add(5*time.Minute))
	s.deletes(us, "n8")
	s.leaves("n8")

	report := s.lawful(repairCfg)
	want := Counts{Moments: len(s.made), Marks: 5, Spares: 1, Terminations: 4, PolicyStatuses: 1}
	if diff := gocmp.Diff(want, report.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if report.Peak["NodePool/blue"] != 1 {
		t.Errorf("peak %v, want 1", report.Peak)
	}
	for _, want := range []string{"5 claims marked, 1 spared, 4 deleted, 1 statuses of repair policies"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("%s does not say %q", report, want)
		}
	}
}

// Each of these was written for one reading of the rules that the checker must not
// complain of.
func TestLawfulRepairs(t *testing.T) {
	const disk = `"policies":[{"conditionType":"Disk","conditionStatus":"true","toleration":"1m"}]`
	unbudgeted := with2(strings.Replace(badDisk, `"50%"`, `"100%"`, 1), `"maxUnhealthy":"100%"`)
	both := func(s *depot, rule string) {
		s.breaks("n1", "n2")
		s.ends("n1", rule)
		s.ends("n2", rule)
	}
	under := func(budgets string) func(s *depot) {
		return func(s *depot) {
			s.pool("blue", strings.Replace(unbudgeted, `[{"nodes":"100%"}]`, budgets, 1))
			s.pass(time.Minute)
			both(s, onPool)
		}
	}
	for name, tell := range map[string]func(s *depot){
		"nothing happens": func(*depot) {},
		"a duration that the stamp says is over": func(s *depot) {
			s.stamped("n1", s.now.Add(-time.Minute), "Disk=True")
			s.ends("n1", onPool)
		},
		"what the provider recommends": func(s *depot) {
			s.condition("n1", "KernelReady=False")
			s.pass(30 * time.Minute)
			s.ends("n1", onPool)
		},
		"the shorter time of one reason": func(s *depot) {
			s.pool("blue", strings.Replace(badDisk, `"policies":[`, `"policies":[{"conditionType":"Disk","reason":"Dead","toleration":"1s"},`, 1))
			s.condition("n1", "Disk=True/Dead")
			s.pass(2 * time.Second)
			s.ends("n1", onPool)
		},
		"a policy for every status that is stated": func(s *depot) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Ready","toleration":"2m"}]}}`)
			s.condition("n1", "Ready=Unknown")
			s.pass(2 * time.Minute)
			s.ends("n1", onPool)
		},
		"a recovery a moment before the mark": func(s *depot) {
			s.breaks("n1")
			s.condition("n1", "Disk=False")
			s.ends("n1", onPool)
		},
		"a node that went a moment before the mark": func(s *depot) {
			s.breaks("n1")
			mark := map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: s.now.Format(time.RFC3339)}
			s.enter(grant{onPool, "n1", string(s.nodes["n1"].UID), s.versionOf("c-n1"), claimInLedger + "c-n1"})
			s.deleteNode(admin, "n1")
			s.alter(us, "c-n1", annotated(mark))
			s.deletes(us, "n1")
		},
		"a veto that came with the mark": func(s *depot) {
			s.breaks("n1")
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[ourVeto] = "true" })
			s.ends("n1", onPool)
		},
		"words that are no veto": func(s *depot) {
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[ourVeto], n.Annotations[theirVeto] = "false", "yes" })
			s.breaks("n1")
			s.ends("n1", onPool)
		},
		"what is under way goes on when nobody knows any more": func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.condition("n1", "Disk=Unknown")
			s.pass(time.Minute)
			s.deletes(us, "n1")
		},
		"a deadline that somebody has set is early enough": func(s *depot) {
			s.alter(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2026-03-01T12:00:00Z"}))
			s.breaks("n1")
			s.marks("n1", onPool)
			s.deletes(us, "n1")
		},
		"gracefully, for as long as it takes": func(s *depot) {
			s.pool("blue", with2(badDisk, `"termination":"Graceful"`))
			s.breaks("n1")
			s.marks("n1", onPool)
			s.deletes(us, "n1")
		},
		"by force, when the policy has become graceful a moment ago": func(s *depot) {
			s.breaks("n1")
			s.pool("blue", with2(badDisk, `"termination":"Graceful"`))
			s.ends("n1", onPool)
		},
		"a deadline that was there before comes back": func(s *depot) {
			s.alter(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2030-01-01T00:00:00Z"}))
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.alter(us, "c-n1", annotated(map[string]string{markAnnotation: "", deadlineAnnotation: "2030-01-01T00:00:00Z"}))
		},
		"a policy that names the pool": func(s *depot) {
			s.pool("blue", `{}`)
			s.policy("p", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.breaks("n1")
			s.ends("n1", "Repair/RepairPolicy/p")
		},
		"a policy that selects": func(s *depot) {
			s.pool("blue", `{}`)
			s.policy("p", `{"selector":{"matchLabels":{"pool":"web"}},"repair":{`+disk+`}}`)
			s.breaks("n1")
			s.ends("n1", "Repair/RepairPolicy/p/blue")
		},
		"the last version that could be followed": func(s *depot) {
			s.pool("blue", `{"repair":{"defaultTolerationDuration":"-1m"}}`)
			s.pass(time.Minute)
			s.breaks("n1")
			s.ends("n1", onPool)
		},
		"with a bound that was lowered a moment ago": func(s *depot) {
			s.pool("blue", unbudgeted)
			s.pass(time.Minute)
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.pool("blue", with2(strings.Replace(badDisk, `"50%"`, `"100%"`, 1), `"maxUnhealthy":1`))
			s.ends("n2", onPool)
		},
		"with one that is replaced before it is gone": func(s *depot) {
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.machine("blue", "n6")
			s.leaves("n1")
			s.ends("n2", onPool)
		},
		"with one that was not replaced for long": func(s *depot) {
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.leaves("n1")
			s.pass(15 * time.Minute)
			s.ends("n2", onPool)
		},
		"with one of another pool": func(s *depot) {
			s.pool("red", badDisk)
			s.machine("red", "r1", "r2")
			s.breaks("n1", "r1")
			s.ends("n1", onPool)
			s.ends("r1", "Repair/NodePool/red")
		},
		"with one that somebody else takes away": func(s *depot) {
			s.breaks("n1")
			s.deletes(admin, "n3")
			s.pass(time.Minute)
			s.ends("n1", onPool)
		},
		"with a budget that is used up since a moment ago": func(s *depot) {
			s.pool("blue", strings.Replace(badDisk, `"50%"`, `"1"`, 1))
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.deletes(admin, "n3")
			s.deletes(us, "n1")
		},
		"with a node that never was in service and needs no budget": func(s *depot) {
			s.pool("blue", strings.Replace(badDisk, `"50%"`, `"0"`, 1))
			s.begin("blue", "n6")
			s.breaks("n6")
			s.ends("n6", onPool)
		},
		"with a NotReady node that does not stand in its own way": func(s *depot) {
			s.pool("blue", `{"repair":{"defaultTolerationDuration":"1m"}}`) // and 10%
			s.condition("n1", "Ready=False")
			s.pass(time.Minute)
			s.ends("n1", onPool)
		},
		"with a share that is rounded up":    under(`[{"nodes":"25%"}]`),
		"with no budget at all":              under(`[]`),
		"with a budget for another reason":   under(`[{"nodes":"0","reasons":["Drifted"]}]`),
		"with a budget for no reason":        under(`[{"nodes":"0","reasons":[]}]`),
		"with a budget whose window is over": under(`[{"nodes":"0","schedule":"0 12 * * *","duration":"1h"}]`),
		"with a machine that is being ended already": func(s *depot) {
			s.pool("blue", strings.Replace(badDisk, `"50%"`, `"1"`, 1))
			s.deletes(admin, "n3")
			s.says("c-n3", "InstanceTerminating=True")
			s.pass(time.Minute)
			s.breaks("n1")
			s.ends("n1", onPool)
		},
		"a timeout of nodes with startup taints": func(s *depot) {
			s.begin("blue", "n6")
			s.condition("n6", "Ready=True")
			s.pass(10 * time.Minute)
			s.ends("n6", timedOut)
		},
		"a timeout of a node that was ready for a moment": func(s *depot) {
			s.begin("blue", "n6")
			s.edit(karpenter, "n6", func(n *corev1.Node) { n.Spec.Taints = nil })
			s.condition("n6", "Ready=True")
			s.condition("n6", "Ready=False")
			s.pass(10 * time.Minute)
			s.ends("n6", timedOut)
		},
		"a fourth timeout after one that became ready": func(s *depot) {
			s.begin("blue", "n6", "n7", "n8", "n9")
			s.pass(time.Hour)
			for i, name := range []string{"n6", "n7", "n8", "n9"} {
				s.ends(name, timedOut)
				s.leaves(name)
				if i < 2 {
					s.begin("blue", "new-"+name)
					s.condition("new-"+name, "Ready=True")
				} else {
					s.machine("blue", "new-"+name)
				}
			}
		},
		"timeouts of nodes from an old template, which do not count as tries of the new one": func(s *depot) {
			s.pool("blue", with2(badDisk, `"maxUnhealthy":10`))
			s.remake("blue", "1")
			s.begin("blue", "n6", "n7", "n8", "n9", "n10")
			s.pass(time.Hour)
			for _, name := range []string{"n6", "n7", "n8"} {
				s.ends(name, timedOut)
				s.leaves(name)
			}
			s.remake("blue", "2") // the pool is held no more
			s.begin("blue", "n11", "n12", "n13")
			s.pass(10 * time.Minute)
			for _, name := range []string{"n9", "n10", "n11", "n12", "n13"} {
				s.ends(name, timedOut)
				s.leaves(name)
			}
		},
		"a fourth timeout after the wait": func(s *depot) {
			s.begin("blue", "n6", "n7", "n8", "n9")
			s.pass(time.Hour)
			for _, name := range []string{"n6", "n7", "n8", "n9"} {
				s.ends(name, timedOut)
				s.leaves(name)
				s.pass(16 * time.Minute)
			}
		},
		"Karpenter's own repair": func(s *depot) {
			s.breaks("n1", "n2", "n3")
			for _, name := range []string{"n1", "n2", "n3"} {
				s.says("c-"+name, "DisruptionReason=True")
				s.alter(karpenter, "c-"+name, annotated(map[string]string{deadlineAnnotation: "2026-03-01T12:00:00Z"}))
				s.deletes(karpenter, name)
				s.leaves(name)
			}
		},
		"a mark on a claim that Karpenter then takes away": func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.deletes(karpenter, "n1")
		},
		"a deletion that nobody can prove, and that is right": func(s *depot) {
			s.breaks("n1")
			s.marksAs(nobody, "n1", onPool, s.now)
			s.deletes(nobody, "n1")
			s.leaves("n1")
		},
		"what somebody unknown writes beside": func(s *depot) {
			s.alter(nobody, "c-n1", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{poolLabel: "blue", "x": "y"}) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := garage(t)
			tell(s)
			s.lawful(repairCfg)
		})
	}
}

func TestRepairsUnderOtherFlags(t *testing.T) {
	t.Run("nodes of a pool that no policy speaks of", func(t *testing.T) {
		s := garage(t)
		s.pool("blue", `{}`)
		s.condition("n1", "Ready=False")
		s.pass(30 * time.Minute)
		s.ends("n1", onPool)
		cfg := repairCfg
		cfg.Repairs.WithoutPolicy = true
		s.lawful(cfg)
		s.caught(repairCfg, Unlawful)
	})
	for name, garble := range map[string]func(s *depot){
		"a block":                   func(s *depot) { s.pool("red", `{"repair":{"enabled":false,"readyTimeout":"soon"}}`) },
		"a policy for the pool":     func(s *depot) { s.policy("p", `{"nodePool":"red","repair":{"readyTimeout":"soon"}}`) },
		"a policy for the nodes":    func(s *depot) { s.policy("p", `{"selector":{},"repair":{"readyTimeout":"soon"}}`) },
		"a policy for nobody knows": func(s *depot) { s.policy("p", `{"repair":{}}`) },
		"a policy that is not read": func(s *depot) { s.policy("p", `{"selector":{"matchLabels":5},"repair":{}}`) },
	} {
		t.Run("no default in place of what nobody can follow: "+name, func(t *testing.T) {
			for rule, falls := range map[string]func(s *depot){
				"Repair/NodePool/red": func(s *depot) {
					s.machine("red", "r1", "r2", "r3", "r4", "r5")
					s.condition("r1", "Ready=False")
				},
				"ReadyTimeout/red": func(s *depot) {
					s.machine("red", "r2", "r3", "r4", "r5")
					s.begin("red", "r1")
				},
			} {
				cfg := repairCfg
				cfg.Repairs.WithoutPolicy = true
				tell := func(isGarbled bool) *depot {
					s := garage(t)
					s.pool("red", `{}`)
					if isGarbled {
						garble(s)
					}
					falls(s)
					s.pass(30 * time.Minute)
					s.ends("r1", rule)
					return s
				}
				tell(false).lawful(cfg)
				tell(true).caught(cfg, Unlawful)
			}
		})
	}
	t.Run("what a file states", func(t *testing.T) {
		s := garage(t)
		s.condition("n1", "Fan=True")
		s.pass(5 * time.Minute)
		s.ends("n1", onPool)
		cfg := repairCfg
		cfg.Repairs.Machines = map[string]time.Duration{"Fan=True": 5 * time.Minute}
		s.lawful(cfg)
		s.caught(repairCfg, Unlawful)
	})
	t.Run("a block that is lost and put back", func(t *testing.T) {
		s := garage(t)
		s.write(karpenter, s.pools, "NodePool", "blue", `{"disruption":{"budgets":[{"nodes":"50%"}]}}`)
		s.pass(time.Minute)
		s.breaks("n1")
		s.ends("n1", onPool)
		s.write(us, s.pools, "NodePool", "blue", badDisk)
		cfg := repairCfg
		cfg.Repairs.SchemaLost, cfg.Repairs.MayRestore = true, true
		if report := s.lawful(cfg); report.Restores != 1 {
			t.Errorf("%d restored, want 1", report.Restores)
		}
		if report := s.check(repairCfg); len(report.Of(Unlawful)) == 0 || len(report.Of(ForeignTouched)) == 0 {
			t.Errorf("found %s", report)
		}
	})
	t.Run("a longer hold", func(t *testing.T) {
		s := garage(t)
		s.begin("blue", "n6", "n7", "n8", "n9")
		s.pass(time.Hour)
		for _, name := range []string{"n6", "n7", "n8", "n9"} {
			s.ends(name, timedOut)
			s.leaves(name)
			s.pass(16 * time.Minute)
		}
		cfg := repairCfg
		cfg.Repairs.HeldFor = time.Hour
		s.lawful(repairCfg)
		s.caught(cfg, TooSoon)
	})
}
