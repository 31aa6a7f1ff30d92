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

// planted is a recording with one violation, which is lawful otherwise.
type planted struct {
	kind Kind
	text string // part of what is told
	tell func(s *hospital)
}

func (p planted) run(t *testing.T) {
	t.Helper()
	s := ill(t)
	p.tell(s)
	cfg := careCfg
	cfg.Unfinished = p.kind != WrongEnd
	report := s.caught(cfg, p.kind)
	for _, v := range report.Violations {
		if strings.Contains(v.Text, p.text) {
			return
		}
	}
	t.Errorf("nothing says %q: %s", p.text, report)
}

func TestPlantedInBeginnings(t *testing.T) {
	for name, test := range map[string]planted{
		"for a node that is well": {Unlawful, "no sign of sickness stands", func(s *hospital) { s.remediate("n1", "workers", "Reboot") }},
		"before its time": {Unlawful, "long enough: not before 12:02:00", func(s *hospital) {
			s.condition("n1", "Ready=False")
			s.pass(50 * time.Second)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a clock that a recovery did not stop": {Unlawful, "long enough", func(s *hospital) {
			s.condition("n1", "Ready=False")
			s.pass(40 * time.Second)
			s.condition("n1", "Ready=True")
			s.pass(10 * time.Second)
			s.condition("n1", "Ready=Unknown")
			s.pass(40 * time.Second)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for the shorter of two durations, which is that of the other status": {Unlawful, "long enough", func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"},{"type":"Ready","status":"Unknown","duration":"9m"}]}`)
			s.pass(time.Minute)
			s.condition("n1", "Ready=Unknown")
			s.pass(2 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a status that nobody named": {Unlawful, "nothing may start", func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"}]}`)
			s.pass(time.Minute)
			s.condition("n1", "Ready=Unknown")
			s.pass(2 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a silent agent": {Unlawful, "nothing may start", func(s *hospital) {
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.pass(2 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a node that was well for longer than anybody may not know": {Unlawful, "no sign", func(s *hospital) {
			s.fallIll("n1")
			s.condition("n1", "Ready=True")
			s.pass(2 * DefaultLag)
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a node that is not selected": {Unlawful, "does not select", func(s *hospital) {
			s.checkup("lab", with(workers, `"selector":{"matchLabels":{"pool":"lab"}}`))
			s.fallIll("n1")
			s.remediate("n1", "lab", "Reboot")
		}},
		"for a node that is excluded": {Unlawful, "excluded", func(s *hospital) {
			s.label("n1", excludeLabel, "true")
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"on pause": {Unlawful, "on pause", func(s *hospital) {
			s.checkup("workers", with(workers, `"pauseRequests":["upgrade"]`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"without a template": {Unlawful, "there is no template RebootRemediationTemplate healing/quick", func(s *hospital) {
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.dropTemplate("Reboot")
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"for a health check that is long gone": {Unlawful, "no such health check", func(s *hospital) {
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.dropCheckup(admin, "workers")
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"for a health check that cannot be followed": {Unlawful, "cannot be followed: there are two bounds", func(s *hospital) {
			s.checkup("workers", with(workers, `"minHealthy":1,"maxUnhealthy":1`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"for a node that was never there": {Unlawful, "not there", func(s *hospital) { s.remediate("n9", "workers", "Reboot") }},
		"for a node that is long gone": {Unlawful, "the node is gone", func(s *hospital) {
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.deleteNode(admin, "n1")
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"for a namesake that is well": {Unlawful, "no sign", func(s *hospital) {
			s.fallIll("n1")
			s.deleteNode(admin, "n1")
			s.node("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"without the Lease": {Unlawful, "without the node's Lease", func(s *hospital) {
			s.fallIll("n1")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},
		"with the Lease of another health check": {Unlawful, `held by "NodeHealthCheck-other"`, func(s *hospital) {
			s.fallIll("n1")
			s.lock("n1", "other")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},
		"with the Lease of somebody else": {Unlawful, `held by "maintenance"`, func(s *hospital) {
			s.fallIll("n1")
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},
		"with a Lease that is over": {Unlawful, "while the node's Lease is held by", func(s *hospital) {
			s.lock("n1", "workers")
			s.pass(20 * time.Minute)
			s.fallIll("n1")
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		}},

		"with one node more than the share": {GateIgnored, "4 of 5 selected nodes are sick or in treatment, at most 3 may be", func(s *hospital) {
			s.fallIll("n1", "n2", "n3", "n4")
			s.remediate("n1", "workers", "Reboot")
		}},
		"with one node more than the number": {GateIgnored, "2 of 5 selected nodes are sick or in treatment, at most 1 may be", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			s.fallIll("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
		}},
		"with fewer healthy nodes than must be": {GateIgnored, "2 of 5 selected nodes are sick or in treatment, at most 1 may be", func(s *hospital) {
			s.checkup("workers", with(workers, `"minHealthy":"70%"`)) // four, rounded up
			s.fallIll("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
		}},
		"while a node whose time has not come is not healthy": {GateIgnored, "at most 3 may be", func(s *hospital) {
			s.fallIll("n1")
			for _, n := range []string{"n2", "n3", "n4"} {
				s.condition(n, "Ready=Unknown")
			}
			s.pass(2 * DefaultLag)
			s.remediate("n1", "workers", "Reboot")
		}},
		"while a node that is well again is still in treatment": {GateIgnored, "2 of 5", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"at once, after one that fell sick before": {GateIgnored, "2 of 5", func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"0s"}]}`)
			s.pass(time.Minute)
			s.condition("n1", "Ready=False")
			s.condition("n2", "Ready=False")
			s.remediate("n2", "workers", "Reboot") // who knows of n2 knows of n1
		}},
		"under a bound of nothing": {GateIgnored, "at most 0 may be", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":"0%"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"under a share that shrank long ago": {GateIgnored, "2 of 2 selected nodes are sick or in treatment, at most 1 may be", func(s *hospital) {
			for _, n := range []string{"n3", "n4", "n5"} {
				s.deleteNode(admin, n)
			}
			s.fallIll("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
		}},
		"while a node that was taken away is not replaced": {GateIgnored, "2 of 5 selected nodes are sick, in treatment or not replaced yet, at most 1 may be", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			takenAway(s, "n1")
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"while one is not, of which nothing is left": {GateIgnored, "2 of 5", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			takenAway(s, "n1")
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True", "Succeeded=True")
			s.ends(us, "n1", "Reboot")
			s.unlock("n1")
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"while one is not, and fewer are healthy than must be": {GateIgnored, "2 of 5 selected nodes are sick, in treatment or not replaced yet, at most 1 may be", func(s *hospital) {
			s.checkup("workers", with(workers, `"minHealthy":4`))
			takenAway(s, "n1")
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"while one of two is replaced, and that is not enough": {GateIgnored, "2 of 5", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":2`))
			takenAway(s, "n1")
			takenAway(s, "n2")
			s.node("n6")
			s.checkup("workers", with(workers, `"maxUnhealthy":1`))
			s.fallIll("n3")
			s.remediate("n3", "workers", "Reboot")
		}},
		"while one is replaced by a node that is not ready": {GateIgnored, "2 of 6", func(s *hospital) {
			s.checkup("workers", `{"remediationTemplate":`+rebootRef+`,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"}]}`)
			takenAway(s, "n1")
			s.node("n6")
			s.made = s.made[:len(s.made)-1] // that it came, and was ready
			s.condition("n6", "Ready=Unknown")
			s.made[len(s.made)-1].Type = watch.Added
			s.fallIll("n2")
			s.remediate("n2", "workers", "Reboot")
		}},
		"while a storm cools down": {GateIgnored, "the storm is over since", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.fallIll("n1", "n2")
			s.tells("workers", "Enabled", 5, 3, 0, "StormActive=True")
			s.condition("n2", "Ready=True")
			s.pass(4 * time.Minute)
			s.remediate("n1", "workers", "Reboot")
		}},

		"while another health check treats the node": {TreatedTwice, "while health check workers treats the node", func(s *hospital) {
			s.checkup("others", workers)
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.remediate("n1", "others", "Replace", func(o *unstructured.Unstructured) {
				o.SetGroupVersionKind(healing.WithKind("RebootRemediation"))
				o.SetName("n1")
				o.Object["spec"] = map[string]any{"size": int64(42)}
				annotation(templateNameAnnotation, "quick")(o)
			})
		}},
		"twice from one template": {TreatedTwice, "made from the same template", func(s *hospital) {
			s.templates["RebootRemediationTemplate"].SetAnnotations(map[string]string{severalAnnotation: ""})
			s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
			s.fallIll("n1")
			for _, suffix := range []string{"abcde", "fghij"} {
				s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
					o.SetName("n1-" + suffix)
					o.SetGenerateName("n1-")
					o.SetUID(types.UID(suffix))
				})
			}
		}},
		"for two nodes of the control plane": {TreatedTwice, "while n1, which is another one, is treated", func(s *hospital) {
			s.label("n1", controlPlaneLabel, "")
			s.label("n2", masterLabel, "")
			s.checkup("others", with(workers, `"selector":{"matchExpressions":[{"key":"node-role.kubernetes.io/master","operator":"Exists"}]},"maxUnhealthy":1`))
			s.fallIll("n1", "n2")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Minute)
			s.answers("n1", "Reboot", "Processing=True") // ours all the same
			s.remediate("n2", "others", "Reboot")
		}},

		"of another kind": {Malformed, "does not name", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Replace")
		}},
		"from another template": {Malformed, `from the template "slow"`, func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", annotation(templateNameAnnotation, "slow"))
		}},
		"in another namespace": {Malformed, "does not name", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetNamespace("elsewhere") })
		}},
		"under another name": {Malformed, "not named after the node", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetName("n1-abcde") })
		}},
		"under the node's name where several are asked for": {Malformed, "not named after the node", func(s *hospital) {
			s.templates["RebootRemediationTemplate"].SetAnnotations(map[string]string{severalAnnotation: ""})
			s.template("Reboot", "quick", `{"template":{"spec":{"size":42}}}`)
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
		}},
		"with another spec": {Malformed, "is not that of the template", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"size": int64(41)} })
		}},
		"with the spec that the template had long ago": {Malformed, "is not that of the template", func(s *hospital) {
			s.fallIll("n1")
			object := s.draft("n1", "workers", "Reboot")
			s.template("Reboot", "quick", `{"template":{"spec":{"size":41}}}`)
			s.pass(2 * DefaultLag)
			s.lock("n1", "workers")
			s.makes(us, object)
		}},
		"without the template's name": {Malformed, templateNameAnnotation, func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", annotation(templateNameAnnotation, ""))
		}},
		"without the node's UID": {Malformed, nodeUIDAnnotation, func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", annotation(nodeUIDAnnotation, ""))
		}},
		"without the node's name": {Malformed, nodeNameAnnotation, func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", annotation(nodeNameAnnotation, ""))
		}},
		"without the label": {Malformed, partOfLabel, func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetLabels(nil) })
		}},
		"without the label of the control plane": {Malformed, treatedAsControlPlane, func(s *hospital) {
			s.label("n1", controlPlaneLabel, "")
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{partOfLabel: partOf}) })
		}},
		"without an owner": {Malformed, "no health check owns", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) })
		}},
		"with an owner of another version": {Malformed, "its owner is of", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.APIVersion = checkGroup + "/v2" }))
		}},
		"with an owner who controls it": {Malformed, "controls it", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.Controller = new(true) }))
		}},
		"with an owner of another UID": {Malformed, "not the one that is there", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.UID = "else" }))
		}},
		"with two owners": {Malformed, "2 owners", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
				o.SetOwnerReferences(append(o.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1"}))
			})
		}},

		"made by nobody, who may have been us": {UnknownAuthor, "if it was us: we made", func(s *hospital) {
			s.lock("n1", "workers")
			s.makes(nobody, s.draft("n1", "workers", "Reboot"))
		}},
	} {
		t.Run(string(test.kind)+"/"+name, test.run)
	}
}

// treated has the first node in treatment by the ladder.
func treated(s *hospital) {
	s.tb.Helper()
	s.checkup("workers", ladder)
	s.fallIll("n1")
	s.remediate("n1", "workers", "Reboot")
}

func TestPlantedInWhatFollows(t *testing.T) {
	for name, test := range map[string]planted{
		"the next step before the first": {TooSoon, "nothing was made of the step before", func(s *hospital) {
			s.checkup("workers", ladder)
			s.fallIll("n1")
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step too soon": {TooSoon, "which is the step before, has time until 12:07:00", func(s *hospital) {
			treated(s)
			s.pass(4 * time.Minute)
			s.annotate("n1", "Reboot", healthyAnnotation, "not that")
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step without a word to the one before": {TooSoon, "was not told that its time is up", func(s *hospital) {
			treated(s)
			s.pass(5 * time.Minute)
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step of what has failed, without a word to it": {TooSoon, "was not told", func(s *hospital) {
			treated(s)
			s.answers("n1", "Reboot", "Succeeded=False")
			s.remediate("n1", "workers", "Replace")
		}},
		"the next step on pause": {Unlawful, "on pause", func(s *hospital) {
			treated(s)
			s.pass(5 * time.Minute)
			s.timeIsUp("n1", "Reboot")
			s.checkup("workers", with(ladder, `"pauseRequests":["upgrade"]`))
			s.pass(2 * DefaultLag)
			s.remediate("n1", "workers", "Replace")
		}},
		"the time is up too soon": {TooSoon, "that its time is up, and it has until", func(s *hospital) {
			treated(s)
			s.pass(time.Minute)
			s.timeIsUp("n1", "Reboot")
		}},
		"the time of what has all the time is up": {TooSoon, "as long as it likes", func(s *hospital) {
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.pass(time.Hour)
			s.timeIsUp("n1", "Reboot")
		}},
		"the time is up at no time": {Malformed, "which is no time", func(s *hospital) {
			treated(s)
			s.pass(5 * time.Minute)
			s.annotate("n1", "Reboot", timedOutAnnotation, "now")
		}},
		"the time is up twice": {DoneTwice, "again", func(s *hospital) {
			treated(s)
			s.pass(5 * time.Minute)
			s.timeIsUp("n1", "Reboot")
			s.pass(time.Minute)
			s.timeIsUp("n1", "Reboot")
		}},
		"a write that changes nothing": {DoneTwice, "changed nothing", func(s *hospital) {
			treated(s)
			s.changes(us, "n1", "Reboot", func(*unstructured.Unstructured) {})
		}},
		"the spec of an object": {ForeignTouched, "we changed the spec of RebootRemediation healing/n1", func(s *hospital) {
			treated(s)
			s.changes(us, "n1", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"size": int64(41)} })
		}},
		"the status of an object": {ForeignTouched, "we changed the status", func(s *hospital) {
			treated(s)
			s.answers("n1", "Reboot", "Succeeded=True")
			s.made[len(s.made)-1].Author = us
		}},
		"a finalizer of an object": {ForeignTouched, "we changed the metadata", func(s *hospital) {
			treated(s)
			s.condemns(admin, "n1", "Reboot")
			s.changes(us, "n1", "Reboot", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		}},
		"an annotation on somebody else's object": {ForeignTouched, "we changed the annotations", func(s *hospital) {
			object := s.draft("n1", "workers", "Reboot")
			object.SetOwnerReferences(nil)
			s.makes(admin, object)
			s.timeIsUp("n1", "Reboot")
		}},
		"somebody else's object deleted": {ForeignTouched, "which no health check owns", func(s *hospital) {
			object := s.draft("n1", "workers", "Reboot")
			object.SetOwnerReferences(nil)
			s.makes(admin, object)
			s.ends(us, "n1", "Reboot")
		}},
		"a template": {ForeignTouched, "template", func(s *hospital) {
			s.template("Reboot", "quick", `{"template":{"spec":{"size":41}}}`)
			s.made[len(s.made)-1].Author = us
		}},
		"the spec of a health check": {ForeignTouched, "spec of the health check", func(s *hospital) {
			s.checkup("workers", ladder)
			s.made[len(s.made)-1].Author = us
		}},
		"a health check created": {ForeignTouched, "created the health check", func(s *hospital) {
			s.checkup("more", ladder)
			s.made[len(s.made)-1].Author = us
		}},
		"a health check deleted": {ForeignTouched, "deleted the health check", func(s *hospital) { s.dropCheckup(us, "workers") }},
		"a status that is the same": {DoneTwice, "changed nothing", func(s *hospital) {
			s.tells("workers", "Enabled", 5, 5, 0)
			s.tells("workers", "Enabled", 5, 5, 0)
		}},

		"the end of what a sick node has": {Unlawful, "but the node is sick", func(s *hospital) {
			treated(s)
			s.ends(us, "n1", "Reboot")
		}},
		"the end that a finalizer delays": {Unlawful, "but the node is sick", func(s *hospital) {
			treated(s)
			s.condemns(us, "n1", "Reboot")
			s.condition("n1", "Ready=True")
			s.changes(remediator, "n1", "Reboot", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
			s.ends(us, "n1", "Reboot")
		}},
		"the end while nobody knows": {Unlawful, "what is under way stays", func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.ends(us, "n1", "Reboot")
		}},
		"the end of what means the node to go": {Unlawful, "has not succeeded yet", func(s *hospital) {
			treated(s)
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True")
			s.deleteNode(admin, "n1")
			s.ends(us, "n1", "Reboot")
		}},
		"the end during the delay": {TooSoon, "for less than 5m0s", func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"5m"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(4 * time.Minute)
			s.ends(us, "n1", "Reboot")
		}},
		"the end after a delay that a flap did not stop": {TooSoon, "for less than 5m0s", func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"5m"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(4 * time.Minute)
			s.condition("n1", "Ready=False")
			s.pass(10 * time.Second)
			s.condition("n1", "Ready=True")
			s.pass(2 * time.Minute)
			s.ends(us, "n1", "Reboot")
		}},
		"the end after a delay in which nobody knew": {TooSoon, "for less than 5m0s", func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"5m"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(4 * time.Minute)
			s.condition("n1", "Ready=Unknown/AgentSilent")
			s.pass(10 * time.Second)
			s.condition("n1", "Ready=True")
			s.pass(2 * time.Minute)
			s.ends(us, "n1", "Reboot")
		}},
		"the end that nobody has confirmed": {TooSoon, "nobody has confirmed", func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"-1s"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(time.Hour)
			s.ends(us, "n1", "Reboot")
		}},
		"an end by nobody, who may have been us": {UnknownAuthor, "if it was us: we deleted", func(s *hospital) {
			treated(s)
			s.ends(nobody, "n1", "Reboot")
		}},
		"a confirmation taken while it is needed": {ForeignTouched, "took the confirmation off the node while RebootRemediation healing/n1 is there", func(s *hospital) {
			treated(s)
			s.confirm(admin, "n1", true)
			s.confirm(us, "n1", false)
		}},
		"a confirmation given": {ForeignTouched, "annotations", func(s *hospital) { s.confirm(us, "n1", true) }},

		"somebody else's Lease taken": {ForeignTouched, `held by "maintenance"`, func(s *hospital) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.lock("n1", "workers")
		}},
		"somebody else's Lease deleted": {ForeignTouched, `which is held by "maintenance"`, func(s *hospital) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.unlock("n1")
		}},
		"somebody else's Lease deleted when it was over": {ForeignTouched, `which was that of "maintenance"`, func(s *hospital) {
			s.lease(admin, leaseNamespace, "node-n1", "maintenance")
			s.pass(time.Hour)
			s.unlock("n1")
		}},
		"a Lease for no health check": {Malformed, "which is no health check", func(s *hospital) {
			s.lease(us, leaseNamespace, "node-n1", "maintenance")
		}},
		"a Lease that is over when it is taken": {Malformed, "and it is over", func(s *hospital) {
			s.lock("n1", "workers")
			s.made[len(s.made)-1].Time = s.now.Add(time.Hour)
			s.pass(time.Hour)
		}},
		"a Lease written for nothing": {DoneTwice, "changed nothing", func(s *hospital) {
			s.lock("n1", "workers")
			s.record(watch.Modified, s.made[len(s.made)-1].GVR, us, s.leases[leaseNamespace+"/node-n1"])
		}},
		"a Lease given back during the treatment": {Unlawful, "gave the node's Lease back", func(s *hospital) {
			treated(s)
			s.unlock("n1")
		}},
		"the peer's Lease": {ForeignTouched, peerLease, func(s *hospital) { s.lease(us, "theirs", peerLease, "us") }},
	} {
		t.Run(string(test.kind)+"/"+name, test.run)
	}
}

// reigns lets the peer renew its Lease for a while.
func reigns(s *hospital) {
	s.tb.Helper()
	for range 3 {
		s.lease(peer, "theirs", peerLease, "peer-1")
		s.pass(2 * time.Second)
	}
}

func TestPlantedBesideThePeer(t *testing.T) {
	for name, tell := range map[string]func(*hospital){
		"we made RebootRemediation": func(s *hospital) {
			s.fallIll("n1")
			s.lock("n1", "workers")
			reigns(s)
			s.makes(us, s.draft("n1", "workers", "Reboot"))
		},
		"we deleted RebootRemediation": func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=True")
			reigns(s)
			s.ends(us, "n1", "Reboot")
		},
		"we wrote on RebootRemediation": func(s *hospital) {
			treated(s)
			s.pass(10 * time.Minute)
			reigns(s)
			s.timeIsUp("n1", "Reboot")
		},
		"we wrote to the node's Lease": func(s *hospital) {
			reigns(s)
			s.lock("n1", "workers")
		},
		"we wrote the status": func(s *hospital) {
			s.tells("workers", "Enabled", 5, 4, 0)
			reigns(s)
			s.tells("workers", "Enabled", 5, 5, 0)
		},
		"we took the confirmation": func(s *hospital) {
			s.confirm(admin, "n1", true)
			reigns(s)
			s.confirm(us, "n1", false)
		},
	} {
		t.Run(name, planted{Fought, name, tell}.run)
	}
}

func TestPlantedAtTheEnd(t *testing.T) {
	for name, test := range map[string]planted{
		"a sick node has nothing": {WrongEnd, "has no remediation object: 1 of 5 selected nodes", func(s *hospital) {
			s.fallIll("n1")
			s.pass(2 * DefaultLag)
			s.tells("workers", "Enabled", 5, 4, 0)
		}},
		"a sick node of the control plane has nothing": {WrongEnd, "has no remediation object", func(s *hospital) {
			s.label("n1", controlPlaneLabel, "")
			s.fallIll("n1")
			s.pass(2 * DefaultLag)
			s.tells("workers", "Enabled", 5, 4, 0)
		}},
		"a storm has passed, and nothing is begun": {WrongEnd, "has no remediation object", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.fallIll("n1", "n2")
			s.tells("workers", "Enabled", 5, 3, 0, "StormActive=True")
			s.condition("n2", "Ready=True")
			s.pass(6 * time.Minute)
			s.tells("workers", "Enabled", 5, 4, 0)
		}},
		"the next step is due": {WrongEnd, "the next step was not begun", func(s *hospital) {
			treated(s)
			s.pass(6 * time.Minute)
			s.timeIsUp("n1", "Reboot")
			s.tells("workers", "Remediating", 5, 4, 1)
		}},
		"the next step of what has failed is due": {WrongEnd, "the next step was not begun", func(s *hospital) {
			treated(s)
			s.fallIll("n2", "n3", "n4") // which closes the gate, and that is no excuse
			s.answers("n1", "Reboot", "Succeeded=False")
			s.tells("workers", "Remediating", 5, 1, 1)
		}},
		"an object is left on a node that is well": {WrongEnd, "the node is healthy", func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.pass(2 * DefaultLag)
			s.tells("workers", "Remediating", 5, 4, 1)
		}},
		"an object is left after the delay": {WrongEnd, "the node is healthy", func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"5m"`))
			s.fallIll("n1")
			s.remediate("n1", "workers", "Reboot")
			s.condition("n1", "Ready=True")
			s.pass(6 * time.Minute)
			s.tells("workers", "Remediating", 5, 4, 1)
		}},
		"an object of a node that is gone is left": {WrongEnd, "its node is gone", func(s *hospital) {
			treated(s)
			s.deleteNode(admin, "n1")
			s.tells("workers", "Remediating", 4, 4, 1)
		}},
		"an object of a namesake is left": {WrongEnd, "another node of that name", func(s *hospital) {
			treated(s)
			s.deleteNode(admin, "n1")
			s.node("n1")
			s.tells("workers", "Remediating", 5, 5, 1)
		}},
		"an object of a node that is not selected is left": {WrongEnd, "does not select", func(s *hospital) {
			treated(s)
			s.checkup("workers", with(workers, `"selector":{"matchLabels":{"pool":"lab"}}`))
			s.tells("workers", "Remediating", 0, 0, 1)
		}},
		"an object of a health check that is gone is left": {WrongEnd, "its health check is gone", func(s *hospital) {
			treated(s)
			s.dropCheckup(admin, "workers")
		}},
		"an object of a node that was replaced is left": {WrongEnd, "its node is gone", func(s *hospital) {
			treated(s)
			s.answers("n1", "Reboot", "PermanentNodeDeletionExpected=True", "Succeeded=True")
			s.deleteNode(admin, "n1")
			s.tells("workers", "Remediating", 4, 4, 1)
		}},
		"a Lease is left": {WrongEnd, "Lease is still held", func(s *hospital) {
			treated(s)
			s.condition("n1", "Ready=True")
			s.ends(us, "n1", "Reboot")
			s.tells("workers", "Enabled", 5, 5, 0)
		}},
		"no status": {WrongEnd, "the status is missing", func(*hospital) {}},
		"a status that tells of too few nodes": {WrongEnd, "tells of 4 nodes, and 5 are selected", func(s *hospital) {
			s.tells("workers", "Enabled", 4, 5, 0)
		}},
		"a status that tells of too many healthy nodes": {WrongEnd, "tells of 5 healthy nodes, and 1 of 5 are not", func(s *hospital) {
			s.condition("n1", "Ready=False")
			s.tells("workers", "Enabled", 5, 5, 0)
		}},
		"a status that tells of too few healthy nodes": {WrongEnd, "tells of 4 healthy nodes", func(s *hospital) {
			s.tells("workers", "Enabled", 5, 4, 0)
		}},
		"a status that forgets a treatment": {WrongEnd, "0 nodes in treatment, and there are 1", func(s *hospital) {
			treated(s)
			s.tells("workers", "Remediating", 5, 4, 0)
		}},
		"a status with the wrong phase": {WrongEnd, `the phase "Enabled", not "Remediating"`, func(s *hospital) {
			treated(s)
			s.tells("workers", "Enabled", 5, 4, 1)
		}},
		"a status that forgets a pause": {WrongEnd, `the phase "Enabled", not "Paused"`, func(s *hospital) {
			s.checkup("workers", with(workers, `"pauseRequests":["upgrade"]`))
			s.tells("workers", "Enabled", 5, 5, 0)
		}},
		"a status that hides what cannot be followed": {WrongEnd, "cannot be followed", func(s *hospital) {
			s.checkup("workers", with(workers, `"healthyDelay":"soon"`))
			s.tells("workers", "Enabled", 5, 5, 0)
		}},
		"a status that hides a missing template": {WrongEnd, "cannot be followed", func(s *hospital) {
			s.dropTemplate("Reboot")
			s.pass(2 * DefaultLag)
			s.tells("workers", "Enabled", 5, 5, 0)
		}},
		"a status that hides a storm": {WrongEnd, "tells of no storm", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.fallIll("n1", "n2")
			s.tells("workers", "Enabled", 5, 3, 0, "StormActive=False")
		}},
		"a status that keeps a storm": {WrongEnd, "tells of a storm", func(s *hospital) {
			s.checkup("workers", with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`))
			s.fallIll("n1", "n2")
			s.condition("n1", "Ready=True")
			s.condition("n2", "Ready=True")
			s.pass(time.Hour)
			s.tells("workers", "Enabled", 5, 5, 0, "StormActive=True")
		}},
	} {
		t.Run(name, test.run)
	}
}

// Only who knows the kinds can say anything about health checks.
func TestNothingIsSaidOfHealthChecksWithoutTheirKinds(t *testing.T) {
	s := ill(t)
	s.remediate("n1", "workers", "Reboot")
	s.lawful(lawfulCfg)
	cfg := careCfg
	cfg.Unfinished = true
	s.caught(cfg, Unlawful)
}
