package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// recordAnnotation is the annotation of a node in which the controller records its taints.
const recordAnnotation = "autohealer.resourcestack.com/record"

// facts are the judged parts of a version of a node.
type facts struct {
	object     *unstructured.Unstructured
	labels     map[string]string
	conditions map[string]condition
	taints     []taint
	record     nodeRecord

	// carried has the entries of the record whose taint is on the node, by set.
	carried map[string][]entry
}

type condition struct {
	status corev1.ConditionStatus
	reason string
	stamp  time.Time
}

// taint is a taint on a node. Added is in nanoseconds, 0 if it is missing.
type taint struct {
	key, value, effect string
	added              int64
}

func (t taint) String() string {
	text := t.key + ":" + t.effect
	if t.value != "" {
		text = t.key + "=" + t.value + ":" + t.effect
	}
	return text
}

// record is the record on a node. This package parses it with its own code.
type nodeRecord struct {
	entries  []entry
	memories []memory
	fence    string
	rest     string // other fields, which are not judged
	exists   bool
	problem  error // why it cannot be read
}

// entry is a taint in the record.
type entry struct {
	rule, key, effect string
	added             int64
}

type memory struct {
	rule, condition   string
	since, transition int64
}

// taint returns the taint that the entry describes.
func (e entry) taint() taint { return taint{key: e.key, effect: e.effect, added: e.added} }

func (e entry) String() string { return e.key + ":" + e.effect }

// taintID identifies a taint: a node has no two taints with the same key and effect.
type taintID struct{ key, effect string }

func (e entry) id() taintID { return taintID{e.key, e.effect} }

// setOf returns the name of the set in a rule of a record. A rule of another kind keeps its
// whole name, which no set has.
func setOf(rule string) string {
	if name, ok := strings.CutPrefix(rule, "ConditionSet/"); ok {
		return name
	}
	return rule
}

// readFacts parses a stored node.
func readFacts(object *unstructured.Unstructured) facts {
	f := facts{
		object:     object,
		labels:     object.GetLabels(),
		conditions: map[string]condition{},
		carried:    map[string][]entry{},
	}
	for _, row := range rows(object, "status", "conditions") {
		name := text(row, "type")
		if _, twice := f.conditions[name]; !twice {
			f.conditions[name] = condition{corev1.ConditionStatus(text(row, "status")), text(row, "reason"), moment(text(row, "lastTransitionTime"))}
		}
	}
	for _, row := range rows(object, "spec", "taints") {
		t := taint{key: text(row, "key"), value: text(row, "value"), effect: text(row, "effect")}
		if added := moment(text(row, "timeAdded")); !added.IsZero() {
			t.added = added.UnixNano()
		}
		f.taints = append(f.taints, t)
	}
	f.record = readRecord(object)
	for _, e := range f.record.entries {
		if slices.Contains(f.taints, e.taint()) {
			set := setOf(e.rule)
			f.carried[set] = append(f.carried[set], e)
		}
	}
	return f
}

func readRecord(object *unstructured.Unstructured) nodeRecord {
	written, there := object.GetAnnotations()[recordAnnotation]
	if !there {
		return nodeRecord{}
	}
	var form struct {
		Taints []struct {
			Rule, Key, Effect string
			Added             time.Time
		}
		Memories []struct {
			Rule, Condition   string
			Since, Transition time.Time
		}
		Fence string
	}
	if err := json.Unmarshal([]byte(written), &form); err != nil {
		return nodeRecord{exists: true, problem: err}
	}
	n := nodeRecord{exists: true, fence: form.Fence, rest: restOf(written)}
	for _, t := range form.Taints {
		n.entries = append(n.entries, entry{t.Rule, t.Key, t.Effect, t.Added.UnixNano()})
	}
	for _, m := range form.Memories {
		n.memories = append(n.memories, memory{m.Rule, m.Condition, m.Since.UnixNano(), m.Transition.UnixNano()})
	}
	return n
}

// restOf returns the fields of a record that readRecord ignores.
func restOf(written string) string {
	var all map[string]any
	_ = json.Unmarshal([]byte(written), &all) // parsed before
	for _, known := range []string{"version", "taints", "memories", "fence"} {
		delete(all, known)
	}
	if len(all) == 0 {
		return ""
	}
	text, _ := json.Marshal(all) // it was JSON
	return string(text)
}

// owns reports whether the record has this taint.
func (n nodeRecord) owns(t taint) bool {
	return slices.ContainsFunc(n.entries, func(e entry) bool { return e.taint() == t })
}

// equals reports whether two records have the same content in any order.
func (n nodeRecord) equals(other nodeRecord) bool {
	return n.exists == other.exists && (n.problem == nil) == (other.problem == nil) && n.fence == other.fence && n.rest == other.rest &&
		sameItems(n.entries, other.entries) && sameItems(n.memories, other.memories)
}

func sameItems[T comparable](a, b []T) bool {
	return len(without(a, b)) == 0 && len(without(b, a)) == 0
}

// without returns the items of a that are not in b.
func without[T comparable](a, b []T) []T {
	var rest []T
	for _, item := range a {
		if !slices.Contains(b, item) {
			rest = append(rest, item)
		}
	}
	return rest
}

// carries reports whether the node has a taint of the set with that effect.
func (f facts) carries(set, effect string) bool {
	return slices.ContainsFunc(f.carried[set], func(e entry) bool { return e.effect == effect })
}

// foreign reports whether the node has a taint with that key and effect that is not ours.
func (f facts) foreign(key, effect string) bool {
	return slices.ContainsFunc(f.taints, func(t taint) bool { return t.key == key && t.effect == effect && !f.record.owns(t) })
}

// ledger is the parsed ledger: the writes that may be in flight.
type ledgerState struct {
	Grants []grant `json:"grants"`
}

type grant struct {
	Rule            string `json:"rule"`
	Node            string `json:"node"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	Object          string `json:"object,omitempty"` // empty for the node itself
}

// readLedger parses a ledger of any version. An entry names its rule, or has indexes into a
// list of rules.
func readLedger(object *unstructured.Unstructured) (ledgerState, error) {
	var stored struct {
		Rules  []string `json:"rules"`
		Grants []struct {
			Rule any `json:"rule"`
			grant
		} `json:"grants"`
	}
	written, _, _ := unstructured.NestedString(object.Object, "data", "ledger")
	if err := json.Unmarshal([]byte(written), &stored); err != nil {
		return ledgerState{}, fmt.Errorf("reading the ledger: %w", err)
	}
	var p ledgerState
	for _, g := range stored.Grants {
		if name, isName := g.Rule.(string); isName {
			g.grant.Rule = name
			p.Grants = append(p.Grants, g.grant)
			continue
		}
		places, _ := g.Rule.([]any)
		for _, place := range places {
			at, isNumber := place.(float64)
			if !isNumber || at < 0 || int(at) >= len(stored.Rules) {
				return ledgerState{}, fmt.Errorf("reading the ledger: %v is not a rule of the ledger", place)
			}
			g.grant.Rule = stored.Rules[int(at)]
			p.Grants = append(p.Grants, g.grant)
		}
	}
	return p, nil
}

// rows returns a list of objects within an object, without copying it.
func rows(object *unstructured.Unstructured, path ...string) []map[string]any {
	value, _, _ := unstructured.NestedFieldNoCopy(object.Object, path...)
	list, _ := value.([]any)
	found := make([]map[string]any, 0, len(list))
	for _, item := range list {
		if row, ok := item.(map[string]any); ok {
			found = append(found, row)
		}
	}
	return found
}

func text(row map[string]any, field string) string {
	value, _ := row[field].(string)
	return value
}

// moment parses a timestamp. It returns the zero time if there is none.
func moment(stamp string) time.Time {
	at, _ := time.Parse(time.RFC3339, stamp)
	return at
}

// notOurs returns the parts of a node that differ and are not ours. Ours are the taints,
// the record, the attempts, a confirmation that is no longer needed, and a pause that is over. Fields
// that the API server maintains are ignored.
func (r *replay) notOurs(before, after *unstructured.Unstructured) []string {
	served, isOver := takesConfirmation(before, after), r.takesPause(before, after)
	return differences(before, after, func(object map[string]any) map[string]any {
		parts := partsOf(object)
		annotations := copied(parts["annotations"])
		delete(annotations, recordAnnotation)
		delete(annotations, attemptsAnnotation)
		if served {
			delete(annotations, confirmedAnnotation)
		}
		if isOver {
			delete(annotations, pauseAnnotation)
		}
		parts["annotations"] = annotations
		spec := copied(parts["spec"])
		delete(spec, "taints")
		parts["spec"] = spec
		return parts
	})
}

// notStatus returns the parts of a set that differ, except its status.
func notStatus(before, after *unstructured.Unstructured) []string {
	return differences(before, after, func(object map[string]any) map[string]any {
		parts := partsOf(object)
		delete(parts, "status")
		return parts
	})
}

// partsOf splits an object into its parts: labels and annotations apart from the other
// metadata, without the fields that the API server maintains.
func partsOf(object map[string]any) map[string]any {
	parts := copied(object)
	metadata := copied(object["metadata"])
	for _, own := range []string{"resourceVersion", "managedFields", "generation"} {
		delete(metadata, own)
	}
	parts["labels"], parts["annotations"] = metadata["labels"], metadata["annotations"]
	delete(metadata, "labels")
	delete(metadata, "annotations")
	parts["metadata"] = metadata
	return parts
}

func copied(value any) map[string]any {
	old, _ := value.(map[string]any)
	fresh := make(map[string]any, len(old))
	for key, item := range old {
		fresh[key] = item
	}
	return fresh
}

// authorByFields finds the author of a change in the managedFields: the only manager with a
// new entry or a new time. Times are whole seconds, so a second write of a manager within a
// second changes no entry. Then the author is the owner of the changed fields, because a
// write moves ownership.
func authorByFields(before, after *unstructured.Unstructured) (manager string, proved bool) {
	type key struct{ manager, operation, subresource string }
	times := func(object *unstructured.Unstructured) map[key]string {
		found := map[key]string{}
		for _, row := range rows(object, "metadata", "managedFields") {
			found[key{text(row, "manager"), text(row, "operation"), text(row, "subresource")}] = text(row, "time")
		}
		return found
	}
	was := times(before)
	managers := map[string]bool{}
	for k, at := range times(after) {
		if then, there := was[k]; !there || then != at {
			managers[k.manager] = true
			manager = k.manager
		}
	}
	if len(managers) == 0 {
		return ownerOfChanges(before, after)
	}
	return manager, len(managers) == 1
}

// ownerOfChanges returns the only manager that owns every part of ours that has changed and
// still exists.
func ownerOfChanges(before, after *unstructured.Unstructured) (manager string, proved bool) {
	owners := map[string]bool{}
	for _, part := range []struct{ value, fields []string }{
		{[]string{"spec", "taints"}, []string{"f:spec", "f:taints"}},
		{[]string{"metadata", "annotations", recordAnnotation}, []string{"f:metadata", "f:annotations", "f:" + recordAnnotation}},
		{[]string{"metadata", "annotations", attemptsAnnotation}, []string{"f:metadata", "f:annotations", "f:" + attemptsAnnotation}},
	} {
		was, _, _ := unstructured.NestedFieldNoCopy(before.Object, part.value...)
		is, there, _ := unstructured.NestedFieldNoCopy(after.Object, part.value...)
		if !there || reflect.DeepEqual(was, is) {
			continue
		}
		for _, row := range rows(after, "metadata", "managedFields") {
			if _, owns, _ := unstructured.NestedFieldNoCopy(row, append([]string{"fieldsV1"}, part.fields...)...); owns {
				manager = text(row, "manager")
				owners[manager] = true
			}
		}
	}
	return manager, len(owners) == 1
}

// sameCauses reports whether nothing differs that may cause a write of ours.
func sameCauses(a, b facts) bool {
	return sameMap(a.labels, b.labels) && sameMap(a.conditions, b.conditions) && sameItems(a.taints, b.taints) && a.record.equals(b.record)
}

func sameMap[V comparable](a, b map[string]V) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, there := b[key]; !there || other != value {
			return false
		}
	}
	return true
}

func isDeleted(c testbed.Change) bool { return c.Type == watch.Deleted }

// differences returns the parts in which two versions of an object differ.
func differences(before, after *unstructured.Unstructured, layOut func(map[string]any) map[string]any) []string {
	was, is := layOut(before.Object), layOut(after.Object)
	names := map[string]bool{}
	for name := range was {
		names[name] = true
	}
	for name := range is {
		names[name] = true
	}
	var different []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !reflect.DeepEqual(was[name], is[name]) {
			different = append(different, name)
		}
	}
	return different
}
