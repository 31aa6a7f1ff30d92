package history

import (
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestAPermittedRepairHasNoViolation(t *testing.T) {
	s := fiveClaims(t).tell(`policy rest {"selector":{},"repair":{"maxConcurrent":2}}`)
	s.policies["rest"].Object["status"] = map[string]any{"nodes": int64(0)}
	s.tell("writeAgain policy rest")
	// A node is replaced by force.
	s.tell("breakDisks n1 n2 n3; marksAndDeletes n1 $onPool; readyNodes blue n6; finishDeletion n1")
	// The next node recovers just in time, and the following node is replaced.
	s.tell("marks n2 $onPool now; condition n2 Disk=False; unmarks n2; marksAndDeletes n3 $onPool; finishDeletion n3")
	// No node replaces it, and after a while another node may go, gracefully.
	s.tell(`pool blue $badDisk~"termination":"Graceful","terminationGracePeriod":"5m"; pass 15m; breakDisks n4; marks n4 $onPool now+5m`)
	s.tell("deleteClaim us n4; finishDeletion n4; readyNodes blue n7")
	// A node never becomes ready.
	s.tell("startingNodes blue n8; pass 10m; marks n8 $timedOut now+5m; deleteClaim us n8; finishDeletion n8")

	report := s.hasNoViolation(repairCfg)
	want := Counts{Changes: len(s.made), Marks: 5, Unmarks: 1, Terminations: 4, PolicyStatuses: 1}
	if diff := gocmp.Diff(want, report.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if report.Peak["NodePool/blue"] != 1 {
		t.Errorf("peak %v, want 1", report.Peak)
	}
	if want := "5 claims marked, 1 unmarked, 4 deleted, 1 statuses of repair policies"; !strings.Contains(report.String(), want) {
		t.Errorf("%s does not say %q", report, want)
	}
}

// Each case is a reading of the rules that the checker must accept.
func TestPermittedRepairs(t *testing.T) {
	under := func(budgets string) tale {
		return fine(func(s *story) {
			s.pool("blue", withRepair(strings.Replace(badDisk, `[{"nodes":"50%"}]`, budgets, 1), `"maxConcurrent":"100%"`))
		}, `pass 1m; breakDisks n1 n2; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool`)
	}
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"nothing happens": fine(``),
		"a duration that has passed according to the timestamp": fine(`stamped n1 now-1m Disk=True; marksAndDeletes n1 $onPool`),
		"the provider's recommended toleration":                 fine(`condition n1 KernelReady=False; pass 30m; marksAndDeletes n1 $onPool`),
		"the shorter time of one reason":                        fine(`pool blue $badDisk^"policies":[^"policies":[{"conditionType":"Disk","reason":"Dead","toleration":"1s"},; condition n1 Disk=True/Dead; pass 2s; marksAndDeletes n1 $onPool`),
		"a policy for every listed status":                      fine(`pool blue {"repair":{"policies":[{"conditionType":"Ready","toleration":"2m"}]}}; condition n1 Ready=Unknown; pass 2m; marksAndDeletes n1 $onPool`),
		"a recovery a moment before the mark":                   fine(`breakDisks n1; condition n1 Disk=False; marksAndDeletes n1 $onPool`),
		"a node that was deleted a moment before the mark": fine(`breakDisks n1`, func(s *story) {
			mark := map[string]string{markAnnotation: s.markFor("n1", onPool), deadlineAnnotation: s.now.Format(time.RFC3339)}
			s.enter(grant{onPool, "n1", string(s.nodes["n1"].UID), s.versionOf("c-n1"), claimInLedger + "c-n1"})
			s.deleteNode(admin, "n1")
			s.changeClaim(us, "c-n1", annotated(mark))
			s.deleteClaim(us, "n1")
		}),
		"a veto that came with the mark":                                fine(`breakDisks n1; annotateNode admin n1 $ourVeto=true; marksAndDeletes n1 $onPool`),
		"annotation values that are no veto":                            fine(`annotateNode admin n1 $ourVeto=false $theirVeto=yes; breakDisks n1; marksAndDeletes n1 $onPool`),
		"a running repair continues when the condition becomes Unknown": fine(`breakDisks n1; marks n1 $onPool now; condition n1 Disk=Unknown; pass 1m; deleteClaim us n1`),
		"a drain is ended when the policy becomes Forceful":             fine(`pool blue $badDisk~"termination":"Graceful"; breakDisks n1; marks n1 $onPool; deleteClaim us n1; pool blue $badDisk; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"a drain of an admin is ended by force":                         fine(`breakDisks n1; deleteClaim admin n1; pass 1m; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"an earlier deadline of another writer":                         fine(`annotateClaim admin c-n1 $deadline=2026-03-01T12:00:00Z; breakDisks n1; marks n1 $onPool; deleteClaim us n1`),
		"gracefully, for as long as it takes":                           fine(`pool blue $badDisk~"termination":"Graceful"; breakDisks n1; marks n1 $onPool; deleteClaim us n1`),
		"by force, when the policy has become graceful a moment ago":    fine(`breakDisks n1; pool blue $badDisk~"termination":"Graceful"; marksAndDeletes n1 $onPool`),
		"the previous deadline is restored":                             fine(`annotateClaim admin c-n1 $deadline=2030-01-01T00:00:00Z; breakDisks n1; marks n1 $onPool now; annotateClaim us c-n1 $mark= $deadline=2030-01-01T00:00:00Z`),
		"a policy that names the pool":                                  fine(`pool blue {}; policy p {"nodePool":"blue","repair":{$disk}}^"True"^"true"; breakDisks n1; marksAndDeletes n1 Repair/RepairPolicy/p`),
		"a policy that selects":                                         fine(`pool blue {}; policy p {"selector":{"matchLabels":{"pool":"web"}},"repair":{$disk}}^"True"^"true"; breakDisks n1; marksAndDeletes n1 Repair/RepairPolicy/p/blue`),
		"the last valid version":                                        fine(`pool blue {"repair":{"defaultTolerationDuration":"-1m"}}; pass 1m; breakDisks n1; marksAndDeletes n1 $onPool`),
		"with a bound that was lowered a moment ago":                    fine(`pool blue $unbudgeted~"maxConcurrent":"100%"; pass 1m; breakDisks n1 n2; marksAndDeletes n1 $onPool; pool blue $unbudgeted~"maxConcurrent":1; marksAndDeletes n2 $onPool`),
		"with as many unhealthy nodes as the threshold allows":          fine(`breakDisks n1 n2 n3; pass 1m; marksAndDeletes n1 $onPool`),
		"with a node that became unhealthy a moment ago":                fine(`pool blue $badDisk~"unhealthyThreshold":1; breakDisks n1; condition n2 Disk=True; marksAndDeletes n1 $onPool`),
		"with a threshold that was lowered a moment ago":                fine(`breakDisks n1 n2; pass 1m; pool blue $badDisk~"unhealthyThreshold":1; marksAndDeletes n1 $onPool`),
		"a timeout, whatever the threshold":                             fine(`pool blue $badDisk~"unhealthyThreshold":0; breakDisks n1; startingNodes blue n6; pass 10m; marksAndDeletes n6 $timedOut`),
		"with a bound under its old name":                               fine(`pool blue $unbudgeted~"maxUnhealthy":2; breakDisks n1 n2; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool`),
		"with a node that is replaced before it is gone":                fine(`breakDisks n1 n2; marksAndDeletes n1 $onPool; readyNodes blue n6; finishDeletion n1; marksAndDeletes n2 $onPool`),
		"with a node that was not replaced for a long time":             fine(`breakDisks n1 n2; marksAndDeletes n1 $onPool; finishDeletion n1; pass 15m; marksAndDeletes n2 $onPool`),
		"with a node of another pool":                                   fine(`pool red $badDisk; readyNodes red r1 r2; breakDisks n1 r1; marksAndDeletes n1 $onPool; marksAndDeletes r1 Repair/NodePool/red`),
		"with a node that another client removes":                       fine(`breakDisks n1; deleteClaim admin n3; pass 1m; marksAndDeletes n1 $onPool`),
		"with a budget that was used up a moment ago":                   fine(`pool blue $badDisk^"50%"^"1"; breakDisks n1; marks n1 $onPool now; deleteClaim admin n3; deleteClaim us n1`),
		"with a node that never was in service and needs no budget":     fine(`pool blue $badDisk^"50%"^"0"; startingNodes blue n6; breakDisks n6; marksAndDeletes n6 $onPool`),
		// The default budget is 10%.
		"with a NotReady node that does not count against itself": fine(`pool blue {"repair":{"defaultTolerationDuration":"1m"}}; condition n1 Ready=False; pass 1m; marksAndDeletes n1 $onPool`),
		"with a percentage that is rounded up":                    under(`[{"nodes":"25%"}]`),
		"with no budget at all":                                   under(`[]`),
		"with a budget for another reason":                        under(`[{"nodes":"0","reasons":["Drifted"]}]`),
		"with a budget for no reason":                             under(`[{"nodes":"0","reasons":[]}]`),
		"with a budget whose window is over":                      under(`[{"nodes":"0","schedule":"0 12 * * *","duration":"1h"}]`),
		"with a machine that is already being terminated":         fine(`pool blue $badDisk^"50%"^"1"; deleteClaim admin n3; setClaimCondition c-n3 InstanceTerminating=True; pass 1m; breakDisks n1; marksAndDeletes n1 $onPool`),
		"a timeout of nodes with startup taints":                  fine(`startingNodes blue n6; condition n6 Ready=True; pass 10m; marksAndDeletes n6 $timedOut`),
		"a timeout of a node that was ready for a moment":         fine(`startingNodes blue n6; untaint karpenter n6; condition n6 Ready=True; condition n6 Ready=False; pass 10m; marksAndDeletes n6 $timedOut`),
		"a fourth timeout after a node that became ready":         fine(`startingNodes blue n6 n7 n8 n9; pass 1h; replacedSlowly n6 n7; marksAndDeletes n8 $timedOut; finishDeletion n8; readyNodes blue new-n8; marksAndDeletes n9 $timedOut; finishDeletion n9; readyNodes blue new-n9`),
		// The pool is no longer paused.
		"timeouts of nodes from an old template, which do not count for the new template": fine(`pool blue $badDisk~"maxConcurrent":10; changeTemplate blue 1; startingNodes blue n6 n7 n8 n9 n10; pass 1h; marksAndDeletes n6 $timedOut; finishDeletion n6; marksAndDeletes n7 $timedOut; finishDeletion n7; marksAndDeletes n8 $timedOut; finishDeletion n8; changeTemplate blue 2; startingNodes blue n11 n12 n13; pass 10m; marksAndDeletes n9 $timedOut; finishDeletion n9; marksAndDeletes n10 $timedOut; finishDeletion n10; marksAndDeletes n11 $timedOut; finishDeletion n11; marksAndDeletes n12 $timedOut; finishDeletion n12; marksAndDeletes n13 $timedOut; finishDeletion n13`),
		"a fourth timeout after the wait":                                                 fine(`startingNodes blue n6 n7 n8 n9; pass 1h; marksAndDeletes n6 $timedOut; finishDeletion n6; pass 16m; marksAndDeletes n7 $timedOut; finishDeletion n7; pass 16m; marksAndDeletes n8 $timedOut; finishDeletion n8; pass 16m; marksAndDeletes n9 $timedOut; finishDeletion n9; pass 16m`),
		"Karpenter's own repair":                                                          fine(`breakDisks n1 n2 n3; setClaimCondition c-n1 DisruptionReason=True; annotateClaim karpenter c-n1 $deadline=2026-03-01T12:00:00Z; deleteClaim karpenter n1; finishDeletion n1; setClaimCondition c-n2 DisruptionReason=True; annotateClaim karpenter c-n2 $deadline=2026-03-01T12:00:00Z; deleteClaim karpenter n2; finishDeletion n2; setClaimCondition c-n3 DisruptionReason=True; annotateClaim karpenter c-n3 $deadline=2026-03-01T12:00:00Z; deleteClaim karpenter n3; finishDeletion n3`),
		"a mark on a claim that Karpenter then deletes":                                   fine(`breakDisks n1; marks n1 $onPool now; deleteClaim karpenter n1`),
		"a justified deletion by an unknown author":                                       fine(`breakDisks n1; marksAs unknown n1 $onPool now; deleteClaim unknown n1; finishDeletion n1`),
		"other writes of an unknown author": fine(func(s *story) {
			s.changeClaim(unknownAuthor, "c-n1", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{poolLabel: "blue", "x": "y"}) })
		}),
	})
}

func TestRepairsUnderOtherFlags(t *testing.T) {
	t.Run("nodes of a pool without a policy", func(t *testing.T) {
		s := fiveClaims(t).tell("pool blue {}; condition n1 Ready=False; pass 30m; marksAndDeletes n1 $onPool")
		cfg := repairCfg
		cfg.Repairs.WithoutPolicy = true
		s.hasNoViolation(cfg)
		s.caught(repairCfg, Unjustified)
	})
	for name, garble := range map[string]string{
		"a block":                           `pool red {"repair":{"enabled":false,"readyTimeout":"soon"}}`,
		"a policy for the pool":             `policy p {"nodePool":"red","repair":{"readyTimeout":"soon"}}`,
		"a policy for the nodes":            `policy p {"selector":{},"repair":{"readyTimeout":"soon"}}`,
		"a policy with an unclear selector": `policy p {"repair":{}}`,
		"a policy that cannot be parsed":    `policy p {"selector":{"matchLabels":5},"repair":{}}`,
	} {
		t.Run("no default in place of an invalid rule: "+name, func(t *testing.T) {
			for rule, falls := range map[string]string{
				"Repair/NodePool/red": "readyNodes red r1 r2 r3 r4 r5; condition r1 Ready=False",
				"ReadyTimeout/red":    "readyNodes red r2 r3 r4 r5; startingNodes red r1",
			} {
				cfg := repairCfg
				cfg.Repairs.WithoutPolicy = true
				end := falls + "; pass 30m; marksAndDeletes r1 " + rule
				fiveClaims(t).tell("pool red {}").tell(end).hasNoViolation(cfg)
				fiveClaims(t).tell("pool red {}").tell(garble).tell(end).caught(cfg, Unjustified)
			}
		})
	}
	t.Run("the conditions of a file", func(t *testing.T) {
		s := fiveClaims(t).tell("condition n1 Fan=True; pass 5m; marksAndDeletes n1 $onPool")
		cfg := repairCfg
		cfg.Repairs.Machines = map[string]time.Duration{"Fan=True": 5 * time.Minute}
		s.hasNoViolation(cfg)
		s.caught(repairCfg, Unjustified)
	})
	t.Run("a block that is lost and restored", func(t *testing.T) {
		s := fiveClaims(t).tell(`writePool karpenter blue {"disruption":{"budgets":[{"nodes":"50%"}]}}; pass 1m; breakDisks n1; marksAndDeletes n1 $onPool; writePool us blue $badDisk`)
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
		s := fiveClaims(t).tell("startingNodes blue n6 n7 n8 n9; pass 1h")
		for _, name := range []string{"n6", "n7", "n8", "n9"} {
			s.tell("marksAndDeletes " + name + " $timedOut; finishDeletion " + name + "; pass 16m")
		}
		cfg := repairCfg
		cfg.Repairs.HeldFor = time.Hour
		s.hasNoViolation(repairCfg)
		s.caught(cfg, TooSoon)
	})
}
