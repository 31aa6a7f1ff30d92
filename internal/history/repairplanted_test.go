package history

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestPlantedInMarks(t *testing.T) {
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"deleted without a mark":                                  caught(Unrecorded, "no mark of ours", `breakDisks n1; deleteClaim us n1`),
		"deleted at once, without a finalizer and without a mark": caught(Unrecorded, "no mark of ours", `breakDisks n1; deleteAtOnce us n1`),
		"deleted with another writer's mark":                      caught(Unrecorded, "no mark of ours", `breakDisks n1; marksAs admin n1 $onPool now; deleteClaim us n1`),
		"with a mark that cannot be read":                         caught(Malformed, "cannot be read", `breakDisks n1; annotateClaim us c-n1 $mark={; deleteClaim us n1`),
		"for a node that never existed": caught(Malformed, "does not exist", `breakDisks n1`, func(s *story) {
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: s.markFor("n9", onPool), deadlineAnnotation: "2026-03-01T12:00:00Z"}))
		}),
		"for the node of another claim": caught(Malformed, "another provider ID", `breakDisks n1`, func(s *story) {
			s.changeClaim(us, "c-n2", annotated(map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: "2026-03-01T12:00:00Z"}))
		}),
		"over another mark": caught(Malformed, "another mark", `breakDisks n1; marks n1 $onPool now`, func(s *story) {
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: s.markFor("n1", "Repair/other")}))
		}),
		"that the ledger does not name": caught(Unrecorded, "the ledger does not name it", `skipLedger; breakDisks n1; marksAndDeletes n1 $onPool`),
		"that the ledger names for another version of the claim": caught(Unrecorded, "the ledger does not name it", `breakDisks n1`, func(s *story) {
			s.enter(grant{onPool, "n1", string(s.nodes["n1"].UID), "1", claimInLedger + "c-n1"})
		}, `skipLedger; marksAndDeletes n1 $onPool`),
		"by force and without a deadline":                           caught(Malformed, "the policy wants one", `breakDisks n1; marks n1 $onPool`),
		"by force and with a deadline to come":                      caught(Malformed, "the policy wants it at", `breakDisks n1; marks n1 $onPool now+1m`),
		"with a deadline where the policy wants none":               caught(Malformed, "sets none", `pool blue $badDisk~"termination":"Graceful"; breakDisks n1; marks n1 $onPool now`),
		"with a deadline that is later than the period":             caught(Malformed, "the policy wants it at", `pool blue $badDisk~"termination":"Graceful","terminationGracePeriod":"5m"; breakDisks n1; marks n1 $onPool now+6m`),
		"with a deadline before the period is over":                 caught(Malformed, "not before", `pool blue $badDisk~"termination":"Graceful","terminationGracePeriod":"5m"; breakDisks n1; marks n1 $onPool now+4m`),
		"without a deadline although there is a period":             caught(Malformed, "wants one", `pool blue $badDisk~"termination":"Graceful","terminationGracePeriod":"5m"; breakDisks n1; marks n1 $onPool`),
		"a drain that is ended although the policy is graceful":     caught(Malformed, "sets none", `pool blue $badDisk~"termination":"Graceful"; breakDisks n1; marks n1 $onPool; deleteClaim us n1; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"a drain of an admin that is ended too early":               caught(TooSoon, "tolerated until", `condition n1 Disk=True; deleteClaim admin n1; pass 30s; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"a drain of an admin that is ended on a healthy node":       caught(Unjustified, "no unhealthy condition", `deleteClaim admin n1; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"a drain of an admin that is ended in spite of a veto":      caught(Unjustified, "the node is annotated", `annotateNode admin n1 $ourVeto=true; breakDisks n1; deleteClaim admin n1; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"a drain of an admin that a graceful policy ended":          caught(Malformed, "sets none", `pool blue $badDisk~"termination":"Graceful"; breakDisks n1; deleteClaim admin n1; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"two drains of an admin that are ended at once":             caught(CapExceeded, "2 nodes of the pool are in repair: at most 1", `breakDisks n1 n2; deleteClaim admin n1; deleteClaim admin n2; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z; annotateClaim us c-n2 $deadline=2026-03-01T12:00:00Z`),
		"a drain of an admin that is ended beside a repair":         caught(CapExceeded, "2 nodes of the pool are in repair: at most 1", `pool blue $unbudgeted; breakDisks n1 n2; deleteClaim admin n1; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z; marksAndDeletes n2 $onPool`),
		"a deadline on a claim that is not being deleted":           caught(ForeignTouched, "we changed the annotations", `breakDisks n1; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"removed without the deadline":                              caught(Malformed, "left the deadline", `breakDisks n1; marks n1 $onPool now; annotateClaim us c-n1 $mark=`),
		"removed with a deadline that existed before":               caught(Malformed, "left the deadline", `annotateClaim admin c-n1 $deadline=2030-01-01T00:00:00Z; breakDisks n1; marks n1 $onPool now; unmarks n1`),
		"removed with a deadline that another writer has set since": caught(Malformed, "left the deadline", `breakDisks n1; marks n1 $onPool now; annotateClaim admin c-n1 $deadline=2020-01-01T00:00:00Z; unmarks n1`),
		"removed from a claim that is being deleted":                caught(Unjustified, "is being deleted", `breakDisks n1; marksAndDeletes n1 $onPool; unmarks n1`),
		"removed although it was not ours":                          caught(ForeignTouched, "not ours", `marksAs admin n1 $onPool; annotateClaim us c-n1 $mark=`),
		"left on a claim":                                           caught(WrongEnd, "has a mark, and is not being deleted", `breakDisks n1; marks n1 $onPool now; pass 1m`),
		"left on a claim whose node is deleted":                     caught(WrongEnd, "has a mark, and is not being deleted", `breakDisks n1; marks n1 $onPool now; deleteNode admin n1`),
	})
}

func TestPlantedInCauses(t *testing.T) {
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"a healthy node":                                                         caught(Unjustified, "no unhealthy condition", `marksAndDeletes n1 $onPool`),
		"outside the windows":                                                    caught(Unjustified, "windows of the policy are closed", `pool blue $badDisk~"windows":[{"schedule":"@daily","duration":"4h"}]; breakDisks n1; marksAndDeletes n1 $onPool`),
		"before its toleration has passed":                                       caught(TooSoon, "tolerated until 13:01", `condition n1 Disk=True; pass 50s; marksAndDeletes n1 $onPool`),
		"a clock that a recovery stopped":                                        caught(TooSoon, "tolerated until", `condition n1 Disk=True; pass 40s; condition n1 Disk=False; pass 10s; condition n1 Disk=True; pass 40s; marksAndDeletes n1 $onPool`),
		"before the pool's default has passed":                                   caught(TooSoon, "tolerated until", `pool blue {"repair":{"defaultTolerationDuration":"20m"}}; condition n1 Ready=False; pass 15m; marksAndDeletes n1 $onPool`),
		"before the recommended time has passed":                                 caught(TooSoon, "tolerated until", `condition n1 Ready=Unknown; pass 29m; marksAndDeletes n1 $onPool`),
		"before the toleration of a reason has passed":                           caught(TooSoon, "tolerated until", `pool blue $badDisk^"policies":[^"policies":[{"conditionType":"Disk","reason":"Slow","toleration":"9m"},; condition n1 Disk=True/Slow; pass 5m; marksAndDeletes n1 $onPool`),
		"before the toleration of a reason and a status has passed":              caught(TooSoon, "tolerated until", `pool blue $badDisk^"policies":[^"policies":[{"conditionType":"Disk","conditionStatus":"True","reason":"Slow","toleration":"9m"},; condition n1 Disk=True/Slow; pass 5m; marksAndDeletes n1 $onPool`),
		"for a reason that the policy does not name":                             caught(Unjustified, "no unhealthy condition", `pool blue {"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","reason":"Slow","toleration":"1m"}]}}; condition n1 Disk=True/Loud; pass 5m; marksAndDeletes n1 $onPool`),
		"a condition that no list names":                                         caught(Unjustified, "no unhealthy condition", `pool blue {"repair":{"policies":[{"conditionType":"Disk","toleration":"1m"}]}}; breakDisks n1; marksAndDeletes n1 $onPool`),
		"while a condition is Unknown":                                           caught(Unjustified, "nothing may start", `condition n1 Disk=Unknown; pass 5m; marksAndDeletes n1 $onPool`),
		"healthy for longer than the lag":                                        caught(Unjustified, "no unhealthy condition", `breakDisks n1; condition n1 Disk=False; pass 2s; marksAndDeletes n1 $onPool`),
		"healthy again between the mark and the deletion":                        caught(Unjustified, "we deleted the claim, by Repair/NodePool/blue, but the node has no unhealthy condition", `breakDisks n1; marks n1 $onPool now; condition n1 Disk=False; pass 2s; deleteClaim us n1`),
		"switched off":                                                           caught(Unjustified, "switched off", `pool blue $badDisk~"enabled":false; breakDisks n1; marksAndDeletes n1 $onPool`),
		"a pool without a block":                                                 caught(Unjustified, "no rule with that name", `pool blue {}; condition n1 Ready=False; pass 1h; marksAndDeletes n1 $onPool`),
		"a deleted pool":                                                         caught(Unjustified, "no rule with that name", `breakDisks n1; deletePool admin blue; pass 2s; marksAndDeletes n1 $onPool`),
		"by a policy that is not in force, because the pool has a block":         caught(Unjustified, "no rule with that name", `policy all {"selector":{},"repair":{$disk}}; breakDisks n1; marksAndDeletes n1 Repair/RepairPolicy/all/blue`),
		"by the younger of two policies":                                         caught(Unjustified, "no rule with that name", `pool blue {}; policy b {"nodePool":"blue","repair":{$disk}}; pass 1m; policy a {"nodePool":"blue","repair":{$disk}}; breakDisks n1; marksAndDeletes n1 Repair/RepairPolicy/a`),
		"by a policy that selects the node, where another policy names the pool": caught(Unjustified, "no rule with that name", `pool blue {}; policy old {"selector":{"matchLabels":{"pool":"web"}},"repair":{$disk}}; pass 1m; policy new {"nodePool":"blue","repair":{$disk}}; breakDisks n1; marksAndDeletes n1 Repair/RepairPolicy/old/blue`),
		"for an invalid version of the block":                                    caught(TooSoon, "tolerated until", `pool blue {"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"soon"}],"defaultTolerationDuration":"1s"}}; condition n1 Disk=True; pass 30s; marksAndDeletes n1 $onPool`),

		"with a veto on the node":                 caught(Unjustified, "the node is annotated", `annotateNode admin n1 $theirVeto=true; breakDisks n1; marksAndDeletes n1 $onPool`),
		"with a veto of ours on the claim":        caught(Unjustified, "NodeClaim c-n1 is annotated", `annotateClaim admin c-n1 $ourVeto=please; breakDisks n1; marksAndDeletes n1 $onPool`),
		"with a veto on the pool":                 caught(Unjustified, "its NodePool is annotated", `vetoPool blue; pool blue $badDisk; breakDisks n1; marksAndDeletes n1 $onPool`),
		"with a veto that came after the mark":    caught(Unjustified, "the node is annotated", `breakDisks n1; marks n1 $onPool now; annotateNode admin n1 $theirVeto=true; pass 2s; deleteClaim us n1`),
		"with another holder's Lease on the node": caught(Unjustified, `held by "maintenance"`, `breakDisks n1; lease admin $leases node-n1 maintenance; pass 2s; marksAndDeletes n1 $onPool`),
		"a claim that is being deleted":           caught(Unjustified, "is being deleted", `breakDisks n1; deleteClaim admin n1; pass 2s; marks n1 $onPool now`),
		"a claim that Karpenter has chosen":       caught(Unjustified, "chosen by Karpenter: Drifted", `breakDisks n1; setClaimCondition c-n1 DisruptionReason=True; pass 2s; marksAndDeletes n1 $onPool`),
		"one of two claims with one provider ID":  caught(Unjustified, "have one provider ID", `claim blue c-twin n1; breakDisks n1; marksAndDeletes n1 $onPool`),
		"a node that is being deleted": caught(Unjustified, "the node is being deleted", `breakDisks n1`, func(s *story) {
			s.edit(admin, "n1", func(n *corev1.Node) {
				n.Finalizers = []string{"x"}
				n.DeletionTimestamp = new(metav1.NewTime(s.now))
			})
		}, `pass 2s; marksAndDeletes n1 $onPool`),
		"a node that was deleted long ago": caught(Unjustified, "the node is gone", `breakDisks n1`, func(s *story) {
			mark := s.markFor("n1", onPool)
			s.deleteNode(admin, "n1")
			s.pass(2 * DefaultLag)
			s.changeClaim(us, "c-n1", annotated(map[string]string{markAnnotation: mark, deadlineAnnotation: s.now.Format(time.RFC3339)}))
		}),
		"a node that a health check treats": caught(TreatedTwice, "while the node is under treatment by RebootRemediation", `healthCheck workers {"remediationTemplate":$rebootRef,"unhealthyConditions":[{"type":"Disk","status":"True","duration":"0s"}]}; breakDisks n1; remediate n1 workers Reboot; pass 2s; marksAndDeletes n1 $onPool`),
	})
}

func TestPlantedInTimeouts(t *testing.T) {
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"before the timeout has passed":                              caught(TooSoon, "may become ready until", `startingNodes blue n6; pass 9m; marksAndDeletes n6 $timedOut`),
		"before the timeout of the pool has passed":                  caught(TooSoon, "may become ready until", `pool blue $badDisk~"readyTimeout":"30m"; startingNodes blue n6; pass 20m; marksAndDeletes n6 $timedOut`),
		"a node that is ready for work":                              caught(Unjustified, "is ready for work", `marksAndDeletes n1 $timedOut`),
		"a node that Karpenter says was ready once":                  caught(Unjustified, "was ready for work once", `condition n1 Ready=False; pass 1h; marksAndDeletes n1 $timedOut`),
		"a node that was ready for a while, whatever Karpenter says": caught(Unjustified, "was ready for work once", `startingNodes blue n6; condition n6 Ready=True; untaint admin n6; pass 2s; condition n6 Ready=False; pass 1h; marksAndDeletes n6 $timedOut`),
		"with a veto": caught(Unjustified, "annotated", `startingNodes blue n6; annotateClaim admin c-n6 $theirVeto=true; pass 1h; marksAndDeletes n6 $timedOut`),
		// The last node has only had its time; but it keeps its taint.
		"a fourth node in a row":                     caught(TooSoon, "3 nodes of the pool in a row", `startingNodes blue n6; pass 9m; startingNodes blue n7; pass 9m; startingNodes blue n8; pass 9m; startingNodes blue n9; pass 9m; pass 9m; replacedSlowly n6 n7 n8 n9`),
		"a fourth node in a row from a new template": caught(TooSoon, "3 nodes of the pool in a row", `changeTemplate blue 1; startingNodes blue n6; changeTemplate blue 2; startingNodes blue n7 n8 n9 n10; pass 1h; replacedSlowly n6 n7 n8 n9 n10`), // the first is from the old template; but it keeps its taint
		// A node of the old template does not end the pause.
		"a node from an old template while the pool is paused for the new template": caught(TooSoon, "3 nodes of the pool in a row", `changeTemplate blue 1; startingNodes blue n6 n7; changeTemplate blue 2; startingNodes blue n8 n9 n10; pass 1h; replacedSlowly n8 n9 n10; untaint karpenter n6; condition n6 Ready=True; pass 1m; marksAndDeletes n7 $timedOut`),
		"a fifth node in a row, too soon after the fourth":                          caught(TooSoon, "4 nodes of the pool in a row", `startingNodes blue n6 n7 n8 n9 n10; pass 1h; replacedSlowly n6 n7 n8; pass 11m; replacedSlowly n9; pass 11m; replacedSlowly n10`),
	})
	cfg := repairCfg
	cfg.Repairs.ReadyTimeout = 0
	judge(t, fiveClaims, cfg, map[string]tale{
		"while it is switched off": caught(Unjustified, "no rule with that name", `startingNodes blue n6; pass 1h; marksAndDeletes n6 $timedOut`),
	})
}

func TestPlantedInBounds(t *testing.T) {
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"one node more than the default percentage": caught(CapExceeded, "2 nodes of the pool are in repair: at most 1", `breakDisks n1 n2; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool`),
		"one more than the number":                  caught(CapExceeded, "3 nodes of the pool are in repair: at most 2", `pool blue $unbudgeted~"maxConcurrent":2; breakDisks n1 n2 n3; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool; marksAndDeletes n3 $onPool`),
		"with none allowed":                         caught(CapExceeded, "at most 0", `pool blue $unbudgeted~"maxConcurrent":0; breakDisks n1; marksAndDeletes n1 $onPool`),
		"a percentage that is rounded down":         caught(CapExceeded, "at most 1", `pool blue $unbudgeted~"maxConcurrent":"39%"; breakDisks n1 n2; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool`),
		"while a node is only marked":               caught(CapExceeded, "at most 1", `breakDisks n1 n2; marks n1 $onPool now; marks n2 $onPool now`),
		"while a deleted node is not replaced":      caught(CapExceeded, "at most 1", `breakDisks n1 n2; marksAndDeletes n1 $onPool; finishDeletion n1; pass 14m; marksAndDeletes n2 $onPool`),
		"while the replacement is not ready":        caught(CapExceeded, "at most 1", `breakDisks n1 n2; marksAndDeletes n1 $onPool; finishDeletion n1; startingNodes blue n6; pass 1m; marksAndDeletes n2 $onPool`),
		"where one node replaces two":               caught(CapExceeded, "2 nodes of the pool are in repair: at most 1", `pool blue $unbudgeted~"maxConcurrent":2; breakDisks n1 n2 n3; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool; finishDeletion n1; finishDeletion n2; readyNodes blue n6; pool blue $unbudgeted~"maxConcurrent":1; pass 1m; marksAndDeletes n3 $onPool`),
		"where replacements already exist":          caught(CapExceeded, "4 nodes of the pool are in repair: at most 3", `pool blue $unbudgeted~"maxConcurrent":"60%","unhealthyThreshold":"100%"; breakDisks n1 n2 n3 n4; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool; marksAndDeletes n3 $onPool; pass 1m; readyNodes blue n6; readyNodes blue n7; pass 1m; marksAndDeletes n4 $onPool`),
		"where the new node is of another pool":     caught(CapExceeded, "at most 1", `pool red $badDisk; breakDisks n1 n2; marksAndDeletes n1 $onPool; finishDeletion n1; readyNodes red r1; pass 1m; marksAndDeletes n2 $onPool`),
		"where the ready node is older":             caught(CapExceeded, "at most 1", `condition n3 Ready=False; breakDisks n1 n2; marksAndDeletes n1 $onPool; finishDeletion n1; condition n3 Ready=True; pass 1m; marksAndDeletes n2 $onPool`),
		"together with a timeout":                   caught(CapExceeded, "2 nodes of the pool are in repair: at most 1", `startingNodes blue n6; pass 1h; breakDisks n1; marksAndDeletes n6 $timedOut; marksAndDeletes n1 $onPool`),
	})
}

func TestPlantedInSwitches(t *testing.T) {
	annotatedPool := func(annotation, value string) func(s *story) {
		return func(s *story) {
			annotated(map[string]string{annotation: value})(s.pools["blue"])
			s.tell("pool blue $badDisk; pass 1m; breakDisks n1; pass 1m")
		}
	}
	const one = `marksAndDeletes n1 $onPool`
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"a paused block":         caught(Unjustified, "the policy is paused", annotatedPool(pausedAnnotation, "now"), one),
		"a block that observes":  caught(Unjustified, "the policy observes", annotatedPool(modeAnnotation, "Observe"), one),
		"a policy that observes": caught(Unjustified, "the policy observes", `pool blue {}; policy p {"nodePool":"blue","mode":"Observe","repair":{$disk}}; pass 1m; breakDisks n1; pass 1m; marksAndDeletes n1 Repair/RepairPolicy/p`),
		"not paused":             fine(annotatedPool(pausedAnnotation, "false"), one),
	})
	pausedSet := func(s *story) {
		annotated(map[string]string{pausedAnnotation: "now"})(s.sets["deadlock"])
		s.tell("set deadlock $deadlock; pass 1m; condition n2 KernelDeadlock=True; pass 1m")
	}
	const tainted = `condition n1 KernelDeadlock=True; we n1 +deadlock=$out; pass 1m`
	judge(t, fiveNodes, testConfig, map[string]tale{
		"a paused set keeps its taints": fine(tainted, pausedSet),
		"a paused set":                  caught(Unjustified, "the set is paused", tainted, pausedSet, `we n2 +deadlock=$out`),
		"a set that observes":           caught(Unjustified, "the set is in dry run", `set deadlock $deadlock^"type"^"mode":"Observe","type"; pass 1m; condition n1 KernelDeadlock=True; pass 1m; we n1 +deadlock=$out; pass 1m; we n1 -deadlock=$out`),
	})
}

func TestPlantedInThresholds(t *testing.T) {
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"one node more than the default of few nodes":      caught(GateIgnored, "4 nodes of the rule are unhealthy or not replaced yet: unhealthyThreshold allows 3", `breakDisks n1 n2 n3 n4; pass 1m; marksAndDeletes n1 $onPool`),
		"one node more than the default percentage":        caught(GateIgnored, "3 nodes of the rule are unhealthy or not replaced yet: unhealthyThreshold allows 2", `readyNodes blue n6; pass 1m; breakDisks n1 n2 n3; pass 1m; marksAndDeletes n1 $onPool`),
		"one node more than the number":                    caught(GateIgnored, "unhealthyThreshold allows 1", `pool blue $badDisk~"unhealthyThreshold":1; breakDisks n1 n2; pass 1m; marksAndDeletes n1 $onPool`),
		"while a deleted node is not replaced":             caught(GateIgnored, "2 nodes of the rule are unhealthy or not replaced yet: unhealthyThreshold allows 1", `pool blue $unbudgeted~"unhealthyThreshold":1,"maxConcurrent":2; breakDisks n1; marksAndDeletes n1 $onPool; finishDeletion n1; pass 1m; breakDisks n2; pass 1m; marksAndDeletes n2 $onPool`),
		"while other nodes wait for the end of their time": caught(GateIgnored, "unhealthyThreshold allows 1", `pool blue $badDisk~"unhealthyThreshold":1; breakDisks n1; condition n2 Disk=True; pass 1s; marksAndDeletes n1 $onPool`),
	})
}

func TestPlantedInBudgets(t *testing.T) {
	under := func(rows string) func(s *story) {
		return func(s *story) {
			s.pool("blue", strings.Replace(withRepair(badDisk, `"maxConcurrent":"100%"`), `[{"nodes":"50%"}]`, rows, 1))
			s.pass(2 * DefaultLag)
		}
	}
	const one, two = `breakDisks n1; marksAndDeletes n1 $onPool`, `breakDisks n1 n2; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool`
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"one more than a number":                             caught(GateIgnored, "2 of 5 nodes are taken out of service: the disruption budgets of the pool allow 1", under(`[{"nodes":"1"}]`), two),
		"one more than a percentage":                         caught(GateIgnored, "allow 1", under(`[{"nodes":"20%"}]`), two),
		"one more than the default":                          caught(GateIgnored, "allow 1", `pool blue {"repair":{$disk,"maxConcurrent":"100%"},"disruption":{}}; pass 1m`, two),
		"none are allowed":                                   caught(GateIgnored, "allow 0", under(`[{"nodes":"0"}]`), one),
		"the smallest of several":                            caught(GateIgnored, "allow 1", under(`[{"nodes":"100%"},{"nodes":"1"}]`), two),
		"one for this reason":                                caught(GateIgnored, "allow 1", under(`[{"nodes":"1","reasons":["Empty","Unhealthy"]}]`), two),
		"one whose window is open":                           caught(GateIgnored, "allow 0", under(`[{"nodes":"0","schedule":"0 12 * * *","duration":"8h"}]`), two),
		"one whose schedule cannot be read":                  caught(GateIgnored, "allow 0", under(`[{"nodes":"5","schedule":"@sometimes","duration":"8h","reasons":["Drifted"]}]`), two),
		"one whose number cannot be read":                    caught(GateIgnored, "allow 0", under(`[{"nodes":"many"}]`), two),
		"one whose schedule never comes":                     caught(GateIgnored, "allow 1", under(`[{"nodes":"1","schedule":"0 0 30 2 *","duration":"8h"}]`), two),
		"while another client removes a node":                caught(GateIgnored, "allow 1", under(`[{"nodes":"1"}]`), `breakDisks n1; deleteClaim admin n3; pass 2s; marksAndDeletes n1 $onPool`),
		"while Karpenter has chosen a node":                  caught(GateIgnored, "allow 1", under(`[{"nodes":"1"}]`), `breakDisks n1; setClaimCondition c-n3 DisruptionReason=True; pass 2s; marksAndDeletes n1 $onPool`),
		"which do not count nodes that were never ready":     caught(GateIgnored, "2 of 5 nodes are taken out of service: the disruption budgets of the pool allow 1", under(`[{"nodes":"20%"}]`), `startingNodes blue n6 n7 n8 n9 n10`, two),
		"of all claims, for a node that never was ready":     caught(GateIgnored, "allow 1", under(`[{"nodes":"1"}]`), `startingNodes blue n6; pass 1h; deleteClaim admin n1; pass 2s; marksAndDeletes n6 $timedOut`),
		"that was lowered between the mark and the deletion": caught(GateIgnored, "allow 0", `breakDisks n1; marks n1 $onPool now`, under(`[{"nodes":"0"}]`), `deleteClaim us n1`),
	})
}

func TestPlantedInOtherWritesToClaims(t *testing.T) {
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"a claim made":                     caught(ForeignTouched, "we created the claim", `claim blue c-x x; by us`),
		"a claim written without a change": caught(DoneTwice, "changed nothing", `writeAgain claim c-n1`),
		"a label on a claim": caught(ForeignTouched, "the labels of the claim", func(s *story) {
			s.changeClaim(us, "c-n1", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{poolLabel: "blue", "x": "y"}) })
		}),
		"a deadline on a claim without a mark": caught(ForeignTouched, "the annotations of the claim", func(s *story) {
			s.changeClaim(us, "c-n1", annotated(map[string]string{deadlineAnnotation: s.now.Format(time.RFC3339)}))
		}),
		"a finalizer removed with the mark": caught(ForeignTouched, "the metadata of the claim", `breakDisks n1`, func(s *story) {
			s.entries = append(s.entries, grant{onPool, "n1", string(s.nodes["n1"].UID), s.versionOf("c-n1"), claimInLedger + "c-n1"})
			s.enter(s.entries...)
			s.changeClaim(us, "c-n1", func(o *unstructured.Unstructured) {
				annotated(map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: s.now.Format(time.RFC3339)})(o)
				o.SetFinalizers(nil)
			})
		}),
		"a claim deleted twice": caught(DoneTwice, "again", `breakDisks n1; marksAndDeletes n1 $onPool; deleteAtOnce us n1`),
		"a claim deleted by an unknown author, although its node is healthy": caught(UnknownAuthor, "if it was us: we deleted the claim", `breakDisks n1; marks n1 $onPool now; condition n1 Disk=False; pass 2s; deleteClaim unknown n1`),
		"a claim marked by an unknown author":                                caught(UnknownAuthor, "if it was us: we marked the claim", `marksAs unknown n1 $onPool now`),
		"a pool made":                                                        caught(ForeignTouched, "we created the pool", `writePool us red {}`),
		"a pool deleted":                                                     caught(ForeignTouched, "we deleted the pool", `deletePool us blue`),
		"a block changed":                                                    caught(ForeignTouched, "the spec of the pool", `writePool us blue $badDisk~"maxConcurrent":2`),
		"a block restored without being configured":                          caught(ForeignTouched, "the spec of the pool", `pool blue {}; writePool us blue {"repair":{}}`),
		"a pool written without a change":                                    caught(DoneTwice, "changed nothing", `writePool us blue $badDisk`),
		"a policy made":                                                      caught(ForeignTouched, "we created the policy", `writePolicy us p {"nodePool":"x","repair":{}}`),
		"a policy changed":                                                   caught(ForeignTouched, "the spec of the policy", `policy p {"nodePool":"x","repair":{}}; writePolicy us p {"nodePool":"y","repair":{}}`),
		"a policy deleted":                                                   caught(ForeignTouched, "we deleted the policy", `policy p {"nodePool":"x","repair":{}}; deletePolicy us p`),
		"a policy written without a change":                                  caught(DoneTwice, "changed nothing", `policy p {"nodePool":"x","repair":{}}; writeAgain policy p`),
	})
}
