package treat

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/triage"
)

// AgentFieldManager is the name that agents apply the conditions of their node under.
// What is written in the name of one that is silent stands under the same, so that it
// owns its rows still when it is back.
const AgentFieldManager = "autohealer-agent"

// MarkUnknown is one write that takes back what a silent agent has said of its node.
type MarkUnknown struct {
	// Node is the node as the write was made from it.
	Node *corev1.Node
	// Turned are the conditions that turn Unknown.
	Turned []corev1.NodeConditionType

	rows []map[string]any
}

// Voice is what an agent has said of its node.
type Voice struct {
	// Last is when it last changed anything, by the API server's clock; zero if it
	// has said nothing.
	Last time.Time

	node    *corev1.Node
	owned   map[string]fieldSet // by condition type
	others  map[string]fieldSet // what any other manager has said of the same
	applied map[string]fieldSet // what one of them applies, and so means to keep
}

// fieldSet is the fields of a row that are somebody's.
type fieldSet map[string]bool

// Hear finds what the agent has said of a node, by the managed fields of the node,
// which must be there.
func Hear(node *corev1.Node) (Voice, error) {
	v := Voice{node: node, owned: map[string]fieldSet{}, others: map[string]fieldSet{}, applied: map[string]fieldSet{}}
	for _, entry := range node.ManagedFields {
		applies := entry.Operation == metav1.ManagedFieldsOperationApply
		ours := applies && entry.Manager == AgentFieldManager && entry.Subresource == "status"
		into := []map[string]fieldSet{v.others}
		switch {
		case ours:
			into[0] = v.owned
			if entry.Time != nil {
				v.Last = entry.Time.Time
			}
		case applies:
			into = append(into, v.applied)
		}
		foreign, err := conditionsIn(entry.FieldsV1, into...)
		if err != nil {
			return v, fmt.Errorf("reading which fields of node %s are %s's: %w", node.Name, entry.Manager, err)
		}
		if ours && foreign != "" {
			// An apply of the conditions alone would remove it.
			return v, fmt.Errorf("%s of node %s is %s's, which owns conditions only: have whoever else applies under that name use another", foreign, node.Name, entry.Manager)
		}
	}
	return v, nil
}

// conditionsIn adds the conditions in a set of fields, and returns the name of
// something else that is in it, if there is anything.
func conditionsIn(fields *metav1.FieldsV1, into ...map[string]fieldSet) (foreign string, err error) {
	if fields == nil {
		return "", nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(fields.GetRawBytes(), &all); err != nil {
		return "", err
	}
	var status, rows map[string]json.RawMessage
	for key, inner := range all {
		if key != "f:status" {
			foreign = key
		} else if err := json.Unmarshal(inner, &status); err != nil {
			return "", err
		}
	}
	for key, inner := range status {
		if key == "f:conditions" {
			if err := json.Unmarshal(inner, &rows); err != nil {
				return "", err
			}
		} else if key != "." {
			foreign = key
		}
	}
	for key, inner := range rows {
		text, isRow := strings.CutPrefix(key, "k:")
		if !isRow {
			continue // "." is the list itself
		}
		var name struct{ Type string }
		if err := json.Unmarshal([]byte(text), &name); err != nil {
			return "", err
		}
		var leaves map[string]json.RawMessage
		if err := json.Unmarshal(inner, &leaves); err != nil {
			return "", err
		}
		for _, to := range into {
			if to[name.Type] == nil {
				to[name.Type] = fieldSet{}
			}
			for leaf := range leaves {
				to[name.Type][strings.TrimPrefix(leaf, "f:")] = true
			}
		}
	}
	return foreign, nil
}

// Silence returns the write by which everything that the agent says is Unknown, nil if
// it is already. A row that another manager keeps is left as it is.
func (v Voice) Silence(why string, now time.Time) *MarkUnknown {
	s := &MarkUnknown{Node: v.node}
	for i := range v.node.Status.Conditions {
		c := &v.node.Status.Conditions[i]
		owned := v.owned[string(c.Type)]
		if owned == nil {
			continue
		}
		row := valuesOf(c)
		for field := range row {
			if !owned[field] && field != "type" {
				delete(row, field)
			}
		}
		if c.Status != corev1.ConditionUnknown && v.keeps(c.Type) {
			s.Turned = append(s.Turned, c.Type)
			row["status"], row["reason"] = corev1.ConditionUnknown, triage.AgentSilent
			for field, value := range map[string]any{
				"message":            shorten(fmt.Sprintf("%s Until then it was %s", why, told(c)), MaxNote),
				"lastTransitionTime": metav1.NewTime(now),
			} {
				if owned[field] && !v.applied[string(c.Type)][field] || !v.others[string(c.Type)][field] {
					row[field] = value
				}
			}
		}
		s.rows = append(s.rows, row)
	}
	if len(s.Turned) == 0 {
		return nil
	}
	slices.Sort(s.Turned)
	return s
}

// keeps says whether it is the agent, and nobody else, who keeps a row: it says the
// status and the reason, no other manager applies them too, and none has given the row
// its heartbeat. One who writes what stands there already owns no more than that; one
// whom the agent has replaced still owns all the rest of which they said the same.
// Conditions of Kubernetes itself no agent keeps, whoever applied them by its name.
func (v Voice) keeps(kind corev1.NodeConditionType) bool {
	if known, ok := catalog.Lookup(string(kind)); ok && known.Source == catalog.Kubernetes {
		return false
	}
	owned, others, applied := v.owned[string(kind)], v.others[string(kind)], v.applied[string(kind)]
	return owned["status"] && owned["reason"] && !applied["status"] && !applied["reason"] && !others["lastHeartbeatTime"]
}

// told is what a condition says.
func told(c *corev1.NodeCondition) string {
	if c.Reason == "" {
		return string(c.Status) + "."
	}
	return fmt.Sprintf("%s (%s).", c.Status, c.Reason)
}

// valuesOf returns a row as an apply has it.
func valuesOf(c *corev1.NodeCondition) map[string]any {
	return map[string]any{
		"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
		"lastTransitionTime": c.LastTransitionTime, "lastHeartbeatTime": c.LastHeartbeatTime,
	}
}

// ApplySilence makes the write, under the name of the agent and on this very version of
// the node. All that the agent owns is in it: what is not would be removed. It is forced,
// which takes from those whom the agent has replaced what they had said, and from nobody
// else.
func (w *Writer) ApplySilence(ctx context.Context, s *MarkUnknown) error {
	patch, err := s.patch()
	if err != nil {
		return fmt.Errorf("encoding the conditions of node %s: %w", s.Node.Name, err)
	}
	answer := &metav1.PartialObjectMetadata{TypeMeta: nodeKind, ObjectMeta: metav1.ObjectMeta{Name: s.Node.Name}}
	if err := w.client.Status().Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, patch), client.FieldOwner(AgentFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying the conditions of node %s: %w", s.Node.Name, err)
	}
	return nil
}

func (s *MarkUnknown) patch() ([]byte, error) {
	return json.Marshal(map[string]any{
		"apiVersion": nodeKind.APIVersion, "kind": nodeKind.Kind,
		"metadata": map[string]any{"name": s.Node.Name, "uid": s.Node.UID, "resourceVersion": s.Node.ResourceVersion},
		"status":   map[string]any{"conditions": s.rows},
	})
}
