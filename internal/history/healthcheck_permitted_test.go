package history

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestAPermittedRemediationHasNoViolation(t *testing.T) {
	s := fiveWorkers(t).tell(`healthCheck workers $twoSteps+"healthyDelay":"5m"; writeStatus workers Enabled 5 5 0; pass 1m`)
	// Two nodes are treated. The first recovers after a while, and stays healthy after a
	// flap.
	s.tell("becomeUnhealthy n1 n2; remediate n1 workers Reboot; remediate n2 workers Reboot; writeStatus workers Remediating 5 3 2; pass 1m")
	s.tell("condition n1 Ready=True; annotate n1 Reboot $healthySince 2026-03-01T12:05:00Z; pass 1m; condition n1 Ready=Unknown")
	s.changes(us, "n1", "Reboot", annotated(map[string]string{healthyAnnotation: ""}))
	s.tell("pass 10s; condition n1 Ready=True; pass 3m")
	// The second node gets the next step, which replaces it.
	s.tell("timesOut n2 Reboot; remediate n2 workers Replace; reports n2 Replace PermanentNodeDeletionExpected=True; pass 2m; deleteObject us n1 Reboot; unlock n1")
	s.tell("deleteNode remediator n2; deleteObject us n2 Reboot; node n2; reports n2 Replace PermanentNodeDeletionExpected=True Succeeded=True; startsDeletion us n2 Replace")
	s.changes(remediator, "n2", "Replace", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	s.tell("deleteObject remediator n2 Replace; unlock n2; writeStatus workers Enabled 5 5 0")

	report := s.hasNoViolation(checkConfig)
	want := Counts{Changes: len(s.made), Remediations: 3, Escalations: 1, Releases: 3, Notes: 3, Leases: 5, CheckStatuses: 3}
	if diff := gocmp.Diff(want, report.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if report.Peak["NodeHealthCheck/workers"] != 2 {
		t.Errorf("peak %v, want 2", report.Peak)
	}
}

// Each case is a reading of the rules that the checker must accept. The status is correct
// at the end.
func TestPermittedRemediations(t *testing.T) {
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"nothing happens": fine(`writeStatus workers Enabled 5 5 0`),
		"any unhealthy condition is enough, after its own duration": fine(`healthCheck workers {"remediationTemplate":$rebootRef,"unhealthyConditions":[{"type":"Disk","status":"true","duration":"9m"},{"type":"Ready","status":"Unknown","duration":"1m"}]}; condition n1 Disk=True Ready=Unknown; pass 1m; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"the default conditions":                                    fine(`healthCheck workers {"remediationTemplate":$rebootRef}; condition n1 Ready=Unknown; pass 5m; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"a clock that continues from one bad status to another":     fine(`condition n1 Ready=Unknown; pass 40s; condition n1 Ready=False; pass 30s; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"a clock that restarts when the bad status changes":         fine(`condition n1 Ready=Unknown; pass 40s; condition n1 Ready=False; pass 30s; writeStatus workers Enabled 5 4 0`),
		"a duration that has passed according to the timestamp":     fine(`stamped n1 now-1h Ready=False; stamped n2 now-1h Ready=False; remediate n1 workers Reboot; writeStatus workers Remediating 5 3 1`),
		"a node that recovered a moment ago":                        fine(`becomeUnhealthy n1; lock n1 workers; condition n1 Ready=True; draft n1 workers Reboot; makes us; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 5 5 0`),
		"a node that was deleted a moment ago":                      fine(`becomeUnhealthy n1; draft n1 workers Reboot; lock n1 workers; deleteNode admin n1; makes us; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 4 4 0`),
		"a health check that was paused a moment ago":               fine(`becomeUnhealthy n1; healthCheck workers $workers+"pauseRequests":["upgrade"]; remediate n1 workers Reboot; writeStatus workers Paused 5 4 1`),
		// A running remediation keeps its spec.
		"a template that was edited a moment ago": fine(`becomeUnhealthy n1; draft n1 workers Reboot; template Reboot quick {"template":{"spec":{"size":41}}}; lock n1 workers; makes us; pass 2s; writeStatus workers Remediating 5 4 1`),
		"a template for several objects": fine(`several; template Reboot quick {"template":{"spec":{"size":42}}}; becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
				o.SetName("n1-abcde")
				o.SetGenerateName("n1-")
			})
		}, `writeStatus workers Remediating 5 4 1`),
		"a template that is missing":                                fine(`deleteTemplate Reboot; becomeUnhealthy n1; pass 1m; writeStatus workers Disabled 5 4 0 Disabled=True`),
		"a pause keeps existing objects, and allows their deletion": fine(`treated; healthCheck workers $twoSteps+"pauseRequests":["upgrade"]; pass 1m; becomeUnhealthy n2; condition n1 Ready=True; deleteObject us n1 Reboot; unlock n1; writeStatus workers Paused 5 4 0`),
		"an excluded node":                                          fine(`label n1 $exclude true; becomeUnhealthy n1; pass 1m; writeStatus workers Enabled 5 4 0`),
		"a node whose Lease another client holds":                   fine(`lease admin $leases node-n1 maintenance; becomeUnhealthy n1; pass 1m; writeStatus workers Enabled 5 4 0`),
		"a node whose Lease another client held until now":          fine(`becomeUnhealthy n1; lease admin $leases node-n1 maintenance; pass 1h; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"too many nodes are unhealthy":                              fine(`becomeUnhealthy n1 n2 n3 n4; pass 1m; writeStatus workers Enabled 5 1 0`),
		"one node too many became unhealthy a moment ago":           fine(`healthCheck workers $one; becomeUnhealthy n1; condition n2 Ready=False; remediate n1 workers Reboot; writeStatus workers Remediating 5 3 1`),
		"exactly as many as the bound allows":                       fine(`becomeUnhealthy n1 n2 n3; remediate n1 workers Reboot; remediate n2 workers Reboot; remediate n3 workers Reboot; writeStatus workers Remediating 5 2 3`),
		"a closed gate does not stop the next step":                 fine(`treated; becomeUnhealthy n2 n3 n4; pass 5m; timesOut n1 Reboot; remediate n1 workers Replace; writeStatus workers Remediating 5 1 1`),
		"a bound above the number of nodes":                         fine(`healthCheck workers $workers+"maxUnhealthy":50; becomeUnhealthy n1 n2 n3 n4 n5; remediate n1 workers Reboot; remediate n2 workers Reboot; remediate n3 workers Reboot; remediate n4 workers Reboot; remediate n5 workers Reboot; writeStatus workers Remediating 5 0 5`),
		"a removed node and its replacement":                        fine(`healthCheck workers $one; removedForGood n1; reports n1 Reboot PermanentNodeDeletionExpected=True Succeeded=True; deleteObject us n1 Reboot; unlock n1; becomeUnhealthy n2; node n6; remediate n2 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"a removed node whose replacement already existed":          fine(`healthCheck workers $one; becomeUnhealthy n1; remediate n1 workers Reboot; reports n1 Reboot PermanentNodeDeletionExpected=True; pass 1m; node n6; deleteNode remediator n1; becomeUnhealthy n2; remediate n2 workers Reboot; writeStatus workers Remediating 5 4 2`),
		"a node that was removed a moment ago":                      fine(`healthCheck workers {"remediationTemplate":$rebootRef,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"0s"}]}; condition n1 Ready=False; remediate n1 workers Reboot; reports n1 Reboot PermanentNodeDeletionExpected=True; deleteNode remediator n1; condition n2 Ready=False; remediate n2 workers Reboot; writeStatus workers Remediating 4 3 2`),
		// Both at the same time.
		"a removed node that the controller could not know of": fine(`healthCheck workers $one; becomeUnhealthy n1; remediate n1 workers Reboot; reports n1 Reboot PermanentNodeDeletionExpected=True; deleteObject remediator n1 Reboot; deleteNode remediator n1; unlock n1; becomeUnhealthy n2; remediate n2 workers Reboot; writeStatus workers Remediating 4 3 1`),
		"a removed node without a replacement for 15 minutes":  fine(`healthCheck workers $one; removedForGood n1; pass 15m; becomeUnhealthy n2; remediate n2 workers Reboot; writeStatus workers Remediating 4 3 2`),
		"a removed node makes another node wait":               fine(`healthCheck workers $one; removedForGood n1; becomeUnhealthy n2; pass 1m; writeStatus workers Remediating 4 3 1`),
		"a removed node causes a storm":                        fine(`healthCheck workers $storm; removedForGood n1; becomeUnhealthy n2; pass 1m; writeStatus workers Remediating 4 3 1 StormActive=True`),
		"a node that another health check removed":             fine(`healthCheck workers $one; removedForGood n1; healthCheck others $one; becomeUnhealthy n2; remediate n2 others Reboot; writeStatus workers Remediating 4 3 1; writeStatus others Remediating 4 3 1`),
		"a storm and its end":                                  fine(`healthCheck workers $storm; becomeUnhealthy n1 n2; writeStatus workers Enabled 5 3 0 StormActive=True; condition n2 Ready=True; pass 5m; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"a storm in its cooldown at the end":                   fine(`healthCheck workers $storm; becomeUnhealthy n1 n2; pass 1h; condition n2 Ready=True; pass 4m; writeStatus workers Enabled 5 4 0 StormActive=True`),
		// No controller was running to see it.
		"a storm that no status reports":                                 fine(`healthCheck workers $storm; becomeUnhealthy n1 n2; condition n2 Ready=True; remediate n1 workers Reboot; pass 1h; writeStatus workers Remediating 5 4 1`),
		"nodes of the control plane one after the other":                 fine(`label n1 $controlPlane ""; label n2 $controlPlane ""; becomeUnhealthy n1 n2; remediate n1 workers Reboot; pass 1m; condition n1 Ready=True; deleteObject us n1 Reboot; unlock n1; remediate n2 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"two health checks for one node, one after the other":            fine(`healthCheck others $twoSteps; becomeUnhealthy n1; remediate n1 workers Reboot; pass 1m; deleteHealthCheck admin workers; deleteObject us n1 Reboot; unlock n1; remediate n1 others Reboot; writeStatus others Remediating 5 4 1`),
		"a failed step is followed at once":                              fine(`treated; reports n1 Reboot Succeeded=False; timesOut n1 Reboot; remediate n1 workers Replace; writeStatus workers Remediating 5 4 1`),
		"a node that becomes unhealthy again has the remaining time":     fine(`healthCheck workers $twoSteps+"healthyDelay":"-1s"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 5m; condition n1 Ready=False; timesOut n1 Reboot; remediate n1 workers Replace; writeStatus workers Remediating 5 4 1`),
		"a template that was removed from the steps a moment ago":        fine(`becomeUnhealthy n1; draft n1 workers Reboot; healthCheck workers {"remediationTemplate":` + replaceRef + `,` + signs + `}; lock n1 workers; makes us; writeStatus workers Remediating 5 4 1`),
		"a step that succeeded without effect is followed in time":       fine(`treated; reports n1 Reboot Succeeded=True; pass 5m; remediate n1 workers Replace; writeStatus workers Remediating 5 4 1`),
		"an object that its remediator deleted is created again":         fine(`treated; deleteObject remediator n1 Reboot; pass 1m; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"an object that its remediator deleted is not yet created again": fine(`treated; deleteObject remediator n1 Reboot; unlock n1; pass 1m; writeStatus workers Enabled 5 4 0`),
		"an object that a finalizer keeps forever":                       fine(`treated; condition n1 Ready=True; startsDeletion us n1 Reboot; pass 1h; writeStatus workers Remediating 5 4 1`),
		"a deleted health check and its objects":                         fine(`treated; deleteHealthCheck admin workers; deleteObject us n1 Reboot; unlock n1`),
		"a recreated health check does not own the old objects":          fine(`treated; deleteHealthCheck admin workers; healthCheck workers $twoSteps; pass 1m; deleteObject us n1 Reboot; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"a node that is no longer selected":                              fine(`healthCheck workers $workers+"selector":{"matchLabels":{"pool":"web"}}; becomeUnhealthy n1; remediate n1 workers Reboot; label n1 pool lab; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 4 4 0`),
		"a remediator of a deleted node is told to stop":                 fine(`treated; deleteNode admin n1; timesOut n1 Reboot; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 4 4 0`),
		"a remediator of a recreated node is told to stop":               fine(`treated; deleteNode admin n1; node n1; timesOut n1 Reboot; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 5 5 0`),
		"a node that was recreated with the same name":                   fine(`treated; deleteNode admin n1; node n1; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 5 5 0`),
		"a node that is to be removed permanently":                       fine(`treated; reports n1 Reboot PermanentNodeDeletionExpected=True; deleteNode remediator n1; pass 1h; writeStatus workers Remediating 4 4 1`),
		"a healthy node that its remediator deleted a moment ago":        fine(`treated; condition n1 Ready=True; pass 1m; reports n1 Reboot PermanentNodeDeletionExpected=True; deleteNode remediator n1; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 4 4 0`),
		"a node that was healthy until a moment ago":                     fine(`treated; condition n1 Ready=True; pass 1m; condition n1 Ready=False; deleteObject us n1 Reboot; unlock n1; writeStatus workers Enabled 5 4 0`),
		"a delay that a user ends":                                       fine(`healthCheck workers $workers+"healthyDelay":"-1s"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 1h; confirm admin n1 true; deleteObject us n1 Reboot; unlock n1; confirm us n1 false; writeStatus workers Enabled 5 5 0`),
		"a delay that no user ends":                                      fine(`healthCheck workers $workers+"healthyDelay":"-1s"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 24h; writeStatus workers Remediating 5 4 1`),
		"a condition is Unknown, and existing objects stay":              fine(`treated; condition n1 Ready=Unknown/AgentSilent; pass 1h; writeStatus workers Remediating 5 4 1`),
		"a node with an Unknown condition may or may not count":          fine(`condition n1 Ready=Unknown/AgentSilent; condition n2 Ready=Unknown/AgentSilent; pass 1h; writeStatus workers Enabled 5 4 0`),
		"an invalid edit does not affect existing objects":               fine(`treated; healthCheck workers $twoSteps+"healthyDelay":"soon"; pass 1m; condition n1 Ready=True; deleteObject us n1 Reboot; unlock n1; writeStatus workers Disabled 5 5 0 Disabled=True`),
		"an edit that interrupts a remediation waits for its end":        fine(`treated; healthCheck workers $twoSteps+"selector":{"matchLabels":{"pool":"lab"}}; pass 1m; becomeUnhealthy n2; remediate n2 workers Reboot; condition n1 Ready=True; condition n2 Ready=True; deleteObject us n1 Reboot; unlock n1; deleteObject us n2 Reboot; unlock n2; pass 1m; becomeUnhealthy n3; writeStatus workers Enabled 0 0 0`),
		"an object of medik8s' own controller": fine(`medik8sIsActive; becomeUnhealthy n1`, func(s *story) {
			object := s.draft("n1", "workers", "Reboot")
			delete(object.Object["metadata"].(map[string]any), "annotations")
			s.makes(peer, object)
			s.objects["RebootRemediation n1"] = object
		}, `lease peer theirs $peerLease ""; pass 1m; condition n1 Ready=True; deleteObject us n1 Reboot; writeStatus workers Enabled 5 5 0`),
		"nothing is expected while medik8s' own controller is active":      fine(`treated; condition n1 Ready=True; pass 1h; medik8sIsActive; writeStatus workers "" 0 0 0 StandingBack=True Ready=False`),
		"medik8s' own controller that has just started":                    fine(`becomeUnhealthy n1; lease peer theirs $peerLease peer-1; remediate n1 workers Reboot`),
		"medik8s' own controller that stopped without releasing its Lease": fine(`medik8sIsActive; becomeUnhealthy n1; pass 1h; remediate n1 workers Reboot; writeStatus workers Remediating 5 4 1`),
		"an invalid health check says so":                                  fine(`healthCheck workers {"remediationTemplate":$rebootRef,"unhealthyConditions":[]}; writeStatus workers Disabled 0 0 0 Disabled=True`),
		"objects and Leases of other clients": fine(`draft n1 workers Reboot; disown; makes admin`, func(s *story) {
			s.changes(admin, "n1", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{} })
		},
			`lease admin $leases node-n1 maintenance; lease us autohealer-system autohealer-controller replica-1; deleteObject admin n1 Reboot; writeStatus workers Enabled 5 5 0`),
		"an object of ours that only the managedFields prove": fine(`lock n1 workers; draft n1 workers Reboot; makes unknown; managedBy another-writer; deleteObject admin n1 Reboot; unlock n1; writeStatus workers Enabled 5 5 0`),
		"a justified deletion without proof of its author":    fine(`treated; condition n1 Ready=True; deleteObject unknown n1 Reboot; unlock n1; writeStatus workers Enabled 5 5 0`),
		"a node that changes only by heartbeats":              fine(func(s *story) { s.edit(kubelet, "n1", func(n *corev1.Node) { n.Status.Phase = "Running" }) }, `writeStatus workers Enabled 5 5 0`),
	})
}
