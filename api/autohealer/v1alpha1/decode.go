package v1alpha1

import "k8s.io/apimachinery/pkg/util/json"

// UnmarshalJSON reads a spec and never fails. A list is decoded as a whole: a single invalid set
// would hide all others, and with them every taint that should be removed.
func (s *ConditionSetSpec) UnmarshalJSON(data []byte) error {
	type plain ConditionSetSpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Unreadable: err.Error()}
	}
	*s = ConditionSetSpec(read)
	return nil
}

// UnmarshalJSON reads a status and never fails. An invalid status is empty: the controller writes a
// new one.
func (s *ConditionSetStatus) UnmarshalJSON(data []byte) error {
	type plain ConditionSetStatus
	var read plain
	if json.Unmarshal(data, &read) != nil {
		read = plain{}
	}
	*s = ConditionSetStatus(read)
	return nil
}

// UnmarshalJSON reads a repair block and never fails: a NodePool with an invalid block must not
// hide all others.
func (s *RepairSpec) UnmarshalJSON(data []byte) error {
	type plain RepairSpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Unreadable: err.Error()}
	}
	*s = RepairSpec(read)
	return nil
}

// UnmarshalJSON reads a spec and never fails. If the spec is invalid, Unreadable of its repair
// block says why.
func (s *RepairPolicySpec) UnmarshalJSON(data []byte) error {
	type plain RepairPolicySpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Repair: RepairSpec{Unreadable: err.Error()}}
	}
	*s = RepairPolicySpec(read)
	return nil
}

// UnmarshalJSON reads a status and never fails. An invalid status is empty: the controller writes a
// new one.
func (s *RepairPolicyStatus) UnmarshalJSON(data []byte) error {
	type plain RepairPolicyStatus
	var read plain
	if json.Unmarshal(data, &read) != nil {
		read = plain{}
	}
	*s = RepairPolicyStatus(read)
	return nil
}

// UnmarshalJSON reads a spec and never fails. If the spec is invalid, Unreadable says why, and the
// last accepted version stays in effect. The mode is read nevertheless, because it may be Paused.
func (s *GuardrailsSpec) UnmarshalJSON(data []byte) error {
	type plain GuardrailsSpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		var mode struct {
			Mode Mode `json:"mode"`
		}
		_ = json.Unmarshal(data, &mode) // it is empty if it is unreadable too
		read = plain{Mode: mode.Mode, Unreadable: err.Error()}
	}
	*s = GuardrailsSpec(read)
	return nil
}

// UnmarshalJSON reads a status and never fails. An invalid status is empty: the controller writes a
// new one.
func (s *GuardrailsStatus) UnmarshalJSON(data []byte) error {
	type plain GuardrailsStatus
	var read plain
	if json.Unmarshal(data, &read) != nil {
		read = plain{}
	}
	*s = GuardrailsStatus(read)
	return nil
}
