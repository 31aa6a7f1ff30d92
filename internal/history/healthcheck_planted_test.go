package history

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func annotation(name, value string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		annotations := o.GetAnnotations()
		annotations[name] = value
		o.SetAnnotations(annotations)
	}
}

func owner(change func(*metav1.OwnerReference)) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		owners := o.GetOwnerReferences()
		change(&owners[0])
		o.SetOwnerReferences(owners)
	}
}

// planted is a recording with exactly one violation.
type planted struct {
	kind Kind
	text string // part of the violation's text
	tell func(s *checkStory)
}

func (p planted) run(t *testing.T) {
	t.Helper()
	s := fiveWorkers(t)
	p.tell(s)
	cfg := checkConfig
	cfg.Unfinished = p.kind != WrongEnd
	report := s.caught(cfg, p.kind)
	for _, v := range report.Violations {
		if strings.Contains(v.Text, p.text) {
			return
		}
	}
	t.Errorf("nothing says %q: %s", p.text, report)
}

func TestPlantedInCreations(t *testing.T) {
	for name, test := range map[string]planted{
		"for a healthy node": {Unjustified, "has no unhealthy condition", func(s *checkStory) { s.remediate("n1", "workers", "Reboot") }},
		"before its time": {Unjustified, "long enough: not before 12:02:00", func(s *checkStory) {
			s.condition("n1", "Ready=False")
			s.pass(50 * time.Second)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a clock that a recovery did not stop": {Unjustified, "long enough", func(s *checkStory) {
			s.condition("n1", "Ready=False")
			s.pass(40 * time.Second)
			s.condition("n1", "Ready=True")
			s.pass(10 * time.Second)
			s.condition("n1", "Ready=Unknown")
			s.pass(40 * time.Second)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for the shorter of two durations, which belongs to the other status": {Unjustified, "long enough", func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"},{"type":"Ready","status":"Unknown","duration":"9m"}]}`)
			s.pass(time.Minute)
			s.condition("n1", "Ready=Unknown")
			s.pass(2 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a status that the check does not name": {Unjustified, "nothing may start", func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"}]}`)
			s.pass(time.Minute)
			s.condition("n1", "Ready=Unknown")
			s.pass(2 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a silent agent": {Unjustified, "nothing may start", func(s *checkStory) {
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.pass(2 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a node that was healthy for longer than the lag": {Unjustified, "no unhealthy condition", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.condition("n1", "Ready=True")
			s.pass(2 * DefaultLag)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a node that is not selected": {Unjustified, "does not select", func(s *checkStory) {
			s.healthCheck("lab", with(workers, `"selector":{"matchLabels":{"pool":"lab"}}`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "lab", "Reboot")
		}},
		"for an excluded node": {Unjustified, "excluded", func(s *checkStory) {
			s.label("n1", excludeLabel, "true")
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"during a pause": {Unjustified, "paused", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"pauseRequests":["upgrade"]`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"without a template": {Unjustified, "there is no template RebootRemediationTemplate healing/quick", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.deleteTemplate("Reboot")
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"for a health check that was deleted long ago": {Unjustified, "the health check does not exist", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.deleteHealthCheck(admin, "workers")
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"for an invalid health check": {Unjustified, "is invalid: there are two bounds", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"minHealthy":1,"maxUnhealthy":1`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a node that never existed": {Unjustified, "does not exist", func(s *checkStory) { s.remediate("n9", "workers", "Reboot") }},
		"for a node that was deleted long ago": {Unjustified, "the node is gone", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.deleteNode(admin, "n1")
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"for a healthy node with the same name": {Unjustified, "no unhealthy condition", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.deleteNode(admin, "n1")
			s.node("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"without the Lease": {Unjustified, "without the node's Lease", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},
		"with the Lease of another health check": {Unjustified, `held by "NodeHealthCheck-other"`, func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.lock("n1", "other")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},
		"with the Lease of another client": {Unjustified, `held by "maintenance"`, func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},
		"with an expired Lease": {Unjustified, "while the node's Lease is held by", func(s *checkStory) {
			s.lock("n1", "workers")
			s.pass(20 * time.Minute)
			s.becomeUnhealthy("n1")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},

		"with one node more than the percentage": {GateIgnored, "4 of 5 selected nodes are unhealthy or in treatment, at most 3 may be", func(s *checkStory) {
			s.becomeUnhealthy("n1", "n2", "n3", "n4")
			s.remediate("n1", "workers", "Reboot")
		}},
		"with one node more than the number": {GateIgnored, "2 of 5 selected nodes are unhealthy or in treatment, at most 1 may be", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			s.becomeUnhealthy("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
		}},
		"with fewer healthy nodes than the minimum": {GateIgnored, "2 of 5 selected nodes are unhealthy or in treatment, at most 1 may be", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"minHealthy":"70%"`)) // four, rounded up
			s.becomeUnhealthy("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
		}},
		"while a node is unhealthy for less than its duration": {GateIgnored, "at most 3 may be", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			for _, n := range []string{"n2", "n3", "n4"} {
				s.condition(n, "Ready=Unknown")
			}
			s.pass(2 * DefaultLag)
			s.remediate("n1", "workers", "Reboot")
		}},
		"while a recovered node is still in treatment": {GateIgnored, "2 of 5", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"at once, after a node that became unhealthy before": {GateIgnored, "2 of 5", func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"0s"}]}`)
			s.pass(time.Minute)
			s.condition("n1", "Ready=False")
			s.condition("n2", "Ready=False")
			s.remediate("n2", "workers", "Reboot") // a writer that knows n2's state knows n1's state
		}},
		"under a bound of 0": {GateIgnored, "at most 0 may be", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":"0%"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"under a percentage that shrank long ago": {GateIgnored, "2 of 2 selected nodes are unhealthy or in treatment, at most 1 may be", func(s *checkStory) {
			for _, n := range []string{"n3", "n4", "n5"} {
				s.deleteNode(admin, n)
			}
			s.becomeUnhealthy("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
		}},
		"while a removed node is not replaced": {GateIgnored, "2 of 5 selected nodes are unhealthy, in treatment or not replaced yet, at most 1 may be", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			removedForGood(s, "n1")
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"while a removed node without an object is not replaced": {GateIgnored, "2 of 5", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			removedForGood(s, "n1")
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True", "Succeeded=True")
			s.deletes(us, "n1", "Reboot")
			s.unlock("n1")
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"while a removed node is not replaced, and fewer nodes are healthy than the minimum": {GateIgnored, "2 of 5 selected nodes are unhealthy, in treatment or not replaced yet, at most 1 may be", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"minHealthy":4`))
			removedForGood(s, "n1")
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"while only one of two removed nodes is replaced": {GateIgnored, "2 of 5", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":2`))
			removedForGood(s, "n1")
			removedForGood(s, "n2")
			s.node("n6")
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1`))
			s.becomeUnhealthy("n3")
			s.remediate("n3", "workers", "Reboot")
		}},
		"while the replacement is not ready": {GateIgnored, "2 of 6", func(s *checkStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+rebootRef+`,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"}]}`)
			removedForGood(s, "n1")
			s.node("n6")
			s.made = s.made[:len(s.made)-1] // the change that made it ready
			s.condition("n6", "Ready=Unknown")
			s.made[len(s.made)-1].Type = watch.Added
			s.becomeUnhealthy("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"during the cooldown of a storm": {GateIgnored, "the storm is over since", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.becomeUnhealthy("n1", "n2")
			s.writeStatus("workers", "Enabled", 5, 3, 0, "StormActive=True")
			s.condition("n2", "Ready=True")
			s.pass(4 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},

		"while another health check treats the node": {TreatedTwice, "while health check workers treats the node", func(s *checkStory) {
			s.healthCheck("others", workers)
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.remediate("n1", "others", "Replace", func(o *unstructured.Unstructured) {
				o.SetGroupVersionKind(healing.WithKind("RebootRemediation"))
				o.SetName("n1")
				o.Object["spec"] = map[string]any{"size": int64(42)}
				annotation(templateNameAnnotation, "quick")(o)
			})
		}},
		"twice from one template": {TreatedTwice, "created from the same template", func(s *checkStory) {
			s.templates["RebootRemediationTemplate"].SetAnnotations(map[string]string{severalAnnotation: ""})
			s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
			s.becomeUnhealthy("n1")
			for _, suffix := range []string{"abcde", "fghij"} {
				s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
					o.SetName("n1-" + suffix)
					o.SetGenerateName("n1-")
					o.SetUID(types.UID(suffix))
				})
			}
		}},
		"for two nodes of the control plane": {TreatedTwice, "while n1, which is another one, is treated", func(s *checkStory) {
			s.label("n1", controlPlaneLabel, "")
			s.label("n2", masterLabel, "")
			s.healthCheck("others", with(workers, `"selector":{"matchExpressions":[{"key":"node-role.kubernetes.io/master","operator":"Exists"}]},"maxUnhealthy":1`))
			s.becomeUnhealthy("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Minute)
			s.reports("n1", "Reboot", "Processing=True") // still ours
			s.remediate("n2", "others", "Reboot")
		}},

		"of another kind": {Malformed, "does not name", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Replace")
		}},
		"from another template": {Malformed, `from the template "slow"`, func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", annotation(templateNameAnnotation, "slow"))
		}},
		"in another namespace": {Malformed, "does not name", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetNamespace("elsewhere") })
		}},
		"under another name": {Malformed, "not named after the node", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetName("n1-abcde") })
		}},
		"under the node's name where the template asks for several objects": {Malformed, "not named after the node", func(s *checkStory) {
			s.templates["RebootRemediationTemplate"].SetAnnotations(map[string]string{severalAnnotation: ""})
			s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"with another spec": {Malformed, "is not that of the template", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"size": int64(41)} })
		}},
		"with the spec that the template had long ago": {Malformed, "is not that of the template", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.template("Reboot", "quick", `{"template":{"spec":{"size":41}}}`)
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"without the template's name": {Malformed, templateNameAnnotation, func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", annotation(templateNameAnnotation, ""))
		}},
		"without the node's UID": {Malformed, nodeUIDAnnotation, func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", annotation(nodeUIDAnnotation, ""))
		}},
		"without the node's name": {Malformed, nodeNameAnnotation, func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", annotation(nodeNameAnnotation, ""))
		}},
		"without the label": {Malformed, partOfLabel, func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetLabels(nil) })
		}},
		"without the label of the control plane": {Malformed, treatedAsControlPlane, func(s *checkStory) {
			s.label("n1", controlPlaneLabel, "")
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{partOfLabel: partOf}) })
		}},
		"without an owner": {Malformed, "no health check owns", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) })
		}},
		"with an owner of another version": {Malformed, "its owner is of", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.APIVersion = checkGroup + "/v2" }))
		}},
		"with a controlling owner": {Malformed, "controls it", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.Controller = new(true) }))
		}},
		"with an owner of another UID": {Malformed, "which does not exist", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.UID = "else" }))
		}},
		"with two owners": {Malformed, "2 owners", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
				o.SetOwnerReferences(append(o.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1"}))
			})
		}},

		"created by an unknown author that may be us": {UnknownAuthor, "if it was us: we created", func(s *checkStory) {
			s.lock("n1", "workers")
			s.makes(unknownAuthor, s.draft("n1", "workers", "Reboot"))
		}},
	} {
		t.Run(string(test.kind)+"/"+name, test.run)
	}
}

// treated has the first node in treatment with two steps.
func treated(s *checkStory) {
	s.tb.Helper()
	s.healthCheck("workers", twoSteps)
	s.becomeUnhealthy("n1")
	s.remediate("n1", "workers", "Reboot")
}

func TestPlantedInLaterWrites(t *testing.T) {
	for name, test := range map[string]planted{
		"the next step before the first": {TooSoon, "the previous step has no object", func(s *checkStory) {
			s.healthCheck("workers", twoSteps)
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step too soon": {TooSoon, "which is the previous step, has time until 12:07:00", func(s *checkStory) {
			treated(s)
			s.pass(4 * time.Minute)
			s.annotate("n1", "Reboot", healthyAnnotation, "not that")
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step without marking the previous step as timed out": {TooSoon, "was not marked as timed out", func(s *checkStory) {
			treated(s)
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step without marking the failed step as timed out": {TooSoon, "was not marked", func(s *checkStory) {
			treated(s)
			s.reports("n1", "Reboot", "Succeeded=False")
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step during a pause": {Unjustified, "paused", func(s *checkStory) {
			treated(s)
			s.pass(5 * time.Minute)
			s.timesOut("n1", "Reboot")
			s.healthCheck("workers", with(twoSteps, `"pauseRequests":["upgrade"]`))
			s.pass(2 * DefaultLag)
			s.remediate("n1", "workers", "Replace")
		}},
		"timed out too soon": {TooSoon, "as timed out, but it has until", func(s *checkStory) {
			treated(s)
			s.pass(time.Minute)
			s.timesOut("n1", "Reboot")
		}},
		"timed out without a timeout": {TooSoon, "it has no timeout", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Hour)
			s.timesOut("n1", "Reboot")
		}},
		"timed out at an invalid time": {Malformed, "which is not a time", func(s *checkStory) {
			treated(s)
			s.pass(5 * time.Minute)
			s.annotate("n1", "Reboot", timedOutAnnotation, "now")
		}},
		"timed out twice": {DoneTwice, "again", func(s *checkStory) {
			treated(s)
			s.pass(5 * time.Minute)
			s.timesOut("n1", "Reboot")
			s.pass(time.Minute)
			s.timesOut("n1", "Reboot")
		}},
		"a write that changes nothing": {DoneTwice, "changed nothing", func(s *checkStory) {
			treated(s)
			s.changes(us, "n1", "Reboot", func(*unstructured.Unstructured) {})
		}},
		"the spec of an object": {ForeignTouched, "we changed the spec of RebootRemediation healing/n1", func(s *checkStory) {
			treated(s)
			s.changes(us, "n1", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"size": int64(41)} })
		}},
		"the status of an object": {ForeignTouched, "we changed the status", func(s *checkStory) {
			treated(s)
			s.reports("n1", "Reboot", "Succeeded=True")
			s.made[len(s.made)-1].Author = us
		}},
		"a finalizer of an object": {ForeignTouched, "we changed the metadata", func(s *checkStory) {
			treated(s)
			s.startsDeletion(admin, "n1", "Reboot")
			s.changes(us, "n1", "Reboot", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		}},
		"an annotation on another client's object": {ForeignTouched, "we changed the annotations", func(s *checkStory) {
			object := s.draft("n1", "workers", "Reboot")
			object.SetOwnerReferences(nil)
			s.makes(admin, object)
			s.timesOut("n1", "Reboot")
		}},
		"another client's object deleted": {ForeignTouched, "which no health check owns", func(s *checkStory) {
			object := s.draft("n1", "workers", "Reboot")
			object.SetOwnerReferences(nil)
			s.makes(admin, object)
			s.deletes(us, "n1", "Reboot")
		}},
		"a template": {ForeignTouched, "template", func(s *checkStory) {
			s.template("Reboot", "quick", `{"template":{"spec":{"size":41}}}`)
			s.made[len(s.made)-1].Author = us
		}},
		"the spec of a health check": {ForeignTouched, "spec of the health check", func(s *checkStory) {
			s.healthCheck("workers", twoSteps)
			s.made[len(s.made)-1].Author = us
		}},
		"a health check created": {ForeignTouched, "created the health check", func(s *checkStory) {
			s.healthCheck("more", twoSteps)
			s.made[len(s.made)-1].Author = us
		}},
		"a health check deleted": {ForeignTouched, "deleted the health check", func(s *checkStory) { s.deleteHealthCheck(us, "workers") }},
		"an unchanged status": {DoneTwice, "changed nothing", func(s *checkStory) {
			s.writeStatus("workers", "Enabled", 5, 5, 0)
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		}},

		"deleted while the node is unhealthy": {Unjustified, "but the node is unhealthy", func(s *checkStory) {
			treated(s)
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted while the node is unhealthy, with a finalizer": {Unjustified, "but the node is unhealthy", func(s *checkStory) {
			treated(s)
			s.startsDeletion(us, "n1", "Reboot")
			s.condition("n1", "Ready=True")
			s.changes(remediator, "n1", "Reboot", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted while a condition is Unknown": {Unjustified, "the treatment continues", func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted although it removes the node": {Unjustified, "has not succeeded yet", func(s *checkStory) {
			treated(s)
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.deleteNode(admin, "n1")
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted during the delay": {TooSoon, "which is less than 5m0s", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"5m"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(4 * time.Minute)
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted after a delay that ignores a flap": {TooSoon, "which is less than 5m0s", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"5m"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(4 * time.Minute)
			s.condition("n1", "Ready=False")
			s.pass(10 * time.Second)
			s.condition("n1", "Ready=True")
			s.pass(2 * time.Minute)
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted after a delay with an Unknown condition": {TooSoon, "which is less than 5m0s", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"5m"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(4 * time.Minute)
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.pass(10 * time.Second)
			s.condition("n1", "Ready=True")
			s.pass(2 * time.Minute)
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted without the confirmation of a user": {TooSoon, "no user has confirmed", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"-1s"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(time.Hour)
			s.deletes(us, "n1", "Reboot")
		}},
		"deleted by an unknown author that may be us": {UnknownAuthor, "if it was us: we deleted", func(s *checkStory) {
			treated(s)
			s.deletes(unknownAuthor, "n1", "Reboot")
		}},
		"a confirmation removed while it is needed": {ForeignTouched, "removed the confirmation from the node while RebootRemediation healing/n1 is there", func(s *checkStory) {
			treated(s)
			s.confirm(admin, "n1", true)
			s.confirm(us, "n1", false)
		}},
		"a confirmation given": {ForeignTouched, "annotations", func(s *checkStory) { s.confirm(us, "n1", true) }},

		"the Lease of another holder taken": {ForeignTouched, `held by "maintenance"`, func(s *checkStory) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.lock("n1", "workers")
		}},
		"the Lease of another holder deleted": {ForeignTouched, `which is held by "maintenance"`, func(s *checkStory) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.unlock("n1")
		}},
		"the expired Lease of another holder deleted": {ForeignTouched, `which was that of "maintenance"`, func(s *checkStory) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.pass(time.Hour)
			s.unlock("n1")
		}},
		"a Lease for no health check": {Malformed, "which is no health check", func(s *checkStory) {
			s.lease(us, leaseNamespace, "node-n1", "maintenance")
		}},
		"a Lease that is expired when it is taken": {Malformed, "but it is expired", func(s *checkStory) {
			s.lock("n1", "workers")
			s.made[len(s.made)-1].Time = s.now.Add(time.Hour)
			s.pass(time.Hour)
		}},
		"a Lease written without a change": {DoneTwice, "changed nothing", func(s *checkStory) {
			s.lock("n1", "workers")
			s.record(watch.Modified, s.made[len(s.made)-1].GVR, us, s.leases[leaseNamespace+"/node-n1"])
		}},
		"a Lease released during the treatment": {Unjustified, "released the node's Lease", func(s *checkStory) {
			treated(s)
			s.unlock("n1")
		}},
		"the Lease of medik8s' own controller": {ForeignTouched, peerLease, func(s *checkStory) { s.lease(us, "theirs", peerLease, "us") }},
	} {
		t.Run(string(test.kind)+"/"+name, test.run)
	}
}

// medik8sIsActive has medik8s' own controller renew its Lease for a while.
func medik8sIsActive(s *checkStory) {
	s.tb.Helper()
	for range 3 {
		s.lease(peer, "theirs", peerLease, "peer-1")
		s.pass(2 * time.Second)
	}
}

func TestPlantedWhileMedik8sIsActive(t *testing.T) {
	for name, tell := range map[string]func(*checkStory){
		"we created RebootRemediation": func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.lock("n1", "workers")
			medik8sIsActive(s)
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		},
		"we deleted RebootRemediation": func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=True")
			medik8sIsActive(s)
			s.deletes(us, "n1", "Reboot")
		},
		"we wrote to RebootRemediation": func(s *checkStory) {
			treated(s)
			s.pass(10 * time.Minute)
			medik8sIsActive(s)
			s.timesOut("n1", "Reboot")
		},
		"we wrote to the node's Lease": func(s *checkStory) {
			medik8sIsActive(s)
			s.lock("n1", "workers")
		},
		"we wrote the status": func(s *checkStory) {
			s.writeStatus("workers", "Enabled", 5, 4, 0)
			medik8sIsActive(s)
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		},
		"we removed the confirmation": func(s *checkStory) {
			s.confirm(admin, "n1", true)
			medik8sIsActive(s)
			s.confirm(us, "n1", false)
		},
	} {
		t.Run(name, planted{Conflicting, name, tell}.run)
	}
}

func TestPlantedAtTheEnd(t *testing.T) {
	for name, test := range map[string]planted{
		"an unhealthy node without an object": {WrongEnd, "has no remediation object: 1 of 5 selected nodes", func(s *checkStory) {
			s.becomeUnhealthy("n1")
			s.pass(2 * DefaultLag)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		}},
		"an unhealthy control-plane node without an object": {WrongEnd, "has no remediation object", func(s *checkStory) {
			s.label("n1", controlPlaneLabel, "")
			s.becomeUnhealthy("n1")
			s.pass(2 * DefaultLag)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		}},
		"no treatment after a storm": {WrongEnd, "has no remediation object", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.becomeUnhealthy("n1", "n2")
			s.writeStatus("workers", "Enabled", 5, 3, 0, "StormActive=True")
			s.condition("n2", "Ready=True")
			s.pass(6 * time.Minute)
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		}},
		"the next step is due": {WrongEnd, "the next step was not started", func(s *checkStory) {
			treated(s)
			s.pass(6 * time.Minute)
			s.timesOut("n1", "Reboot")
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		}},
		"the next step of what has failed is due": {WrongEnd, "the next step was not started", func(s *checkStory) {
			treated(s)
			s.becomeUnhealthy("n2", "n3", "n4") // a closed gate is no reason
			s.reports("n1", "Reboot", "Succeeded=False")
			s.writeStatus("workers", "Remediating", 5, 1, 1)
		}},
		"an object is left on a healthy node": {WrongEnd, "the node is healthy", func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.pass(2 * DefaultLag)
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		}},
		"an object is left after the delay": {WrongEnd, "the node is healthy", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"5m"`))
			s.becomeUnhealthy("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(6 * time.Minute)
			s.writeStatus("workers", "Remediating", 5, 4, 1)
		}},
		"an object of a deleted node is left": {WrongEnd, "its node is gone", func(s *checkStory) {
			treated(s)
			s.deleteNode(admin, "n1")
			s.writeStatus("workers", "Remediating", 4, 4, 1)
		}},
		"an object of an earlier node with the same name is left": {WrongEnd, "another node of that name", func(s *checkStory) {
			treated(s)
			s.deleteNode(admin, "n1")
			s.node("n1")
			s.writeStatus("workers", "Remediating", 5, 5, 1)
		}},
		"an object of a node that is not selected is left": {WrongEnd, "does not select", func(s *checkStory) {
			treated(s)
			s.healthCheck("workers", with(workers, `"selector":{"matchLabels":{"pool":"lab"}}`))
			s.writeStatus("workers", "Remediating", 0, 0, 1)
		}},
		"an object of a deleted health check is left": {WrongEnd, "its health check is gone", func(s *checkStory) {
			treated(s)
			s.deleteHealthCheck(admin, "workers")
		}},
		"an object of a replaced node is left": {WrongEnd, "its node is gone", func(s *checkStory) {
			treated(s)
			s.reports("n1", "Reboot", "PermanentNodeDeletionExpected=True", "Succeeded=True")
			s.deleteNode(admin, "n1")
			s.writeStatus("workers", "Remediating", 4, 4, 1)
		}},
		"a Lease is left": {WrongEnd, "Lease is still held", func(s *checkStory) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.deletes(us, "n1", "Reboot")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		}},
		"no status": {WrongEnd, "the status is missing", func(*checkStory) {}},
		"a status with too few nodes": {WrongEnd, "reports 4 nodes, but 5 are selected", func(s *checkStory) {
			s.writeStatus("workers", "Enabled", 4, 5, 0)
		}},
		"a status with too many healthy nodes": {WrongEnd, "reports 5 healthy nodes, but 1 of 5 are not", func(s *checkStory) {
			s.condition("n1", "Ready=False")
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		}},
		"a status with too few healthy nodes": {WrongEnd, "reports 4 healthy nodes", func(s *checkStory) {
			s.writeStatus("workers", "Enabled", 5, 4, 0)
		}},
		"a status without a running treatment": {WrongEnd, "0 nodes in treatment, but there are 1", func(s *checkStory) {
			treated(s)
			s.writeStatus("workers", "Remediating", 5, 4, 0)
		}},
		"a status with the wrong phase": {WrongEnd, `the phase "Enabled", not "Remediating"`, func(s *checkStory) {
			treated(s)
			s.writeStatus("workers", "Enabled", 5, 4, 1)
		}},
		"a status without a pause": {WrongEnd, `the phase "Enabled", not "Paused"`, func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"pauseRequests":["upgrade"]`))
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		}},
		"a status that hides an invalid spec": {WrongEnd, "is invalid", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"healthyDelay":"soon"`))
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		}},
		"a status that hides a missing template": {WrongEnd, "is invalid", func(s *checkStory) {
			s.deleteTemplate("Reboot")
			s.pass(2 * DefaultLag)
			s.writeStatus("workers", "Enabled", 5, 5, 0)
		}},
		"a status that hides a storm": {WrongEnd, "reports no storm", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.becomeUnhealthy("n1", "n2")
			s.writeStatus("workers", "Enabled", 5, 3, 0, "StormActive=False")
		}},
		"a status that keeps a storm": {WrongEnd, "reports a storm", func(s *checkStory) {
			s.healthCheck("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.becomeUnhealthy("n1", "n2")
			s.condition("n1", "Ready=True")
			s.condition("n2", "Ready=True")
			s.pass(time.Hour)
			s.writeStatus("workers", "Enabled", 5, 5, 0, "StormActive=True")
		}},
	} {
		t.Run(name, test.run)
	}
}

// The checker needs the kinds of remediation objects to judge health checks.
func TestHealthChecksAreNotJudgedWithoutTheirKinds(t *testing.T) {
	s := fiveWorkers(t)
	s.remediate("n1", "workers", "Reboot")
	s.hasNoViolation(testConfig)
	cfg := checkConfig
	cfg.Unfinished = true
	s.caught(cfg, Unjustified)
}
