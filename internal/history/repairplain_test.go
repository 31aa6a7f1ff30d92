package history

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const plainPolicy = `{"selector":{},"repair":{"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"1m"}]},"remediationTemplate":` + rebootRef + `}`

// plain returns a depot of five nodes without machines, of which one may be in repair.
func plain(tb testing.TB) *depot {
	tb.Helper()
	s := newDepot(tb)
	s.policy("rest", plainPolicy)
	s.node("n1", "n2", "n3", "n4", "n5")
	s.pass(time.Hour)
	return s
}

// repairs locks a node and makes an object for it that a policy owns.
func (s *depot) repairs(node, policy string, changes ...func(*unstructured.Unstructured)) {
	s.tb.Helper()
	owned := owner(func(o *metav1.OwnerReference) {
		o.APIVersion, o.Kind, o.Name = policyAPIVersion, policyKind, policy
		if p := s.policies[policy]; p != nil {
			o.UID = p.GetUID()
		}
	})
	s.remediate(node, "RepairPolicy/"+policy, "Reboot", append([]func(*unstructured.Unstructured){owned}, changes...)...)
}

func TestLawfulRepairsOfPlainNodes(t *testing.T) {
	s := plain(t)
	s.breaks("n1", "n2")
	s.repairs("n1", "rest")
	s.pass(time.Minute)
	s.condition("n1", "Disk=False")
	s.hospital.ends(us, "n1", "Reboot")
	s.unlock("n1")
	s.repairs("n2", "rest")
	if report := s.lawful(repairCfg); report.Remediations != 2 || report.Releases != 1 {
		t.Errorf("saw %s", report)
	}
}

func TestPlantedInRepairsOfPlainNodes(t *testing.T) {
	for name, test := range map[string]plantedRepair{
		"of a node that is well": {Unlawful, "no sign of sickness", func(s *depot) { s.repairs("n1", "rest") }},
		"before its time": {TooSoon, "tolerated until", func(s *depot) {
			s.condition("n1", "Disk=True")
			s.pass(50 * time.Second)
			s.repairs("n1", "rest")
		}},
		"of a node that was never there": {Unlawful, "not there", func(s *depot) { s.repairs("n9", "rest") }},
		"by a policy that does not select it": {Unlawful, "no rule of that name", func(s *depot) {
			s.policy("some", `{"selector":{"matchLabels":{"pool":"lab"}},"repair":{},"remediationTemplate":`+rebootRef+`}`)
			s.breaks("n1")
			s.repairs("n1", "some")
		}},
		"without a template": {Unlawful, "names no template", func(s *depot) {
			s.policy("rest", plainPolicy[:len(plainPolicy)-len(`,"remediationTemplate":`+rebootRef+`}`)]+"}")
			s.breaks("n1")
			s.repairs("n1", "rest")
		}},
		"with another owner than it says": {Malformed, "its owner is rest", func(s *depot) {
			s.breaks("n1")
			s.repairs("n1", "rest", owner(func(o *metav1.OwnerReference) { o.UID = "uid-of-another" }))
		}},
		"without the Lease": {Unlawful, "without the node's Lease", func(s *depot) {
			s.breaks("n1")
			object := s.draft("n1", "rest", "Reboot")
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: policyAPIVersion, Kind: policyKind, Name: "rest", UID: s.policies["rest"].GetUID()}})
			s.makes(us, object)
		}},
		"with the Lease of a health check of that name": {Unlawful, `the node's Lease is held by "NodeHealthCheck-rest"`, func(s *depot) {
			s.breaks("n1")
			object := s.draft("n1", "rest", "Reboot")
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: policyAPIVersion, Kind: policyKind, Name: "rest", UID: s.policies["rest"].GetUID()}})
			s.lock("n1", "rest")
			s.makes(us, object)
		}},
		"of one more than may be": {CapExceeded, "2 nodes are in repair: at most 1", func(s *depot) {
			s.breaks("n1", "n2")
			s.repairs("n1", "rest")
			s.repairs("n2", "rest")
		}},
		"of a node that is treated already": {TreatedTwice, "while the node is treated by", func(s *depot) {
			s.checkup("workers", `{"remediationTemplate":`+replaceRef+`,"unhealthyConditions":[{"type":"Disk","status":"True","duration":"0s"}]}`)
			s.breaks("n1")
			s.remediate("n1", "workers", "Replace")
			s.unlock("n1")
			s.repairs("n1", "rest")
		}},
		"that end while the node is sick": {Unlawful, "but the node is sick", func(s *depot) {
			s.breaks("n1")
			s.repairs("n1", "rest")
			s.hospital.ends(us, "n1", "Reboot")
		}},
	} {
		t.Run(name, func(t *testing.T) { test.runIn(t, plain(t), repairCfg) })
	}
}
