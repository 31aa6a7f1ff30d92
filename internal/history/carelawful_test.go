package history

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestALawfulCureHasNoViolation(t *testing.T) {
	s := ill(t)
	s.checkup("workers", with(ladder, `"healthyDelay":"5m"`))
	s.tells("workers", "Enabled", 5, 5, 0)
	s.pass(time.Minute)

	// Two are treated. One is well after a while, and stays so after a flap.
	s.fallIll("n1", "n2")
	for _, n := range []string{"n1", "n2"} {
		s.remediate(n, "workers", "Reboot")
	}
	s.tells("workers", "Remediating", 5, 3, 2)
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
	// The other one gets the next step, which replaces it.
	s.timeIsUp("n2", "Reboot")
	s.remediate("n2", "workers", "Replace")
	s.answers("n2", "Replace", "PermanentNodeDeletionExpected=True")
	s.pass(2 * time.Minute)
	s.ends(us, "n1", "Reboot")
	s.unlock("n1")
	s.deleteNode(remediator, "n2")
	s.ends(us, "n2", "Reboot")
	s.node("n2")
	s.answers("n2", "Replace", "PermanentNodeDeletionExpected=True", "Succeeded=True")
	s.condemns(us, "n2", "Replace")
	s.changes(remediator, "n2", "Replace", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	s.ends(remediator, "n2", "Replace")
	s.unlock("n2")
	s.tells("workers", "Enabled", 5, 5, 0)

	report := s.lawful(careCfg)
	want := Counts{Moments: len(s.made), Remediations: 3, Escalations: 1, Releases: 3, Notes: 3, Leases: 5, CheckStatuses: 3}
	if diff := gocmp.Diff(want, report.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if report.Peak["NodeHealthCheck/workers"] != 2 {
		t.Errorf("peak %v, want 2", report.Peak)
	}
}

// Each of these was written for one reading of the rules that the checker must not
// complain of. The status is right at the end.
func TestLawfulCare(t *testing.T) {
	for name, tell := range map[string]func(s *hospital){
		"nothing happens": func(s *hospital) { s.tells("workers", "Enabled", 5, 5, 0) },
		"any sign is enough, after its own duration": func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Disk","status":"true","duration":"9m"},{"type":"Ready","status":"Unknown","duration":"1m"}]}`)
			s.condition("n1", "Disk=True", "Ready=Unknown")
			s.pass(time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"the signs that are meant if nothing is said": func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`}`)
			s.condition("n1", "Ready=Unknown")
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a clock that runs on from one bad status to another": func(s *hospital) {
			s.condition("n1", "Ready=Unknown")
			s.pass(40 * time.Second)
			s.condition("n1", "Ready=False")
			s.pass(30 * time.Second)
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a clock that was begun anew by a change of the bad status": func(s *hospital) {
			s.condition("n1", "Ready=Unknown")
			s.pass(40 * time.Second)
			s.condition("n1", "Ready=False")
			s.pass(30 * time.Second)
			s.tells("workers", "Enabled", 5, 4, 0)
		},
		"a duration that the stamp says is over": func(s *hospital) {
			s.stamped("n1", s.now.Add(-time.Hour), "Ready=False")
			s.stamped("n2", s.now.Add(-time.Hour), "Ready=False")
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 3, 1)
		},
		"a node that recovered a moment ago": func(s *hospital) {
			s.fallIll("n1")
			s.lock("n1", "workers")
			s.condition("n1", "Ready=True")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"a node that went a moment ago": func(s *hospital) {
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.lock("n1", "workers")
			s.deleteNode(admin, "n1")
			s.makes(us, object)
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Enabled", 4, 4, 0)
		},
		"a health check that was put on pause a moment ago": func(s *hospital) {
			s.fallIll("n1")
			s.checkup("workers", with(workers, `"pauseRequests":["upgrade"]`))
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Paused", 5, 4, 1)
		},
		"a template that was edited a moment ago": func(s *hospital) {
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.template("Reboot", "quick", `{"template":{"spec":{"size":41}}}`)
			s.lock("n1", "workers")
			s.makes(us, object)
			s.pass(2 * DefaultLag) // what is under way stays as it was
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a template for several objects": func(s *hospital) {
			s.templates["RebootRemediationTemplate"].SetAnnotations(map[string]string{severalAnnotation: ""})
			s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
				o.SetName("n1-abcde")
				o.SetGenerateName("n1-")
			})
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a template that is missing": func(s *hospital) {
			s.dropTemplate("Reboot")
			s.fallIll("n1")
			s.pass(time.Minute)
			s.tells("workers", "Disabled", 5, 4, 0, "Disabled=True")
		},
		"a pause keeps what is there, and lets it end": func(s *hospital) {
			treated(s)
			s.checkup("workers", with(ladder, `"pauseRequests":["upgrade"]`))
			s.pass(time.Minute)
			s.fallIll("n2")
			s.condition("n1", "Ready=True")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Paused", 5, 4, 0)
		},
		"a node that is excluded": func(s *hospital) {
			s.label("n1", excludeLabel, "true")
			s.fallIll("n1")
			s.pass(time.Minute)
			s.tells("workers", "Enabled", 5, 4, 0)
		},
		"a node that somebody else works on": func(s *hospital) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.fallIll("n1")
			s.pass(time.Minute)
			s.tells("workers", "Enabled", 5, 4, 0)
		},
		"a node that somebody else worked on until now": func(s *hospital) {
			s.fallIll("n1")
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.pass(time.Hour)
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"too many are sick": func(s *hospital) {
			s.fallIll("n1", "n2", "n3", "n4")
			s.pass(time.Minute)
			s.tells("workers", "Enabled", 5, 1, 0)
		},
		"one too many fell sick a moment ago": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			s.fallIll("n1")
			s.condition("n2", "Ready=False")
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 3, 1)
		},
		"as many as may be": func(s *hospital) {
			s.fallIll("n1", "n2", "n3")
			for _, n := range []string{"n1", "n2", "n3"} {
				s.remediate(n, "workers", "Reboot")
			}
			s.tells("workers", "Remediating", 5, 2, 3)
		},
		"a closed gate does not stop the next step": func(s *hospital) {
			treated(s)
			s.fallIll("n2", "n3", "n4")
			s.pass(5 * time.Minute)
			s.timeIsUp("n1", "Reboot")
			s.remediate("n1", "workers", "Replace")
			s.tells("workers", "Remediating", 5, 1, 1)
		},
		"a bound above the number of nodes": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":50`))
			s.fallIll("n1", "n2", "n3", "n4", "n5")
			for _, n := range []string{"n1", "n2", "n3", "n4", "n5"} {
				s.remediate(n, "workers", "Reboot")
			}
			s.tells("workers", "Remediating", 5, 0, 5)
		},
		"a node that was taken away, and its replacement": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			takenAway(s, "n1")
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True", "Succeeded=True")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.fallIll("n2")
			s.node("n6")
			s.remediate("n2", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a node that was taken away when its replacement was there": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.pass(time.Minute)
			s.node("n6")
			s.deleteNode(remediator, "n1")
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 2)
		},
		"a node that was taken away a moment ago": func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"0s"}]}`)
			s.condition("n1", "Ready=False")
			s.remediate("n1", "workers", "Reboot")
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.deleteNode(remediator, "n1")
			s.condition("n2", "Ready=False")
			s.remediate("n2", "workers", "Reboot")
			s.tells("workers", "Remediating", 4, 3, 2)
		},
		"a node that was taken away, and nobody could know": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.ends(remediator, "n1", "Reboot") // in one moment
			s.deleteNode(remediator, "n1")
			s.unlock("n1")
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
			s.tells("workers", "Remediating", 4, 3, 1)
		},
		"a node that was taken away, and nobody came for a quarter of an hour": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			takenAway(s, "n1")
			s.pass(replacedWithin)
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
			s.tells("workers", "Remediating", 4, 3, 2)
		},
		"a node that was taken away keeps another one waiting": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			takenAway(s, "n1")
			s.fallIll("n2")
			s.pass(time.Minute)
			s.tells("workers", "Remediating", 4, 3, 1)
		},
		"a node that was taken away makes a storm": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			takenAway(s, "n1")
			s.fallIll("n2")
			s.pass(time.Minute)
			s.tells("workers", "Remediating", 4, 3, 1, "StormActive=True")
		},
		"a node that was taken away under another health check": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			takenAway(s, "n1")
			s.checkup("others", with(workers, `"maxUnhealthy":1`))
			s.fallIll("n2")
			s.remediate("n2", "others", "Reboot")
			s.tells("workers", "Remediating", 4, 3, 1)
			s.tells("others", "Remediating", 4, 3, 1)
		},
		"a storm and its end": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.fallIll("n1", "n2")
			s.tells("workers", "Enabled", 5, 3, 0, "StormActive=True")
			s.condition("n2", "Ready=True")
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a storm that cools down at the end": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.fallIll("n1", "n2")
			s.pass(time.Hour)
			s.condition("n2", "Ready=True")
			s.pass(4 * time.Minute)
			s.tells("workers", "Enabled", 5, 4, 0, "StormActive=True")
		},
		"a storm that nobody has told of": func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.fallIll("n1", "n2")
			s.condition("n2", "Ready=True")
			s.remediate("n1", "workers", "Reboot") // nobody was there to see it
			s.pass(time.Hour)
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"nodes of the control plane one after the other": func(s *hospital) {
			s.label("n1", controlPlaneLabel, "")
			s.label("n2", controlPlaneLabel, "")
			s.fallIll("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Minute)
			s.condition("n1", "Ready=True")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.remediate("n2", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"two health checks for one node, one after the other": func(s *hospital) {
			s.checkup("others", ladder)
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Minute)
			s.dropCheckup(admin, "workers")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.remediate("n1", "others", "Reboot")
			s.tells("others", "Remediating", 5, 4, 1)
		},
		"what has failed is followed at once": func(s *hospital) {
			treated(s)
			s.answers("n1", "Reboot", "Succeeded=False")
			s.timeIsUp("n1", "Reboot")
			s.remediate("n1", "workers", "Replace")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a node that is sick anew has the time that was left": func(s *hospital) {
			s.checkup("workers", with(ladder, `"healthyDelay":"-1s"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(5 * time.Minute)
			s.condition("n1", "Ready=False")
			s.timeIsUp("n1", "Reboot")
			s.remediate("n1", "workers", "Replace")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a template that was taken out of the ladder a moment ago": func(s *hospital) {
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.checkup("workers", `{"remediationTemplate":`+replaceRef+`,`+signs+`}`)
			s.lock("n1", "workers")
			s.makes(us, object)
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"what has succeeded and did not help is followed in time": func(s *hospital) {
			treated(s)
			s.answers("n1", "Reboot", "Succeeded=True")
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Replace")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"an object that its remediator deleted is made again": func(s *hospital) {
			treated(s)
			s.ends(remediator, "n1", "Reboot")
			s.pass(time.Minute)
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"an object that its remediator deleted is not made again yet": func(s *hospital) {
			treated(s)
			s.ends(remediator, "n1", "Reboot")
			s.unlock("n1")
			s.pass(time.Minute)
			s.tells("workers", "Enabled", 5, 4, 0)
		},
		"an object that a finalizer keeps for ever": func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.condemns(us, "n1", "Reboot")
			s.pass(time.Hour)
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a health check that is gone takes its objects along": func(s *hospital) {
			treated(s)
			s.dropCheckup(admin, "workers")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
		},
		"a health check that was made again does not own them": func(s *hospital) {
			treated(s)
			s.dropCheckup(admin, "workers")
			s.checkup("workers", ladder)
			s.pass(time.Minute)
			s.ends(us, "n1", "Reboot")
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a node that is no longer selected": func(s *hospital) {
			s.checkup("workers", with(workers, `"selector":{"matchLabels":{"pool":"web"}}`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.label("n1", "pool", "lab")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Enabled", 4, 4, 0)
		},
		"a node that comes back under its name": func(s *hospital) {
			treated(s)
			s.deleteNode(admin, "n1")
			s.node("n1")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"a node that is to go for good": func(s *hospital) {
			treated(s)
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.deleteNode(remediator, "n1")
			s.pass(time.Hour)
			s.tells("workers", "Remediating", 4, 4, 1)
		},
		"a node that was well until a moment ago": func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.pass(time.Minute)
			s.condition("n1", "Ready=False")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Enabled", 5, 4, 0)
		},
		"a delay that somebody ends": func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"-1s"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(time.Hour)
			s.confirm(admin, "n1", true)
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.confirm(us, "n1", false)
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"a delay that nobody ends": func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"-1s"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(24 * time.Hour)
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"nobody knows, and what is there stays": func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.pass(time.Hour)
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"a node of which nobody knows may count or not": func(s *hospital) {
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.condition("n2", "Ready=Unknown/AgentSilent")
			s.pass(time.Hour)
			s.tells("workers", "Enabled", 5, 4, 0)
		},
		"a bad edit changes nothing about what is there": func(s *hospital) {
			treated(s)
			s.checkup("workers", with(ladder, `"healthyDelay":"soon"`))
			s.pass(time.Minute)
			s.condition("n1", "Ready=True")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Disabled", 5, 5, 0, "Disabled=True")
		},
		"an object that the peer made": func(s *hospital) {
			reigns(s)
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			delete(object.Object["metadata"].(map[string]any), "annotations")
			s.makes(peer, object)
			s.objects["RebootRemediation n1"] = object
			s.lease(peer, "theirs", peerLease, "")
			s.pass(time.Minute)
			s.condition("n1", "Ready=True")
			s.ends(us, "n1", "Reboot")
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"while the peer is at work nothing is expected": func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.pass(time.Hour)
			reigns(s)
			s.tells("workers", "", 0, 0, 0, "StandingBack=True")
		},
		"a peer that has just come": func(s *hospital) {
			s.fallIll("n1")
			s.lease(peer, "theirs", peerLease, "peer-1")
			s.remediate("n1", "workers", "Reboot")
		},
		"a peer that is gone without a word": func(s *hospital) {
			reigns(s)
			s.fallIll("n1")
			s.pass(time.Hour)
			s.remediate("n1", "workers", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		},
		"an unfollowed health check says so": func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[]}`)
			s.tells("workers", "Disabled", 0, 0, 0, "Disabled=True")
		},
		"somebody else's objects and Leases": func(s *hospital) {
			object := s.draft("n1", "workers", "Reboot")
			object.SetOwnerReferences(nil)
			s.makes(admin, object)
			s.changes(admin, "n1", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{} })
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.lease(us, "autohealer-system", "autohealer-controller", "replica-1")
			s.ends(admin, "n1", "Reboot")
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"an object of ours without proof that the fields prove": func(s *hospital) {
			s.lock("n1", "workers")
			s.makes(nobody, s.draft("n1", "workers", "Reboot"))
			change := &s.made[len(s.made)-1]
			change.Object.Object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": "somebody", "operation": "Update", "time": "2026-03-01T12:00:00Z"}}
			s.ends(admin, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"a lawful end without proof": func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.ends(nobody, "n1", "Reboot")
			s.unlock("n1")
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"a node with nothing but a heartbeat": func(s *hospital) {
			s.edit(kubelet, "n1", func(n *corev1.Node) { n.Status.Phase = "Running" })
			s.tells("workers", "Enabled", 5, 5, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := ill(t)
			tell(s)
			cfg := careCfg
			cfg.FieldManager = us.FieldManager
			s.lawful(cfg)
		})
	}
}
