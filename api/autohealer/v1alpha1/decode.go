package v1alpha1

import "k8s.io/apimachinery/pkg/util/json"

// UnmarshalJSON reads a spec and never fails. A list is decoded as a whole: one
// set that does not fit would hide all the others, and with them every taint
// that should go.
func (s *ConditionSetSpec) UnmarshalJSON(data []byte) error {
	type plain ConditionSetSpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Unreadable: err.Error()}
	}
	*s = ConditionSetSpec(read)
	return nil
}

// UnmarshalJSON reads a status and never fails. One that does not fit is taken
// for none: whoever follows the set writes it anew.
func (s *ConditionSetStatus) UnmarshalJSON(data []byte) error {
	type plain ConditionSetStatus
	var read plain
	if json.Unmarshal(data, &read) != nil {
		read = plain{}
	}
	*s = ConditionSetStatus(read)
	return nil
}

// UnmarshalJSON reads a repair block and never fails, as sets do: one NodePool
// with a bad block must not hide all the others.
func (s *RepairSpec) UnmarshalJSON(data []byte) error {
	type plain RepairSpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Unreadable: err.Error()}
	}
	*s = RepairSpec(read)
	return nil
}

// UnmarshalJSON reads a spec and never fails. One that does not fit has a block
// that cannot be read: whoever looks at the block learns it there.
func (s *RepairPolicySpec) UnmarshalJSON(data []byte) error {
	type plain RepairPolicySpec
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Repair: RepairSpec{Unreadable: err.Error()}}
	}
	*s = RepairPolicySpec(read)
	return nil
}

// UnmarshalJSON reads a status and never fails. One that does not fit is taken
// for none: whoever follows the policy writes it anew.
func (s *RepairPolicyStatus) UnmarshalJSON(data []byte) error {
	type plain RepairPolicyStatus
	var read plain
	if json.Unmarshal(data, &read) != nil {
		read = plain{}
	}
	*s = RepairPolicyStatus(read)
	return nil
}
