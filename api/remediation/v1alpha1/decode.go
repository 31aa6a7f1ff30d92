package v1alpha1

import "k8s.io/apimachinery/pkg/util/json"

// UnmarshalJSON reads a spec and never fails. A list is decoded as a whole: a single invalid health
// check would hide all others, and with them every remediation that should end.
func (s *NodeHealthCheckSpec) UnmarshalJSON(data []byte) error {
	type plain NodeHealthCheckSpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Unreadable: err.Error()}
	}
	*s = NodeHealthCheckSpec(read)
	return nil
}

// UnmarshalJSON reads a status and never fails. An invalid status is empty: the controller writes a
// new one.
func (s *NodeHealthCheckStatus) UnmarshalJSON(data []byte) error {
	type plain NodeHealthCheckStatus
	var read plain
	if json.Unmarshal(data, &read) != nil {
		read = plain{}
	}
	*s = NodeHealthCheckStatus(read)
	return nil
}
