package history

import (
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

func TestPlantedInCreations(t *testing.T) {
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"for a healthy node":                       caught(Unjustified, "has no unhealthy condition", `remediate n1 workers Reboot`),
		"before its time":                          caught(Unjustified, "long enough: not before 12:02:00", `condition n1 Ready=False; pass 50s; remediate n1 workers Reboot`),
		"for a clock that a recovery did not stop": caught(Unjustified, "long enough", `condition n1 Ready=False; pass 40s; condition n1 Ready=True; pass 10s; condition n1 Ready=Unknown; pass 40s; remediate n1 workers Reboot`),
		"for the shorter of two durations, which belongs to the other status": caught(Unjustified, "long enough", `healthCheck workers {"remediationTemplate":$rebootRef,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"},{"type":"Ready","status":"Unknown","duration":"9m"}]}; pass 1m; condition n1 Ready=Unknown; pass 2m; remediate n1 workers Reboot`),
		"for a status that the check does not name":                           caught(Unjustified, "nothing may start", `healthCheck workers {"remediationTemplate":$rebootRef,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"}]}; pass 1m; condition n1 Ready=Unknown; pass 2m; remediate n1 workers Reboot`),
		"for a silent agent": caught(Unjustified, "nothing may start", `condition n1 Ready=Unknown/AgentSilent; pass 2m; remediate n1 workers Reboot`),
		"for a node that was healthy for longer than the lag": caught(Unjustified, "no unhealthy condition", `becomeUnhealthy n1; condition n1 Ready=True; pass 2s; remediate n1 workers Reboot`),
		"for a node that is not selected":                     caught(Unjustified, "does not select", `healthCheck lab $workers+"selector":{"matchLabels":{"pool":"lab"}}; becomeUnhealthy n1; remediate n1 lab Reboot`),
		"for an excluded node":                                caught(Unjustified, "excluded", `label n1 $exclude true; becomeUnhealthy n1; remediate n1 workers Reboot`),
		"during a pause":                                      caught(Unjustified, "paused", `healthCheck workers $workers+"pauseRequests":["upgrade"]; becomeUnhealthy n1; remediate n1 workers Reboot`),
		"without a template":                                  caught(Unjustified, "there is no template RebootRemediationTemplate healing/quick", `becomeUnhealthy n1; draft n1 workers Reboot; deleteTemplate Reboot; pass 2s; lock n1 workers; makes us`),
		"for a health check that was deleted long ago":        caught(Unjustified, "the health check does not exist", `becomeUnhealthy n1; draft n1 workers Reboot; deleteHealthCheck admin workers; pass 2s; lock n1 workers; makes us`),
		"for an invalid health check":                         caught(Unjustified, "is invalid: there are two bounds", `healthCheck broken $workers+"minHealthy":1,"maxUnhealthy":1; becomeUnhealthy n1; remediate n1 broken Reboot`),
		"for a node that never existed":                       caught(Unjustified, "does not exist", `remediate n9 workers Reboot`),
		"for a node that was deleted long ago":                caught(Unjustified, "the node is gone", `becomeUnhealthy n1; draft n1 workers Reboot; deleteNode admin n1; pass 2s; lock n1 workers; makes us`),
		"for a healthy node with the same name":               caught(Unjustified, "no unhealthy condition", `becomeUnhealthy n1; deleteNode admin n1; node n1; remediate n1 workers Reboot`),
		"without the Lease":                                   caught(Unjustified, "without the node's Lease", `becomeUnhealthy n1; draft n1 workers Reboot; makes us`),
		"with the Lease of another health check":              caught(Unjustified, `held by "NodeHealthCheck-other"`, `becomeUnhealthy n1; lock n1 other; draft n1 workers Reboot; makes us`),
		"with the Lease of another client":                    caught(Unjustified, `held by "maintenance"`, `becomeUnhealthy n1; lease admin $leases node-n1 maintenance; draft n1 workers Reboot; makes us`),
		"with an expired Lease":                               caught(Unjustified, "while the node's Lease is held by", `lock n1 workers; pass 20m; becomeUnhealthy n1; draft n1 workers Reboot; makes us`),

		"with one node more than the percentage": caught(GateIgnored, "4 of 5 selected nodes are unhealthy or in treatment, at most 3 may be", `becomeUnhealthy n1 n2 n3 n4; remediate n1 workers Reboot`),
		"with one node more than the number":     caught(GateIgnored, "2 of 5 selected nodes are unhealthy or in treatment, at most 1 may be", `healthCheck workers $one; becomeUnhealthy n1 n2; remediate n1 workers Reboot`),
		// Four, rounded up.
		"with fewer healthy nodes than the minimum":            caught(GateIgnored, "2 of 5 selected nodes are unhealthy or in treatment, at most 1 may be", `healthCheck workers $workers+"minHealthy":"70%"; becomeUnhealthy n1 n2; remediate n1 workers Reboot`),
		"while a node is unhealthy for less than its duration": caught(GateIgnored, "at most 3 may be", `becomeUnhealthy n1; condition n2 Ready=Unknown; condition n3 Ready=Unknown; condition n4 Ready=Unknown; pass 2s; remediate n1 workers Reboot`),
		"while a recovered node is still in treatment":         caught(GateIgnored, "2 of 5", `healthCheck workers $one; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; becomeUnhealthy n2; remediate n2 workers Reboot`),
		// A writer that knows n2's state knows n1's state.
		"at once, after a node that became unhealthy before": caught(GateIgnored, "2 of 5", `healthCheck workers {"remediationTemplate":$rebootRef,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"0s"}]}; pass 1m; condition n1 Ready=False; condition n2 Ready=False; remediate n2 workers Reboot`),
		"under a bound of 0":                                                                 caught(GateIgnored, "at most 0 may be", `healthCheck workers $workers+"maxUnhealthy":"0%"; becomeUnhealthy n1; remediate n1 workers Reboot`),
		"under a percentage that shrank long ago":                                            caught(GateIgnored, "2 of 2 selected nodes are unhealthy or in treatment, at most 1 may be", `deleteNode admin n3; deleteNode admin n4; deleteNode admin n5; becomeUnhealthy n1 n2; remediate n1 workers Reboot`),
		"while a removed node is not replaced":                                               caught(GateIgnored, "2 of 5 selected nodes are unhealthy, in treatment or not replaced yet, at most 1 may be", `healthCheck workers $one; removedForGood n1; becomeUnhealthy n2; remediate n2 workers Reboot`),
		"while a removed node without an object is not replaced":                             caught(GateIgnored, "2 of 5", `healthCheck workers $one; removedForGood n1; reports n1 Reboot PermanentNodeDeletionExpected=True Succeeded=True; deleteObject us n1 Reboot; unlock n1; becomeUnhealthy n2; remediate n2 workers Reboot`),
		"while a removed node is not replaced, and fewer nodes are healthy than the minimum": caught(GateIgnored, "2 of 5 selected nodes are unhealthy, in treatment or not replaced yet, at most 1 may be", `healthCheck workers $workers+"minHealthy":4; removedForGood n1; becomeUnhealthy n2; remediate n2 workers Reboot`),
		"while only one of two removed nodes is replaced":                                    caught(GateIgnored, "2 of 5", `healthCheck workers $workers+"maxUnhealthy":2; removedForGood n1; removedForGood n2; node n6; healthCheck workers $one; becomeUnhealthy n3; remediate n3 workers Reboot`),
		"while the replacement is not ready": caught(GateIgnored, "2 of 6", `healthCheck workers {"remediationTemplate":$rebootRef,"maxUnhealthy":1,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"}]}; removedForGood n1; node n6`, func(s *story) {
			s.made = s.made[:len(s.made)-1] // the change that made it ready
			s.condition("n6", "Ready=Unknown")
			s.made[len(s.made)-1].Type = watch.Added
		}, `becomeUnhealthy n2; remediate n2 workers Reboot`),
		"during the cooldown of a storm": caught(GateIgnored, "the storm is over since", `healthCheck workers $storm; becomeUnhealthy n1 n2; writeStatus workers Enabled 5 3 0 StormActive=True; condition n2 Ready=True; pass 4m; remediate n1 workers Reboot`),

		"while another health check treats the node": caught(TreatedTwice, "while health check workers treats the node", `healthCheck others $workers; becomeUnhealthy n1; remediate n1 workers Reboot`, func(s *story) {
			s.remediate("n1", "others", "Replace", func(o *unstructured.Unstructured) {
				o.SetGroupVersionKind(healing.WithKind("RebootRemediation"))
				o.SetName("n1")
				o.Object["spec"] = map[string]any{"size": int64(42)}
				annotation(templateNameAnnotation, "quick")(o)
			})
		}),
		"twice from one template": caught(TreatedTwice, "created from the same template", `several; template Reboot quick {"template":{"spec":{"size":42}}}; becomeUnhealthy n1`, func(s *story) {
			for _, suffix := range []string{"abcde", "fghij"} {
				s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
					o.SetName("n1-" + suffix)
					o.SetGenerateName("n1-")
					o.SetUID(types.UID(suffix))
				})
			}
		}),
		// Still ours.
		"for two nodes of the control plane": caught(TreatedTwice, "while n1, which is another one, is treated", `label n1 $controlPlane ""; label n2 $master ""; healthCheck others $workers+"selector":{"matchExpressions":[{"key":"node-role.kubernetes.io/master","operator":"Exists"}]},"maxUnhealthy":1; becomeUnhealthy n1 n2; remediate n1 workers Reboot; pass 1m; reports n1 Reboot Processing=True; remediate n2 others Reboot`),

		"of another kind":       caught(Malformed, "does not name", `becomeUnhealthy n1; remediate n1 workers Replace`),
		"from another template": caught(Malformed, `from the template "slow"`, `becomeUnhealthy n1; remediate n1 workers Reboot $template=slow`),
		"in another namespace": caught(Malformed, "does not name", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetNamespace("elsewhere") })
		}),
		"under another name": caught(Malformed, "not named after the node", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetName("n1-abcde") })
		}),
		"under the node's name where the template asks for several objects": caught(Malformed, "not named after the node", `several; template Reboot quick {"template":{"spec":{"size":42}}}; becomeUnhealthy n1; remediate n1 workers Reboot`),
		"with another spec": caught(Malformed, "is not that of the template", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"size": int64(41)} })
		}),
		"with the spec that the template had long ago": caught(Malformed, "is not that of the template", `becomeUnhealthy n1; draft n1 workers Reboot; template Reboot quick {"template":{"spec":{"size":41}}}; pass 2s; lock n1 workers; makes us`),
		"without the template's name":                  caught(Malformed, templateNameAnnotation, `becomeUnhealthy n1; remediate n1 workers Reboot $template=`),
		"without the node's UID":                       caught(Malformed, nodeUIDAnnotation, `becomeUnhealthy n1; remediate n1 workers Reboot $nodeUID=`),
		"without the node's name":                      caught(Malformed, nodeNameAnnotation, `becomeUnhealthy n1; remediate n1 workers Reboot $nodeName=`),
		"without the label": caught(Malformed, partOfLabel, `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetLabels(nil) })
		}),
		"without the label of the control plane": caught(Malformed, treatedAsControlPlane, `label n1 $controlPlane ""; becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{partOfLabel: partOf}) })
		}),
		"without an owner": caught(Malformed, "no health check owns", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) })
		}),
		"with an owner of another version": caught(Malformed, "its owner is of", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.APIVersion = checkGroup + "/v2" }))
		}),
		"with a controlling owner": caught(Malformed, "controls it", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.Controller = new(true) }))
		}),
		"with an owner of another UID": caught(Malformed, "which does not exist", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", owner(func(o *metav1.OwnerReference) { o.UID = "else" }))
		}),
		"with two owners": caught(Malformed, "2 owners", `becomeUnhealthy n1`, func(s *story) {
			s.remediate("n1", "workers", "Reboot", func(o *unstructured.Unstructured) {
				o.SetOwnerReferences(append(o.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1"}))
			})
		}),

		"created by an unknown author that may be us": caught(UnknownAuthor, "if it was us: we created", `lock n1 workers; draft n1 workers Reboot; makes unknown`),
	})
}

func TestPlantedInLaterWrites(t *testing.T) {
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"the next step before the first":                               caught(TooSoon, "the previous step has no object", `healthCheck workers $twoSteps; becomeUnhealthy n1; remediate n1 workers Replace`),
		"the next step too soon":                                       caught(TooSoon, "which is the previous step, has time until 12:07:00", `treated; pass 4m; annotate n1 Reboot $healthySince not-that; remediate n1 workers Replace`),
		"the next step without marking the previous step as timed out": caught(TooSoon, "was not marked as timed out", `treated; pass 5m; remediate n1 workers Replace`),
		"the next step without marking the failed step as timed out":   caught(TooSoon, "was not marked", `treated; reports n1 Reboot Succeeded=False; remediate n1 workers Replace`),
		"the next step during a pause":                                 caught(Unjustified, "paused", `treated; pass 5m; timesOut n1 Reboot; healthCheck workers $twoSteps+"pauseRequests":["upgrade"]; pass 2s; remediate n1 workers Replace`),
		"timed out too soon":                                           caught(TooSoon, "as timed out, but it has until", `treated; pass 1m; timesOut n1 Reboot`),
		"timed out without a timeout":                                  caught(TooSoon, "it has no timeout", `becomeUnhealthy n1; remediate n1 workers Reboot; pass 1h; timesOut n1 Reboot`),
		"timed out at an invalid time":                                 caught(Malformed, "which is not a time", `treated; pass 5m; annotate n1 Reboot $timeout now`),
		"timed out twice":                                              caught(DoneTwice, "again", `treated; pass 5m; timesOut n1 Reboot; pass 1m; timesOut n1 Reboot`),
		"a write that changes nothing":                                 caught(DoneTwice, "changed nothing", `treated`, func(s *story) { s.changes(us, "n1", "Reboot", func(*unstructured.Unstructured) {}) }),
		"the spec of an object": caught(ForeignTouched, "we changed the spec of RebootRemediation healing/n1", `treated`, func(s *story) {
			s.changes(us, "n1", "Reboot", func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"size": int64(41)} })
		}),
		"the status of an object": caught(ForeignTouched, "we changed the status", `treated; reports n1 Reboot Succeeded=True; by us`),
		"a finalizer of an object": caught(ForeignTouched, "we changed the metadata", `treated; startsDeletion admin n1 Reboot`, func(s *story) {
			s.changes(us, "n1", "Reboot", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		}),
		"an annotation on another client's object": caught(ForeignTouched, "we changed the annotations", `draft n1 workers Reboot; disown; makes admin; timesOut n1 Reboot`),
		"another client's object deleted":          caught(ForeignTouched, "which no health check owns", `draft n1 workers Reboot; disown; makes admin; deleteObject us n1 Reboot`),
		"a template":                               caught(ForeignTouched, "template", `template Reboot quick {"template":{"spec":{"size":41}}}; by us`),
		"the spec of a health check":               caught(ForeignTouched, "spec of the health check", `healthCheck workers $twoSteps; by us`),
		"a health check created":                   caught(ForeignTouched, "created the health check", `healthCheck more $twoSteps; by us`),
		"a health check deleted":                   caught(ForeignTouched, "deleted the health check", `deleteHealthCheck us workers`),
		"an unchanged status":                      caught(DoneTwice, "changed nothing", `writeStatus workers Enabled 5 5 0; writeStatus workers Enabled 5 5 0`),

		"deleted while the node is unhealthy": caught(Unjustified, "but the node is unhealthy", `treated; deleteObject us n1 Reboot`),
		"deleted while the node is unhealthy, with a finalizer": caught(Unjustified, "but the node is unhealthy", `treated; startsDeletion us n1 Reboot; condition n1 Ready=True`, func(s *story) {
			s.changes(remediator, "n1", "Reboot", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		}, `deleteObject us n1 Reboot`),
		"deleted while a condition is Unknown":            caught(Unjustified, "the treatment continues", `treated; condition n1 Ready=Unknown/AgentSilent; deleteObject us n1 Reboot`),
		"deleted long after the node was":                 caught(Unjustified, "has not succeeded yet", `treated; condition n1 Ready=True; pass 1m; reports n1 Reboot PermanentNodeDeletionExpected=True; deleteNode remediator n1; pass 2s; deleteObject us n1 Reboot`),
		"deleted although it removes the node":            caught(Unjustified, "has not succeeded yet", `treated; reports n1 Reboot PermanentNodeDeletionExpected=True; deleteNode admin n1; deleteObject us n1 Reboot`),
		"deleted during the delay":                        caught(TooSoon, "which is less than 5m0s", `healthCheck workers $workers+"healthyDelay":"5m"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 4m; deleteObject us n1 Reboot`),
		"deleted after a delay that ignores a flap":       caught(TooSoon, "which is less than 5m0s", `healthCheck workers $workers+"healthyDelay":"5m"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 4m; condition n1 Ready=False; pass 10s; condition n1 Ready=True; pass 2m; deleteObject us n1 Reboot`),
		"deleted after a delay with an Unknown condition": caught(TooSoon, "which is less than 5m0s", `healthCheck workers $workers+"healthyDelay":"5m"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 4m; condition n1 Ready=Unknown/AgentSilent; pass 10s; condition n1 Ready=True; pass 2m; deleteObject us n1 Reboot`),
		"deleted without the confirmation of a user":      caught(TooSoon, "no user has confirmed", `healthCheck workers $workers+"healthyDelay":"-1s"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 1h; deleteObject us n1 Reboot`),
		"deleted by an unknown author that may be us":     caught(UnknownAuthor, "if it was us: we deleted", `treated; deleteObject unknown n1 Reboot`),
		"a confirmation removed while it is needed":       caught(ForeignTouched, "removed the confirmation from the node while RebootRemediation healing/n1 is there", `treated; confirm admin n1 true; confirm us n1 false`),
		"a confirmation given":                            caught(ForeignTouched, "annotations", `confirm us n1 true`),

		"the Lease of another holder taken":           caught(ForeignTouched, `held by "maintenance"`, `lease admin $leases node-n1 maintenance; lock n1 workers`),
		"the Lease of another holder deleted":         caught(ForeignTouched, `which is held by "maintenance"`, `lease admin $leases node-n1 maintenance; unlock n1`),
		"the expired Lease of another holder deleted": caught(ForeignTouched, `which was that of "maintenance"`, `lease admin $leases node-n1 maintenance; pass 1h; unlock n1`),
		"a Lease for no health check":                 caught(Malformed, "which is no health check", `lease us $leases node-n1 maintenance`),
		"a Lease that is expired when it is taken":    caught(Malformed, "but it is expired", `lock n1 workers`, func(s *story) { s.made[len(s.made)-1].Time = s.now.Add(time.Hour) }, `pass 1h`),
		"a Lease written without a change":            caught(DoneTwice, "changed nothing", `lock n1 workers; writeAgain lease $leases/node-n1`),
		"a Lease released during the treatment":       caught(Unjustified, "released the node's Lease", `treated; unlock n1`),
		"the Lease of medik8s' own controller":        caught(ForeignTouched, peerLease, `lease us theirs $peerLease us`),
	})
}

func TestPlantedWhileMedik8sIsActive(t *testing.T) {
	tales := map[string]tale{}
	for name, script := range map[string]string{
		"we created RebootRemediation":  "becomeUnhealthy n1; lock n1 workers; medik8sIsActive; draft n1 workers Reboot; makes us",
		"we deleted RebootRemediation":  "treated; condition n1 Ready=True; medik8sIsActive; deleteObject us n1 Reboot",
		"we wrote to RebootRemediation": "treated; pass 10m; medik8sIsActive; timesOut n1 Reboot",
		"we wrote to the node's Lease":  "medik8sIsActive; lock n1 workers",
		"we wrote the status":           "writeStatus workers Enabled 5 4 0; medik8sIsActive; writeStatus workers Enabled 5 5 0",
		"we removed the confirmation":   "confirm admin n1 true; medik8sIsActive; confirm us n1 false",
	} {
		tales[name] = caught(Conflicting, name, script)
	}
	judge(t, fiveWorkers, checkConfig, tales)
}

func TestPlantedAtTheEnd(t *testing.T) {
	judge(t, fiveWorkers, checkConfig, map[string]tale{
		"an unhealthy node without an object":               caught(WrongEnd, "has no remediation object: 1 of 5 selected nodes", `becomeUnhealthy n1; pass 2s; writeStatus workers Enabled 5 4 0`),
		"an unhealthy control-plane node without an object": caught(WrongEnd, "has no remediation object", `label n1 $controlPlane ""; becomeUnhealthy n1; pass 2s; writeStatus workers Enabled 5 4 0`),
		"no treatment after a storm":                        caught(WrongEnd, "has no remediation object", `healthCheck workers $storm; becomeUnhealthy n1 n2; writeStatus workers Enabled 5 3 0 StormActive=True; condition n2 Ready=True; pass 6m; writeStatus workers Enabled 5 4 0`),
		"the next step is due":                              caught(WrongEnd, "the next step was not started", `treated; pass 6m; timesOut n1 Reboot; writeStatus workers Remediating 5 4 1`),
		// A closed gate is no reason.
		"the next step of what has failed is due":                 caught(WrongEnd, "the next step was not started", `treated; becomeUnhealthy n2 n3 n4; reports n1 Reboot Succeeded=False; writeStatus workers Remediating 5 1 1`),
		"an object is left on a healthy node":                     caught(WrongEnd, "the node is healthy", `treated; condition n1 Ready=True; pass 2s; writeStatus workers Remediating 5 4 1`),
		"an object is left after the delay":                       caught(WrongEnd, "the node is healthy", `healthCheck workers $workers+"healthyDelay":"5m"; becomeUnhealthy n1; remediate n1 workers Reboot; condition n1 Ready=True; pass 6m; writeStatus workers Remediating 5 4 1`),
		"an object of a deleted node is left":                     caught(WrongEnd, "its node is gone", `treated; deleteNode admin n1; writeStatus workers Remediating 4 4 1`),
		"an object of an earlier node with the same name is left": caught(WrongEnd, "another node of that name", `treated; deleteNode admin n1; node n1; writeStatus workers Remediating 5 5 1`),
		"an object of a node that is not selected is left":        caught(WrongEnd, "does not select", `treated; healthCheck workers $twoSteps+"selector":{"matchLabels":{"pool":"lab"}}; annotateCheck workers autohealer.resourcestack.com/accept-impact=true; writeStatus workers Remediating 0 0 1`),
		"an object of a deleted health check is left":             caught(WrongEnd, "its health check is gone", `treated; deleteHealthCheck admin workers`),
		"an object of a replaced node is left":                    caught(WrongEnd, "its node is gone", `treated; reports n1 Reboot PermanentNodeDeletionExpected=True Succeeded=True; deleteNode admin n1; writeStatus workers Remediating 4 4 1`),
		"a Lease is left":                                         caught(WrongEnd, "Lease is still held", `treated; condition n1 Ready=True; deleteObject us n1 Reboot; writeStatus workers Enabled 5 5 0`),
		"no status":                                               caught(WrongEnd, "the status is missing", ``),
		"a status with too few nodes":                             caught(WrongEnd, "reports 4 nodes, but 5 are selected", `writeStatus workers Enabled 4 5 0`),
		"a status with too many healthy nodes":                    caught(WrongEnd, "reports 5 healthy nodes, but 1 of 5 are not", `condition n1 Ready=False; writeStatus workers Enabled 5 5 0`),
		"a status with too few healthy nodes":                     caught(WrongEnd, "reports 4 healthy nodes", `writeStatus workers Enabled 5 4 0`),
		"a status without a running treatment":                    caught(WrongEnd, "0 nodes in treatment, but there are 1", `treated; writeStatus workers Remediating 5 4 0`),
		"a status with the wrong phase":                           caught(WrongEnd, `the phase "Enabled", not "Remediating"`, `treated; writeStatus workers Enabled 5 4 1`),
		"a status without a pause":                                caught(WrongEnd, `the phase "Enabled", not "Paused"`, `healthCheck workers $workers+"pauseRequests":["upgrade"]; writeStatus workers Enabled 5 5 0`),
		"an edit of the selector ends a remediation":              caught(Unjustified, "the node is unhealthy", `treated; healthCheck workers $twoSteps+"selector":{"matchLabels":{"pool":"lab"}}; pass 2s; deleteObject us n1 Reboot`),
		"an edit of the templates starts another one":             caught(TooSoon, "the previous step has no object", `treated; healthCheck workers {"remediationTemplate":$replaceRef,"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"}]}; becomeUnhealthy n2; remediate n2 workers Replace`),
		"a status that hides an invalid spec":                     caught(WrongEnd, "is invalid", `healthCheck workers $workers+"healthyDelay":"soon"; writeStatus workers Enabled 5 5 0`),
		"a status that hides a missing template":                  caught(WrongEnd, "is invalid", `deleteTemplate Reboot; pass 2s; writeStatus workers Enabled 5 5 0`),
		"a status that hides a storm":                             caught(WrongEnd, "reports no storm", `healthCheck workers $storm; becomeUnhealthy n1 n2; writeStatus workers Enabled 5 3 0 StormActive=False`),
		"a status that keeps a storm":                             caught(WrongEnd, "reports a storm", `healthCheck workers $storm; becomeUnhealthy n1 n2; condition n1 Ready=True; condition n2 Ready=True; pass 1h; writeStatus workers Enabled 5 5 0 StormActive=True`),
	})
}

// The checker needs the kinds of remediation objects to judge health checks.
func TestHealthChecksAreNotJudgedWithoutTheirKinds(t *testing.T) {
	s := fiveWorkers(t).tell("remediate n1 workers Reboot")
	s.hasNoViolation(testConfig)
	cfg := checkConfig
	cfg.Unfinished = true
	s.caught(cfg, Unjustified)
}
