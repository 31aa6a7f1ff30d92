package karpenter

import (
	stdjson "encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// A list is decoded as a whole: one malformed field in one object would fail the whole
// list. The types below therefore drop malformed fields and elements.

// metadata is an object's metadata without managedFields, which are unused and often the
// largest part of an object.
type metadata struct {
	metav1.ObjectMeta
	ManagedFields discard `json:"managedFields"`
}

// discard accepts any value and discards it.
type discard struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (*discard) UnmarshalJSON([]byte) error { return nil }

// decodeOrZero decodes a value, or returns the zero value if it is malformed.
func decodeOrZero[T any](data []byte) T {
	var read, none T
	if json.Unmarshal(data, &read) != nil {
		return none
	}
	return read
}

// lenient is a field that is zero if its value is malformed.
type lenient[T any] struct{ value T }

// UnmarshalJSON implements json.Unmarshaler.
func (f *lenient[T]) UnmarshalJSON(data []byte) error {
	f.value = decodeOrZero[T](data)
	return nil
}

// lenientList has the well-formed elements of a list.
type lenientList[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (r *lenientList[T]) UnmarshalJSON(data []byte) error {
	var whole []T
	if json.Unmarshal(data, &whole) != nil {
		whole = nil
		for _, each := range decodeOrZero[[]stdjson.RawMessage](data) {
			var row T
			if json.Unmarshal(each, &row) == nil {
				whole = append(whole, row)
			}
		}
	}
	*r = whole
	return nil
}

// UnmarshalJSON reads a claim without its managedFields.
func (c *NodeClaim) UnmarshalJSON(data []byte) error {
	var read struct {
		metav1.TypeMeta
		Metadata metadata        `json:"metadata"`
		Spec     NodeClaimSpec   `json:"spec"`
		Status   NodeClaimStatus `json:"status"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*c = NodeClaim{TypeMeta: read.TypeMeta, ObjectMeta: read.Metadata.ObjectMeta, Spec: read.Spec, Status: read.Status}
	return nil
}

// UnmarshalJSON never fails; it drops malformed fields.
func (s *NodeClaimSpec) UnmarshalJSON(data []byte) error {
	read := decodeOrZero[struct {
		StartupTaints          lenientList[corev1.Taint] `json:"startupTaints"`
		TerminationGracePeriod lenient[string]           `json:"terminationGracePeriod"`
	}](data)
	*s = NodeClaimSpec{StartupTaints: read.StartupTaints, TerminationGracePeriod: read.TerminationGracePeriod.value}
	return nil
}

// UnmarshalJSON never fails; it drops malformed fields.
func (s *NodeClaimStatus) UnmarshalJSON(data []byte) error {
	read := decodeOrZero[struct {
		ProviderID lenient[string]               `json:"providerID"`
		NodeName   lenient[string]               `json:"nodeName"`
		Conditions lenientList[metav1.Condition] `json:"conditions"`
	}](data)
	*s = NodeClaimStatus{ProviderID: read.ProviderID.value, NodeName: read.NodeName.value, Conditions: read.Conditions}
	return nil
}

// UnmarshalJSON reads a pool without its managedFields.
func (p *NodePool) UnmarshalJSON(data []byte) error {
	var read struct {
		metav1.TypeMeta
		Metadata metadata     `json:"metadata"`
		Spec     NodePoolSpec `json:"spec"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*p = NodePool{TypeMeta: read.TypeMeta, ObjectMeta: read.Metadata.ObjectMeta, Spec: read.Spec}
	return nil
}

// UnmarshalJSON never fails; it drops malformed fields.
func (s *NodePoolSpec) UnmarshalJSON(data []byte) error {
	read := decodeOrZero[struct {
		Repair     *v1alpha1.RepairSpec  `json:"repair"`
		Disruption Disruption            `json:"disruption"`
		Template   lenient[NodeTemplate] `json:"template"`
		Replicas   lenient[*int64]       `json:"replicas"`
	}](data)
	*s = NodePoolSpec{Repair: read.Repair, Disruption: read.Disruption, Template: read.Template.value, Replicas: read.Replicas.value}
	return nil
}

// UnmarshalJSON never fails. Malformed budgets become one unreadable budget, because to
// drop them would remove the limit.
func (d *Disruption) UnmarshalJSON(data []byte) error {
	type plain Disruption
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Budgets: []Budget{{Unreadable: err.Error()}}}
	}
	*d = Disruption(read)
	return nil
}

// UnmarshalJSON never fails; it marks a malformed budget as unreadable.
func (b *Budget) UnmarshalJSON(data []byte) error {
	type plain Budget
	var read plain
	if err := json.Unmarshal(data, &read); err != nil {
		read = plain{Unreadable: err.Error()}
	}
	*b = Budget(read)
	return nil
}

// UnmarshalJSON never fails; it drops malformed fields.
func (s *NodeTemplateSpec) UnmarshalJSON(data []byte) error {
	read := decodeOrZero[struct {
		NodeClassRef  lenient[NodeClassRef]     `json:"nodeClassRef"`
		StartupTaints lenientList[corev1.Taint] `json:"startupTaints"`
	}](data)
	*s = NodeTemplateSpec{NodeClassRef: read.NodeClassRef.value, StartupTaints: read.StartupTaints}
	return nil
}
