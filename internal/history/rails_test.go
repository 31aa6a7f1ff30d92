package history

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// roomyRails are Guardrails that allow everything, as the API server stores them. Scripts
// lower one limit.
const roomyRails = `{"mode":"Enforce","enforce":["Taint","Remediate","Repair"],"maxInTreatment":50,"maxUnschedulable":"100%","pace":{"max":100,"atLeast":2,"period":"1m"},"topology":[]}`

func (s *story) guardrails(spec string) {
	s.put(admin, s.rails, "cluster", RailsResource, "Guardrails", "", "cluster", fieldsOf(s.tb, spec))
}

// attempts sets how long ago the node was treated, or an earlier node that it replaces (with a
// minus).
func (s *story) attempts(author testbed.Author, name string, ago ...string) {
	rows := make([]string, 0, len(ago))
	for _, text := range ago {
		since, isInherited := strings.CutPrefix(text, "-")
		d, err := time.ParseDuration(since)
		if err != nil {
			s.tb.Fatal(err)
		}
		row := fmt.Sprintf(`{"policy":"NodeHealthCheck/workers","began":%q`, s.now.Add(-d).Format(time.RFC3339))
		if isInherited {
			row += `,"node":"old"`
		}
		rows = append(rows, row+"}")
	}
	s.edit(author, name, func(n *corev1.Node) {
		if n.Annotations = maps.Clone(n.Annotations); n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		if delete(n.Annotations, attemptsAnnotation); len(rows) > 0 {
			n.Annotations[attemptsAnnotation] = `{"attempts":[` + strings.Join(rows, ",") + `]}`
		}
	})
}

func (s *story) deleteGuardrails() { s.drop(admin, s.rails, "cluster", RailsResource) }

func (s *story) cordon(name string, isSo bool) {
	s.edit(admin, name, func(n *corev1.Node) { n.Spec.Unschedulable = isSo })
}

// pausedRails has a user write the annotation of Guardrails that pauses everything.
func pausedRails(value string) func(*story) {
	return func(s *story) {
		annotated(map[string]string{pausedAnnotation: value})(s.rails["cluster"])
		s.record(watch.Modified, RailsResource, admin, s.rails["cluster"])
	}
}

// sixNodes returns a story of six nodes in two zones with a set on every effect, a health
// check and Guardrails. Only Guardrails limit them.
func sixNodes(tb testing.TB) *story {
	tb.Helper()
	s := newCheckStory(tb).tell(`node n1 n2 n3 n4 n5 n6; healthCheck workers $workers+"maxUnhealthy":"100%"; ` +
		`set deadlock $deadlock+"maxUnhealthy":"100%"; set ntp $ntp`)
	for i, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6"} {
		s.label(name, "zone", []string{"a", "b"}[i%2])
	}
	return s.tell("guardrails $rails; pass 1m")
}

// evict and close taint nodes, treat starts remediations, calm and open remove the taints.
var railVerbs = map[string]string{
	"evict": "condition NODE KernelDeadlock=True; we NODE +deadlock=$out",
	"close": "condition NODE NTPProblem=True; we NODE +ntp=$late",
	"treat": "becomeUnhealthy NODE; remediate NODE workers Reboot",
	"calm":  "condition NODE KernelDeadlock=False; we NODE -deadlock=$out",
	"open":  "condition NODE NTPProblem=False; we NODE -ntp=$late",
}

func TestPlantedInRails(t *testing.T) {
	judge(t, sixNodes, checkConfig, map[string]tale{
		"one node more in treatment, by three kinds": caught(RailIgnored, "3 of 6 nodes are in treatment or not replaced yet, maxInTreatment is 2", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":"49%"; pass 1m; evict n1; treat n2; evict n3`),
		"a remediation more in treatment":            caught(RailIgnored, "maxInTreatment is 2", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":2; pass 1m; evict n1 n2; treat n3`),
		"with none allowed":                          caught(RailIgnored, "maxInTreatment is 0", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":"0%"; pass 1m; evict n1`),
		"a limit that was lowered long ago":          caught(RailIgnored, "maxInTreatment is 1", `evict n1; guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 2s; evict n2`),
		"a percentage of nodes that left long ago":   caught(RailIgnored, "2 of 3 nodes are in treatment or not replaced yet, maxInTreatment is 1", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":"49%"; pass 1m; evict n1; deleteNode admin n4; deleteNode admin n5; deleteNode admin n6; pass 2s; evict n2`),
		"while a removed node is not replaced":       caught(RailIgnored, "2 of 5 nodes are in treatment or not replaced yet, maxInTreatment is 1", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 1m; removedForGood n1; pass 2s; evict n2`),
		"a promotion of a node that was only closed": caught(RailIgnored, "maxInTreatment is 1", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 1m; evict n1; condition n2 KernelDeadlock=True; we n2 +deadlock=$back; we n2 -deadlock=$back +deadlock=$out`),

		"one node more closed":                   caught(RailIgnored, "3 of 6 nodes are closed to new pods, maxUnschedulable is 2", `guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":"49%"; pass 1m; close n1; evict n2; close n3`),
		"one node beside cordons of others":      caught(RailIgnored, "maxUnschedulable is 2", `guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":2; cordon n4 true; foreign n5 node.kubernetes.io/not-ready:NoSchedule; pass 1m; close n1`),
		"a cordoned node above the limit":        caught(RailIgnored, "2 of 6 nodes are closed to new pods, maxUnschedulable is 1", `guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":1; cordon n4 true; cordon n5 true; pass 1m; close n5`),
		"an opened place that was used up again": caught(RailIgnored, "maxUnschedulable is 1", `guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":1; pass 1m; close n1; open n1; close n2; close n3`),

		"one node more of a zone":      caught(RailIgnored, "2 of 3 nodes with zone=a are in treatment, topology allows 1", `guardrails $rails^"topology":[]^"topology":[{"key":"zone","max":"49%"}]; pass 1m; evict n1 n2 n3`),
		"a remediation more of a zone": caught(RailIgnored, "zone=b", `guardrails $rails^"topology":[]^"topology":[{"key":"zone","max":1}]; pass 1m; evict n1 n2; treat n4`),

		"one treatment more than the pace":          caught(RailIgnored, "3 treatments began within 59s, pace allows 2 in 1m0s", `guardrails $rails^"pace":{"max":100^"pace":{"max":"10%"; pass 1m; becomeUnhealthy n1 n2 n3; remediate n1 workers Reboot; remediate n2 workers Reboot; pass 50s; remediate n3 workers Reboot`),
		"one treatment more than the pace's number": caught(RailIgnored, "2 treatments began within 59s, pace allows 1 in 1m0s", `guardrails $rails^"pace":{"max":100^"pace":{"max":1; pass 1m; becomeUnhealthy n1 n2; remediate n1 workers Reboot; pass 50s; remediate n2 workers Reboot`),

		"a fourth attempt": caught(RailIgnored, "this is attempt 4 within 24h0m0s, maxAttempts is 3", `guardrails $rails^"topology":[]^$attempts; pass 1m; attempts us n1 3h 2h 1h 1m; treat n1`),
		"an attempt that inherited ones make one too many": caught(RailIgnored, "this is attempt 4 within 24h0m0s", `guardrails $rails^"topology":[]^$attempts; pass 1m; attempts us n1 -3h -2h -1h 1m; treat n1`),
		"an attempt that is not recorded":                  caught(RailIgnored, "no attempt is recorded on the node", `guardrails $rails^"topology":[]^$attempts; pass 1m; attempts us n1 -1h; treat n1`),
		"an attempt that we removed":                       caught(RailIgnored, "we removed an attempt that still counts", `guardrails $rails^"topology":[]^$attempts; pass 1m; attempts us n1 2h 1h; attempts us n1 1h 1m`),

		"the last open node closed":                     caught(RailIgnored, "it was the last node that is Ready and schedulable", `close n1 n2 n3 n4; cordon n5 true; pass 2s; close n6`),
		"the last open node treated":                    caught(RailIgnored, "it was the last node that is Ready and schedulable", `close n1 n2 n3 n4; condition n5 Ready=False; pass 2s; evict n6`),
		"a taint while paused":                          caught(RailIgnored, "the mode is Paused", `guardrails $rails^Enforce^Paused; pass 2s; close n1`),
		"a promotion while paused":                      caught(RailIgnored, "the mode is Paused", `condition n2 KernelDeadlock=True; we n2 +deadlock=$back; guardrails $rails^Enforce^Paused; pass 2s; we n2 -deadlock=$back +deadlock=$out`),
		"a remediation while observing":                 caught(RailIgnored, "the mode is Observe", `guardrails $rails^Enforce^Observe; pass 2s; treat n1`),
		"a later step while paused":                     caught(RailIgnored, "the mode is Paused", `healthCheck workers $twoSteps; becomeUnhealthy n1; remediate n1 workers Reboot; pass 6m; timesOut n1 Reboot; guardrails $rails^Enforce^Paused; pass 2s; remediate n1 workers Replace`),
		"a taint while paused by annotation":            caught(RailIgnored, "the mode is Paused", pausedRails("storage"), `pass 2s; close n1`),
		"an invalid version while paused by annotation": caught(RailIgnored, "the mode is Paused", pausedRails("storage"), `guardrails $rails^"topology":[]^"topology":5; pass 2s; close n1`),
		"a stage that does not act":                     caught(RailIgnored, "enforce does not list Remediate", `guardrails $rails^"Taint","Remediate","Repair"^"Taint"; pass 2s; treat n1`),

		"the spec of Guardrails": caught(ForeignTouched, "spec of the Guardrails", `guardrails $rails^"topology":[]^"topology":[{"key":"zone","max":1}]; by us`),
		"an unchanged status":    caught(DoneTwice, "wrote to the Guardrails and changed nothing", `guardrails $rails; by us`),
	})
	judge(t, fiveRepairs, repairCfg, map[string]tale{
		"a repair more in treatment":   caught(RailIgnored, "maxInTreatment is 1", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 1m; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool`),
		"while a node is not replaced": caught(RailIgnored, "maxInTreatment is 1", `guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 1m; marksAndDeletes n1 $onPool; finishDeletion n1; pass 5m; marksAndDeletes n2 $onPool`),
		"a repair more than the pace":  caught(RailIgnored, "pace allows 1", `guardrails $rails^"pace":{"max":100^"pace":{"max":1; pass 1m; marksAndDeletes n1 $onPool; marksAndDeletes n2 $onPool`),
		"a repair while paused":        caught(RailIgnored, "the mode is Paused", `guardrails $rails^Enforce^Paused; pass 2s; marksAndDeletes n1 $onPool`),
	})
}

// fiveRepairs returns a story with a pool of five unhealthy nodes that all may be in repair,
// and Guardrails.
func fiveRepairs(tb testing.TB) *story {
	tb.Helper()
	return newCheckStory(tb).tell(`pool blue $unbudgeted~"maxUnhealthy":"100%","unhealthyThreshold":"100%"; readyNodes blue n1 n2 n3 n4 n5; pass 1h; breakDisks n1 n2 n3 n4 n5; guardrails $rails; pass 1m`)
}

func TestPermittedByRails(t *testing.T) {
	cfg := checkConfig
	cfg.Unfinished = true
	judge(t, sixNodes, cfg, map[string]tale{
		"everything, if nothing limits it":          fine(`evict n1 n2 n3; close n4 n5; deleteGuardrails; close n6; open n4 n5 n6; calm n1 n2 n3`),
		"a version of a moment ago":                 fine(`evict n1; guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; evict n2; calm n1 n2`),
		"a pause of a moment ago":                   fine(`guardrails $rails^Enforce^Paused; close n1; pass 1m; open n1`),
		"a node that is in treatment already":       fine(`guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 1m; treat n1; evict n1; calm n1; condition n1 Ready=True; deleteObject us n1 Reboot; unlock n1`),
		"a node whose percentage a deletion lowers": fine(`guardrails $rails^"maxInTreatment":50^"maxInTreatment":"49%"; pass 1m; evict n1; deleteNode admin n4; deleteNode admin n5; deleteNode admin n6; evict n2; calm n1 n2`),
		"a cordon of a moment ago":                  fine(`guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":2; close n1; pass 1m; cordon n4 true; close n2; open n1 n2`),
		"a cordoned node at the limit":              fine(`guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":1; cordon n4 true; pass 1m; close n4; open n4`),
		"a dedicated node":                          fine(`guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":1; foreign n4 example.com/gpu:NoSchedule; pass 1m; close n1; open n1`),
		"a promotion of a closed node":              fine(`guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":1; pass 1m; condition n1 KernelDeadlock=True; we n1 +deadlock=$back; we n1 -deadlock=$back +deadlock=$out; calm n1`),
		"a label with one value":                    fine(`guardrails $rails^"topology":[]^"topology":[{"key":"kubernetes.io/os","max":1}]; pass 1m; evict n1 n2; calm n1 n2`),
		"a place that became free":                  fine(`guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 1m; evict n1; calm n1; evict n2; calm n2`),
		"a removed node that is replaced":           fine(`guardrails $rails^"maxInTreatment":50^"maxInTreatment":1; pass 1m; removedForGood n1; reports n1 Reboot PermanentNodeDeletionExpected=True Succeeded=True; deleteObject us n1 Reboot; unlock n1; node n7; pass 1m; evict n2; calm n2`),
		"treatments in two periods":                 fine(`guardrails $rails^"pace":{"max":100^"pace":{"max":1; pass 1m; treat n1; pass 1m; treat n2; condition n1 Ready=True; condition n2 Ready=True; deleteObject us n1 Reboot; deleteObject us n2 Reboot; unlock n1; unlock n2`),
		"a third attempt, and older ones":           fine(`guardrails $rails^"topology":[]^$attempts; pass 1m; attempts us n1 25h 3h 2h; attempts us n1 3h 2h 1m; treat n1; condition n1 Ready=True; deleteObject us n1 Reboot; unlock n1`),
		"attempts that a user removes":              fine(`guardrails $rails^"topology":[]^$attempts; pass 1m; attempts us n1 3h 2h 1h; attempts admin n1; attempts us n1 1m; treat n1; condition n1 Ready=True; deleteObject us n1 Reboot; unlock n1`),
		"taints, which are not paced":               fine(`guardrails $rails^"pace":{"max":100^"pace":{"max":1; pass 1m; evict n1 n2 n3; calm n1 n2 n3`),
		"a pause that has ended":                    fine(pausedRails("storage"), `pass 1m`, pausedRails("false"), `close n1; open n1`),
		"a removal while paused":                    fine(`evict n1; guardrails $rails^Enforce^Paused; pass 1m; calm n1`),
		"the last but one open node":                fine(`close n1 n2 n3 n4; cordon n5 true; close n6; open n1 n2 n3 n4 n6`),
		"a status":                                  fine(func(s *story) { s.writeRailStatus(us) }),
	})
	judge(t, fiveNodes, testConfig, map[string]tale{
		"nodes that wait at the end": fine(`guardrails $rails^"maxUnschedulable":"100%"^"maxUnschedulable":1; pass 1m; deadlocked n1; condition n2 KernelDeadlock=True; pass 1m`),
	})
}

// writeRailStatus writes the status of Guardrails.
func (s *story) writeRailStatus(author testbed.Author) {
	object := s.rails["cluster"].DeepCopy()
	object.Object["status"] = map[string]any{"held": int64(1), "at": s.now.Format(time.RFC3339)}
	s.rails["cluster"] = object
	s.record("MODIFIED", RailsResource, author, object)
}
