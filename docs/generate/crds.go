package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// crd is what a file with a CRD may have. A field that is missing here is an error, so that the
// page omits no new kind of rule.
type crd struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   any    `json:"metadata"`
	Spec       struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Kind       string   `json:"kind"`
			ListKind   string   `json:"listKind"`
			Plural     string   `json:"plural"`
			Singular   string   `json:"singular"`
			ShortNames []string `json:"shortNames"`
			Categories []string `json:"categories"`
		} `json:"names"`
		Versions []version `json:"versions"`
	} `json:"spec"`
}

type version struct {
	Name         string `json:"name"`
	Served       bool   `json:"served"`
	Storage      bool   `json:"storage"`
	Subresources any    `json:"subresources"`
	Columns      []struct {
		Name        string `json:"name"`
		Type        string `json:"type"`
		JSONPath    string `json:"jsonPath"`
		Description string `json:"description"`
		Priority    int    `json:"priority"`
	} `json:"additionalPrinterColumns"`
	Schema struct {
		OpenAPIV3Schema schema `json:"openAPIV3Schema"`
	} `json:"schema"`
}

// schema is the schema of an object or a field.
type schema struct {
	Description string            `json:"description"`
	Type        string            `json:"type"`
	Format      string            `json:"format"`
	Default     json.RawMessage   `json:"default"`
	Enum        []json.RawMessage `json:"enum"`
	Pattern     string            `json:"pattern"`

	Minimum       *int64 `json:"minimum"`
	MinLength     *int64 `json:"minLength"`
	MaxLength     *int64 `json:"maxLength"`
	MinItems      *int64 `json:"minItems"`
	MaxItems      *int64 `json:"maxItems"`
	MinProperties *int64 `json:"minProperties"`
	MaxProperties *int64 `json:"maxProperties"`

	Required             []string           `json:"required"`
	Properties           map[string]*schema `json:"properties"`
	Items                *schema            `json:"items"`
	AdditionalProperties *schema            `json:"additionalProperties"`

	AnyOf         []schema `json:"anyOf"` // the types of an integer or string
	IntOrString   bool     `json:"x-kubernetes-int-or-string"`
	KeepsUnknown  bool     `json:"x-kubernetes-preserve-unknown-fields"`
	ListType      string   `json:"x-kubernetes-list-type"`
	ListMapKeys   []string `json:"x-kubernetes-list-map-keys"`
	ObjectMapType string   `json:"x-kubernetes-map-type"`
	Rules         []struct {
		Rule      string `json:"rule"`
		Message   string `json:"message"`
		FieldPath string `json:"fieldPath"`
	} `json:"x-kubernetes-validations"`
}

// crdPage returns the page about the CRDs in a folder.
func crdPage(folder string) (string, error) {
	p := newPage("CRDs", "Custom resources", 65)
	p.add("This page lists the fields of all custom resources of Autohealer: types, defaults, limits and validation rules.")
	p.add("```sh\nkubectl explain conditionset.spec\nkubectl get --raw /apis/autohealer.resourcestack.com/v1alpha1 # the kinds of the group\n```")
	p.add("`[]` after a field stands for each element of a list, `.*` for each value of a map. A field is required if the object that contains it is present. The type of a list or map includes that of its elements.")
	p.add("The API server refuses an object that breaks a rule, with the message of the rule. In a rule, `self` is the value of the field, or the object that contains it if the rule compares several fields. " +
		"The [webhook](webhook.md) checks what a schema cannot express.")
	crds, err := readCRDs(folder)
	if err != nil {
		return "", err
	}
	var kinds []string
	for i := range crds {
		kinds = append(kinds, fmt.Sprintf("[%s](#%s)", crds[i].Spec.Names.Kind, strings.ToLower(crds[i].Spec.Names.Kind)))
	}
	p.add("The kinds: %s.", strings.Join(kinds, ", "))
	for i := range crds {
		for k := range crds[i].Spec.Versions {
			p.addKind(&crds[i], &crds[i].Spec.Versions[k])
		}
	}
	return p.String(), nil
}

func readCRDs(folder string) ([]crd, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	crds := make([]crd, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := yaml.UnmarshalStrict(text, &crds[i]); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
	}
	if len(crds) == 0 {
		return nil, fmt.Errorf("reading %s: it has no CRDs", folder)
	}
	return crds, nil
}

// addKind adds the sections about a version of a kind.
func (p *page) addKind(c *crd, v *version) {
	names, root := c.Spec.Names, v.Schema.OpenAPIV3Schema
	p.add("## %s", names.Kind)
	p.add("%s See [%s](%s.md).", plain(root.Description), names.Kind, kebab(names.Kind))
	p.header("group", "version", "scope", "plural", "short names", "categories")
	p.row(code(c.Spec.Group), code(v.Name), c.Spec.Scope, code(names.Plural), codes(names.ShortNames), codes(names.Categories))
	p.header("column of `kubectl get`", "value", "only with `-o wide`", "description")
	for _, column := range v.Columns {
		p.row(column.Name, code(column.JSONPath), yes(column.Priority > 0), plain(column.Description))
	}
	for _, part := range []string{"spec", "status"} {
		p.add("### %s: %s", names.Kind, part)
		p.header("field", "type", "default", "limits", "required", "description")
		root.Properties[part].walk(part, slices.Contains(root.Required, part), func(path string, s *schema, isRequired bool) {
			if s.isListed(path) {
				p.row(code(path), s.typeName(), code(unquote(s.Default)), s.limits(), yes(isRequired), plain(s.Description))
			}
		})
	}
	var rules []string
	root.walk("", false, func(path string, s *schema, _ bool) {
		for _, rule := range s.Rules {
			field := strings.TrimPrefix(path+rule.FieldPath, ".")
			rules = append(rules, fmt.Sprintf("- %s: %s\n  - %s", code(field), plain(rule.Message), code(rule.Rule)))
		}
	})
	p.add("### %s: rules", names.Kind)
	p.add("%s", strings.Join(rules, "\n"))
}

// walk visits a field and all fields below it.
func (s *schema) walk(path string, isRequired bool, visit func(path string, s *schema, isRequired bool)) {
	visit(path, s, isRequired)
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		s.Properties[name].walk(strings.TrimPrefix(path+"."+name, "."), slices.Contains(s.Required, name), visit)
	}
	if s.Items != nil {
		s.Items.walk(path+"[]", false, visit)
	}
	if s.AdditionalProperties != nil {
		s.AdditionalProperties.walk(path+".*", false, visit)
	}
}

// isListed reports whether the path has a row. An element of a list or a map has one if there is
// something to say about it; the row of the list or map has its type.
func (s *schema) isListed(path string) bool {
	isElement := strings.HasSuffix(path, "[]") || strings.HasSuffix(path, ".*")
	return !isElement || s.limits() != "" || s.Description != "" && s.Type != "object"
}

// typeName names the type as Go would.
func (s *schema) typeName() string {
	switch {
	case s.IntOrString:
		return "integer or string"
	case s.Items != nil:
		return "[]" + s.Items.typeName()
	case s.AdditionalProperties != nil:
		return "map[string]" + s.AdditionalProperties.typeName()
	case s.KeepsUnknown:
		return cmp.Or(s.Type, "any")
	case s.Format != "":
		return s.Type + " (" + s.Format + ")"
	default:
		return s.Type
	}
}

// limits describes the allowed values.
func (s *schema) limits() string {
	values := make([]string, len(s.Enum))
	for i, value := range s.Enum {
		values[i] = unquote(value)
	}
	parts := []string{
		codes(values), between(s.Minimum, nil, ""), between(s.MinLength, s.MaxLength, "character"),
		between(s.MinItems, s.MaxItems, "element"), between(s.MinProperties, s.MaxProperties, "entry"), code(s.Pattern),
	}
	if len(s.ListMapKeys) > 0 {
		parts = append(parts, "unique "+codes(s.ListMapKeys))
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "; ")
}

// between describes bounds, of which each may be missing.
func between(least, most *int64, unit string) string {
	counted := func(n int64) string {
		switch text := strconv.FormatInt(n, 10); {
		case unit == "":
			return text
		case n == 1:
			return text + " " + unit
		default:
			return text + " " + strings.ReplaceAll(unit+"s", "ys", "ies")
		}
	}
	switch {
	case least != nil && most != nil:
		return fmt.Sprintf("%d to %s", *least, counted(*most))
	case least != nil:
		return "at least " + counted(*least)
	case most != nil:
		return "at most " + counted(*most)
	}
	return ""
}

// unquote returns a string without its quotes, and another JSON value as it is.
func unquote(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// kebab converts the name of a kind to the name of its page: ConditionSet to condition-set.
func kebab(kind string) string {
	var b strings.Builder
	for i, r := range kind {
		if i > 0 && r < 'a' {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
