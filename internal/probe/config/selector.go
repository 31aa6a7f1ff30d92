package config

import (
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// selectorExample is shown for an invalid selector.
const selectorExample = `"gpu=true,!spot" or {"matchLabels": {"gpu": "true"}, "matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}`

// nodeSelector reads the nodes on which the monitor runs.
func nodeSelector(top *section) labels.Selector {
	value, there := top.find("nodeSelector")
	if !there {
		return labels.Everything()
	}
	switch value := value.(type) {
	case string:
		selector, err := labels.Parse(value)
		if err != nil {
			top.refuse("nodeSelector", "%s is no selector of labels: %v; write one like %s", quote(value), err, selectorExample)
			return labels.Nothing()
		}
		return selector
	case object:
		return selectorObject(top.reader.section(top.at("nodeSelector"), "nodeSelector", value))
	}
	top.refuse("nodeSelector", "%s is no selector of labels; write one like %s", brief(value), selectorExample)
	return labels.Nothing()
}

// selectorObject reads a Kubernetes label selector. It refuses unknown fields: a selector without
// them would match nodes that the user did not want.
func selectorObject(s *section) labels.Selector {
	selector := labels.NewSelector()
	add := func(at string, r *labels.Requirement, err error) {
		if err != nil {
			s.refuse(at, "%v; see https://kubernetes.io/docs/concepts/overview/working-with-objects/labels", err)
			return
		}
		selector = selector.Add(*r)
	}
	for _, f := range s.fields {
		if !strings.EqualFold(f.name, "matchLabels") && !strings.EqualFold(f.name, "matchExpressions") {
			s.refuse(quoteName(f.name), "not known; write a selector like %s", selectorExample)
		}
	}
	wanted, _ := ask[object](s, "matchLabels", `an object of texts, for example {"gpu": "true"}`)
	for _, f := range wanted {
		at := "matchLabels[" + quote(f.name) + "]"
		text, ok := f.value.(string)
		if !ok {
			s.refuse(at, "%s is not %s; write %s", brief(f.value), gist(aText), aText)
			continue
		}
		r, err := labels.NewRequirement(f.name, "=", []string{text})
		add(at, r, err)
	}
	for expression := range s.each("matchExpressions", "an expression") {
		key := expression.required("key", "the name of a label")
		operator := expression.required("operator", operators)
		values := expression.texts("values")
		if key == "" || operator == "" || expression.refused["values"] {
			continue
		}
		r, err := requirement(key, operator, values)
		if r == nil && err == nil {
			expression.refuse("operator", "%s is no operator; write %s", quote(operator), operators)
			continue
		}
		add(strings.TrimPrefix(expression.path, s.path+"."), r, err)
	}
	return selector
}

const operators = "In, NotIn, Exists or DoesNotExist"

// requirement converts an expression. It returns nil for an unknown operator.
func requirement(key, operator string, values []string) (*labels.Requirement, error) {
	switch operator {
	case "In":
		return labels.NewRequirement(key, "in", values)
	case "NotIn":
		return labels.NewRequirement(key, "notin", values)
	case "Exists":
		return labels.NewRequirement(key, "exists", values)
	case "DoesNotExist":
		return labels.NewRequirement(key, "!", values)
	}
	return nil, nil
}
