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

// plantedRepair is a recording with exactly one violation.
type plantedRepair struct {
	kind Kind
	text string // part of the violation's text
	tell func(s *repairStory)
}

func (p plantedRepair) run(t *testing.T, cfg Config) {
	t.Helper()
	p.runIn(t, fiveClaims(t), cfg)
}

func (p plantedRepair) runIn(t *testing.T, s *repairStory, cfg Config) {
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
	later := func(s *repairStory, d time.Duration) time.Time { return s.now.Add(d) }
	runPlanted(t, map[string]plantedRepair{
		"deleted without a mark": {Unrecorded, "no mark of ours", func(s *repairStory) {
			s.breakDisks("n1")
			s.deletes(us, "n1")
		}},
		"deleted at once, without a finalizer and without a mark": {Unrecorded, "no mark of ours", func(s *repairStory) {
			s.breakDisks("n1")
			s.deleteAtOnce(us, "n1")
		}},
		"deleted with another writer's mark": {Unrecorded, "no mark of ours", func(s *repairStory) {
			s.breakDisks("n1")
			s.marksAs(admin, "n1", onPool, s.now)
			s.deletes(us, "n1")
		}},
		"with a mark that cannot be read": {Malformed, "cannot be read", func(s *repairStory) {
			s.breakDisks("n1")
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: "{"}))
			s.deletes(us, "n1")
		}},
		"for a node that never existed": {Malformed, "does not exist", func(s *repairStory) {
			s.breakDisks("n1")
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: s.markFor("n9", onPool), deadlineAnnotation: "2026-03-01T12:00:00Z"}))
		}},
		"for the node of another claim": {Malformed, "another provider ID", func(s *repairStory) {
			s.breakDisks("n1")
			s.changeClaim(us, "c-n2", annotated(map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: "2026-03-01T12:00:00Z"}))
		}},
		"over another mark": {Malformed, "another mark", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: s.markFor("n1", "Repair/other")}))
		}},
		"that the ledger does not name": {Unrecorded, "the ledger does not name it", func(s *repairStory) {
			s.skipsLedger = true
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"that the ledger names for another version of the claim": {Unrecorded, "the ledger does not name it", func(s *repairStory) {
			s.breakDisks("n1")
			s.enter(grant{onPool, "n1", string(s.nodes["n1"].UID), "1", claimInLedger + "c-n1"})
			s.skipsLedger = true
			s.marksAndDeletes("n1", onPool)
		}},
		"by force and without a deadline": {Malformed, "the policy wants one", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool)
		}},
		"by force and with a deadline to come": {Malformed, "the policy wants it at", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, later(s, time.Minute))
		}},
		"with a deadline where the policy wants none": {Malformed, "sets none", func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"termination":"Graceful"`))
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
		}},
		"with a deadline that is later than the period": {Malformed, "the policy wants it at", func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
			s.breakDisks("n1")
			s.marks("n1", onPool, later(s, 6*time.Minute))
		}},
		"with a deadline before the period is over": {Malformed, "not before", func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
			s.breakDisks("n1")
			s.marks("n1", onPool, later(s, 4*time.Minute))
		}},
		"without a deadline although there is a period": {Malformed, "wants one", func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"termination":"Graceful","terminationGracePeriod":"5m"`))
			s.breakDisks("n1")
			s.marks("n1", onPool)
		}},
		"removed without the deadline": {Malformed, "left the deadline", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: ""}))
		}},
		"removed with a deadline that existed before": {Malformed, "left the deadline", func(s *repairStory) {
			s.changeClaim(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2030-01-01T00:00:00Z"}))
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.unmarks("n1")
		}},
		"removed with a deadline that another writer has set since": {Malformed, "left the deadline", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.changeClaim(admin, "c-n1", annotated(map[string]string{deadlineAnnotation: "2020-01-01T00:00:00Z"}))
			s.unmarks("n1")
		}},
		"removed from a claim that is being deleted": {Unjustified, "is being deleted", func(s *repairStory) {
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
			s.unmarks("n1")
		}},
		"removed although it was not ours": {ForeignTouched, "not ours", func(s *repairStory) {
			s.marksAs(admin, "n1", onPool)
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: ""}))
		}},
		"left on a claim": {WrongEnd, "has a mark, and is not being deleted", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.pass(time.Minute)
		}},
		"left on a claim whose node is deleted": {WrongEnd, "has a mark, and is not being deleted", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.deleteNode(admin, "n1")
		}},
	})
}

// withRepair adds fields to the repair block of a pool.
func withRepair(spec, fields string) string {
	return strings.Replace(spec, `{"repair":{`, `{"repair":{`+fields+`,`, 1)
}

func TestPlantedInCauses(t *testing.T) {
	const disk = `"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"1m"}]`
	runPlanted(t, map[string]plantedRepair{
		"a healthy node": {Unjustified, "no unhealthy condition", func(s *repairStory) { s.marksAndDeletes("n1", onPool) }},
		"before its toleration has passed": {TooSoon, "tolerated until 13:01", func(s *repairStory) {
			s.condition("n1", "Disk=True")
			s.pass(50 * time.Second)
			s.marksAndDeletes("n1", onPool)
		}},
		"a clock that a recovery stopped": {TooSoon, "tolerated until", func(s *repairStory) {
			s.condition("n1", "Disk=True")
			s.pass(40 * time.Second)
			s.condition("n1", "Disk=False")
			s.pass(10 * time.Second)
			s.condition("n1", "Disk=True")
			s.pass(40 * time.Second)
			s.marksAndDeletes("n1", onPool)
		}},
		"before the pool's default has passed": {TooSoon, "tolerated until", func(s *repairStory) {
			s.pool("blue", `{"repair":{"defaultTolerationDuration":"20m"}}`)
			s.condition("n1", "Ready=False")
			s.pass(15 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		}},
		"before the recommended time has passed": {TooSoon, "tolerated until", func(s *repairStory) {
			s.condition("n1", "Ready=Unknown")
			s.pass(29 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		}},
		"before the toleration of a reason has passed": {TooSoon, "tolerated until", func(s *repairStory) {
			s.pool("blue", strings.Replace(badDisk, `"policies":[`, `"policies":[{"conditionType":"Disk","reason":"Slow","toleration":"9m"},`, 1))
			s.condition("n1", "Disk=True/Slow")
			s.pass(5 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		}},
		"before the toleration of a reason and a status has passed": {TooSoon, "tolerated until", func(s *repairStory) {
			s.pool("blue", strings.Replace(badDisk, `"policies":[`, `"policies":[{"conditionType":"Disk","conditionStatus":"True","reason":"Slow","toleration":"9m"},`, 1))
			s.condition("n1", "Disk=True/Slow")
			s.pass(5 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		}},
		"for a reason that the policy does not name": {Unjustified, "no unhealthy condition", func(s *repairStory) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","reason":"Slow","toleration":"1m"}]}}`)
			s.condition("n1", "Disk=True/Loud")
			s.pass(5 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		}},
		"a condition that no list names": {Unjustified, "no unhealthy condition", func(s *repairStory) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Disk","toleration":"1m"}]}}`)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"while a condition is Unknown": {Unjustified, "nothing may start", func(s *repairStory) {
			s.condition("n1", "Disk=Unknown")
			s.pass(5 * time.Minute)
			s.marksAndDeletes("n1", onPool)
		}},
		"healthy for longer than the lag": {Unjustified, "no unhealthy condition", func(s *repairStory) {
			s.breakDisks("n1")
			s.condition("n1", "Disk=False")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		}},
		"healthy again between the mark and the deletion": {Unjustified, "we deleted the claim, by Repair/NodePool/blue, but the node has no unhealthy condition", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.condition("n1", "Disk=False")
			s.pass(2 * DefaultLag)
			s.deletes(us, "n1")
		}},
		"switched off": {Unjustified, "switched off", func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"enabled":false`))
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"a pool without a block": {Unjustified, "no rule with that name", func(s *repairStory) {
			s.pool("blue", `{}`)
			s.condition("n1", "Ready=False")
			s.pass(time.Hour)
			s.marksAndDeletes("n1", onPool)
		}},
		"a deleted pool": {Unjustified, "no rule with that name", func(s *repairStory) {
			s.breakDisks("n1")
			s.deletePool(admin, "blue")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		}},
		"by a policy that is not in force, because the pool has a block": {Unjustified, "no rule with that name", func(s *repairStory) {
			s.policy("all", `{"selector":{},"repair":{`+disk+`}}`)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", "Repair/RepairPolicy/all/blue")
		}},
		"by the younger of two policies": {Unjustified, "no rule with that name", func(s *repairStory) {
			s.pool("blue", `{}`)
			s.policy("b", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.pass(time.Minute)
			s.policy("a", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", "Repair/RepairPolicy/a")
		}},
		"by a policy that selects the node, where another policy names the pool": {Unjustified, "no rule with that name", func(s *repairStory) {
			s.pool("blue", `{}`)
			s.policy("old", `{"selector":{"matchLabels":{"pool":"web"}},"repair":{`+disk+`}}`)
			s.pass(time.Minute)
			s.policy("new", `{"nodePool":"blue","repair":{`+disk+`}}`)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", "Repair/RepairPolicy/old/blue")
		}},
		"for an invalid version of the block": {TooSoon, "tolerated until", func(s *repairStory) {
			s.pool("blue", `{"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"soon"}],"defaultTolerationDuration":"1s"}}`)
			s.condition("n1", "Disk=True")
			s.pass(30 * time.Second)
			s.marksAndDeletes("n1", onPool)
		}},

		"with a veto on the node": {Unjustified, "the node is annotated", func(s *repairStory) {
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[theirVeto] = "true" })
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"with a veto of ours on the claim": {Unjustified, "NodeClaim c-n1 is annotated", func(s *repairStory) {
			s.changeClaim(admin, "c-n1", annotated(map[string]string{ourVeto: "please"}))
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"with a veto on the pool": {Unjustified, "its NodePool is annotated", func(s *repairStory) {
			s.pools["blue"].SetAnnotations(map[string]string{ourVeto: "true"})
			s.pool("blue", badDisk)
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"with a veto that came after the mark": {Unjustified, "the node is annotated", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations[theirVeto] = "true" })
			s.pass(2 * DefaultLag)
			s.deletes(us, "n1")
		}},
		"with another holder's Lease on the node": {Unjustified, `held by "maintenance"`, func(s *repairStory) {
			s.breakDisks("n1")
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		}},
		"a claim that is being deleted": {Unjustified, "is being deleted", func(s *repairStory) {
			s.breakDisks("n1")
			s.deletes(admin, "n1")
			s.pass(2 * DefaultLag)
			s.marks("n1", onPool, s.now)
		}},
		"a claim that Karpenter has chosen": {Unjustified, "chosen by Karpenter: Drifted", func(s *repairStory) {
			s.breakDisks("n1")
			s.setClaimCondition("c-n1", "DisruptionReason=True")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		}},
		"one of two claims with one provider ID": {Unjustified, "have one provider ID", func(s *repairStory) {
			s.claim("blue", "c-twin", "n1")
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"a node that is being deleted": {Unjustified, "the node is being deleted", func(s *repairStory) {
			s.breakDisks("n1")
			s.edit(admin, "n1", func(n *corev1.Node) {
				n.Finalizers = []string{"x"}
				n.DeletionTimestamp = new(metav1.NewTime(s.now))
			})
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		}},
		"a node that was deleted long ago": {Unjustified, "the node is gone", func(s *repairStory) {
			s.breakDisks("n1")
			mark := s.markFor("n1", onPool)
			s.deleteNode(admin, "n1")
			s.pass(2 * DefaultLag)
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: mark, deadlineAnnotation: s.now.Format(time.RFC3339)}))
		}},
		"a node that a health check treats": {TreatedTwice, "while the node is under treatment by RebootRemediation", func(s *repairStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Disk","status":"True","duration":"0s"}]}`)
			s.breakDisks("n1")
			s.remediate("n1", "workers", "Reboot")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		}},
	})
}

func TestPlantedInTimeouts(t *testing.T) {
	runPlanted(t, map[string]plantedRepair{
		"before the timeout has passed": {TooSoon, "may become ready until", func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.pass(9 * time.Minute)
			s.marksAndDeletes("n6", timedOut)
		}},
		"before the timeout of the pool has passed": {TooSoon, "may become ready until", func(s *repairStory) {
			s.pool("blue", withRepair(badDisk, `"readyTimeout":"30m"`))
			s.startingNodes("blue", "n6")
			s.pass(20 * time.Minute)
			s.marksAndDeletes("n6", timedOut)
		}},
		"a node that is ready for work": {Unjustified, "is ready for work", func(s *repairStory) { s.marksAndDeletes("n1", timedOut) }},
		"a node that Karpenter says was ready once": {Unjustified, "was ready for work once", func(s *repairStory) {
			s.condition("n1", "Ready=False")
			s.pass(time.Hour)
			s.marksAndDeletes("n1", timedOut)
		}},
		"a node that was ready for a while, whatever Karpenter says": {Unjustified, "was ready for work once", func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.condition("n6", "Ready=True")
			s.edit(admin, "n6", func(n *corev1.Node) { n.Spec.Taints = nil })
			s.pass(2 * DefaultLag)
			s.condition("n6", "Ready=False")
			s.pass(time.Hour)
			s.marksAndDeletes("n6", timedOut)
		}},
		"with a veto": {Unjustified, "annotated", func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.changeClaim(admin, "c-n6", annotated(map[string]string{theirVeto: "true"}))
			s.pass(time.Hour)
			s.marksAndDeletes("n6", timedOut)
		}},
		"a fourth node in a row": {TooSoon, "3 nodes of the pool in a row", func(s *repairStory) {
			for _, name := range []string{"n6", "n7", "n8", "n9"} {
				s.startingNodes("blue", name)
				s.pass(9 * time.Minute)
			}
			s.pass(9 * time.Minute) // the last node has only had its time
			for _, name := range []string{"n6", "n7", "n8", "n9"} {
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
				s.startingNodes("blue", "new-"+name)
				s.condition("new-"+name, "Ready=True") // but it keeps its taint
			}
		}},
		"a fourth node in a row from a new template": {TooSoon, "3 nodes of the pool in a row", func(s *repairStory) {
			s.changeTemplate("blue", "1")
			s.startingNodes("blue", "n6")
			s.changeTemplate("blue", "2")
			s.startingNodes("blue", "n7", "n8", "n9", "n10")
			s.pass(time.Hour)
			for _, name := range []string{"n6", "n7", "n8", "n9", "n10"} { // the first is from the old template
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
				s.startingNodes("blue", "new-"+name)
				s.condition("new-"+name, "Ready=True") // but it keeps its taint
			}
		}},
		"a node from an old template while the pool is paused for the new template": {TooSoon, "3 nodes of the pool in a row", func(s *repairStory) {
			s.changeTemplate("blue", "1")
			s.startingNodes("blue", "n6", "n7")
			s.changeTemplate("blue", "2")
			s.startingNodes("blue", "n8", "n9", "n10")
			s.pass(time.Hour)
			for _, name := range []string{"n8", "n9", "n10"} {
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
				s.startingNodes("blue", "new-"+name)
				s.condition("new-"+name, "Ready=True")
			}
			s.edit(karpenter, "n6", func(n *corev1.Node) { n.Spec.Taints = nil })
			s.condition("n6", "Ready=True") // a node of the old template does not end the pause
			s.pass(time.Minute)
			s.marksAndDeletes("n7", timedOut)
		}},
		"a fifth node in a row, too soon after the fourth": {TooSoon, "4 nodes of the pool in a row", func(s *repairStory) {
			names := []string{"n6", "n7", "n8", "n9", "n10"}
			s.startingNodes("blue", names...)
			s.pass(time.Hour)
			for i, name := range names {
				s.marksAndDeletes(name, timedOut)
				s.finishDeletion(name)
				s.startingNodes("blue", "new-"+name)
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
		plantedRepair{Unjustified, "no rule with that name", func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.pass(time.Hour)
			s.marksAndDeletes("n6", timedOut)
		}}.run(t, cfg)
	})
}

func TestPlantedInBounds(t *testing.T) {
	unbudgeted := strings.Replace(badDisk, `"50%"`, `"100%"`, 1)
	runPlanted(t, map[string]plantedRepair{
		"one node more than the default percentage": {CapExceeded, "2 nodes of the pool are in repair: at most 1", func(s *repairStory) {
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.marksAndDeletes("n2", onPool)
		}},
		"one more than the number": {CapExceeded, "3 nodes of the pool are in repair: at most 2", func(s *repairStory) {
			s.pool("blue", withRepair(unbudgeted, `"maxUnhealthy":2`))
			s.breakDisks("n1", "n2", "n3")
			s.marksAndDeletes("n1", onPool)
			s.marksAndDeletes("n2", onPool)
			s.marksAndDeletes("n3", onPool)
		}},
		"with none allowed": {CapExceeded, "at most 0", func(s *repairStory) {
			s.pool("blue", withRepair(unbudgeted, `"maxUnhealthy":0`))
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
		}},
		"a percentage that is rounded down": {CapExceeded, "at most 1", func(s *repairStory) {
			s.pool("blue", withRepair(unbudgeted, `"maxUnhealthy":"39%"`))
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.marksAndDeletes("n2", onPool)
		}},
		"while a node is only marked": {CapExceeded, "at most 1", func(s *repairStory) {
			s.breakDisks("n1", "n2")
			s.marks("n1", onPool, s.now)
			s.marks("n2", onPool, s.now)
		}},
		"while a deleted node is not replaced": {CapExceeded, "at most 1", func(s *repairStory) {
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.finishDeletion("n1")
			s.pass(14 * time.Minute)
			s.marksAndDeletes("n2", onPool)
		}},
		"while the replacement is not ready": {CapExceeded, "at most 1", func(s *repairStory) {
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.finishDeletion("n1")
			s.startingNodes("blue", "n6")
			s.pass(time.Minute)
			s.marksAndDeletes("n2", onPool)
		}},
		"where one node replaces two": {CapExceeded, "2 nodes of the pool are in repair: at most 1", func(s *repairStory) {
			s.pool("blue", withRepair(unbudgeted, `"maxUnhealthy":2`))
			s.breakDisks("n1", "n2", "n3")
			s.marksAndDeletes("n1", onPool)
			s.marksAndDeletes("n2", onPool)
			s.finishDeletion("n1")
			s.finishDeletion("n2")
			s.readyNodes("blue", "n6")
			s.pool("blue", withRepair(unbudgeted, `"maxUnhealthy":1`))
			s.pass(time.Minute)
			s.marksAndDeletes("n3", onPool)
		}},
		"where replacements already exist": {CapExceeded, "4 nodes of the pool are in repair: at most 3", func(s *repairStory) {
			s.pool("blue", withRepair(unbudgeted, `"maxUnhealthy":"60%"`))
			s.breakDisks("n1", "n2", "n3", "n4")
			s.marksAndDeletes("n1", onPool)
			s.marksAndDeletes("n2", onPool)
			s.marksAndDeletes("n3", onPool)
			s.pass(time.Minute)
			s.readyNodes("blue", "n6")
			s.readyNodes("blue", "n7")
			s.pass(time.Minute)
			s.marksAndDeletes("n4", onPool)
		}},
		"where the new node is of another pool": {CapExceeded, "at most 1", func(s *repairStory) {
			s.pool("red", badDisk)
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.finishDeletion("n1")
			s.readyNodes("red", "r1")
			s.pass(time.Minute)
			s.marksAndDeletes("n2", onPool)
		}},
		"where the ready node is older": {CapExceeded, "at most 1", func(s *repairStory) {
			s.condition("n3", "Ready=False")
			s.breakDisks("n1", "n2")
			s.marksAndDeletes("n1", onPool)
			s.finishDeletion("n1")
			s.condition("n3", "Ready=True")
			s.pass(time.Minute)
			s.marksAndDeletes("n2", onPool)
		}},
		"together with a timeout": {CapExceeded, "2 nodes of the pool are in repair: at most 1", func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.pass(time.Hour)
			s.breakDisks("n1")
			s.marksAndDeletes("n6", timedOut)
			s.marksAndDeletes("n1", onPool)
		}},
	})
}

func TestPlantedInBudgets(t *testing.T) {
	budgets := func(rows string) string {
		return strings.Replace(withRepair(badDisk, `"maxUnhealthy":"100%"`), `[{"nodes":"50%"}]`, rows, 1)
	}
	two := func(s *repairStory) {
		s.breakDisks("n1", "n2")
		s.marksAndDeletes("n1", onPool)
		s.marksAndDeletes("n2", onPool)
	}
	under := func(rows string, tell func(s *repairStory)) func(s *repairStory) {
		return func(s *repairStory) {
			s.pool("blue", budgets(rows))
			s.pass(2 * DefaultLag)
			tell(s)
		}
	}
	runPlanted(t, map[string]plantedRepair{
		"one more than a number":     {GateIgnored, "2 of 5 nodes are taken out of service: the disruption budgets of the pool allow 1", under(`[{"nodes":"1"}]`, two)},
		"one more than a percentage": {GateIgnored, "allow 1", under(`[{"nodes":"20%"}]`, two)},
		"one more than the default": {GateIgnored, "allow 1", func(s *repairStory) {
			s.pool("blue", strings.Replace(budgets(`[]`), `"budgets":[]`, ``, 1))
			s.pass(time.Minute)
			two(s)
		}},
		"none are allowed":                  {GateIgnored, "allow 0", under(`[{"nodes":"0"}]`, func(s *repairStory) { s.breakDisks("n1"); s.marksAndDeletes("n1", onPool) })},
		"the smallest of several":           {GateIgnored, "allow 1", under(`[{"nodes":"100%"},{"nodes":"1"}]`, two)},
		"one for this reason":               {GateIgnored, "allow 1", under(`[{"nodes":"1","reasons":["Empty","Unhealthy"]}]`, two)},
		"one whose window is open":          {GateIgnored, "allow 0", under(`[{"nodes":"0","schedule":"0 12 * * *","duration":"8h"}]`, two)},
		"one whose schedule cannot be read": {GateIgnored, "allow 0", under(`[{"nodes":"5","schedule":"@sometimes","duration":"8h","reasons":["Drifted"]}]`, two)},
		"one whose number cannot be read":   {GateIgnored, "allow 0", under(`[{"nodes":"many"}]`, two)},
		"one whose schedule never comes":    {GateIgnored, "allow 1", under(`[{"nodes":"1","schedule":"0 0 30 2 *","duration":"8h"}]`, two)},
		"while another client removes a node": {GateIgnored, "allow 1", under(`[{"nodes":"1"}]`, func(s *repairStory) {
			s.breakDisks("n1")
			s.deletes(admin, "n3")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		})},
		"while Karpenter has chosen a node": {GateIgnored, "allow 1", under(`[{"nodes":"1"}]`, func(s *repairStory) {
			s.breakDisks("n1")
			s.setClaimCondition("c-n3", "DisruptionReason=True")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n1", onPool)
		})},
		"which do not count nodes that were never ready": {GateIgnored, "2 of 5 nodes are taken out of service: the disruption budgets of the pool allow 1", under(`[{"nodes":"20%"}]`, func(s *repairStory) {
			s.startingNodes("blue", "n6", "n7", "n8", "n9", "n10")
			two(s)
		})},
		"of all claims, for a node that never was ready": {GateIgnored, "allow 1", under(`[{"nodes":"1"}]`, func(s *repairStory) {
			s.startingNodes("blue", "n6")
			s.pass(time.Hour)
			s.deletes(admin, "n1")
			s.pass(2 * DefaultLag)
			s.marksAndDeletes("n6", timedOut)
		})},
		"that was lowered between the mark and the deletion": {GateIgnored, "allow 0", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.pool("blue", budgets(`[{"nodes":"0"}]`))
			s.pass(2 * DefaultLag)
			s.deletes(us, "n1")
		}},
	})
}

func TestPlantedInOtherWritesToClaims(t *testing.T) {
	runPlanted(t, map[string]plantedRepair{
		"a claim made":                     {ForeignTouched, "we created the claim", func(s *repairStory) { s.claim("blue", "c-x", "x"); s.made[len(s.made)-1].Author = us }},
		"a claim written without a change": {DoneTwice, "changed nothing", func(s *repairStory) { s.changeClaim(us, "c-n1", func(*unstructured.Unstructured) {}) }},
		"a label on a claim": {ForeignTouched, "the labels of the claim", func(s *repairStory) {
			s.changeClaim(us, "c-n1", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{poolLabel: "blue", "x": "y"}) })
		}},
		"a deadline on a claim without a mark": {ForeignTouched, "the annotations of the claim", func(s *repairStory) {
			s.changeClaim(us, "c-n1", annotated(map[string]string{deadlineAnnotation: s.now.Format(time.RFC3339)}))
		}},
		"a finalizer removed with the mark": {ForeignTouched, "the metadata of the claim", func(s *repairStory) {
			s.breakDisks("n1")
			s.entries = append(s.entries, grant{onPool, "n1", string(s.nodes["n1"].UID), s.versionOf("c-n1"), claimInLedger + "c-n1"})
			s.enter(s.entries...)
			s.changeClaim(us, "c-n1", func(o *unstructured.Unstructured) {
				annotated(map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: s.now.Format(time.RFC3339)})(o)
				o.SetFinalizers(nil)
			})
		}},
		"a claim deleted twice": {DoneTwice, "again", func(s *repairStory) {
			s.breakDisks("n1")
			s.marksAndDeletes("n1", onPool)
			s.deleteAtOnce(us, "n1")
		}},
		"a claim deleted by an unknown author, although its node is healthy": {UnknownAuthor, "if it was us: we deleted the claim", func(s *repairStory) {
			s.breakDisks("n1")
			s.marks("n1", onPool, s.now)
			s.condition("n1", "Disk=False")
			s.pass(2 * DefaultLag)
			s.deletes(unknownAuthor, "n1")
		}},
		"a claim marked by an unknown author": {UnknownAuthor, "if it was us: we marked the claim", func(s *repairStory) { s.marksAs(unknownAuthor, "n1", onPool, s.now) }},
		"a pool made":                         {ForeignTouched, "we created the pool", func(s *repairStory) { s.write(us, s.pools, "NodePool", "red", `{}`) }},
		"a pool deleted":                      {ForeignTouched, "we deleted the pool", func(s *repairStory) { s.deletePool(us, "blue") }},
		"a block changed": {ForeignTouched, "the spec of the pool", func(s *repairStory) {
			s.write(us, s.pools, "NodePool", "blue", withRepair(badDisk, `"maxUnhealthy":2`))
		}},
		"a block restored without being configured": {ForeignTouched, "the spec of the pool", func(s *repairStory) {
			s.pool("blue", `{}`)
			s.write(us, s.pools, "NodePool", "blue", `{"repair":{}}`)
		}},
		"a pool written without a change": {DoneTwice, "changed nothing", func(s *repairStory) { s.write(us, s.pools, "NodePool", "blue", badDisk) }},
		"a policy made":                   {ForeignTouched, "we created the policy", func(s *repairStory) { s.write(us, s.policies, policyKind, "p", `{"nodePool":"x","repair":{}}`) }},
		"a policy changed": {ForeignTouched, "the spec of the policy", func(s *repairStory) {
			s.policy("p", `{"nodePool":"x","repair":{}}`)
			s.write(us, s.policies, policyKind, "p", `{"nodePool":"y","repair":{}}`)
		}},
		"a policy deleted": {ForeignTouched, "we deleted the policy", func(s *repairStory) {
			s.policy("p", `{"nodePool":"x","repair":{}}`)
			s.deletePolicy(us, "p")
		}},
		"a policy written without a change": {DoneTwice, "changed nothing", func(s *repairStory) {
			s.policy("p", `{"nodePool":"x","repair":{}}`)
			s.record(watch.Modified, PoliciesResource, us, s.policies["p"])
		}},
	})
}
