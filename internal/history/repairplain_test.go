package history

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const plainPolicy = `{"selector":{},"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"1m"}]},"remediationTemplate":` + rebootRef + `}`

// fivePlainNodes returns a story with five nodes without NodeClaims, of which one may be in
// repair.
func fivePlainNodes(tb testing.TB) *repairStory {
	tb.Helper()
	s := newRepairStory(tb)
	s.policy("rest", plainPolicy)
	s.node("n1", "n2", "n3", "n4", "n5")
	s.pass(time.Hour)
	return s
}

// repairs locks a node and creates an object for it that a policy owns.
func (s *repairStory) repairs(node, policy string, changes ...func(*unstructured.Unstructured)) {
	s.tb.Helper()
	owned := owner(func(o *metav1.OwnerReference) {
		o.APIVersion, o.Kind, o.Name = policyAPIVersion, policyKind, policy
		if p := s.policies[policy]; p != nil {
			o.UID = p.GetUID()
		}
	})
	s.remediate(node, "RepairPolicy/"+policy, "Reboot", append([]func(*unstructured.Unstructured){owned}, changes...)...)
}

func TestPermittedRepairsOfPlainNodes(t *testing.T) {
	s := fivePlainNodes(t)
	s.breakDisks("n1", "n2")
	s.repairs("n1", "rest")
	s.pass(time.Minute)
	s.condition("n1", "Disk=False")
	s.checkStory.deletes(us, "n1", "Reboot")
	s.unlock("n1")
	s.repairs("n2", "rest")
	if report := s.hasNoViolation(repairCfg); report.Remediations != 2 || report.Releases != 1 {
		t.Errorf("saw %s", report)
	}
}

func TestPlantedInRepairsOfPlainNodes(t *testing.T) {
	for name, test := range map[string]plantedRepair{
		"of a healthy node": {Unjustified, "no unhealthy condition", func(s *repairStory) { s.repairs("n1", "rest") }},
		"before its toleration has passed": {TooSoon, "tolerated until", func(s *repairStory) {
			s.condition("n1", "Disk=True")
			s.pass(50 * time.Second)
			s.repairs("n1", "rest")
		}},
		"of a node that never existed": {Unjustified, "does not exist", func(s *repairStory) { s.repairs("n9", "rest") }},
		"by a policy that does not select it": {Unjustified, "no rule with that name", func(s *repairStory) {
			s.policy("some", `{"selector":{"matchLabels":{"pool":"lab"}},"repair":{},"remediationTemplate":`+rebootRef+`}`)
			s.breakDisks("n1")
			s.repairs("n1", "some")
		}},
		"without a template": {Unjustified, "names no template", func(s *repairStory) {
			s.policy("rest", plainPolicy[:len(plainPolicy)-len(`,"remediationTemplate":`+rebootRef+`}`)]+"}")
			s.breakDisks("n1")
			s.repairs("n1", "rest")
		}},
		"with another owner than it says": {Malformed, "its owner is rest", func(s *repairStory) {
			s.breakDisks("n1")
			s.repairs("n1", "rest", owner(func(o *metav1.OwnerReference) { o.UID = "uid-of-another" }))
		}},
		"without the Lease": {Unjustified, "without the node's Lease", func(s *repairStory) {
			s.breakDisks("n1")
			object := s.draft("n1", "rest", "Reboot")
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: policyAPIVersion, Kind: policyKind, Name: "rest", UID: s.policies["rest"].GetUID()}})
			s.makes(us, object)
		}},
		"with the Lease of a health check of that name": {Unjustified, `the node's Lease is held by "NodeHealthCheck-rest"`, func(s *repairStory) {
			s.breakDisks("n1")
			object := s.draft("n1", "rest", "Reboot")
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: policyAPIVersion, Kind: policyKind, Name: "rest", UID: s.policies["rest"].GetUID()}})
			s.lock("n1", "rest")
			s.makes(us, object)
		}},
		"of one node more than the bound": {CapExceeded, "2 nodes are in repair: at most 1", func(s *repairStory) {
			s.breakDisks("n1", "n2")
			s.repairs("n1", "rest")
			s.repairs("n2", "rest")
		}},
		"of a node that is already treated": {TreatedTwice, "while the node is under treatment by", func(s *repairStory) {
			s.healthCheck("workers", `{"remediationTemplate":`+replaceRef+`,"unhealthyConditions":[{"type":"Disk","status":"True","duration":"0s"}]}`)
			s.breakDisks("n1")
			s.remediate("n1", "workers", "Replace")
			s.unlock("n1")
			s.repairs("n1", "rest")
		}},
		"that are deleted while the node is unhealthy": {Unjustified, "but the node is unhealthy", func(s *repairStory) {
			s.breakDisks("n1")
			s.repairs("n1", "rest")
			s.checkStory.deletes(us, "n1", "Reboot")
		}},
	} {
		t.Run(name, func(t *testing.T) { test.runIn(t, fivePlainNodes(t), repairCfg) })
	}
}
