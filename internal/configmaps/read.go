package configmaps

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/text"
)

const (
	// Label marks a ConfigMap whose sets the controller applies.
	Label = "autohealer.resourcestack.com/condition-sets"
	// LabelValue is the value of the label.
	LabelValue = "true"

	// maxBytes limits the size of the sets of one ConfigMap. It is several hundred
	// times that of the documented example, and small enough for one revision.
	maxBytes = 64 << 10
	// maxSets limits the number of sets in one ConfigMap. Each of them is validated
	// against all nodes when the ConfigMap changes.
	maxSets = 100
)

// Set is a ConditionSet and its location. Its name is <configmap>/<key>/<type>, which no
// ConditionSet of the API can have. It has the namespace of its ConfigMap, which owns it.
type Set struct {
	*v1alpha1.ConditionSet
	key   string
	lines map[string]int // by field, "" for the set itself
}

// Where returns the key and the line of a field, or of the set if the field is unknown.
// Fields have the names that errors use: spec.taintKey, and
// spec.conditions[OutOfDisk].status or spec.conditions.OutOfDisk.status.
func (s Set) Where(field string) (key string, line int) {
	field = strings.TrimPrefix(field, "spec.")
	if at, found := s.condition(field); found {
		rest := strings.TrimPrefix(field[len("conditions[")+len(at):], "]")
		field = conditionField(at, "")
		if line := s.lines[field+rest]; line > 0 {
			return s.key, line
		}
	}
	for field != "" {
		if line := s.lines[field]; line > 0 {
			return s.key, line
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return s.key, s.lines[""]
}

// condition returns the condition that a field belongs to. Types may contain dots, so the
// longest match counts.
func (s Set) condition(field string) (name string, found bool) {
	for candidate := range s.Spec.Conditions {
		if rest, isIt := strings.CutPrefix(field, "conditions["+candidate+"]"); isIt && (rest == "" || rest[0] == '.') {
			return candidate, true
		}
		rest, isIt := strings.CutPrefix(field, "conditions."+candidate)
		if isIt && (rest == "" || rest[0] == '.') && (!found || len(candidate) > len(name)) {
			name, found = candidate, true
		}
	}
	return name, found
}

func conditionField(condition, field string) string { return "conditions[" + condition + "]" + field }

// ConfigMapOf returns the ConfigMap that contains a set; nil for a ConditionSet of the API,
// which has no namespace.
func ConfigMapOf(set *v1alpha1.ConditionSet) *corev1.ObjectReference {
	if set.Namespace == "" || len(set.OwnerReferences) != 1 {
		return nil
	}
	owner := set.OwnerReferences[0]
	return &corev1.ObjectReference{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: set.Namespace,
		Name: owner.Name, UID: owner.UID, ResourceVersion: set.ResourceVersion,
	}
}

// Version is the content of a ConfigMap.
type Version struct {
	// Sets are in the order of their keys and lines.
	Sets []Set
	// source is the ConfigMap, reduced to what was read.
	source *corev1.ConfigMap
}

// Same reports whether two versions have the same content and the same ConfigMap.
func (v *Version) Same(other *Version) bool {
	return SameContent(v.source, other.source)
}

// SameContent reports whether two ConfigMaps have the same content, even if it is unreadable.
func SameContent(a, b *corev1.ConfigMap) bool {
	return a.UID == b.UID && maps.Equal(a.Data, b.Data) && maps.Equal(setAnnotations(a.Annotations), setAnnotations(b.Annotations))
}

// Read returns the version in a ConfigMap. The error is of type [LineErrors].
func Read(m *corev1.ConfigMap) (*Version, error) {
	r := reader{from: m}
	source := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
			CreationTimestamp: m.CreationTimestamp, Annotations: setAnnotations(m.Annotations),
		},
		Data: map[string]string{},
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		text := m.Data[key]
		isOurs, root := r.open(key, text)
		if !isOurs {
			continue
		}
		source.Data[key] = text
		if size += len(text); size > maxBytes {
			r.refuse(1, "the sets of one ConfigMap may take %d KiB, and here they take more: split them over several ConfigMaps", maxBytes>>10)
			break
		}
		if root != nil {
			r.file(root)
		}
	}
	if len(source.Data) == 0 {
		r.key = ""
		r.refuse(0, "%s", nothingToRead(m))
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return &Version{Sets: r.sets, source: source}, nil
}

// IsLabelled reports whether the controller applies the sets of a ConfigMap.
func IsLabelled(m *corev1.ConfigMap) bool { return m.Labels[Label] == LabelValue }

// HasSets reports whether a ConfigMap has a file of sets, readable or not.
func HasSets(m *corev1.ConfigMap) bool {
	r := reader{from: m}
	for key, text := range m.Data {
		if isOurs, _ := r.open(key, text); isOurs {
			return true
		}
	}
	return false
}

// Unrecognized returns the keys of this version that still exist in a ConfigMap but no longer
// count as files of sets. To treat them as removed would remove taints from unhealthy nodes
// because of a typing error.
func (v *Version) Unrecognized(m *corev1.ConfigMap) (problems LineErrors) {
	for _, key := range slices.Sorted(maps.Keys(v.source.Data)) {
		text, isThere := m.Data[key]
		if !isThere {
			continue
		}
		r := reader{from: m}
		if isOurs, _ := r.open(key, text); isOurs {
			continue
		}
		line, what := 1, "this is empty"
		documents, linesRead, err := parse(text)
		switch {
		case err != nil:
			line, what = locate(text, err, linesRead)
			what = "this is not YAML: " + what
		case len(documents) > 0:
			line, what = documents[0].Line, "this is "+describe(documents[0])+" without type: "+fileType
		}
		r.refuse(line, "%s, and in the version in force there are sets in this key; to remove them, delete the key or write conditionSets: []", what)
		problems = append(problems, r.problems...)
	}
	return problems
}

func nothingToRead(m *corev1.ConfigMap) string {
	says := "no key of its data says type: " + fileType
	if len(m.BinaryData) > 0 {
		says += ", and binaryData is not read"
	}
	return says + "; to have no sets, take the label " + Label + " away or write conditionSets: []"
}

// name returns the name of a set.
func name(configMap, key, kind string) string { return configMap + "/" + key + "/" + kind }

// ConfigMapName returns the name of the ConfigMap from the name of a set. The name of a
// ConditionSet of the API has no slash.
func ConfigMapName(set string) (configMap string, isWritten bool) {
	configMap, _, isWritten = strings.Cut(set, "/")
	return configMap, isWritten
}

// newSet returns an empty set of the ConfigMap.
func (r *reader) newSet(line int) Set {
	set := &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.from.Namespace, UID: r.from.UID, ResourceVersion: r.from.ResourceVersion,
		CreationTimestamp: r.from.CreationTimestamp,
		Annotations:       setAnnotations(r.from.Annotations),
		OwnerReferences:   []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: r.from.Name, UID: r.from.UID}},
	}}
	return Set{ConditionSet: set, key: r.key, lines: map[string]int{"": line}}
}

// setAnnotations returns the annotations that apply to sets.
func setAnnotations(annotations map[string]string) map[string]string {
	var found map[string]string
	for key, value := range annotations {
		if !strings.HasPrefix(key, v1alpha1.GroupVersion.Group+"/") {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = value
	}
	return found
}

// LineError is one problem of a ConfigMap.
type LineError struct {
	Key  string // key of the data; empty for the ConfigMap as a whole
	Line int    // in the key's value, from 1
	Text string
}

func (p LineError) Error() string {
	if p.Key == "" {
		return p.Text
	}
	return fmt.Sprintf("key %s, line %d: %s", p.Key, p.Line, p.Text)
}

const (
	// maxListed is how many problems a message lists.
	maxListed = 5
	// minProblemLength is the shortest useful length of a cut problem.
	minProblemLength = 80
)

// LineErrors are all problems of a ConfigMap.
type LineErrors []LineError

func (p LineErrors) Error() string {
	told := make([]string, 0, maxListed+1)
	for _, problem := range p[:min(len(p), maxListed)] {
		told = append(told, problem.Error())
	}
	if more := len(p) - maxListed; more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(told, "; ")
}

// Within returns all problems in at most room bytes. If they do not fit, it lists the lines
// of all problems first, and then as much of each problem as fits.
func (p LineErrors) Within(room int) string {
	whole := make([]string, len(p))
	for i := range p {
		whole[i] = p[i].Error()
	}
	if all := strings.Join(whole, "; "); len(all) <= room {
		return all
	}
	short := text.Shorten(p.places(), room, "...")
	told := whole[:max(0, min(len(whole), (room-len(short))/minProblemLength))]
	for i, words := range told {
		share := (room - len(short)) / (len(told) - i) // unused room is left for the next problems
		short += text.Shorten("; "+words, share, "...")
	}
	return short
}

// places lists the lines of every key: lines 9, 16 of key a.yaml, line 3 of key b.yaml.
func (p LineErrors) places() string {
	lines := map[string][]int{}
	for _, problem := range p {
		lines[problem.Key] = append(lines[problem.Key], problem.Line)
	}
	told := make([]string, 0, len(lines))
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		slices.Sort(lines[key])
		numbers := strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Compact(lines[key])), " ", ", "), "[]")
		word := "line"
		if strings.Contains(numbers, ",") {
			word = "lines"
		}
		told = append(told, word+" "+numbers+" of key "+key)
	}
	return strings.Join(told, ", ")
}
