package configmaps

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

const (
	// Label is what a ConfigMap carries whose sets are followed.
	Label = "autohealer.resourcestack.com/condition-sets"
	// LabelValue is the value of the label.
	LabelValue = "true"

	// maxBytes is how large the sets of one ConfigMap may be written: some
	// hundred times the seed's, and little enough to be kept as one revision.
	maxBytes = 64 << 10
	// maxSets is how many sets there may be in one ConfigMap: each of them is
	// judged by all nodes when the ConfigMap changes.
	maxSets = 100
)

// Set is a ConditionSet and where it is written. It is named
// <configmap>/<key>/<type>, which no ConditionSet in the API can be, has the
// namespace of its ConfigMap, and is owned by it.
type Set struct {
	*v1alpha1.ConditionSet
	key   string
	lines map[string]int // by field, "" for the set itself
}

// Where says where a field of the set is written, the set itself if nothing is
// known of the field. Fields are named as errors name them: spec.taintKey, and
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

// condition returns the condition that a field is about. Types have dots in them,
// so the longest counts.
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

// IsWrittenIn returns the ConfigMap that a set is written in, nil if it is a
// ConditionSet of the API: those have no namespace.
func IsWrittenIn(set *v1alpha1.ConditionSet) *corev1.ObjectReference {
	if set.Namespace == "" || len(set.OwnerReferences) != 1 {
		return nil
	}
	owner := set.OwnerReferences[0]
	return &corev1.ObjectReference{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: set.Namespace,
		Name: owner.Name, UID: owner.UID, ResourceVersion: set.ResourceVersion,
	}
}

// Version is what a ConfigMap says about sets.
type Version struct {
	// Sets in the order of their keys and lines.
	Sets []Set
	// source is the ConfigMap without what was not read.
	source *corev1.ConfigMap
}

// Same says whether two versions say the same of the same ConfigMap.
func (v *Version) Same(other *Version) bool {
	return SaysTheSame(v.source, other.source)
}

// SaysTheSame says whether two ConfigMaps hold the same, also if it cannot be read.
func SaysTheSame(a, b *corev1.ConfigMap) bool {
	return a.UID == b.UID && maps.Equal(a.Data, b.Data) && maps.Equal(ours(a.Annotations), ours(b.Annotations))
}

// Read returns the version that a ConfigMap holds. The error is of the type
// [LineErrors].
func Read(m *corev1.ConfigMap) (*Version, error) {
	r := reader{from: m}
	source := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
			CreationTimestamp: m.CreationTimestamp, Annotations: ours(m.Annotations),
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

func nothingToRead(m *corev1.ConfigMap) string {
	says := "no key of its data says type: " + fileType
	if len(m.BinaryData) > 0 {
		says += ", and binaryData is not read"
	}
	return says + "; to have no sets, take the label " + Label + " away or write conditionSets: []"
}

// name returns the name of a set.
func name(configMap, key, kind string) string { return configMap + "/" + key + "/" + kind }

// SourceOf returns the name of the ConfigMap that a set is written in, by the set's
// own name. Those of ConditionSets in the API have no slash.
func SourceOf(set string) (configMap string, isWritten bool) {
	configMap, _, isWritten = strings.Cut(set, "/")
	return configMap, isWritten
}

// blank returns a set of the ConfigMap that says nothing yet.
func (r *reader) blank(line int) Set {
	set := &v1alpha1.ConditionSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.from.Namespace, UID: r.from.UID, ResourceVersion: r.from.ResourceVersion,
		CreationTimestamp: r.from.CreationTimestamp,
		Annotations:       ours(r.from.Annotations),
		OwnerReferences:   []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: r.from.Name, UID: r.from.UID}},
	}}
	return Set{ConditionSet: set, key: r.key, lines: map[string]int{"": line}}
}

// ours returns the annotations that say something about sets.
func ours(annotations map[string]string) map[string]string {
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

// LineError is one thing that is wrong with a ConfigMap.
type LineError struct {
	Key  string // of the data; empty for the ConfigMap as a whole
	Line int    // in the key's value, from 1
	Text string
}

func (p LineError) Error() string {
	if p.Key == "" {
		return p.Text
	}
	return fmt.Sprintf("key %s, line %d: %s", p.Key, p.Line, p.Text)
}

// mostTold is how many problems are told at once.
const mostTold = 5

// LineErrors is everything that is wrong with a ConfigMap.
type LineErrors []LineError

func (p LineErrors) Error() string {
	told := make([]string, 0, mostTold+1)
	for _, problem := range p[:min(len(p), mostTold)] {
		told = append(told, problem.Error())
	}
	if more := len(p) - mostTold; more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(told, "; ")
}
