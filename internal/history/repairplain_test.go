package history

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPermittedRepairsOfPlainNodes(t *testing.T) {
	s := fivePlainNodes(t).tell("breakDisks n1 n2; repairs n1 rest; pass 1m; condition n1 Disk=False; deleteObject us n1 Reboot; unlock n1; repairs n2 rest")
	if report := s.hasNoViolation(repairCfg); report.Remediations != 2 || report.Releases != 1 {
		t.Errorf("saw %s", report)
	}
}

func TestPlantedInRepairsOfPlainNodes(t *testing.T) {
	judge(t, fivePlainNodes, repairCfg, map[string]tale{
		"of a healthy node":                   caught(Unjustified, "no unhealthy condition", `repairs n1 rest`),
		"before its toleration has passed":    caught(TooSoon, "tolerated until", `condition n1 Disk=True; pass 50s; repairs n1 rest`),
		"of a node that never existed":        caught(Unjustified, "does not exist", `repairs n9 rest`),
		"by a policy that does not select it": caught(Unjustified, "no rule with that name", `policy some {"selector":{"matchLabels":{"pool":"lab"}},"repair":{},"remediationTemplate":$rebootRef}; breakDisks n1; repairs n1 some`),
		"without a template":                  caught(Unjustified, "names no template", `policy rest {"selector":{},"repair":{$disk}}; breakDisks n1; repairs n1 rest`),
		"with another owner than it says": caught(Malformed, "its owner is rest", `breakDisks n1`, func(s *story) {
			s.repairs("n1", "rest", owner(func(o *metav1.OwnerReference) { o.UID = "uid-of-another" }))
		}),
		"without the Lease": caught(Unjustified, "without the node's Lease", `breakDisks n1`, func(s *story) {
			object := s.draft("n1", "rest", "Reboot")
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: policyAPIVersion, Kind: policyKind, Name: "rest", UID: s.policies["rest"].GetUID()}})
			s.makes(us, object)
		}),
		"with the Lease of a health check of that name": caught(Unjustified, `the node's Lease is held by "NodeHealthCheck-rest"`, `breakDisks n1`, func(s *story) {
			object := s.draft("n1", "rest", "Reboot")
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: policyAPIVersion, Kind: policyKind, Name: "rest", UID: s.policies["rest"].GetUID()}})
			s.lock("n1", "rest")
			s.makes(us, object)
		}),
		"of one node more than the bound":              caught(CapExceeded, "2 nodes are in repair: at most 1", `breakDisks n1 n2; repairs n1 rest; repairs n2 rest`),
		"of a node that is already treated":            caught(TreatedTwice, "while the node is under treatment by", `healthCheck workers {"remediationTemplate":$replaceRef,"unhealthyConditions":[{"type":"Disk","status":"True","duration":"0s"}]}; breakDisks n1; remediate n1 workers Replace; unlock n1; repairs n1 rest`),
		"that are deleted while the node is unhealthy": caught(Unjustified, "but the node is unhealthy", `breakDisks n1; repairs n1 rest; deleteObject us n1 Reboot`),
	})
}
