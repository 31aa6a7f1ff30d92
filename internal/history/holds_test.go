package history

import (
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// pause has a user pause a node from now on, or for less than no time.
func (s *story) pause(name string, d time.Duration) {
	s.annotateNode(admin, name, pauseAnnotation+"=until="+s.now.Add(d).UTC().Format(time.RFC3339)+" by=anna")
}

// annotateCheck has a user annotate a health check.
func (s *story) annotateCheck(name string, annotations ...string) {
	annotated(annotationsIn(annotations))(s.checks[name])
	s.record(watch.Modified, ChecksResource, admin, s.checks[name])
}

// release has a user end all holds of correlated failures.
func (s *story) release(d time.Duration) {
	annotated(map[string]string{releaseAnnotation: "until=" + s.now.Add(d).UTC().Format(time.RFC3339)})(s.rails["cluster"])
	s.record(watch.Modified, RailsResource, admin, s.rails["cluster"])
}

// at tells a script at a time of the day on which the story begins.
func at(hour string, script string) func(*story) {
	return func(s *story) {
		h, rest, _ := strings.Cut(hour, ":")
		hours, _ := strconv.Atoi(h)
		clock, err := time.Parse("04:05", rest)
		if err != nil {
			s.tb.Fatal(err)
		}
		s.now = time.Date(2026, 3, 1, hours, clock.Minute(), clock.Second(), 0, time.UTC)
		s.tell(script)
	}
}

// unfinished returns a configuration that skips the checks of the final state.
func unfinished(cfg Config) Config {
	cfg.Unfinished = true
	return cfg
}

// holdVerbs are for holds on single nodes and policies. undo ends the remediation of a node.
var holdVerbs = map[string]any{
	"pause": (*story).pause, "annotateCheck": (*story).annotateCheck, "release": (*story).release,
	"undo": func(s *story, nodes ...string) {
		for _, node := range nodes {
			s.condition(node, "Ready=True", "Unwell=False")
			s.deleteObject(us, node, "Reboot")
			s.unlock(node)
		}
	},
	"image": func(s *story, nodes ...string) {
		for _, name := range nodes {
			node := s.nodes[name].DeepCopy()
			node.Status.NodeInfo.OSImage = "os-1"
			s.nodes[name] = node
			s.recordNode(watch.Modified, kubelet, node)
		}
	},
}

func TestPlantedInPauses(t *testing.T) {
	judge(t, sixNodes, checkConfig, map[string]tale{
		"a taint on a paused node":               caught(RailIgnored, "the node is paused: until=2026", `pause n1 1h; close n1`),
		"NoExecute on a paused node":             caught(RailIgnored, "the node is paused", `pause n1 1h; evict n1`),
		"a promotion on a paused node":           caught(RailIgnored, "the node is paused", `condition n1 KernelDeadlock=True; we n1 +deadlock=$back; pause n1 1h; we n1 -deadlock=$back +deadlock=$out`),
		"a remediation of a paused node":         caught(RailIgnored, "the node is paused", `pause n1 1h; treat n1`),
		"a later step on a paused node":          caught(RailIgnored, "the node is paused", `healthCheck workers $twoSteps; becomeUnhealthy n1; remediate n1 workers Reboot; pause n1 1h; pass 6m; timesOut n1 Reboot; remediate n1 workers Replace`),
		"a pause that cannot be read":            caught(RailIgnored, "the node is paused: tomorrow", `annotateNode admin n1 $pause=tomorrow; pass 48h; close n1`),
		"a pause without Guardrails":             caught(RailIgnored, "the node is paused", `deleteGuardrails; pause n1 1h; pass 1m; treat n1`),
		"a pause that is longer now":             caught(RailIgnored, "the node is paused", `pause n1 1m; pause n1 1h; pass 5m; treat n1`),
		"a pause that we removed before its end": caught(ForeignTouched, "we changed the annotations", `pause n1 1h; annotateNode us n1 $pause=`),
	})
	judge(t, fiveRepairs, repairCfg, map[string]tale{
		"a mark on a paused node":                         caught(RailIgnored, "the node is paused", `pause n1 1h; pass 5s; marks n1 $onPool now`),
		"a termination of a paused node":                  caught(RailIgnored, "we deleted NodeClaim c-n1, but the node is paused", `marks n1 $onPool now; pause n1 1h; pass 5s; deleteClaim us n1`),
		"a drain that is ended by force on a paused node": caught(RailIgnored, "we ended the drain of NodeClaim c-n1, but the node is paused", `pause n1 1h; deleteClaim admin n1; pass 5s; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
	})
}

func TestPermittedByPauses(t *testing.T) {
	judge(t, sixNodes, unfinished(checkConfig), map[string]tale{
		"a pause whose time has passed":                         fine(`pause n1 1m; pass 2m; close n1; treat n2; open n1; undo n2`),
		"a pause that just ends":                                fine(`pause n1 1m; pass 59500ms; close n1; open n1`),
		"a remediation that was decided before":                 fine(`becomeUnhealthy n1; pause n1 1h; remediate n1 workers Reboot; undo n1`),
		"recovery on a paused node":                             fine(`evict n1; treat n2; pause n1 1h; pause n2 1h; pass 1m; calm n1; undo n2`),
		"a paused node that was healthy, and its removed pause": fine(`pause n1 1m; pass 2m; annotateNode us n1 $pause=`),
		"a pause that we removed together with a taint": fine(`pause n1 1m; condition n1 NTPProblem=True; pass 2m`, func(s *story) {
			s.we("n1", s.place("ntp", late), func(n *corev1.Node, _ *form) { delete(n.Annotations, pauseAnnotation) })
		}, `open n1`),
	})
	judge(t, fiveNodes, testConfig, map[string]tale{
		"a paused node without its taint at the end":  fine(`pause n1 1h; condition n1 KernelDeadlock=True; pass 1m`),
		"a paused node does not hold the others back": fine(`condition n1 KernelDeadlock=True; pause n1 1h; pass 1m; condition n2 KernelDeadlock=True; we n2 +deadlock=$out`),
	})
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"a paused node without its remediation at the end": fine(`pause n1 1h; becomeUnhealthy n1; pass 1m; writeStatus workers Enabled 5 4 0`),
	})
}

func TestPlantedInTheWorkOfOthers(t *testing.T) {
	judge(t, sixNodes, checkConfig, map[string]tale{
		"a remediation of a cordoned node":                 caught(RailIgnored, "respect.cordons protects", `cordon n1 true; treat n1`),
		"a cordon with other fields switched off":          caught(RailIgnored, "respect.cordons protects", `guardrails $rails^"topology":[]^"topology":[],"respect":{"karpenter":false}; cordon n1 true; treat n1`),
		"a remediation of a node that is scaled down":      caught(RailIgnored, "respect.clusterAutoscaler protects", `foreign n1 ToBeDeletedByClusterAutoscaler:NoSchedule; treat n1`),
		"a remediation of a node that Karpenter disrupts":  caught(RailIgnored, "respect.karpenter protects", `foreign n1 karpenter.sh/disrupted:NoSchedule; treat n1`),
		"a remediation of a node in maintenance":           caught(RailIgnored, "respect.maintenance protects", `foreign n1 medik8s.io/drain:NoSchedule; treat n1`),
		"a remediation before a maintenance of Azure":      caught(RailIgnored, "respect.maintenance protects", `condition n1 VMEventScheduled=True; treat n1`),
		"a later step in maintenance":                      caught(RailIgnored, "respect.maintenance protects", `healthCheck workers $twoSteps; becomeUnhealthy n1; remediate n1 workers Reboot; foreign n1 kubevirt.io/drain:NoSchedule; pass 6m; timesOut n1 Reboot; remediate n1 workers Replace`),
		"a new remediation of a node that stayed cordoned": caught(RailIgnored, "respect.cordons protects", `treat n1; cordon n1 true; undo n1; pass 1m; treat n1`),
	})
	judge(t, fiveRepairs, repairCfg, map[string]tale{
		"a mark on a cordoned node":                            caught(RailIgnored, "respect.cordons protects", `cordon n1 true; pass 5s; marks n1 $onPool now`),
		"a mark on an excluded node":                           caught(RailIgnored, "respect.excludeLabel protects", `label n1 $exclude true; pass 5s; marks n1 $onPool now`),
		"a termination of a cordoned node":                     caught(RailIgnored, "we deleted NodeClaim c-n1, but the node is cordoned", `marks n1 $onPool now; cordon n1 true; pass 5s; deleteClaim us n1`),
		"a drain that is ended by force in maintenance":        caught(RailIgnored, "respect.maintenance protects", `deleteClaim admin n1; foreign n1 medik8s.io/drain:NoSchedule; pass 5s; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"a remediation of a node whose claim an admin deletes": caught(RailIgnored, "NodeClaim c-n1 is being deleted, which respect.deletingMachines protects", `healthCheck workers $workers; deleteClaim admin n1; treat n1`),
	})
}

func TestPermittedBesideTheWorkOfOthers(t *testing.T) {
	judge(t, sixNodes, unfinished(checkConfig), map[string]tale{
		"taints on a cordoned node":               fine(`cordon n1 true; foreign n2 karpenter.sh/disrupted:NoSchedule; pass 1m; evict n1; close n2; calm n1; open n2`),
		"a cordon of a moment ago":                fine(`becomeUnhealthy n1; cordon n1 true; remediate n1 workers Reboot; undo n1`),
		"a cordon that has ended":                 fine(`cordon n1 true; pass 1m; cordon n1 false; treat n1; undo n1`),
		"a cordon that is not respected":          fine(`guardrails $rails^"topology":[]^"topology":[],"respect":{"cordons":false}; cordon n1 true; treat n1; undo n1`),
		"a later step after a cordon":             fine(`healthCheck workers $twoSteps; becomeUnhealthy n1; remediate n1 workers Reboot; cordon n1 true; pass 6m; timesOut n1 Reboot; remediate n1 workers Replace`),
		"another object while a node is cordoned": fine(`treat n1; cordon n1 true; pass 1m; deleteObject admin n1 Reboot; remediate n1 workers Reboot; undo n1`),
		"an excluded node that is not respected":  fine(`guardrails $rails^"topology":[]^"topology":[],"respect":{"excludeLabel":false}; label n1 $exclude true; treat n1; undo n1`),
	})
	judge(t, fiveRepairs, unfinished(repairCfg), map[string]tale{
		"a drain of Karpenter that is ended by force": fine(`deleteClaim karpenter n1; foreign n1 karpenter.sh/disrupted:NoSchedule; pass 1m; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
		"a claim that is not respected":               fine(`guardrails $rails^"topology":[]^"topology":[],"respect":{"deletingMachines":false}; healthCheck workers $workers; deleteClaim admin n1; treat n1`),
		"a remediation of a node whose claim is gone": fine(`healthCheck workers $workers; deleteAtOnce admin n1; treat n1`),
	})
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"a cordoned node without its remediation at the end": fine(`cordon n1 true; becomeUnhealthy n1; pass 1m; writeStatus workers Enabled 5 4 0`),
	})
}

// The rails of the tests about correlated failures hold a zone of which two of three nodes fail.
func TestPlantedInCorrelatedFailures(t *testing.T) {
	judge(t, sixNodes, checkConfig, map[string]tale{
		"a remediation in a zone that fails":   caught(RailIgnored, "2 of 3 nodes with zone=a became unhealthy within 5m0s, correlatedFailure allows 1", `guardrails $failing; becomeUnhealthy n1 n3; pass 5s; remediate n1 workers Reboot`),
		"a node that fails later":              caught(RailIgnored, "2 of 3 nodes with zone=a", `guardrails $failing; becomeUnhealthy n1 n3; pass 1h; becomeUnhealthy n5; remediate n5 workers Reboot`),
		"starts that are almost too far apart": caught(RailIgnored, "2 of 3 nodes with zone=a", `guardrails $failing; condition n1 Ready=False; pass 290s; condition n3 Ready=False; pass 1h; remediate n1 workers Reboot`),
		"NoExecute in a zone that fails":       caught(RailIgnored, "2 of 3 nodes with zone=a", `guardrails $failing; becomeUnhealthy n1 n3; pass 5s; condition n5 KernelDeadlock=True; we n5 +deadlock=$out`),
		"NoExecute on nodes that fail":         caught(RailIgnored, "2 of 3 nodes with zone=a", `guardrails $failing; condition n1 KernelDeadlock=True; condition n3 KernelDeadlock=True; pass 1m; we n3 +deadlock=$out`),
		"failures under two policies":          caught(RailIgnored, "2 of 3 nodes with zone=a", `guardrails $failing; condition n1 KernelDeadlock=True; becomeUnhealthy n3; pass 5s; remediate n3 workers Reboot`),
		"a later step in a zone that fails":    caught(RailIgnored, "2 of 3 nodes with zone=a", `healthCheck workers $twoSteps; guardrails $failing; becomeUnhealthy n1; remediate n1 workers Reboot; condition n3 Ready=False; pass 6m; timesOut n1 Reboot; remediate n1 workers Replace`),
		"a release that is over":               caught(RailIgnored, "2 of 3 nodes with zone=a", `guardrails $failing; release 1m; becomeUnhealthy n1 n3; pass 1m; remediate n1 workers Reboot`),
		"before the longest hold has ended":    caught(RailIgnored, "2 of 3 nodes with zone=a", `guardrails $failing^"keys"^"longestHold":"1h","keys"; becomeUnhealthy n1 n3; pass 58m; remediate n1 workers Reboot`),
		"a failure of an image":                caught(RailIgnored, "2 of 2 nodes with image=os-1", `guardrails $failing^"zone"^"image"; image n1 n2; becomeUnhealthy n1 n2; pass 5s; remediate n1 workers Reboot`),
		"nodes that were deleted long ago":     caught(RailIgnored, "2 of 2 nodes with zone=a", `guardrails $failing; becomeUnhealthy n1 n3; deleteNode admin n5; pass 5s; remediate n1 workers Reboot`),
	})
	judge(t, fiveRepairs, repairCfg, map[string]tale{
		"a repair in a pool that fails":      caught(RailIgnored, "5 of 5 nodes with karpenter.sh/nodepool=blue", `guardrails $failing^"zone"^"karpenter.sh/nodepool"; pass 5s; marks n1 $onPool now`),
		"a termination in a pool that fails": caught(RailIgnored, "we deleted NodeClaim c-n1, but 5 of 5 nodes", `marks n1 $onPool now; guardrails $failing^"zone"^"karpenter.sh/nodepool"; pass 5s; deleteClaim us n1`),
	})
}

func TestPermittedBesideCorrelatedFailures(t *testing.T) {
	judge(t, sixNodes, unfinished(checkConfig), map[string]tale{
		"as many nodes as the threshold":       fine(`guardrails $failing; becomeUnhealthy n1 n2; pass 5s; remediate n1 workers Reboot; remediate n2 workers Reboot; undo n1 n2`),
		"fewer nodes than minNodes":            fine(`guardrails $failing^"minNodes":2^"minNodes":3; becomeUnhealthy n1 n3; pass 5s; remediate n1 workers Reboot; undo n1`),
		"starts that are too far apart":        fine(`guardrails $failing; condition n1 Ready=False; pass 302s; condition n3 Ready=False; pass 1h; remediate n1 workers Reboot; undo n1`),
		"NoSchedule in a zone that fails":      fine(`guardrails $failing; becomeUnhealthy n1 n3; close n1 n5; open n1 n5`),
		"NoSchedule taints do not count":       fine(`guardrails $failing; close n1 n3 n5; treat n1; open n1 n3 n5; undo n1`),
		"a second failure of a moment ago":     fine(`guardrails $failing; becomeUnhealthy n1; condition n3 KernelDeadlock=True; remediate n1 workers Reboot; undo n1`),
		"NoExecute that was decided before":    fine(`guardrails $failing; condition n1 KernelDeadlock=True; condition n3 KernelDeadlock=True; we n1 +deadlock=$out; calm n1`),
		"a failure that has ended":             fine(`guardrails $failing; becomeUnhealthy n1 n3; pass 5s; condition n3 Ready=True; remediate n1 workers Reboot; undo n1`),
		"a node that was never ready":          fine(`guardrails $failing^"50%"^1; node n7; label n7 zone a; condition n7 Ready=False; pass 50s; condition n1 Unwell=True; healthCheck workers {"remediationTemplate":$rebootRef,"maxUnhealthy":"100%","unhealthyConditions":[{"type":"Ready","status":"False","duration":"10m"},{"type":"Unwell","status":"True","duration":"1m"}]}; pass 1m; remediate n1 workers Reboot; undo n1`),
		"a health check that only observes":    fine(`healthCheck night $nightCheck; annotateCheck night $observe; guardrails $failing; condition n1 A=True; condition n3 A=True; pass 5m; treat n5; undo n5`),
		"a release":                            fine(`guardrails $failing; becomeUnhealthy n1 n3; release 1h; pass 1m; remediate n1 workers Reboot; remediate n3 workers Reboot; undo n1 n3`),
		"the longest hold has ended":           fine(`guardrails $failing^"keys"^"longestHold":"1h","keys"; becomeUnhealthy n1 n3; pass 1h; remediate n1 workers Reboot; undo n1`),
		"a threshold of all nodes":             fine(`guardrails $failing^"50%"^"100%"; becomeUnhealthy n1 n3 n5; pass 5s; remediate n1 workers Reboot; undo n1`),
		"another zone":                         fine(`guardrails $failing; becomeUnhealthy n1 n3 n2; pass 5s; remediate n2 workers Reboot; undo n2`),
		"a node that has just joined the zone": fine(`guardrails $failing^"50%"^1; becomeUnhealthy n1 n3 n2; pass 5s; label n2 zone a; remediate n2 workers Reboot; undo n2`),
		"a zone that has just lost a node":     fine(`guardrails $failing^"50%"^"67%"; becomeUnhealthy n1 n3; pass 5s; deleteNode admin n5; remediate n1 workers Reboot; undo n1`),
	})
	judge(t, fiveRepairs, unfinished(repairCfg), map[string]tale{
		"reasons that came one after the other": fine(`pool blue $unbudgeted^"toleration"^"reason":"Worn","toleration"; guardrails $failing^"zone"^"karpenter.sh/nodepool"; stamped n1 now-2m Disk=True/Worn; pass 10m; stamped n2 now-12m Disk=True/Worn; pass 10m; stamped n3 now-22m Disk=True/Worn; pass 10m; marks n1 $onPool now`),
	})
}

func TestDefaultsWithoutGuardrails(t *testing.T) {
	cfg := checkConfig
	cfg.DefaultMode = v1alpha1.Enforce
	withDefaults := func(tb testing.TB) *story {
		tb.Helper()
		return sixNodes(tb).tell("deleteGuardrails; pass 2s; attempts us n1 1m; attempts us n2 1m; attempts us n3 1m")
	}
	judge(t, withDefaults, cfg, map[string]tale{
		"more nodes in treatment than 49%":  caught(RailIgnored, "3 of 6 nodes are in treatment or not replaced yet, maxInTreatment is 2", `treat n1; treat n2; pass 2m; treat n3`),
		"more nodes closed than 49%":        caught(RailIgnored, "3 of 6 nodes are closed to new pods, maxUnschedulable is 2", `close n1 n2 n3`),
		"more than two treatments a minute": caught(RailIgnored, "3 treatments began within 59s, pace allows 2 in 1m0s", `node n7 n8 n9 n10; becomeUnhealthy n1 n2 n3; remediate n1 workers Reboot; remediate n2 workers Reboot; remediate n3 workers Reboot`),
		"an attempt that is not recorded":   caught(RailIgnored, "no attempt is recorded", `treat n4`),
		"a cordoned node":                   caught(RailIgnored, "respect.cordons protects", `cordon n1 true; treat n1`),
		"a zone that fails":                 caught(RailIgnored, "3 of 4 nodes with topology.kubernetes.io/zone=a became unhealthy within 5m0s, correlatedFailure allows 2", `label n1 $zone a; label n2 $zone a; label n3 $zone a; label n4 $zone a; becomeUnhealthy n1 n2 n3; pass 5s; remediate n1 workers Reboot`),
	})
	judge(t, withDefaults, unfinished(cfg), map[string]tale{
		"two of six nodes":       fine(`becomeUnhealthy n1 n2; remediate n1 workers Reboot; remediate n2 workers Reboot; undo n1 n2`),
		"an object a moment ago": fine(`becomeUnhealthy n1 n2 n3; guardrails $rails; remediate n1 workers Reboot; remediate n2 workers Reboot; remediate n3 workers Reboot; undo n1 n2 n3`),
	})
	judge(t, sixNodes, unfinished(cfg), map[string]tale{
		"defaults of a moment ago": fine(`evict n1 n2; deleteGuardrails; evict n3; calm n1 n2 n3`),
	})
	cfg.DefaultMode = v1alpha1.Observe
	judge(t, fiveWorkers, cfg, map[string]tale{
		"a remediation with --default-mode=Observe": caught(RailIgnored, "the mode is Observe", `treat n1`),
		"a first object that is invalid":            caught(RailIgnored, "the mode is Observe", `guardrails $rails^50^"many"; pass 5s; treat n1`),
	})
	judge(t, sixNodes, checkConfig, map[string]tale{
		"an invalid version keeps the last valid one": caught(RailIgnored, "maxInTreatment is 1", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; guardrails $rails^50^"many"; pass 5s; evict n1 n2`),
		"an invalid version that pauses everything":   caught(RailIgnored, "the mode is Paused", `guardrails $rails^Enforce","enforce":["Taint"^Paused","maxInTreatment":"many","enforce":["Taint"; pass 5s; evict n1`),
	})
}

func TestWindowsAndModesOfHealthChecks(t *testing.T) {
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"a remediation outside the windows":       caught(Unjustified, "the windows of the health check are closed", `annotateCheck workers $atNight; treat n1`),
		"a remediation before the window opens":   caught(Unjustified, "the windows of the health check are closed", `annotateCheck workers $atNight; becomeUnhealthy n1; pass 9h; remediate n1 workers Reboot`),
		"a later step outside the windows":        caught(Unjustified, "the windows of the health check are closed", `healthCheck workers $twoSteps; becomeUnhealthy n1; remediate n1 workers Reboot; annotateCheck workers $atNight; pass 6m; timesOut n1 Reboot; remediate n1 workers Replace`),
		"a later step that is not urgent":         caught(Unjustified, "the windows of the health check are closed", `healthCheck workers $twoSteps; annotateCheck workers $atNight $urgent=quick; becomeUnhealthy n1; remediate n1 workers Reboot; pass 6m; timesOut n1 Reboot; remediate n1 workers Replace`),
		"windows that can no longer be read":      caught(Unjustified, "the windows of the health check are closed", `annotateCheck workers $atNight; annotateCheck workers $windows=never; pass 5s; treat n1`),
		"a remediation while observing":           caught(Unjustified, "the health check observes", `annotateCheck workers $observe; pass 2s; treat n1`),
		"a remediation in a mode that is no mode": caught(Unjustified, `the mode of the health check is "observe"`, `annotateCheck workers $observe^Observe^observe; pass 2s; treat n1`),
		"a pause in an invalid version":           caught(Unjustified, "the health check is paused", `healthCheck workers $workers+"maxUnhealthy":"many","pauseRequests":["upgrade"]; pass 2s; treat n1`),
	})
	judge(t, fiveWorkers, unfinished(checkConfig), map[string]tale{
		"a remediation in a window":          fine(`annotateCheck workers $atNight; becomeUnhealthy n1; pass 10h; remediate n1 workers Reboot; undo n1`),
		"a window that just opens or closed": fine(`annotateCheck workers $atNight; becomeUnhealthy n1 n2`, at("21:59:59", "remediate n1 workers Reboot; undo n1"), at("26:00:00", "remediate n2 workers Reboot; undo n2")),
		"an urgent template":                 fine(`annotateCheck workers $atNight $urgent=quick; treat n1; undo n1`),
		"windows of a moment ago":            fine(`becomeUnhealthy n1; annotateCheck workers $atNight; remediate n1 workers Reboot; undo n1`),
		"a mode of a moment ago":             fine(`becomeUnhealthy n1; annotateCheck workers $observe; remediate n1 workers Reboot; deleteObject us n1 Reboot; unlock n1`),
		"observing ends remediations":        fine(`becomeUnhealthy n1; remediate n1 workers Reboot; annotateCheck workers $observe; pass 1m; deleteObject us n1 Reboot; unlock n1`),
	})
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"a node that waits for a window at the end": fine(`annotateCheck workers $atNight; becomeUnhealthy n1; pass 1m; writeStatus workers Enabled 5 4 0`),
	})
	judge(t, fiveClaims, repairCfg, map[string]tale{
		"a termination after the window":                  caught(Unjustified, "we deleted the claim, but the windows of the policy are closed", `breakDisks n1; marks n1 $onPool now; pool blue $badDisk~"windows":[{"schedule":"@daily","duration":"4h"}]; pass 5s; deleteClaim us n1`),
		"a drain that is ended by force after the window": caught(Unjustified, "we ended the drain of the claim, but the windows of the policy are closed", `pool blue $badDisk~"termination":"Graceful","terminationGracePeriod":"5m"; breakDisks n1; marks n1 $onPool now+5m; deleteClaim us n1; pool blue $badDisk~"windows":[{"schedule":"@daily","duration":"4h"}]; pass 5s; annotateClaim us c-n1 $deadline=2026-03-01T12:00:00Z`),
	})
}
