package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// becomeUnhealthy makes nodes unhealthy one after the other and gives them the right
// taints.
func becomeUnhealthy(s *story, effects map[string]string, names ...string) {
	s.tb.Helper()
	for _, n := range names {
		s.condition(n, "KernelDeadlock=True")
		s.we(n, s.place("deadlock", effects[n]))
		s.pass(10 * time.Second)
	}
}

var twoOut = map[string]string{"n1": out, "n2": out, "n3": back, "n4": back}

// Every recording here has exactly one violation.
func TestPlanted(t *testing.T) {
	for name, test := range map[string]struct {
		kind Kind
		text string // part of the violation's text
		tell func(s *story)
	}{
		"one node more than the percentage": {CapExceeded, "3 of 5 selected nodes carry it, at most 2 may", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2")
			s.condition("n3", "KernelDeadlock=True")
			s.we("n3", s.place("deadlock", out))
		}},
		"one node more than the number": {CapExceeded, "2 of 5 selected nodes carry it, at most 1 may", func(s *story) {
			s.set("one", `{"type":"O","effect":"NoExecute","taintKey":"example.com/one","maxUnhealthy":1,"conditions":{"Other":{"status":true}}}`)
			for _, n := range []string{"n1", "n2"} {
				s.condition(n, "Other=True")
				s.we(n, s.place("one", "example.com/one:NoExecute"))
			}
		}},
		"one node with a bound of 0": {CapExceeded, "at most 0 may", func(s *story) {
			s.set("none", `{"type":"O","effect":"NoExecute","taintKey":"example.com/none","maxUnhealthy":"0%","conditions":{"Other":{"status":true}}}`)
			s.pass(time.Minute)
			s.condition("n1", "Other=True")
			s.we("n1", s.place("none", "example.com/none:NoExecute"))
		}},
		"a promotion without room": {CapExceeded, "3 of 5", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3")
			s.we("n3", s.remove("deadlock", back), s.place("deadlock", out))
		}},
		"one node in addition to taints of other writers": {CapExceeded, "3 of 5 selected nodes carry it, at most 2 may", func(s *story) {
			s.foreign("n4", out)
			s.foreign("n5", out)
			s.pass(2 * DefaultLag)
			becomeUnhealthy(s, twoOut, "n1")
		}},
		"one node after the records are lost": {CapExceeded, "3 of 5 selected nodes carry it, at most 2 may", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2")
			for _, n := range []string{"n1", "n2"} {
				s.edit(admin, n, func(node *corev1.Node) { delete(node.Annotations, recordAnnotation) })
			}
			s.pass(2 * DefaultLag)
			becomeUnhealthy(s, map[string]string{"n3": out}, "n3")
		}},
		"a bound that shrank long ago": {CapExceeded, "2 of 3 selected nodes carry it, at most 1 may", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.deleteNode(admin, "n4")
			s.deleteNode(admin, "n5")
			s.pass(2 * DefaultLag)
			s.condition("n2", "KernelDeadlock=True")
			s.we("n2", s.place("deadlock", out))
		}},
		"a percentage of the selected nodes": {CapExceeded, "2 of 3 selected nodes carry it, at most 1 may", func(s *story) {
			s.set("web", `{"type":"W","effect":"NoExecute","taintKey":"example.com/web","selector":{"matchLabels":{"pool":"web"}},"conditions":{"Other":{"status":true}}}`)
			s.label("n4", "pool", "lab")
			s.label("n5", "pool", "lab")
			s.pass(time.Minute)
			for _, n := range []string{"n1", "n2"} {
				s.condition(n, "Other=True")
				s.we(n, s.place("web", "example.com/web:NoExecute"))
			}
		}},

		"a deleted set": {CapExceeded, "3 of 5", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2")
			s.condition("n3", "KernelDeadlock=True")
			s.deleteSet(admin, "deadlock")
			s.we("n3", s.place("deadlock", out)) // a writer that does not know the deletion yet is still bound
			for _, n := range []string{"n1", "n2", "n3"} {
				s.we(n, s.remove("deadlock", out))
			}
		}},

		"another writer's taint removed": {ForeignTouched, "example.com/theirs:NoSchedule, which was not ours", func(s *story) {
			s.foreign("n1", "example.com/theirs:NoSchedule")
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out), func(n *corev1.Node, _ *form) { dropTaint(n, "example.com/theirs:NoSchedule") })
		}},
		"another writer's taint with our key removed": {ForeignTouched, out, func(s *story) {
			s.foreign("n1", out)
			s.takeAway(us, "n1", out)
		}},
		"another writer's taint changed": {ForeignTouched, "changed or removed", func(s *story) {
			s.foreign("n1", "example.com/theirs:NoSchedule")
			s.edit(us, "n1", func(n *corev1.Node) { n.Spec.Taints[0].Value = "ours" })
		}},
		"our taint that another writer had replaced": {ForeignTouched, out, func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.edit(admin, "n1", func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = new(metav1.NewTime(s.now.Add(time.Hour))) })
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
		}},
		"a taint placed again that another writer has just removed": {ForeignTouched, "placed again the taint", func(s *story) {
			s.foreign("n1", "example.com/theirs:NoSchedule")
			theirs := s.nodes["n1"].Spec.Taints[0]
			s.takeAway(admin, "n1", "example.com/theirs:NoSchedule")
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out), func(n *corev1.Node, _ *form) { n.Spec.Taints = append(n.Spec.Taints, theirs) })
		}},
		"another writer's taint claimed": {ForeignTouched, "claimed", func(s *story) {
			s.foreign("n1", out)
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out)) // it adopts the existing taint
		}},
		"a label": {ForeignTouched, "labels", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) { n.Labels["healed"] = "yes" })
		}},
		"an annotation": {ForeignTouched, "annotations", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) { n.Annotations = map[string]string{"healed": "yes"} })
		}},
		"a finalizer": {ForeignTouched, "metadata", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) { n.Finalizers = []string{"example.com/wait"} })
		}},
		"the spec": {ForeignTouched, "spec", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		}},
		"the status": {ForeignTouched, "status", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) { n.Status.Conditions[0].Message = "fine" })
		}},
		"a node deleted": {ForeignTouched, "deleted the node", func(s *story) { s.deleteNode(us, "n1") }},
		"a node created": {ForeignTouched, "created the node", func(s *story) {
			s.node("n6")
			s.made[len(s.made)-1].Author = us
		}},
		"the spec of a set": {ForeignTouched, "spec of the set", func(s *story) {
			s.set("deadlock", strings.Replace(deadlock, "Deadlock\"", "Other\"", 1))
			s.made[len(s.made)-1].Author = us
		}},
		"a set deleted": {ForeignTouched, "deleted the set", func(s *story) { s.deleteSet(us, "deadlock") }},
		"a set created": {ForeignTouched, "created the set", func(s *story) {
			s.set("more", ntp)
			s.made[len(s.made)-1].Author = us
		}},

		"a taint placed again": {DoneTwice, "again while it existed", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.we("n1", s.remove("deadlock", out), s.place("deadlock", out))
		}},
		"a taint that flaps": {DoneTwice, "again", func(s *story) {
			s.set("ntp", ntp)
			s.pass(time.Minute)
			s.condition("n1", "NTPProblem=True")
			s.we("n1", s.place("ntp", late))
			s.pass(time.Minute)
			s.deleteSet(admin, "ntp")
			s.we("n1", s.remove("ntp", late))
			s.set("ntp", ntp)
			s.we("n1", s.place("ntp", late))
			s.we("n1", s.remove("ntp", late)) // allowed for a writer that does not know the new set yet
			s.we("n1", s.place("ntp", late))  // but this is not
		}},
		"a NoExecute that flaps": {DoneTwice, "again", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.pass(time.Minute)
			s.deleteSet(admin, "deadlock")
			s.we("n1", s.remove("deadlock", out))
			s.set("deadlock", deadlock)
			s.we("n1", s.place("deadlock", out))
			s.we("n1", s.remove("deadlock", out))
			s.we("n1", s.place("deadlock", out))
		}},
		"a write that changes nothing": {DoneTwice, "changed nothing", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.we("n1")
		}},
		"a record with the same content in another form": {DoneTwice, "changed nothing", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.edit(us, "n1", func(n *corev1.Node) { n.Annotations[recordAnnotation] += " " })
		}},
		"an unchanged status": {DoneTwice, "changed nothing", func(s *story) {
			s.record(watch.Modified, SetsResource, us, s.sets["deadlock"])
		}},
		"a memory that changes without a cause": {DoneTwice, "remembers", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.we("n1", remember("deadlock", "KernelDeadlock", s.now))
			s.we("n1", forget)
		}},

		"a taint on a healthy node": {Unjustified, "do not match", func(s *story) {
			s.we("n1", s.place("deadlock", out))
			s.we("n1", s.remove("deadlock", out))
		}},
		"a taint for one condition of two": {Unjustified, "do not match", func(s *story) {
			s.set("both", `{"type":"B","effect":"NoSchedule","taintKey":"example.com/b","conditions":{"A":{"status":true},"B":{"status":"unknown"}}}`)
			s.condition("n1", "A=True", "B=True")
			s.we("n1", s.place("both", "example.com/b:NoSchedule"))
			s.we("n1", s.remove("both", "example.com/b:NoSchedule"))
		}},
		"a taint for a missing condition": {Unjustified, "do not match", func(s *story) {
			s.set("no", `{"type":"B","effect":"NoSchedule","taintKey":"example.com/b","conditions":{"A":{"status":false}}}`)
			s.we("n1", s.place("no", "example.com/b:NoSchedule"))
			s.we("n1", s.remove("no", "example.com/b:NoSchedule"))
		}},
		"a new taint while Unknown": {Unjustified, "nothing may start", func(s *story) {
			s.condition("n1", "KernelDeadlock=Unknown")
			s.we("n1", s.place("deadlock", out))
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
		}},
		"a promotion while Unknown": {Unjustified, "nothing may start", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3")
			s.condition("n3", "KernelDeadlock=Unknown")
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
			s.we("n3", s.remove("deadlock", back), s.place("deadlock", out))
		}},
		"a taint for a silent agent": {Unjustified, "nothing may start", func(s *story) {
			s.set("runtime", `{"type":"R","effect":"NoSchedule","taintKey":"example.com/r","conditions":{"Runtime":{"status":"unknown"}}}`)
			s.condition("n1", "Runtime=Unknown/AgentSilent")
			s.we("n1", s.place("runtime", "example.com/r:NoSchedule"))
			s.condition("n1", "Runtime=False")
			s.we("n1", s.remove("runtime", "example.com/r:NoSchedule"))
		}},
		"a taint before its duration has passed": {Unjustified, "long enough", func(s *story) {
			s.set("slow", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`)
			s.condition("n1", "A=True")
			s.pass(4 * time.Minute)
			s.we("n1", s.place("slow", "example.com/slow:NoSchedule"))
			s.pass(2 * time.Minute)
		}},
		"a clock that a recovery did not stop": {Unjustified, "long enough", func(s *story) {
			s.set("slow", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`)
			s.condition("n1", "A=True")
			s.pass(2 * time.Minute)
			s.condition("n1", "A=False")
			s.pass(2 * time.Minute)
			s.condition("n1", "A=True")
			s.pass(2 * time.Minute)
			s.we("n1", s.place("slow", "example.com/slow:NoSchedule"))
			s.pass(10 * time.Minute)
		}},
		"a taint of a set that never existed": {Unjustified, "the set does not exist", func(s *story) {
			s.we("n1", s.place("ghost", out))
			s.we("n1", s.remove("ghost", out))
		}},
		"a taint of a set that was deleted long ago": {Unjustified, "the set does not exist", func(s *story) {
			s.deleteSet(admin, "deadlock")
			s.condition("n1", "KernelDeadlock=True")
			s.pass(2 * DefaultLag)
			s.we("n1", s.place("deadlock", out))
			s.we("n1", s.remove("deadlock", out))
		}},
		"a taint of a set in dry run": {Unjustified, "dry run", func(s *story) {
			s.set("dry", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/dry","dryRun":true,"conditions":{"A":{"status":true}}}`)
			s.condition("n1", "A=True")
			s.we("n1", s.place("dry", "example.com/dry:NoSchedule"))
			s.we("n1", s.remove("dry", "example.com/dry:NoSchedule"))
		}},
		"a taint of an invalid set": {Unjustified, "belongs to Kubernetes", func(s *story) {
			s.set("native", `{"type":"S","effect":"NoSchedule","taintKey":"node.kubernetes.io/not-ready","conditions":{"A":{"status":true}}}`)
			s.condition("n1", "A=True")
			s.we("n1", s.place("native", "node.kubernetes.io/not-ready:NoSchedule"))
			s.we("n1", s.remove("native", "node.kubernetes.io/not-ready:NoSchedule"))
		}},
		"a taint with another key": {Unjustified, "asks for", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", "example.com/else:NoExecute"))
			s.we("n1", s.remove("deadlock", "example.com/else:NoExecute"), s.place("deadlock", out))
		}},
		"a taint with a stronger effect": {Unjustified, "asks for", func(s *story) {
			s.set("ntp", ntp)
			s.condition("n1", "NTPProblem=True")
			s.we("n1", s.place("ntp", "example.com/ntp:NoExecute"))
			s.we("n1", s.remove("ntp", "example.com/ntp:NoExecute"), s.place("ntp", late))
		}},
		"a taint on a node that is not selected": {Unjustified, "does not select", func(s *story) {
			s.set("lab", `{"type":"L","effect":"NoSchedule","taintKey":"example.com/lab","selector":{"matchLabels":{"pool":"lab"}},"conditions":{"A":{"status":true}}}`)
			s.condition("n1", "A=True")
			s.we("n1", s.place("lab", "example.com/lab:NoSchedule"))
			s.we("n1", s.remove("lab", "example.com/lab:NoSchedule"))
		}},
		"a superseded taint": {Unjustified, "superseded by deadlock", func(s *story) {
			s.set("ntp", ntp)
			s.pass(time.Minute)
			s.condition("n1", "NTPProblem=True", "KernelDeadlock=True")
			s.we("n1", s.place("ntp", late), s.place("deadlock", out))
			s.we("n1", s.remove("ntp", late))
		}},
		"a taint that is superseded by a fallback": {Unjustified, "superseded by deadlock", func(s *story) {
			s.set("ntp", ntp)
			s.pass(time.Minute)
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3")
			s.condition("n3", "NTPProblem=True")
			s.we("n3", s.place("ntp", late))
			s.we("n3", s.remove("ntp", late))
		}},
		"NoExecute on the control plane": {Unjustified, "control plane", func(s *story) {
			s.label("n1", controlPlaneLabel, "")
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.we("n1", s.remove("deadlock", out), s.place("deadlock", back))
		}},
		"NoExecute on a control plane with the old label": {Unjustified, "control plane", func(s *story) {
			s.label("n1", masterLabel, "")
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.we("n1", s.remove("deadlock", out), s.place("deadlock", back))
		}},
		"NoExecute on a control plane that the selector does not name": {Unjustified, "control plane", func(s *story) {
			s.set("all", `{"type":"A","effect":"NoExecute","taintKey":"example.com/all","selector":{"matchExpressions":[{"key":"node-role.kubernetes.io/control-plane","operator":"NotIn","values":["no"]}]},"conditions":{"A":{"status":true}}}`)
			s.label("n1", controlPlaneLabel, "")
			s.condition("n1", "A=True")
			s.we("n1", s.place("all", "example.com/all:NoExecute"))
			s.we("n1", s.remove("all", "example.com/all:NoExecute"), s.place("all", "example.com/all:NoSchedule"))
		}},
		"a taint removed from an unhealthy node": {Unjustified, "removed the taint example.com/deadlock:NoExecute, but the conditions of the set match", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.we("n1", s.remove("deadlock", out))
			s.we("n1", s.place("deadlock", out))
		}},
		"a taint removed while Unknown": {Unjustified, "existing taints stay", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.condition("n1", "KernelDeadlock=Unknown")
			s.we("n1", s.remove("deadlock", out))
		}},
		"a taint removed by a weaker set": {Unjustified, "we removed the taint", func(s *story) {
			s.set("ntp", ntp)
			s.set("prefer", `{"type":"P","effect":"PreferNoSchedule","taintKey":"example.com/p","conditions":{"A":{"status":true}}}`)
			s.pass(time.Minute)
			s.condition("n1", "NTPProblem=True")
			s.we("n1", s.place("ntp", late))
			s.condition("n1", "A=True")
			s.we("n1", s.remove("ntp", late))
			s.we("n1", s.place("ntp", late))
		}},
		"NoExecute weakened while there is room": {Unjustified, "we removed the taint", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.we("n1", s.remove("deadlock", out), s.place("deadlock", back))
			s.pass(time.Minute)
			s.we("n1", s.remove("deadlock", back), s.place("deadlock", out))
		}},
		"a fallback removed from an unhealthy node": {Unjustified, "we removed the taint", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3")
			s.we("n3", s.remove("deadlock", back))
			s.we("n3", s.place("deadlock", back))
		}},
		"a taint that an existing taint supersedes while Unknown": {Unjustified, "superseded by deadlock", func(s *story) {
			s.set("ntp", ntp)
			s.pass(time.Minute)
			becomeUnhealthy(s, twoOut, "n1")
			s.condition("n1", "KernelDeadlock=Unknown", "NTPProblem=True")
			s.we("n1", s.place("ntp", late))
			s.we("n1", s.remove("ntp", late))
		}},
		"a rule of an unknown kind": {Unjustified, "the set does not exist", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			shared := func(n *corev1.Node, f *form) {
				f.Taints = append(f.Taints, formTaint{"Whim/deadlock", keyOf(out), noExecute, n.Spec.Taints[0].TimeAdded.UTC()})
			}
			s.we("n1", shared)
			s.we("n1", func(_ *corev1.Node, f *form) { f.Taints = f.Taints[:1] })
		}},

		"NoExecute without the ledger": {Unrecorded, "does not name it", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.weUnrecorded("n1", s.place("deadlock", out))
		}},
		"NoExecute on another version than the ledger names": {Unrecorded, "does not name it", func(s *story) {
			s.enter(grant{"ConditionSet/deadlock", "n1", string(s.nodes["n1"].UID), s.nodes["n1"].ResourceVersion, ""})
			s.condition("n1", "KernelDeadlock=True")
			s.weUnrecorded("n1", s.place("deadlock", out))
		}},
		"NoExecute for another set than the ledger names": {Unrecorded, "does not name it", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.enter(grant{"ConditionSet/other", "n1", string(s.nodes["n1"].UID), s.nodes["n1"].ResourceVersion, ""})
			s.weUnrecorded("n1", s.place("deadlock", out))
		}},
		"NoExecute on another node with the name in the ledger": {Unrecorded, "does not name it", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.enter(grant{"ConditionSet/deadlock", "n1", "uid-of-another", s.nodes["n1"].ResourceVersion, ""})
			s.weUnrecorded("n1", s.place("deadlock", out))
		}},
		"a ledger that no longer names it": {Unrecorded, "does not name it", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.enter(grant{"ConditionSet/deadlock", "n1", string(s.nodes["n1"].UID), s.nodes["n1"].ResourceVersion, ""})
			s.enter()
			s.weUnrecorded("n1", s.place("deadlock", out))
		}},

		"a taint without an entry in the record": {Misrecorded, "does not have it", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "example.com/x", Effect: corev1.TaintEffectNoSchedule}}
			})
		}},
		"a taint with another time than the record": {Misrecorded, "", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out), func(n *corev1.Node, _ *form) {
				n.Spec.Taints[0].TimeAdded = new(metav1.NewTime(s.now.Add(time.Hour)))
			})
			s.we("n1", func(_ *corev1.Node, f *form) { f.Taints = nil })
		}},
		"an entry in the record without a taint": {Misrecorded, "is not there", func(s *story) {
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out), func(n *corev1.Node, _ *form) { n.Spec.Taints = nil })
			s.pass(time.Minute)
			s.we("n1", func(_ *corev1.Node, f *form) { f.Taints = nil }, s.place("deadlock", out))
		}},
		"a removed taint whose entry stays": {Misrecorded, "is not there", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", func(n *corev1.Node, _ *form) { n.Spec.Taints = nil })
			s.we("n1", func(_ *corev1.Node, f *form) { f.Taints = nil })
		}},
		"a removed entry whose taint stays": {Misrecorded, "no longer has it", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", func(_ *corev1.Node, f *form) { f.Taints = nil })
		}},
		"a record that cannot be read": {Misrecorded, "cannot be read", func(s *story) {
			s.edit(us, "n1", func(n *corev1.Node) { n.Annotations = map[string]string{recordAnnotation: "{"} })
			s.edit(us, "n1", func(n *corev1.Node) { n.Annotations = nil })
		}},

		"a node that became unhealthy later goes first": {OutOfTurn, "n3 has waited", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3", "n4")
			s.pass(time.Minute)
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
			s.we("n4", s.remove("deadlock", back), s.place("deadlock", out))
		}},
		"a node that has just become unhealthy goes first": {OutOfTurn, "n3 has waited", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1", "n2", "n3")
			s.pass(time.Minute)
			s.condition("n1", "KernelDeadlock=False")
			s.condition("n5", "KernelDeadlock=True")
			s.we("n1", s.remove("deadlock", out))
			s.we("n5", s.place("deadlock", out))
		}},

		"a taint is missing": {WrongEnd, "is missing", func(s *story) { s.condition("n1", "KernelDeadlock=True") }},
		"a taint whose duration has passed is missing": {WrongEnd, "is missing", func(s *story) {
			s.set("slow", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`)
			s.condition("n1", "A=True")
			s.pass(6 * time.Minute)
			s.node("n6")
		}},
		"a taint is left on a healthy node": {WrongEnd, "do not match", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.condition("n1", "KernelDeadlock=False")
		}},
		"a taint of a deleted set is left": {WrongEnd, "the set does not exist", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.deleteSet(admin, "deadlock")
		}},
		"a taint of a set in dry run is left": {WrongEnd, "dry run", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.set("deadlock", strings.Replace(deadlock, `"type"`, `"dryRun":true,"type"`, 1))
		}},
		"a taint of a node that is no longer selected is left": {WrongEnd, "does not select", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.set("deadlock", strings.Replace(deadlock, `"type"`, `"selector":{"matchLabels":{"pool":"lab"}},"type"`, 1))
		}},
		"a superseded taint is left": {WrongEnd, "higher effect", func(s *story) {
			s.set("ntp", ntp)
			s.condition("n1", "NTPProblem=True")
			s.we("n1", s.place("ntp", late))
			s.condition("n1", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
		}},
		"a superseded taint does not affect the order": {WrongEnd, "is missing", func(s *story) {
			s.set("ntp", ntp)
			s.condition("n1", "NTPProblem=True", "KernelDeadlock=True")
			s.we("n1", s.place("deadlock", out))
			s.condition("n1", "KernelDeadlock=False")
			s.we("n1", s.remove("deadlock", out))
		}},
		"the old key is left": {WrongEnd, "asks for example.com/dead", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.set("deadlock", strings.Replace(deadlock, "example.com/deadlock", "example.com/dead", 1))
		}},
		"the fallback is left beside the taint": {WrongEnd, "2 taints", func(s *story) {
			becomeUnhealthy(s, map[string]string{"n1": back}, "n1")
			s.we("n1", s.place("deadlock", out))
		}},
		"room is left": {WrongEnd, "1 of 5 selected nodes carry NoExecute and 2 may", func(s *story) {
			becomeUnhealthy(s, map[string]string{"n1": out, "n2": back}, "n1", "n2")
		}},
		"NoExecute is left on the control plane": {WrongEnd, "control plane", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.label("n1", controlPlaneLabel, "")
		}},
		"a fence is left": {WrongEnd, "fence", func(s *story) { s.we("n1", fence("replica-1")) }},
		"a memory of a deleted set is left": {WrongEnd, "remembers", func(s *story) {
			s.we("n1", remember("ghost", "KernelDeadlock", s.now))
		}},
		"a memory of a healthy condition is left": {WrongEnd, "remembers", func(s *story) {
			s.condition("n1", "KernelDeadlock=Unknown")
			s.we("n1", remember("deadlock", "KernelDeadlock", s.now))
			s.condition("n1", "KernelDeadlock=False")
		}},
		"an entry of a taint that another writer removed is left": {WrongEnd, "is not there", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.condition("n1", "KernelDeadlock=False")
			s.takeAway(admin, "n1", out)
		}},
		"an empty record is left": {WrongEnd, "empty", func(s *story) {
			s.condition("n1", "KernelDeadlock=Unknown")
			s.we("n1", remember("deadlock", "KernelDeadlock", s.now))
			s.edit(us, "n1", func(n *corev1.Node) { n.Annotations[recordAnnotation] = "{}" })
		}},
		"an unreadable record is left": {WrongEnd, "cannot be read", func(s *story) {
			s.edit(admin, "n1", func(n *corev1.Node) { n.Annotations = map[string]string{recordAnnotation: "{"} })
		}},

		"taints changed by an unknown author": {UnknownAuthor, "the audit log ends here", func(s *story) {
			s.foreign("n1", "example.com/theirs:NoSchedule")
			s.made[len(s.made)-1].Author = unknownAuthor
		}},
		"our placement without proof": {UnknownAuthor, "the audit log ends here", func(s *story) {
			becomeUnhealthy(s, twoOut, "n1")
			s.made[len(s.made)-1].Author = unknownAuthor
		}},
		"taints changed by another client or us": {UnknownAuthor, "the audit log ends here", func(s *story) {
			s.foreign("n1", "example.com/theirs:NoSchedule")
			s.made[len(s.made)-1].Author, s.made[len(s.made)-1].Suspects = unknownAuthor, []testbed.Author{admin, us}
		}},
		"a node deleted by an unknown author": {UnknownAuthor, "deleted", func(s *story) { s.deleteNode(unknownAuthor, "n1") }},
	} {
		t.Run(string(test.kind)+"/"+name, func(t *testing.T) {
			s := fiveNodes(t)
			test.tell(s)
			report := s.caught(testConfig, test.kind)
			for _, v := range report.Violations {
				if strings.Contains(v.Text, test.text) {
					return
				}
			}
			t.Errorf("nothing says %q: %s", test.text, report)
		})
	}
}

// Delays within the lag are tolerated, longer delays are not.
func TestDelaysWithinTheLagAreTolerated(t *testing.T) {
	s := fiveNodes(t)
	s.condition("n1", "KernelDeadlock=True")
	s.deleteSet(admin, "deadlock")
	s.pass(3 * time.Second)
	s.we("n1", s.place("deadlock", out))
	s.we("n1", s.remove("deadlock", out))

	cfg := testConfig
	cfg.Lag = 5 * time.Second
	s.hasNoViolation(cfg)
	cfg.Lag = time.Second
	s.caught(cfg, Unjustified)
}

func TestConfig(t *testing.T) {
	t.Run("any turn", func(t *testing.T) {
		s := fiveNodes(t)
		becomeUnhealthy(s, twoOut, "n1", "n2", "n3", "n4")
		s.condition("n1", "KernelDeadlock=False")
		s.we("n1", s.remove("deadlock", out))
		s.we("n4", s.remove("deadlock", back), s.place("deadlock", out))
		cfg := testConfig
		cfg.AnyTurn = true
		s.hasNoViolation(cfg)
	})
	t.Run("no ledger", func(t *testing.T) {
		s := fiveNodes(t)
		s.condition("n1", "KernelDeadlock=True")
		s.weUnrecorded("n1", s.place("deadlock", out))
		s.hasNoViolation(Config{Us: UserAgent("autohealer-controller")})
	})
	t.Run("a set that was to be refused", func(t *testing.T) {
		cfg := testConfig
		cfg.Refused = func(set string, _ int64) bool { return set == "deadlock" }
		s := fiveNodes(t)
		s.condition("n1", "KernelDeadlock=True")
		s.hasNoViolation(cfg)
		s.caught(testConfig, WrongEnd)
		s.we("n1", s.place("deadlock", out))
		s.hasNoViolation(testConfig)
		s.caught(cfg, Unjustified)
	})
	t.Run("an unfinished run", func(t *testing.T) {
		s := fiveNodes(t)
		s.condition("n1", "KernelDeadlock=True")
		cfg := testConfig
		cfg.Unfinished = true
		s.hasNoViolation(cfg)
	})
	t.Run("a later end", func(t *testing.T) {
		s := fiveNodes(t)
		s.set("slow", `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`)
		s.condition("n1", "A=True")
		s.hasNoViolation(testConfig)
		cfg := testConfig
		cfg.EndAt = s.now.Add(6 * time.Minute)
		s.caught(cfg, WrongEnd)
	})
	t.Run("the fields of another manager", func(t *testing.T) {
		s := fiveNodes(t)
		s.condition("n1", "KernelDeadlock=True")
		s.we("n1", s.place("deadlock", out))
		change := &s.made[len(s.made)-1]
		change.Author = unknownAuthor
		change.Object.Object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": "another-writer", "operation": "Update", "time": "2026-03-01T12:00:00Z"}}
		cfg := testConfig
		cfg.FieldManager = us.FieldManager
		if report := s.hasNoViolation(cfg); report.Writes != 0 || report.Unproved != 1 {
			t.Errorf("another client's write counts as ours: %s", report)
		}
	})
}

func TestInvalidRecordingsAreErrors(t *testing.T) {
	validRecording := func() testbed.Recording {
		s := fiveNodes(t)
		s.condition("n1", "Ready=False")
		return s.made
	}
	for name, test := range map[string]struct {
		want  string
		spoil func(testbed.Recording, *Config) testbed.Recording
	}{
		"Us is missing":            {"there is no Us", func(r testbed.Recording, c *Config) testbed.Recording { c.Us = nil; return r }},
		"a negative lag":           {"less than 0", func(r testbed.Recording, c *Config) testbed.Recording { c.Lag = -1; return r }},
		"half a ledger":            {"needs a namespace", func(r testbed.Recording, c *Config) testbed.Recording { c.Ledger.Namespace = ""; return r }},
		"no number":                {"resourceVersion \"x\"", func(r testbed.Recording, _ *Config) testbed.Recording { r[1].ResourceVersion = "x"; return r }},
		"out of order":             {"the one before has", func(r testbed.Recording, _ *Config) testbed.Recording { r[1], r[2] = r[2], r[1]; return r }},
		"no object":                {"no object", func(r testbed.Recording, _ *Config) testbed.Recording { r[1].Object = nil; return r }},
		"the beginning is missing": {"creation was not recorded", func(r testbed.Recording, _ *Config) testbed.Recording { return r[1:] }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig
			recording := test.spoil(validRecording(), &cfg)
			if _, err := Check(recording, cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want an error with %q", err, test.want)
			}
		})
	}
}

// recordedFailures keeps the failures of a test.
type recordedFailures struct {
	testing.TB
	said []string
}

func (c *recordedFailures) Helper() {}
func (c *recordedFailures) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

func TestRequireFailsATest(t *testing.T) {
	s := fiveNodes(t)
	s.condition("n1", "KernelDeadlock=True")
	c := &recordedFailures{TB: t}
	Require(c, s.made, testConfig, Counts{Evictions: 1, Changes: 5})
	if got := strings.Join(c.said, "\n"); len(c.said) != 2 || !strings.Contains(got, "WrongEnd") || !strings.Contains(got, "0 placements of NoExecute, want at least 1") {
		t.Errorf("it says\n%s", got)
	}
	for range 40 {
		s.edit(us, "n2", func(n *corev1.Node) { n.Labels["x"] += "x" })
	}
	c = &recordedFailures{TB: t}
	Require(c, s.made, testConfig, Counts{})
	if last := c.said[len(c.said)-1]; len(c.said) != maxPrinted+1 || !strings.Contains(last, "and 16 more") {
		t.Errorf("%d failures, the last is %q", len(c.said), last)
	}
	c = &recordedFailures{TB: t}
	Require(c, nil, testConfig, Counts{})
	if len(c.said) == 0 {
		t.Error("an empty recording passes")
	}
}
