package configmaps

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// maxValueLength is how much of a wrong value an error repeats.
const maxValueLength = 60

// file reads the sets of one key.
func (r *reader) file(root *yaml.Node) {
	if alias := findAlias(root); alias != nil {
		r.refuse(alias.Line, "anchors and aliases (& and *) are not read: write it out")
		return
	}
	var kind string
	var sets *yaml.Node
	r.fields(root, "a file of sets", map[string]func(*yaml.Node){
		"type":          func(n *yaml.Node) { kind = r.text(n, "type", "the text "+fileType) },
		"conditionSets": func(n *yaml.Node) { sets = n },
	}, "type", "conditionSets")
	if kind != "" && kind != fileType {
		r.refuse(root.Line, "the type is %s, want %s", quoteShort(kind), fileType)
	}
	if sets == nil {
		return
	}
	if sets.Kind != yaml.SequenceNode {
		r.refuse(sets.Line, "conditionSets is %s, want a list of sets; to have none, write conditionSets: []", describe(sets))
		return
	}
	first := map[string]int{}
	for _, n := range sets.Content {
		if len(r.sets) == maxSets {
			r.refuse(n.Line, "this is one more than the %d sets that one ConfigMap may have", maxSets)
			return
		}
		set := r.set(n)
		if before := first[set.Spec.Type]; before > 0 && set.Spec.Type != "" {
			r.refuse(n.Line, "there is a set of the type %s already, at line %d", quoteShort(set.Spec.Type), before)
		}
		first[set.Spec.Type] = n.Line
		r.sets = append(r.sets, set)
	}
}

// findAlias returns the first anchor or alias, nil if there is none.
func findAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return n
	}
	for _, child := range n.Content {
		if found := findAlias(child); found != nil {
			return found
		}
	}
	return nil
}

func (r *reader) set(n *yaml.Node) Set {
	set := r.newSet(n.Line)
	spec := &set.Spec
	at := func(field string, read func(*yaml.Node)) func(*yaml.Node) {
		return func(n *yaml.Node) {
			set.lines[field] = n.Line
			read(n)
		}
	}
	r.fields(n, "a set", map[string]func(*yaml.Node){
		"type": at("type", func(n *yaml.Node) { spec.Type = r.typeOfSet(n) }),
		"effect": at("effect", func(n *yaml.Node) {
			spec.Effect = corev1.TaintEffect(r.text(n, "effect", "NoExecute, NoSchedule or PreferNoSchedule"))
		}),
		"taintKey":     at("taintKey", func(n *yaml.Node) { spec.TaintKey = r.text(n, "taintKey", "a key like example.com/kernel-deadlock") }),
		"conditions":   at("conditions", func(n *yaml.Node) { spec.Conditions = r.conditions(n, set.lines) }),
		"selector":     at("selector", func(n *yaml.Node) { spec.Selector = r.selector(n) }),
		"maxUnhealthy": at("maxUnhealthy", func(n *yaml.Node) { spec.MaxUnhealthy = r.limit(n) }),
		"dryRun":       at("dryRun", func(n *yaml.Node) { spec.DryRun = r.boolean(n, "dryRun") }),
		"windows":      at("windows", func(n *yaml.Node) { spec.Windows = r.windows(n) }),
		"mode":         at("mode", func(n *yaml.Node) { spec.Mode = v1alpha1.PolicyMode(r.text(n, "mode", "Enforce or Observe")) }),
	}, "type", "effect", "taintKey", "conditions")
	set.Name = name(r.from.Name, r.key, spec.Type)
	return set
}

// typeOfSet reads the type, which becomes part of a name and therefore must be one line.
func (r *reader) typeOfSet(n *yaml.Node) string {
	kind := r.text(n, "type", "a name for the combination, for example KernelDeadlock")
	if len(kind) > v1alpha1.MaxTypeLength || strings.ContainsFunc(kind, func(c rune) bool { return !unicode.IsGraphic(c) }) {
		r.refuse(n.Line, "the type is %s, want at most %d characters that can be seen", quoteShort(kind), v1alpha1.MaxTypeLength)
		return ""
	}
	return kind
}

// conditions reads the list of conditions; a ConditionSet has them in a map by type.
func (r *reader) conditions(n *yaml.Node, lines map[string]int) map[string]v1alpha1.SetCondition {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > v1alpha1.MaxConditions {
		r.refuse(n.Line, "conditions is %s, want a list of 1 to %d conditions, each with ConditionType and conditionStatus", describe(n), v1alpha1.MaxConditions)
		return nil
	}
	conditions := map[string]v1alpha1.SetCondition{}
	for _, item := range n.Content {
		var kind string
		var c v1alpha1.SetCondition
		at := map[string]int{}
		r.fields(item, "a condition", map[string]func(*yaml.Node){
			"ConditionType":   func(n *yaml.Node) { kind = r.text(n, "ConditionType", "a condition type like KernelDeadlock") },
			"conditionStatus": func(n *yaml.Node) { c.Status, at[".status"] = r.status(n), n.Line },
			"duration": func(n *yaml.Node) {
				c.Duration, at[".duration"] = r.duration(n), n.Line
			},
			"evenSilent": func(n *yaml.Node) { c.EvenSilent, at[".evenSilent"] = r.boolean(n, "evenSilent"), n.Line },
		}, "ConditionType", "conditionStatus")
		if kind == "" {
			continue // the error is already recorded
		}
		if _, there := conditions[kind]; there {
			r.refuse(item.Line, "the condition %s is named at line %d already; all conditions must stand at once", quoteShort(kind), lines[conditionField(kind, "")])
			continue
		}
		conditions[kind] = c
		lines[conditionField(kind, "")] = item.Line
		for field, line := range at {
			lines[conditionField(kind, field)] = line
		}
	}
	return conditions
}

// status reads the same spellings as the API, quoted or not.
func (r *reader) status(n *yaml.Node) v1alpha1.ConditionStatus {
	if n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!str" || n.ShortTag() == "!!bool") {
		if status, isKnown := v1alpha1.ParseConditionStatus(n.Value); isKnown {
			return status
		}
	}
	r.refuse(n.Line, "conditionStatus is %s, want true, false or Unknown", describe(n))
	return ""
}

// duration reads a duration as it is written. A number without a unit is an error, quoted or not.
func (r *reader) duration(n *yaml.Node) string {
	const want = "a time with its unit, for example 90s or 5m"
	if n.ShortTag() == "!!int" || n.ShortTag() == "!!float" {
		r.refuse(n.Line, "duration is %s, want %s", describe(n), want)
		return ""
	}
	return r.text(n, "duration", want)
}

func (r *reader) limit(n *yaml.Node) *intstr.IntOrString {
	if n.Kind == yaml.ScalarNode {
		switch number, err := strconv.ParseInt(n.Value, 10, 32); {
		case n.ShortTag() == "!!int" && err == nil:
			return &intstr.IntOrString{Type: intstr.Int, IntVal: int32(number)}
		case n.ShortTag() == "!!str":
			return &intstr.IntOrString{Type: intstr.String, StrVal: n.Value}
		}
	}
	r.refuse(n.Line, "maxUnhealthy is %s, want a number of nodes like 3, or a percentage like 49%%", describe(n))
	return nil
}

func (r *reader) windows(n *yaml.Node) (windows []v1alpha1.Window) {
	for _, item := range r.list(n, "windows") {
		var w v1alpha1.Window
		r.fields(item, "a window", map[string]func(*yaml.Node){
			"schedule": func(n *yaml.Node) { w.Schedule = r.text(n, "schedule", "a cron schedule like 0 22 * * 1-5") },
			"timeZone": func(n *yaml.Node) { w.TimeZone = r.text(n, "timeZone", "a time zone like Europe/Berlin") },
			"duration": func(n *yaml.Node) { w.Duration = r.duration(n) },
		}, "schedule", "duration")
		windows = append(windows, w)
	}
	return windows
}

func (r *reader) selector(n *yaml.Node) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	r.fields(n, "a selector", map[string]func(*yaml.Node){
		"matchLabels": func(n *yaml.Node) {
			s.MatchLabels = map[string]string{}
			r.pairs(n, "matchLabels", func(key, value *yaml.Node) {
				s.MatchLabels[key.Value] = r.text(value, "the label "+quoteShort(key.Value), "a text")
			})
		},
		"matchExpressions": func(n *yaml.Node) {
			for _, item := range r.list(n, "matchExpressions") {
				s.MatchExpressions = append(s.MatchExpressions, r.expression(item))
			}
		},
	})
	return s
}

func (r *reader) expression(n *yaml.Node) (e metav1.LabelSelectorRequirement) {
	r.fields(n, "an expression", map[string]func(*yaml.Node){
		"key": func(n *yaml.Node) { e.Key = r.text(n, "key", "the key of a label") },
		"operator": func(n *yaml.Node) {
			e.Operator = metav1.LabelSelectorOperator(r.text(n, "operator", "In, NotIn, Exists or DoesNotExist"))
		},
		"values": func(n *yaml.Node) {
			for _, value := range r.list(n, "values") {
				e.Values = append(e.Values, r.anyText(value, "a value", "a text"))
			}
		},
	}, "key", "operator")
	return e
}

func (r *reader) list(n *yaml.Node, what string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		r.refuse(n.Line, "%s is %s, want a list", what, describe(n))
		return nil
	}
	return n.Content
}

// fields reads a mapping and calls a function for each field.
func (r *reader) fields(n *yaml.Node, what string, read map[string]func(*yaml.Node), required ...string) {
	found := map[string]bool{}
	isMapping := r.pairs(n, what, func(key, value *yaml.Node) {
		found[key.Value] = true
		if one := read[key.Value]; one != nil {
			one(value)
			return
		}
		r.refuse(key.Line, "%s has no field %s; there are %s", what, quoteShort(key.Value), strings.Join(slices.Sorted(maps.Keys(read)), ", "))
	})
	for _, field := range required {
		if isMapping && !found[field] {
			r.refuse(n.Line, "%s is missing in %s", field, what)
		}
	}
}

// pairs iterates over a mapping and rejects duplicate keys.
func (r *reader) pairs(n *yaml.Node, what string, each func(key, value *yaml.Node)) (isMapping bool) {
	if n.Kind != yaml.MappingNode {
		r.refuse(n.Line, "this is %s, want the fields of %s", describe(n), what)
		return false
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch before := first[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			r.refuse(key.Line, "this is %s, want the name of a field", describe(key))
		case before > 0:
			r.refuse(key.Line, "%s stands here a second time, after line %d", quoteShort(key.Value), before)
		default:
			first[key.Value] = key.Line
			each(key, value)
		}
	}
	return true
}

// text reads a text that is not empty.
func (r *reader) text(n *yaml.Node, field, want string) string {
	value := r.anyText(n, field, want)
	if value == "" && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
		r.refuse(n.Line, "%s is empty, want %s", field, want)
	}
	return value
}

func (r *reader) anyText(n *yaml.Node, field, want string) string {
	switch {
	case n.Kind != yaml.ScalarNode || isNull(n):
		r.refuse(n.Line, "%s is %s, want %s", field, describe(n), want)
	case n.ShortTag() != "!!str":
		r.refuse(n.Line, "%s is %s, want %s; put it in quotes if it is meant as a text", field, describe(n), want)
	default:
		return n.Value
	}
	return ""
}

// boolean reads the same words as kubectl: true, yes and on, or false, no and off, without
// quotes.
func (r *reader) boolean(n *yaml.Node, field string) bool {
	status, _ := v1alpha1.ParseConditionStatus(n.Value)
	if n.Kind != yaml.ScalarNode || n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 || status != "True" && status != "False" {
		r.refuse(n.Line, "%s is %s, want true or false", field, describe(n))
	}
	return status == "True"
}

// describe names the kind of a YAML node.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list of " + strconv.Itoa(len(n.Content))
	}
	if isNull(n) {
		return "empty"
	}
	return quoteShort(n.Value)
}

// quoteShort quotes and shortens a value.
func quoteShort(value string) string {
	if runes := []rune(value); len(runes) > maxValueLength {
		value = string(runes[:maxValueLength]) + "..."
	}
	return strconv.Quote(value)
}
