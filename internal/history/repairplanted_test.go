package history

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// plantedRepair is a recording with one violation, which is lawful otherwise.
type plantedRepair struct {
	kind Kind
	text string // part of what is told
	tell func(s *depot)
}

func (p plantedRepair) run(t *testing.T, cfg Config) {
	t.Helper()
	p.runIn(t, garage(t), cfg)
}

func (p plantedRepair) runIn(t *testing.T, s *depot, cfg Config) {
	t.Helper()
	p.tell(s)
	cfg.Unfinished = p.kind != WrongEnd
	report := s.caught(cfg, p.kind)
	for _, v := range report.Violations {
		if strings.Contains(v.Text, p.text) {
			return
		}
	}
	t.Errorf("nothing says %q: %s", p.text, report)
}

func runPlanted(t *testing.T, cases map[string]plantedRepair) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) { test.run(t, repairCfg) })
	}
}

func TestPlantedInMarks(t *testing.T) {
	later := func(s *depot, d time.Duration) time.Time { return s.now.Add(d) }
	runPlanted(t, map[string]plantedRepair{
		"deleted without a mark": {Unrecorded, "no mark of ours", func(s *depot) {
			s.breaks("n1")
			s.deletes(us, "n1")
		}},
		"deleted at once, without a finalizer and without a mark": {Unrecorded, "no mark of ours", func(s *depot) {
			s.breaks("n1")
			s.vanishes(us, "n1")
		}},
		"deleted with somebody else's mark": {Unrecorded, "no mark of ours", func(s *depot) {
			s.breaks("n1")
			s.marksAs(admin, "n1", onPool, s.now)
			s.deletes(us, "n1")
		}},
		"with a mark that nobody can read": {Malformed, "cannot be read", func(s *depot) {
			s.breaks("n1")
			s.alter(us, "c-n1", annotated(map[string]string{markAnnotation: "{"}))
			s.deletes(us, "n1")
		}},
		"for a node that was never there": {Malformed, "not there", func(s *depot) {
			s.breaks("n1")
			s.alter(us, "c-n1", annotated(map[string]string{markAnnotation: s.markFor("n9", onPool), deadlineAnnotation: "2026-03-01T12:00:00Z"}))
		}},
		"for the node of another claim": {Malformed, "another provider ID", func(s *depot) {
			s.breaks("n1")
			s.alter(us, "c-n2", annotated(map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: "2026-03-01T12:00:00Z"}))
		}},
		"over another mark": {Malformed, "another mark", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.alter(us, "c-n1", annotated(map[string]string{markAnnotation: s.markFor("n1", "Repair/other")}))
		}},
		"that the ledger does not name": {Unrecorded, "the ledger does not name it", func(s *depot) {
			s.skipsLedger = true
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"that the ledger names for another version of the claim": {Unrecorded, "the ledger does not name it", func(s *depot) {
			s.breaks("n1")
			s.enter(grant{onPool, "n1", string(s.nodes["n1"].UID), "1", claimInLedger + "c-n1"})
			s.skipsLedger = true
			s.ends("n1", onPool)
		}},
		"by force and without a deadline": {Malformed, "the policy wants one", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool)
		}},
		"by force and with a deadline to come": {Malformed, "the policy wants it at", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, later(s, time.Minute))
		}},
		"with a deadline where the policy wants none": {Malformed, "sets none", func(s *depot) {
			s.pool("blue", with2(badDisk, `"termination":"Graceful"`))
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
		}},
		"with a deadline that is later than the period": {Malformed, "the policy wants it at", func(s *depot) {
			s.pool("blue", with2(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
			s.breaks("n1")
			s.marks("n1", onPool, later(s, 6*time.Minute))
		}},
		"with a deadline before the period is over": {Malformed, "not before", func(s *depot) {
			s.pool("blue", with2(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
			s.breaks("n1")
			s.marks("n1", onPool, later(s, 4*time.Minute))
		}},
		"without a deadline although there is a period": {Malformed, "wants one", func(s *depot) {
			s.pool("blue", with2(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
			s.breaks("n1")
			s.marks("n1", onPool)
		}},
		"taken off without the deadline": {Malformed, "left the deadline", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.alter(us, "c-n1", annotated(map[string]string{markAnnotation: ""}))
		}},
		"taken off with a deadline that was there before": {Malformed, "left the deadline", func(s *depot) {
			s.alter(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2030-01-01T00:00:00Z"}))
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.spares("n1")
		}},
		"taken off with a deadline that somebody has set since": {Malformed, "left the deadline", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.alter(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2020-01-01T00:00:00Z"}))
			s.spares("n1")
		}},
		"taken off a claim that is being deleted": {Unlawful, "is being deleted", func(s *depot) {
			s.breaks("n1")
			s.ends("n1", onPool)
			s.spares("n1")
		}},
		"taken off though it was not ours": {ForeignTouched, "not ours", func(s *depot) {
			s.marksAs(admin, "n1", onPool)
			s.alter(us, "c-n1", annotated(map[string]string{markAnnotation: ""}))
		}},
		"left on a claim": {WrongEnd, "has a mark, and is not being deleted", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.pass(time.Minute)
		}},
		"left on a claim whose node is gone": {WrongEnd, "has a mark, and is not being deleted", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.deleteNode(admin, "n1")
		}},
	})
}

// with2 adds fields to the repair block of a pool.
func with2(spec, fields string) string {
	return strings.Replace(spec, `{"repair":{`, `{"repair":{`+fields+`,`, 1)
}

func TestPlantedInCauses(t *testing.T) {
	const disk = `"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"1m"}]`
	runPlanted(t, map[string]plantedRepair{
		"a node that is well": {Unlawful, "no sign of sickness", func(s *depot) { s.ends("n1", onPool) }},
		"before its time": {TooSoon, "tolerated until 13:01", func(s *depot) {
			s.condition("n1", "Disk=True")
			s.pass(50 * time.Second)
			s.ends("n1", onPool)
		}},
		"a clock that a recovery stopped": {TooSoon, "tolerated until", func(s *depot) {
			s.condition("n1", "Disk=True")
			s.pass(40 * time.Second)
			s.condition("n1", "Disk=False")
			s.pass(10 * time.Second)
			s.condition("n1", "Disk=True")
			s.pass(40 * time.Second)
			s.ends("n1", onPool)
		}},
		"before the pool's default has passed": {TooSoon, "tolerated until", func(s *depot) {
			s.pool("blue", `{"repair":{"defaultTolerationDuration":"20m"}}`)
			s.condition("n1", "Ready=False")
			s.pass(15 * time.Minute)
			s.ends("n1", onPool)
		}},
		"before what is recommended has passed": {TooSoon, "tolerated until", func(s *depot) {
			s.condition("n1", "Ready=Unknown")
			s.pass(29 * time.Minute)
			s.ends("n1", onPool)
		}},
		"before what one reason is given": {TooSoon, "tolerated until", func(s *depot) {
			s.pool("blue", strings.Replace(badDisk, `"policies":[`, `"policies":[{"conditionType":"Disk","reason":"Slow","toleration":"9m"},`, 1))
			s.condition("n1", "Disk=True/Slow")
			s.pass(5 * time.Minute)
			s.ends("n1", onPool)
		}},
		"before what one reason is given in one status": {TooSoon, "tolerated until", func(s *depot) {
			s.pool("blue", strings.Replace(badDisk, `"policies":[`, `"policies":[{"conditionType":"Disk","conditionStatus":"True","reason":"Slow","toleration":"9m"},`, 1))
			s.condition("n1", "Disk=True/Slow")
			s.pass(5 * time.Minute)
			s.ends("n1", onPool)
		}},
		"for a reason that is not meant": {Unlawful, "no sign", func(s *depot) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","reason":"Slow","toleration":"1m"}]}}`)
			s.condition("n1", "Disk=True/Loud")
			s.pass(5 * time.Minute)
			s.ends("n1", onPool)
		}},
		"a condition that nobody states": {Unlawful, "no sign", func(s *depot) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Disk","toleration":"1m"}]}}`)
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"when nobody knows": {Unlawful, "nothing may start", func(s *depot) {
			s.condition("n1", "Disk=Unknown")
			s.pass(5 * time.Minute)
			s.ends("n1", onPool)
		}},
		"well for longer than anybody may not know": {Unlawful, "no sign", func(s *depot) {
			s.breaks("n1")
			s.condition("n1", "Disk=False")
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		}},
		"well again between the mark and the deletion": {Unlawful, "we deleted the claim, by Repair/NodePool/blue, but no sign", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.condition("n1", "Disk=False")
			s.pass(2 * DefaultLag)
			s.deletes(us, "n1")
		}},
		"switched off": {Unlawful, "switched off", func(s *depot) {
			s.pool("blue", with2(badDisk, `"enabled":false`))
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"a pool without a block": {Unlawful, "no rule of that name", func(s *depot) {
			s.pool("blue", `{}`)
			s.condition("n1", "Ready=False")
			s.pass(time.Hour)
			s.ends("n1", onPool)
		}},
		"a pool that is gone": {Unlawful, "no rule of that name", func(s *depot) {
			s.breaks("n1")
			s.dropPool(admin, "blue")
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		}},
		"by a policy that does not govern, because the pool has a block": {Unlawful, "no rule of that name", func(s *depot) {
			s.policy("all", `{"selector":{},"repair":{`+disk+`}}`)
			s.breaks("n1")
			s.ends("n1", "Repair/RepairPolicy/all/blue")
		}},
		"by the younger of two policies": {Unlawful, "no rule of that name", func(s *depot) {
			s.pool("blue", `{}`)
			s.policy("b", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.pass(time.Minute)
			s.policy("a", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.breaks("n1")
			s.ends("n1", "Repair/RepairPolicy/a")
		}},
		"by one that selects, where another names the pool": {Unlawful, "no rule of that name", func(s *depot) {
			s.pool("blue", `{}`)
			s.policy("old", `{"selector":{"matchLabels":{"pool":"web"}},"repair":{`+disk+`}}`)
			s.pass(time.Minute)
			s.policy("new", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.breaks("n1")
			s.ends("n1", "Repair/RepairPolicy/old/blue")
		}},
		"for a version of the block that cannot be followed": {TooSoon, "tolerated until", func(s *depot) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"soon"}],"defaultTolerationDuration":"1s"}}`)
			s.condition("n1", "Disk=True")
			s.pass(30 * time.Second)
			s.ends("n1", onPool)
		}},

		"with a veto on the node": {Unlawful, "the node is annotated", func(s *depot) {
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[theirVeto] = "true" })
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"with a veto of ours on the claim": {Unlawful, "NodeClaim c-n1 is annotated", func(s *depot) {
			s.alter(admin, "c-n1", annotated(map[string]string{ourVeto: "please"}))
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"with a veto on the pool": {Unlawful, "its NodePool is annotated", func(s *depot) {
			s.pools["blue"].SetAnnotations(map[string]string{ourVeto: "true"})
			s.pool("blue", badDisk)
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"with a veto that came after the mark": {Unlawful, "the node is annotated", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[theirVeto] = "true" })
			s.pass(2 * DefaultLag)
			s.deletes(us, "n1")
		}},
		"with somebody else's Lease on the node": {Unlawful, `held by "maintenance"`, func(s *depot) {
			s.breaks("n1")
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		}},
		"a claim that is being deleted": {Unlawful, "is being deleted", func(s *depot) {
			s.breaks("n1")
			s.deletes(admin, "n1")
			s.pass(2 * DefaultLag)
			s.marks("n1", onPool, s.now)
		}},
		"a claim that Karpenter has chosen": {Unlawful, "chosen by Karpenter: Drifted", func(s *depot) {
			s.breaks("n1")
			s.says("c-n1", "DisruptionReason=True")
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		}},
		"one of two claims with one provider ID": {Unlawful, "have one provider ID", func(s *depot) {
			s.claim("blue", "c-twin", "n1")
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"a node that is being deleted": {Unlawful, "the node is being deleted", func(s *depot) {
			s.breaks("n1")
			s.edit(admin, "n1", func(n *corev1.Node) {
				n.Finalizers = []string{"x"}
				n.DeletionTimestamp = new(metav1.NewTime(s.now))
			})
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		}},
		"a node that is long gone": {Unlawful, "the node is gone", func(s *depot) {
			s.breaks("n1")
			mark := s.markFor("n1", onPool)
			s.deleteNode(admin, "n1")
			s.pass(2 * DefaultLag)
			s.alter(us, "c-n1", annotated(map[string]string{markAnnotation: mark, deadlineAnnotation: s.now.Format(time.RFC3339)}))
		}},
		"a node that a health check treats": {TreatedTwice, "while the node is treated by RebootRemediation", func(s *depot) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Disk","status":"True","duration":"0s"}]}`)
			s.breaks("n1")
			s.remediate("n1", "workers", "Reboot")
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		}},
	})
}

func TestPlantedInTimeouts(t *testing.T) {
	runPlanted(t, map[string]plantedRepair{
		"before the time is over": {TooSoon, "may become ready until", func(s *depot) {
			s.begin("blue", "n6")
			s.pass(9 * time.Minute)
			s.ends("n6", timedOut)
		}},
		"before the time of the pool is over": {TooSoon, "may become ready until", func(s *depot) {
			s.pool("blue", with2(badDisk, `"readyTimeout":"30m"`))
			s.begin("blue", "n6")
			s.pass(20 * time.Minute)
			s.ends("n6", timedOut)
		}},
		"a node that is ready for work": {Unlawful, "is ready for work", func(s *depot) { s.ends("n1", timedOut) }},
		"a node that Karpenter says was ready once": {Unlawful, "was ready for work once", func(s *depot) {
			s.condition("n1", "Ready=False")
			s.pass(time.Hour)
			s.ends("n1", timedOut)
		}},
		"a node that was ready for a while, whatever Karpenter says": {Unlawful, "was ready for work once", func(s *depot) {
			s.begin("blue", "n6")
			s.condition("n6", "Ready=True")
			s.edit(admin, "n6", func(n *corev1.Node) { n.Spec.Taints = nil })
			s.pass(2 * DefaultLag)
			s.condition("n6", "Ready=False")
			s.pass(time.Hour)
			s.ends("n6", timedOut)
		}},
		"with a veto": {Unlawful, "annotated", func(s *depot) {
			s.begin("blue", "n6")
			s.alter(admin, "c-n6", annotated(map[string]string{theirVeto: "true"}))
			s.pass(time.Hour)
			s.ends("n6", timedOut)
		}},
		"a fourth in a row": {TooSoon, "3 nodes of the pool in a row", func(s *depot) {
			for _, name := range []string{"n6", "n7", "n8", "n9"} {
				s.begin("blue", name)
				s.pass(9 * time.Minute)
			}
			s.pass(9 * time.Minute) // the last one has only had its time
			for _, name := range []string{"n6", "n7", "n8", "n9"} {
				s.ends(name, timedOut)
				s.leaves(name)
				s.begin("blue", "new-"+name)
				s.condition("new-"+name, "Ready=True") // though it keeps its taint
			}
		}},
		"a fourth in a row from a new template": {TooSoon, "3 nodes of the pool in a row", func(s *depot) {
			s.remake("blue", "1")
			s.begin("blue", "n6")
			s.remake("blue", "2")
			s.begin("blue", "n7", "n8", "n9", "n10")
			s.pass(time.Hour)
			for _, name := range []string{"n6", "n7", "n8", "n9", "n10"} { // the first was made from the old one
				s.ends(name, timedOut)
				s.leaves(name)
				s.begin("blue", "new-"+name)
				s.condition("new-"+name, "Ready=True") // though it keeps its taint
			}
		}},
		"a node from an old template while the new one is held": {TooSoon, "3 nodes of the pool in a row", func(s *depot) {
			s.remake("blue", "1")
			s.begin("blue", "n6", "n7")
			s.remake("blue", "2")
			s.begin("blue", "n8", "n9", "n10")
			s.pass(time.Hour)
			for _, name := range []string{"n8", "n9", "n10"} {
				s.ends(name, timedOut)
				s.leaves(name)
				s.begin("blue", "new-"+name)
				s.condition("new-"+name, "Ready=True")
			}
			s.edit(karpenter, "n6", func(n *corev1.Node) { n.Spec.Taints = nil })
			s.condition("n6", "Ready=True") // which ends no hold of the new template
			s.pass(time.Minute)
			s.ends("n7", timedOut)
		}},
		"a fifth in a row, too soon after the fourth": {TooSoon, "4 nodes of the pool in a row", func(s *depot) {
			names := []string{"n6", "n7", "n8", "n9", "n10"}
			s.begin("blue", names...)
			s.pass(time.Hour)
			for i, name := range names {
				s.ends(name, timedOut)
				s.leaves(name)
				s.begin("blue", "new-"+name)
				s.condition("new-"+name, "Ready=True")
				if i >= 2 {
					s.pass(11 * time.Minute)
				}
			}
		}},
	})
	t.Run("while it is switched off", func(t *testing.T) {
		cfg := repairCfg
		cfg.Repairs.ReadyTimeout = 0
		plantedRepair{Unlawful, "no rule of that name", func(s *depot) {
			s.begin("blue", "n6")
			s.pass(time.Hour)
			s.ends("n6", timedOut)
		}}.run(t, cfg)
	})
}

func TestPlantedInBounds(t *testing.T) {
	unbudgeted := strings.Replace(badDisk, `"50%"`, `"100%"`, 1)
	runPlanted(t, map[string]plantedRepair{
		"one more than the usual share": {CapExceeded, "2 nodes of the pool are in repair: at most 1", func(s *depot) {
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.ends("n2", onPool)
		}},
		"one more than the number": {CapExceeded, "3 nodes of the pool are in repair: at most 2", func(s *depot) {
			s.pool("blue", with2(unbudgeted, `"maxUnhealthy":2`))
			s.breaks("n1", "n2", "n3")
			s.ends("n1", onPool)
			s.ends("n2", onPool)
			s.ends("n3", onPool)
		}},
		"with none allowed": {CapExceeded, "at most 0", func(s *depot) {
			s.pool("blue", with2(unbudgeted, `"maxUnhealthy":0`))
			s.breaks("n1")
			s.ends("n1", onPool)
		}},
		"a share that is rounded down": {CapExceeded, "at most 1", func(s *depot) {
			s.pool("blue", with2(unbudgeted, `"maxUnhealthy":"39%"`))
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.ends("n2", onPool)
		}},
		"while one is only marked": {CapExceeded, "at most 1", func(s *depot) {
			s.breaks("n1", "n2")
			s.marks("n1", onPool, s.now)
			s.marks("n2", onPool, s.now)
		}},
		"while one is gone and not replaced": {CapExceeded, "at most 1", func(s *depot) {
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.leaves("n1")
			s.pass(14 * time.Minute)
			s.ends("n2", onPool)
		}},
		"while the replacement is not ready": {CapExceeded, "at most 1", func(s *depot) {
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.leaves("n1")
			s.begin("blue", "n6")
			s.pass(time.Minute)
			s.ends("n2", onPool)
		}},
		"where one node replaces two": {CapExceeded, "2 nodes of the pool are in repair: at most 1", func(s *depot) {
			s.pool("blue", with2(unbudgeted, `"maxUnhealthy":2`))
			s.breaks("n1", "n2", "n3")
			s.ends("n1", onPool)
			s.ends("n2", onPool)
			s.leaves("n1")
			s.leaves("n2")
			s.machine("blue", "n6")
			s.pool("blue", with2(unbudgeted, `"maxUnhealthy":1`))
			s.pass(time.Minute)
			s.ends("n3", onPool)
		}},
		"where replacements are there already": {CapExceeded, "4 nodes of the pool are in repair: at most 3", func(s *depot) {
			s.pool("blue", with2(unbudgeted, `"maxUnhealthy":"60%"`))
			s.breaks("n1", "n2", "n3", "n4")
			s.ends("n1", onPool)
			s.ends("n2", onPool)
			s.ends("n3", onPool)
			s.pass(time.Minute)
			s.machine("blue", "n6")
			s.machine("blue", "n7")
			s.pass(time.Minute)
			s.ends("n4", onPool)
		}},
		"where the new node is of another pool": {CapExceeded, "at most 1", func(s *depot) {
			s.pool("red", badDisk)
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.leaves("n1")
			s.machine("red", "r1")
			s.pass(time.Minute)
			s.ends("n2", onPool)
		}},
		"where the ready one is older": {CapExceeded, "at most 1", func(s *depot) {
			s.condition("n3", "Ready=False")
			s.breaks("n1", "n2")
			s.ends("n1", onPool)
			s.leaves("n1")
			s.condition("n3", "Ready=True")
			s.pass(time.Minute)
			s.ends("n2", onPool)
		}},
		"together with a timeout": {CapExceeded, "2 nodes of the pool are in repair: at most 1", func(s *depot) {
			s.begin("blue", "n6")
			s.pass(time.Hour)
			s.breaks("n1")
			s.ends("n6", timedOut)
			s.ends("n1", onPool)
		}},
	})
}

func TestPlantedInBudgets(t *testing.T) {
	budgets := func(rows string) string {
		return strings.Replace(with2(badDisk, `"maxUnhealthy":"100%"`), `[{"nodes":"50%"}]`, rows, 1)
	}
	two := func(s *depot) {
		s.breaks("n1", "n2")
		s.ends("n1", onPool)
		s.ends("n2", onPool)
	}
	under := func(rows string, tell func(s *depot)) func(s *depot) {
		return func(s *depot) {
			s.pool("blue", budgets(rows))
			s.pass(2 * DefaultLag)
			tell(s)
		}
	}
	runPlanted(t, map[string]plantedRepair{
		"one more than a number": {GateIgnored, "2 of 5 nodes are taken out of service: the disruption budgets of the pool allow 1", under(`[{"nodes":"1"}]`, two)},
		"one more than a share":  {GateIgnored, "allow 1", under(`[{"nodes":"20%"}]`, two)},
		"one more than the default": {GateIgnored, "allow 1", func(s *depot) {
			s.pool("blue", strings.Replace(budgets(`[]`), `"budgets":[]`, ``, 1))
			s.pass(time.Minute)
			two(s)
		}},
		"none are allowed":                  {GateIgnored, "allow 0", under(`[{"nodes":"0"}]`, func(s *depot) { s.breaks("n1"); s.ends("n1", onPool) })},
		"the smallest of several":           {GateIgnored, "allow 1", under(`[{"nodes":"100%"},{"nodes":"1"}]`, two)},
		"one for this reason":               {GateIgnored, "allow 1", under(`[{"nodes":"1","reasons":["Empty","Unhealthy"]}]`, two)},
		"one whose window is open":          {GateIgnored, "allow 0", under(`[{"nodes":"0","schedule":"0 12 * * *","duration":"8h"}]`, two)},
		"one whose schedule cannot be read": {GateIgnored, "allow 0", under(`[{"nodes":"5","schedule":"@sometimes","duration":"8h","reasons":["Drifted"]}]`, two)},
		"one whose number cannot be read":   {GateIgnored, "allow 0", under(`[{"nodes":"many"}]`, two)},
		"one whose schedule never comes":    {GateIgnored, "allow 1", under(`[{"nodes":"1","schedule":"0 0 30 2 *","duration":"8h"}]`, two)},
		"while somebody else takes one away": {GateIgnored, "allow 1", under(`[{"nodes":"1"}]`, func(s *depot) {
			s.breaks("n1")
			s.deletes(admin, "n3")
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		})},
		"while Karpenter has chosen one": {GateIgnored, "allow 1", under(`[{"nodes":"1"}]`, func(s *depot) {
			s.breaks("n1")
			s.says("c-n3", "DisruptionReason=True")
			s.pass(2 * DefaultLag)
			s.ends("n1", onPool)
		})},
		"of which those never ready are no part": {GateIgnored, "2 of 5 nodes are taken out of service: the disruption budgets of the pool allow 1", under(`[{"nodes":"20%"}]`, func(s *depot) {
			s.begin("blue", "n6", "n7", "n8", "n9", "n10")
			two(s)
		})},
		"of all claims, for a node that never was ready": {GateIgnored, "allow 1", under(`[{"nodes":"1"}]`, func(s *depot) {
			s.begin("blue", "n6")
			s.pass(time.Hour)
			s.deletes(admin, "n1")
			s.pass(2 * DefaultLag)
			s.ends("n6", timedOut)
		})},
		"that was lowered between the mark and the deletion": {GateIgnored, "allow 0", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.pool("blue", budgets(`[{"nodes":"0"}]`))
			s.pass(2 * DefaultLag)
			s.deletes(us, "n1")
		}},
	})
}

func TestPlantedInOtherWritesToMachines(t *testing.T) {
	runPlanted(t, map[string]plantedRepair{
		"a claim made":                {ForeignTouched, "we created the claim", func(s *depot) { s.claim("blue", "c-x", "x"); s.made[len(s.made)-1].Author = us }},
		"a claim written for nothing": {DoneTwice, "changed nothing", func(s *depot) { s.alter(us, "c-n1", func(*unstructured.Unstructured) {}) }},
		"a label on a claim": {ForeignTouched, "the labels of the claim", func(s *depot) {
			s.alter(us, "c-n1", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{poolLabel: "blue", "x": "y"}) })
		}},
		"a deadline on a claim without a mark": {ForeignTouched, "the annotations of the claim", func(s *depot) {
			s.alter(us, "c-n1", annotated(map[string]string{deadlineAnnotation: s.now.Format(time.RFC3339)}))
		}},
		"a finalizer taken with the mark": {ForeignTouched, "the metadata of the claim", func(s *depot) {
			s.breaks("n1")
			s.entries = append(s.entries, grant{onPool, "n1", string(s.nodes["n1"].UID), s.versionOf("c-n1"), claimInLedger + "c-n1"})
			s.enter(s.entries...)
			s.alter(us, "c-n1", func(o *unstructured.Unstructured) {
				annotated(map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: s.now.Format(time.RFC3339)})(o)
				o.SetFinalizers(nil)
			})
		}},
		"a claim deleted twice": {DoneTwice, "again", func(s *depot) {
			s.breaks("n1")
			s.ends("n1", onPool)
			s.vanishes(us, "n1")
		}},
		"a claim deleted by nobody knows whom, though its node is well": {UnknownAuthor, "if it was us: we deleted the claim", func(s *depot) {
			s.breaks("n1")
			s.marks("n1", onPool, s.now)
			s.condition("n1", "Disk=False")
			s.pass(2 * DefaultLag)
			s.deletes(nobody, "n1")
		}},
		"a claim marked by nobody knows whom": {UnknownAuthor, "if it was us: we marked the claim", func(s *depot) { s.marksAs(nobody, "n1", onPool, s.now) }},
		"a pool made":                         {ForeignTouched, "we created the pool", func(s *depot) { s.write(us, s.pools, "NodePool", "red", `{}`) }},
		"a pool deleted":                      {ForeignTouched, "we deleted the pool", func(s *depot) { s.dropPool(us, "blue") }},
		"a block changed": {ForeignTouched, "the spec of the pool", func(s *depot) {
			s.write(us, s.pools, "NodePool", "blue", with2(badDisk, `"maxUnhealthy":2`))
		}},
		"a block put back that nobody asked for": {ForeignTouched, "the spec of the pool", func(s *depot) {
			s.pool("blue", `{}`)
			s.write(us, s.pools, "NodePool", "blue", `{"repair":{}}`)
		}},
		"a pool written for nothing": {DoneTwice, "changed nothing", func(s *depot) { s.write(us, s.pools, "NodePool", "blue", badDisk) }},
		"a policy made":              {ForeignTouched, "we created the policy", func(s *depot) { s.write(us, s.policies, policyKind, "p", `{"nodePool":"x","repair":{}}`) }},
		"a policy changed": {ForeignTouched, "the spec of the policy", func(s *depot) {
			s.policy("p", `{"nodePool":"x","repair":{}}`)
			s.write(us, s.policies, policyKind, "p", `{"nodePool":"y","repair":{}}`)
		}},
		"a policy deleted": {ForeignTouched, "we deleted the policy", func(s *depot) {
			s.policy("p", `{"nodePool":"x","repair":{}}`)
			s.dropPolicy(us, "p")
		}},
		"a policy written for nothing": {DoneTwice, "changed nothing", func(s *depot) {
			s.policy("p", `{"nodePool":"x","repair":{}}`)
			s.record(watch.Modified, PoliciesResource, us, s.policies["p"])
		}},
	})
}
