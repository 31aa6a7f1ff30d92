package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/resourcestack/autohealer/internal/kubeapi"
)

// entryKey stands for the ownership of the list entry as a whole, which managedFields records
// apart from its fields. When its last owner stops applying the condition, the API server
// removes the entry, including the fields of other managers. A manager that only changes
// fields of an existing condition owns these fields, and not the entry.
const entryKey = "type"

// apiCondition is a condition as the API has it. Each field can have its own owner.
type apiCondition map[string]string

// nodeView is the part of a Node that the agent reads.
type nodeView struct {
	uid, version string
	conditions   map[string]apiCondition
	owners       map[string]map[string][]string // managers by condition type and field
}

// owns reports whether a manager owns a field of a condition.
func (v *nodeView) owns(manager, kind, field string) bool {
	return slices.Contains(v.owners[kind][field], manager)
}

// hasOtherOwner reports whether another manager owns a field of a condition besides its type.
// A manager from which the agent took the condition over still owns the type.
func (v *nodeView) hasOtherOwner(kind string) bool {
	for field := range v.owners[kind] {
		if field != entryKey && v.ownedByOther(kind, field) {
			return true
		}
	}
	return false
}

// ownedByOther reports whether another manager owns a field of a condition.
func (v *nodeView) ownedByOther(kind, field string) bool {
	return slices.ContainsFunc(v.owners[kind][field], isOther)
}

// conditionsOwnedBy returns the types of the conditions in which a manager owns at least one
// field.
func (v *nodeView) conditionsOwnedBy(manager string) map[string]bool {
	found := map[string]bool{}
	for kind, fields := range v.owners {
		for field := range fields {
			if kind != placeholder && v.owns(manager, kind, field) {
				found[kind] = true
			}
		}
	}
	return found
}

// unsharedFields returns the type of a condition and the fields that no other manager owns.
func (v *nodeView) unsharedFields(kind string) apiCondition {
	left := apiCondition{entryKey: kind}
	for field, value := range v.conditions[kind] {
		if field != entryKey && value != "" && !v.ownedByOther(kind, field) {
			left[field] = value
		}
	}
	return left
}

// parseNode reads a Node, or only its metadata.
func parseNode(body []byte) (nodeView, error) {
	var node struct {
		Metadata struct {
			UID             string `json:"uid"`
			ResourceVersion string `json:"resourceVersion"`
			ManagedFields   []struct {
				Manager   string          `json:"manager"`
				Operation string          `json:"operation"`
				Fields    json.RawMessage `json:"fieldsV1"`
			} `json:"managedFields"`
		} `json:"metadata"`
		Status struct {
			Conditions []map[string]any `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return nodeView{}, fmt.Errorf("reading the node: %w", err)
	}
	if node.Metadata.UID == "" || node.Metadata.ResourceVersion == "" {
		return nodeView{}, errors.New("reading the node: the response has no uid or no resourceVersion")
	}
	v := nodeView{
		uid: node.Metadata.UID, version: node.Metadata.ResourceVersion,
		conditions: map[string]apiCondition{}, owners: map[string]map[string][]string{},
	}
	for _, condition := range node.Status.Conditions {
		fields := apiCondition{}
		for field, value := range condition {
			if text, ok := value.(string); ok {
				fields[field] = text
			}
		}
		v.conditions[fields["type"]] = fields
	}
	for _, entry := range node.Metadata.ManagedFields {
		var owned struct {
			Status struct {
				Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if len(entry.Fields) == 0 || json.Unmarshal(entry.Fields, &owned) != nil {
			continue // unknown format: the owners of these fields are unknown
		}
		for key, fields := range owned.Status.Conditions {
			kind, ok := conditionTypeOf(key)
			if !ok {
				continue
			}
			manager := managerName(entry.Manager, entry.Operation == "Apply")
			for field := range fields {
				name, ok := strings.CutPrefix(field, "f:")
				switch {
				case field == ".":
					v.addOwner(manager, kind, entryKey)
				case ok && name != entryKey:
					v.addOwner(manager, kind, name)
				}
			}
		}
	}
	return v, nil
}

func (v *nodeView) addOwner(manager, kind, field string) {
	if v.owners[kind] == nil {
		v.owners[kind] = map[string][]string{}
	}
	v.owners[kind][field] = append(v.owners[kind][field], manager)
}

// managerName distinguishes the agent's own applies from updates that use the same name.
func managerName(manager string, applies bool) string {
	if !applies && isOurs(manager) {
		return manager + " (update)"
	}
	return manager
}

func isOurs(manager string) bool { return manager == FieldManager || manager == HandManager }

func isOther(manager string) bool { return !isOurs(manager) }

// conditionTypeOf reads the key of a condition in managedFields, for example
// k:{"type":"KernelDeadlock"}.
func conditionTypeOf(key string) (kind string, ok bool) {
	text, ok := strings.CutPrefix(key, "k:")
	if !ok {
		return "", false
	}
	var named struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal([]byte(text), &named); err != nil || named.Type == "" {
		return "", false
	}
	return named.Type, true
}

// fieldConflict is a condition that another manager has written too.
type fieldConflict struct{ kind, manager string }

// parseConflicts reads which conditions caused an apply to fail, and which managers own them.
// The causes have this form:
//
//	field:   .status.conditions[type="KernelDeadlock"].status
//	message: conflict with "node-problem-detector" with subresource "status" using v1
func parseConflicts(refused *kubeapi.StatusError) []fieldConflict {
	var found []fieldConflict
	for _, cause := range refused.Causes {
		path, ok := strings.CutPrefix(cause.Field, ".status.conditions[type=")
		if cause.Reason != "FieldManagerConflict" || !ok {
			continue
		}
		kind, _, ok := quoted(path)
		if !ok {
			continue
		}
		begin := strings.IndexByte(cause.Message, '"')
		if begin < 0 {
			continue
		}
		manager, rest, ok := quoted(cause.Message[begin:])
		if !ok {
			continue
		}
		// The API server names a version only for managers that update.
		applies := !strings.Contains(rest, " using ")
		if c := (fieldConflict{kind, managerName(manager, applies)}); !slices.Contains(found, c) {
			found = append(found, c)
		}
	}
	return found
}

// quoted reads a quoted string at the start of a text.
func quoted(text string) (word, rest string, ok bool) {
	prefix, err := strconv.QuotedPrefix(text)
	if err != nil {
		return "", "", false
	}
	word, err = strconv.Unquote(prefix)
	return word, text[len(prefix):], err == nil && word != ""
}

// older reports whether resourceVersion a is older than b. It returns false if one of them is
// not a number.
func older(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}
