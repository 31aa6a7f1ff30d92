package treat

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// AgentFieldManager is the field manager of the agents' condition writes. The controller
// writes under the same name for a silent agent, so that the agent still owns its
// conditions when it returns.
const AgentFieldManager = "autohealer-agent"

// MarkUnknown is one write that sets the conditions of a silent agent to Unknown.
type MarkUnknown struct {
	// Node is the version of the node that the write was made from.
	Node *corev1.Node
	// Turned are the conditions that change to Unknown.
	Turned []corev1.NodeConditionType

	rows []map[string]any
}

// AgentOwnership is the part of a node's status that its agent owns.
type AgentOwnership struct {
	// Last is when the agent last changed a condition, by the API server's clock; zero
	// if it has written none.
	Last time.Time

	node    *corev1.Node
	owned   map[string]fieldSet // fields of the agent, by condition type
	others  map[string]fieldSet // fields of any other manager
	applied map[string]fieldSet // fields that another manager applies, and so keeps
}

// fieldSet is a set of field names of a condition.
type fieldSet map[string]bool

// ReadAgentOwnership reads the agent's fields from the managedFields of a node, which the caller must
// not have stripped.
func ReadAgentOwnership(node *corev1.Node) (AgentOwnership, error) {
	v := AgentOwnership{node: node, owned: map[string]fieldSet{}, others: map[string]fieldSet{}, applied: map[string]fieldSet{}}
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
			// An apply that contains only the conditions would remove this field.
			return v, fmt.Errorf("field manager %s owns %s of node %s, but is for conditions only: use another field manager for other fields", entry.Manager, foreign, node.Name)
		}
	}
	return v, nil
}

// AgentConditions returns the types of the conditions that have the agent as their only field
// manager. It ignores fields that it cannot read.
func AgentConditions(node *corev1.Node) []string {
	agent, others := map[string]fieldSet{}, map[string]fieldSet{}
	for _, entry := range node.ManagedFields {
		into := others
		if entry.Manager == AgentFieldManager {
			into = agent
		}
		_, _ = conditionsIn(entry.FieldsV1, into)
	}
	maps.DeleteFunc(agent, func(kind string, _ fieldSet) bool { return others[kind] != nil })
	return slices.Sorted(maps.Keys(agent))
}

// conditionsIn adds the conditions in a set of fields, and returns the name of a field
// outside of the conditions, if there is one.
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

// MarkUnknown returns the write that sets all conditions of the agent to Unknown, nil if they
// already are. It leaves conditions unchanged that another manager keeps.
func (v AgentOwnership) MarkUnknown(why string, now time.Time) *MarkUnknown {
	s := &MarkUnknown{Node: v.node}
	for i := range v.node.Status.Conditions {
		c := &v.node.Status.Conditions[i]
		owned := v.owned[string(c.Type)]
		if owned == nil {
			continue
		}
		row := applyValues(c)
		for field := range row {
			if !owned[field] && field != "type" {
				delete(row, field)
			}
		}
		if c.Status != corev1.ConditionUnknown && v.keeps(c.Type) {
			s.Turned = append(s.Turned, c.Type)
			row["status"], row["reason"] = corev1.ConditionUnknown, triage.AgentSilent
			for field, value := range map[string]any{
				"message":            text.Shorten(fmt.Sprintf("%s Until then it was %s", why, contentOf(c)), MaxNote, "..."),
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

// keeps reports whether only the agent keeps a condition. The agent must own its status and
// reason, no other manager may apply them too, and none may own the heartbeat. A manager
// that wrote the same values owns only those fields; a manager that the agent replaced
// still owns the fields with equal values. An agent never keeps the conditions of
// Kubernetes itself, even if they were applied under its name.
func (v AgentOwnership) keeps(kind corev1.NodeConditionType) bool {
	if known, ok := catalog.Lookup(string(kind)); ok && known.Source == catalog.Kubernetes {
		return false
	}
	owned, others, applied := v.owned[string(kind)], v.others[string(kind)], v.applied[string(kind)]
	return owned["status"] && owned["reason"] && !applied["status"] && !applied["reason"] && !others["lastHeartbeatTime"]
}

// contentOf returns the content of a condition for comparison.
func contentOf(c *corev1.NodeCondition) string {
	if c.Reason == "" {
		return string(c.Status) + "."
	}
	return fmt.Sprintf("%s (%s).", c.Status, c.Reason)
}

// applyValues returns a condition as it appears in an apply.
func applyValues(c *corev1.NodeCondition) map[string]any {
	return map[string]any{
		"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
		"lastTransitionTime": c.LastTransitionTime, "lastHeartbeatTime": c.LastHeartbeatTime,
	}
}

// ApplyUnknown makes the write under the agent's field manager, on this version of the
// node. It contains everything that the agent owns, because an apply removes the rest. The
// apply is forced, which takes ownership only from managers that the agent has replaced.
func (w *Writer) ApplyUnknown(ctx context.Context, s *MarkUnknown) error {
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
