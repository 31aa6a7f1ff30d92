package history

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestAPermittedRemediationHasNoViolation(t *testing.T) {
	s := fiveWorkers(t)
	s.healthCheck("workers", with(twoSteps, `"healthyDelay":"5m"`))
	s.writeStatus("workers", "Enabled", 5, 5, 0)
	s.pass(time.Minute)

	// Two nodes are treated. The first recovers after a while, and stays healthy after a
	// flap.
	s.becomeUnhealthy("n1", "n2")
	for _, n := range []string{"n1", "n2"} {
		s.remediate(n, "workers", "Reboot")
	}
	s.writeStatus("workers", "Remediating", 5, 3, 2)
	s.pass(time.Minute)
	s.condition("n1", "Ready=True")
	s.annotate("n1", "Reboot", healthyAnnotation, "2026-03-01T12:05:00Z")
	s.pass(time.Minute)
	s.condition("n1", "Ready=Unknown")
	s.changes(us, "n1", "Reboot", func(o *unstructured.Unstructured) {
		annotations := o.GetAnnotations()
		delete(annotations, healthyAnnotation)
		o.SetAnnotations(annotations)
	})
	s.pass(10 * time.Second)
	s.condition("n1", "Ready=True")
	s.pass(3 * time.Minute)
	// The second node gets the next step, which replaces it.
	s.timesOut("n2", "Reboot")
	s.remediate("n2", "workers", "Replace")
	s.reports("n2", "Replace", "PermanentNodeDeletionExpected=True")
	s.pass(2 * time.Minute)
	s.deletes(us, "n1", "Reboot")
	s.unlock("n1")
	s.deleteNode(remediator, "n2")
	s.deletes(us, "n2", "Reboot")
	s.node("n2")
	s.reports("n2", "Replace", "PermanentNodeDeletionExpected=True", "Succeeded=True")
	s.startsDeletion(us, "n2", "Replace")
	s.changes(remediator, "n2", "Replace", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	s.deletes(remediator, "n2", "Replace")
	s.unlock("n2")
	s.writeStatus("workers", "Enabled", 5, 5, 0)

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
	for name, tell := range map[string]func(s *checkStory){
		"nothing happens": func(s *checkStory) { s.writeStatus("workers", "Enabled", 5, 5, 0) },
		"any unhealthy condition is enough, after its own duration": func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Disk","status":"true","duration":"9m"},{"type":"Ready","status":"Unknown","duration":"1m"}]}`)
			s.condition("n1", "Disk=True", "Ready=Unknown")
			s.pass(time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"the default conditions": func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`}`)
			s.condition("n1", "Ready=Unknown")
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a clock that continues from one bad status to another": func(s *checkStory) {
			s.condition("n1", "Ready=Unknown")
			s.pass(40 * time.Second)
			s.condition("n1", "Ready=False")
			s.pass(30 * time.Second)
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a clock that restarts when the bad status changes": func(s *checkStory) {
			s.condition("n1", "Ready=Unknown")
			s.pass(40 * time.Second)
			s.condition("n1", "Ready=False")
			s.pass(30 * time.Second)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		},
		"a duration that has passed according to the timestamp": func(s *checkStory) {
			s.stamped("n1", s.now.Add(-time.Hour), "Ready=False")
			s.stamped("n2", s.now.Add(-time.Hour), "Ready=False")
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 3, 1)
		},
		"a node that recovered a moment ago": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.lock("n1", "workers")
			s.condition("n1", "Ready=True")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"a node that was deleted a moment ago": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.lock("n1", "workers")
			s.deleteNode(admin, "n1")
			s.makes(us, object)
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Enabled", 4, 4, 0)
		},
		"a health check that was paused a moment ago": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.healthCheck("workers", with(workers, `"pauseRequests":["upgrade"]`))
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Paused", 5, 4, 1)
		},
		"a template that was edited a moment ago": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.template("Reboot", "quick", `{"template":{"spec":{"size":41}}}`)
			s.lock("n1", "workers")
			s.makes(us, object)
			s.pass(2 * DefaultLag) // a running remediation keeps its spec
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a template for several objects": func(s *checkStory) {
			s.templates["RebootRemediationTemplate"].SetAnnotations(map[string]string{severalAnnotation: ""})
			s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
				o.SetName("n1-abcde")
				o.SetGenerateName("n1-")
			})
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a template that is missing": func(s *checkStory) {
			s.deleteTemplate("Reboot")
			s.becomeUnhealthy("n1")
			s.pass(time.Minute)
			s.writeStatus("workers", "Disabled", 5, 4, 0, "Disabled=True")
		},
		"a pause keeps existing objects, and allows their deletion": func(s *checkStory) {
			treated(s)
			s.healthCheck("workers", with(twoSteps, `"pauseRequests":["upgrade"]`))
			s.pass(time.Minute)
			s.becomeUnhealthy("n2")
			s.condition("n1", "Ready=True")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Paused", 5, 4, 0)
		},
		"an excluded node": func(s *checkStory) {
			s.label("n1", excludeLabel, "true")
			s.becomeUnhealthy("n1")
			s.pass(time.Minute)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		},
		"a node whose Lease another client holds": func(s *checkStory) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.becomeUnhealthy("n1")
			s.pass(time.Minute)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		},
		"a node whose Lease another client held until now": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.pass(time.Hour)
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"too many nodes are unhealthy": func(s *checkStory) {
			s.becomeUnhealthy("n1", "n2", "n3", "n4")
			s.pass(time.Minute)
			s.writeStatus("workers", "Enabled", 5, 1, 0)
		},
		"one node too many became unhealthy a moment ago": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			s.becomeUnhealthy("n1")
			s.condition("n2", "Ready=False")
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 3, 1)
		},
		"exactly as many as the bound allows": func(s *checkStory) {
			s.becomeUnhealthy("n1", "n2", "n3")
			for _, n := range []string{"n1", "n2", "n3"} {
				s.remediate(n, "workers", "Reboot")
			}
			s.writeStatus("workers", "Remediating", 5, 2, 3)
		},
		"a closed gate does not stop the next step": func(s *checkStory) {
			treated(s)
			s.becomeUnhealthy("n2", "n3", "n4")
			s.pass(5 * time.Minute)
			s.timesOut("n1", "Reboot")
			s.remediate("n1", "workers", "Replace")
			s.writeStatus("workers", "Remediating", 5, 1, 1)
		},
		"a bound above the number of nodes": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":50`))
			s.becomeUnhealthy("n1", "n2", "n3", "n4", "n5")
			for _, n := range []string{"n1", "n2", "n3", "n4", "n5"} {
				s.remediate(n, "workers", "Reboot")
			}
			s.writeStatus("workers", "Remediating", 5, 0, 5)
		},
		"a removed node and its replacement": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			removedForGood(s, "n1")
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True", "Succeeded=True")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.becomeUnhealthy("n2")
			s.node("n6")
			s.remediate("n2", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a removed node whose replacement already existed": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.pass(time.Minute)
			s.node("n6")
			s.deleteNode(remediator, "n1")
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 2)
		},
		"a node that was removed a moment ago": func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"0s"}]}`)
			s.condition("n1", "Ready=False")
			s.remediate("n1", "workers", "Reboot")
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.deleteNode(remediator, "n1")
			s.condition("n2", "Ready=False")
			s.remediate("n2", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 4, 3, 2)
		},
		"a removed node that the controller could not know of": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.deletes(remediator, "n1", "Reboot") // both at the same time
			s.deleteNode(remediator, "n1")
			s.unlock("n1")
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 4, 3, 1)
		},
		"a removed node without a replacement for 15 minutes": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			removedForGood(s, "n1")
			s.pass(replacedWithin)
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 4, 3, 2)
		},
		"a removed node makes another node wait": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			removedForGood(s, "n1")
			s.becomeUnhealthy("n2")
			s.pass(time.Minute)
			s.writeStatus("workers", "Remediating", 4, 3, 1)
		},
		"a removed node causes a storm": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			removedForGood(s, "n1")
			s.becomeUnhealthy("n2")
			s.pass(time.Minute)
			s.writeStatus("workers", "Remediating", 4, 3, 1, "StormActive=True")
		},
		"a node that another health check removed": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			removedForGood(s, "n1")
			s.healthCheck("others", with(workers, `"maxUnhealthy":1`))
			s.becomeUnhealthy("n2")
			s.remediate("n2", "others", "Reboot")
			s.writeStatus("workers", "Remediating", 4, 3, 1)
			s.writeStatus("others", "Remediating", 4, 3, 1)
		},
		"a storm and its end": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.becomeUnhealthy("n1", "n2")
			s.writeStatus("workers", "Enabled", 5, 3, 0, "StormActive=True")
			s.condition("n2", "Ready=True")
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a storm in its cooldown at the end": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.becomeUnhealthy("n1", "n2")
			s.pass(time.Hour)
			s.condition("n2", "Ready=True")
			s.pass(4 * time.Minute)
			s.writeStatus("workers", "Enabled", 5, 4, 0, "StormActive=True")
		},
		"a storm that no status reports": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.becomeUnhealthy("n1", "n2")
			s.condition("n2", "Ready=True")
			s.remediate("n1", "workers", "Reboot") // no controller was running to see it
			s.pass(time.Hour)
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"nodes of the control plane one after the other": func(s *checkStory) {
			s.label("n1", controlPlaneLabel, "")
			s.label("n2", controlPlaneLabel, "")
			s.becomeUnhealthy("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Minute)
			s.condition("n1", "Ready=True")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.remediate("n2", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"two health checks for one node, one after the other": func(s *checkStory) {
			s.healthCheck("others", twoSteps)
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Minute)
			s.deleteHealthCheck(admin, "workers")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.remediate("n1", "others", "Reboot")
			s.writeStatus("others", "Remediating", 5, 4, 1)
		},
		"a failed step is followed at once": func(s *checkStory) {
			treated(s)
			s.reports("n1", "Reboot", "Succeeded=False")
			s.timesOut("n1", "Reboot")
			s.remediate("n1", "workers", "Replace")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a node that becomes unhealthy again has the remaining time": func(s *checkStory) {
			s.healthCheck("workers", with(twoSteps, `"healthyDelay":"-1s"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(5 * time.Minute)
			s.condition("n1", "Ready=False")
			s.timesOut("n1", "Reboot")
			s.remediate("n1", "workers", "Replace")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a template that was removed from the steps a moment ago": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.healthCheck("workers", `{"remediationTemplate":`+replaceRef+`,`+signs+`}`)
			s.lock("n1", "workers")
			s.makes(us, object)
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a step that succeeded without effect is followed in time": func(s *checkStory) {
			treated(s)
			s.reports("n1", "Reboot", "Succeeded=True")
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Replace")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"an object that its remediator deleted is created again": func(s *checkStory) {
			treated(s)
			s.deletes(remediator, "n1", "Reboot")
			s.pass(time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"an object that its remediator deleted is not yet created again": func(s *checkStory) {
			treated(s)
			s.deletes(remediator, "n1", "Reboot")
			s.unlock("n1")
			s.pass(time.Minute)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		},
		"an object that a finalizer keeps forever": func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.startsDeletion(us, "n1", "Reboot")
			s.pass(time.Hour)
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a deleted health check and its objects": func(s *checkStory) {
			treated(s)
			s.deleteHealthCheck(admin, "workers")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
		},
		"a recreated health check does not own the old objects": func(s *checkStory) {
			treated(s)
			s.deleteHealthCheck(admin, "workers")
			s.healthCheck("workers", twoSteps)
			s.pass(time.Minute)
			s.deletes(us, "n1", "Reboot")
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a node that is no longer selected": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"selector":{"matchLabels":{"pool":"web"}}`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.label("n1", "pool", "lab")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Enabled", 4, 4, 0)
		},
		"a node that was recreated with the same name": func(s *checkStory) {
			treated(s)
			s.deleteNode(admin, "n1")
			s.node("n1")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"a node that is to be removed permanently": func(s *checkStory) {
			treated(s)
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.deleteNode(remediator, "n1")
			s.pass(time.Hour)
			s.writeStatus("workers", "Remediating", 4, 4, 1)
		},
		"a node that was healthy until a moment ago": func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.pass(time.Minute)
			s.condition("n1", "Ready=False")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		},
		"a delay that a user ends": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"-1s"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(time.Hour)
			s.confirm(admin, "n1", true)
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.confirm(us, "n1", false)
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"a delay that no user ends": func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"-1s"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(24 * time.Hour)
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a condition is Unknown, and existing objects stay": func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.pass(time.Hour)
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"a node with an Unknown condition may or may not count": func(s *checkStory) {
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.condition("n2", "Ready=Unknown/AgentSilent")
			s.pass(time.Hour)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		},
		"an invalid edit does not affect existing objects": func(s *checkStory) {
			treated(s)
			s.healthCheck("workers", with(twoSteps, `"healthyDelay":"soon"`))
			s.pass(time.Minute)
			s.condition("n1", "Ready=True")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Disabled", 5, 5, 0, "Disabled=True")
		},
		"an object of medik8s' own controller": func(s *checkStory) {
			medik8sIsActive(s)
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			delete(object.Object["metadata"].(map[string]any), "annotations")
			s.makes(peer, object)
			s.objects["RebootRemediation n1"] = object
			s.lease(peer, "theirs", peerLease, "")
			s.pass(time.Minute)
			s.condition("n1", "Ready=True")
			s.deletes(us, "n1", "Reboot")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"nothing is expected while medik8s' own controller is active": func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.pass(time.Hour)
			medik8sIsActive(s)
			s.writeStatus("workers", "", 0, 0, 0, "StandingBack=True")
		},
		"medik8s' own controller that has just started": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.lease(peer, "theirs", peerLease, "peer-1")
			s.remediate("n1", "workers", "Reboot")
		},
		"medik8s' own controller that stopped without releasing its Lease": func(s *checkStory) {
			medik8sIsActive(s)
			s.becomeUnhealthy("n1")
			s.pass(time.Hour)
			s.remediate("n1", "workers", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		},
		"an invalid health check says so": func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[]}`)
			s.writeStatus("workers", "Disabled", 0, 0, 0, "Disabled=True")
		},
		"objects and Leases of other clients": func(s *checkStory) {
			object := s.draft("n1", "workers", "Reboot")
			object.SetOwnerReferences(nil)
			s.makes(admin, object)
			s.changes(admin, "n1", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{} })
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.lease(us, "autohealer-system", "autohealer-controller", "replica-1")
			s.deletes(admin, "n1", "Reboot")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"an object of ours that only the managedFields prove": func(s *checkStory) {
			s.lock("n1", "workers")
			s.makes(unknownAuthor, s.draft("n1", "workers", "Reboot"))
			change := &s.made[len(s.made)-1]
			change.Object.Object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": "another-writer", "operation": "Update", "time": "2026-03-01T12:00:00Z"}}
			s.deletes(admin, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"a justified deletion without proof of its author": func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.deletes(unknownAuthor, "n1", "Reboot")
			s.unlock("n1")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"a node that changes only by heartbeats": func(s *checkStory) {
			s.edit(kubelet, "n1", func(n *corev1.Node) { n.Status.Phase = "Running" })
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fiveWorkers(t)
			tell(s)
			cfg := checkConfig
			cfg.FieldManager = us.FieldManager
			s.hasNoViolation(cfg)
		})
	}
}
