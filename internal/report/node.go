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

// itself stands for the row as a whole, which has owners of its own: when the last of them
// says it no longer it goes, whatever others own in it. One who changes fields of a row
// that is there owns these fields, and not the row.
const itself = "type"

// wireRow is a condition as the API has it: each of its fields can have an owner of its
// own.
type wireRow map[string]string

// view is what is read of a Node.
type view struct {
	uid, version string
	rows         map[string]wireRow
	owners       map[string]map[string][]string // of the fields of rows, by type and field
}

// owns says whether somebody owns a field of a row.
func (v *view) owns(manager, kind, field string) bool {
	return slices.Contains(v.owners[kind][field], manager)
}

// isKept says whether another than we keeps a row: to own no more than its type is what
// is left to one from whom it was taken.
func (v *view) isKept(kind string) bool {
	for field := range v.owners[kind] {
		if field != itself && v.isForeign(kind, field) {
			return true
		}
	}
	return false
}

// isForeign says whether another than we owns a field of a row.
func (v *view) isForeign(kind, field string) bool {
	return slices.ContainsFunc(v.owners[kind][field], isForeign)
}

// rowsOf are the rows of which a manager owns something.
func (v *view) rowsOf(manager string) map[string]bool {
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

// alone is what of a row nobody else owns.
func (v *view) alone(kind string) wireRow {
	left := wireRow{itself: kind}
	for field, value := range v.rows[kind] {
		if field != itself && value != "" && !v.isForeign(kind, field) {
			left[field] = value
		}
	}
	return left
}

// parseNode reads a Node, or the metadata of one.
func parseNode(body []byte) (view, error) {
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
		return view{}, fmt.Errorf("reading the node: %w", err)
	}
	if node.Metadata.UID == "" || node.Metadata.ResourceVersion == "" {
		return view{}, errors.New("reading the node: the answer is no node, it has no uid or no version")
	}
	v := view{
		uid: node.Metadata.UID, version: node.Metadata.ResourceVersion,
		rows: map[string]wireRow{}, owners: map[string]map[string][]string{},
	}
	for _, condition := range node.Status.Conditions {
		row := wireRow{}
		for field, value := range condition {
			if text, ok := value.(string); ok {
				row[field] = text
			}
		}
		v.rows[row["type"]] = row
	}
	for _, entry := range node.Metadata.ManagedFields {
		var owned struct {
			Status struct {
				Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if len(entry.Fields) == 0 || json.Unmarshal(entry.Fields, &owned) != nil {
			continue // not of the form that we know: nothing can be said of whose they are
		}
		for key, fields := range owned.Status.Conditions {
			kind, ok := rowOf(key)
			if !ok {
				continue
			}
			manager := managerName(entry.Manager, entry.Operation == "Apply")
			for field := range fields {
				name, ok := strings.CutPrefix(field, "f:")
				switch {
				case field == ".":
					v.own(manager, kind, itself)
				case ok && name != itself:
					v.own(manager, kind, name)
				}
			}
		}
	}
	return v, nil
}

func (v *view) own(manager, kind, field string) {
	if v.owners[kind] == nil {
		v.owners[kind] = map[string][]string{}
	}
	v.owners[kind][field] = append(v.owners[kind][field], manager)
}

// managerName tells our applies from what else may be written under our name.
func managerName(manager string, applies bool) string {
	if !applies && isOurs(manager) {
		return manager + " (update)"
	}
	return manager
}

func isOurs(manager string) bool { return manager == FieldManager || manager == HandManager }

func isForeign(manager string) bool { return !isOurs(manager) }

// rowOf reads the key of a row in managedFields, k:{"type":"KernelDeadlock"}.
func rowOf(key string) (kind string, ok bool) {
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

// contest is a row that another manager has written too.
type contest struct{ kind, manager string }

// contests reads which rows stand in the way of an apply, and whose they are. The causes
// have the form
//
//	field:   .status.conditions[type="KernelDeadlock"].status
//	message: conflict with "node-problem-detector" with subresource "status" using v1
func contests(refused *kubeapi.StatusError) []contest {
	var found []contest
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
		// Only one who updates is said to use a version.
		applies := !strings.Contains(rest, " using ")
		if one := (contest{kind, managerName(manager, applies)}); !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found
}

// quoted reads a text in quotes at the beginning of another.
func quoted(text string) (word, rest string, ok bool) {
	prefix, err := strconv.QuotedPrefix(text)
	if err != nil {
		return "", "", false
	}
	word, err = strconv.Unquote(prefix)
	return word, text[len(prefix):], err == nil && word != ""
}

// older says whether a version of an object came before another. Versions are numbers
// that grow; of those that are not, nothing can be said.
func older(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}
