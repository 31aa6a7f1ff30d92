package provider

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/triage"
)

// File holds the statements of a user:
//
//	defaultToleration: 20m     # replaces the default of every provider
//	statements:
//	- type: XidError
//	  status: "True"
//	  toleration: 10m          # recommended for this statement only; optional
//	  provider: karpenter      # aws, azure, karpenter (every NodePool) or static only; optional
type File struct {
	statements        []fileStatement
	defaultToleration *time.Duration
}

type fileStatement struct {
	condition
	toleration *time.Duration // nil means what the provider recommends
	provider   string         // a key of names; empty means every provider
}

// isFor reports whether the statement applies to nodes of a provider.
func (s fileStatement) isFor(name string) bool {
	return s.provider == "" || slices.Contains(names[s.provider], name)
}

// overlaps reports whether a provider makes both statements.
func (s fileStatement) overlaps(other fileStatement) bool {
	return s.condition == other.condition && slices.ContainsFunc(providers, func(p provider) bool { return s.isFor(p.name) && other.isFor(p.name) })
}

// Parse reads the text of a file. It rejects unknown fields: if a typing error dropped a
// statement, unhealthy nodes would not be repaired.
func Parse(text []byte) (File, error) {
	var document yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	err := documents.Decode(&document)
	switch {
	case errors.Is(err, io.EOF):
		return File{}, errors.New("states nothing: want statements, or a defaultToleration")
	case err != nil:
		return File{}, errors.New("is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := documents.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return File{}, errors.New("has more than one document: want one")
	}
	var r reader
	var file File
	r.fields(document.Content[0], "", map[string]func(*yaml.Node, string){
		"defaultToleration": func(n *yaml.Node, path string) { file.defaultToleration = r.duration(n, path) },
		"statements":        func(n *yaml.Node, path string) { file.statements = r.statements(n, path) },
	})
	if r.err == nil && file.defaultToleration == nil && len(file.statements) == 0 {
		return File{}, errors.New("states nothing: want statements, or a defaultToleration")
	}
	if r.err != nil {
		return File{}, r.err
	}
	return file, nil
}

// reader walks through the document and keeps the first error.
type reader struct {
	err  error
	read []fileStatement
}

func (r *reader) refuse(n *yaml.Node, path, value, problem string) {
	if r.err != nil {
		return
	}
	if path == "" {
		r.err = fmt.Errorf("line %d: %s", n.Line, problem)
		return
	}
	r.err = fmt.Errorf("line %d: %w", n.Line, &triage.FieldError{Field: path, Value: value, Problem: problem})
}

// fields reads the fields of a mapping. A null value counts as absent.
func (r *reader) fields(n *yaml.Node, path string, known map[string]func(*yaml.Node, string)) {
	n = resolved(n)
	if n.Kind != yaml.MappingNode {
		r.refuse(n, path, "", "want fields: "+fieldNames(known))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolved(n.Content[i+1])
		at := key.Value
		if path != "" {
			at = path + "." + at
		}
		read, ok := known[key.Value]
		switch {
		case !ok:
			r.refuse(key, at, "", "there is no such field: want "+fieldNames(known))
		case seen[key.Value]:
			r.refuse(key, at, "", "is written twice")
		case value.Tag != "!!null":
			read(value, at)
		}
		seen[key.Value] = true
	}
}

func fieldNames(known map[string]func(*yaml.Node, string)) string {
	list := make([]string, 0, len(known))
	for name := range known {
		list = append(list, name)
	}
	slices.Sort(list)
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " or " + list[last]
}

// resolved follows an alias to the node that it refers to.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// text reads a scalar as it is written, regardless of its YAML type. True is a status,
// with or without quotes.
func (r *reader) text(n *yaml.Node, path string) string {
	if n.Kind != yaml.ScalarNode {
		r.refuse(n, path, "", "want one word")
		return ""
	}
	return n.Value
}

func (r *reader) duration(n *yaml.Node, path string) *time.Duration {
	value := r.text(n, path)
	d, err := triage.ParseDuration(value)
	var bad *triage.FieldError
	if errors.As(err, &bad) {
		r.refuse(n, path, value, bad.Problem)
	}
	return &d
}

func (r *reader) statements(n *yaml.Node, path string) []fileStatement {
	if n.Kind != yaml.SequenceNode {
		r.refuse(n, path, "", "want a list, each with a type and a status")
		return nil
	}
	for i, each := range n.Content {
		r.read = append(r.read, r.statement(each, fmt.Sprintf("%s[%d]", path, i)))
	}
	return r.read
}

// maxConditionLength is the longest condition type that the Kubernetes API accepts.
const maxConditionLength = 316

func (r *reader) statement(n *yaml.Node, path string) fileStatement {
	var s fileStatement
	r.fields(n, path, map[string]func(*yaml.Node, string){
		"type":       func(n *yaml.Node, path string) { s.kind = corev1.NodeConditionType(r.text(n, path)) },
		"status":     func(n *yaml.Node, path string) { s.status = r.status(n, path) },
		"toleration": func(n *yaml.Node, path string) { s.toleration = r.duration(n, path) },
		"provider":   func(n *yaml.Node, path string) { s.provider = r.provider(n, path) },
	})
	switch {
	case s.kind == "" || len(s.kind) > maxConditionLength || strings.ContainsAny(string(s.kind), " :=\t\n"):
		r.refuse(n, path+".type", string(s.kind), "want a condition type alone, for example KernelDeadlock")
	case s.status == "":
		r.refuse(n, path+".status", "", "want the status in which the condition is unhealthy: True, False or Unknown")
	case catalog.Healthy(string(s.kind), string(s.status)):
		r.refuse(n, path+".status", string(s.status), fmt.Sprintf("%s=%s is what a healthy node reports, so the nodes that are well would be replaced, one after the other and without end", s.kind, s.status))
	case slices.ContainsFunc(r.read, s.overlaps):
		r.refuse(n, path, fmt.Sprintf("%s=%s", s.kind, s.status), "is stated twice")
	}
	return s
}

func (r *reader) status(n *yaml.Node, path string) corev1.ConditionStatus {
	value := r.text(n, path)
	status, err := triage.ParseStatus(value)
	if err != nil || status == triage.Missing {
		r.refuse(n, path, value, "want True, False or Unknown")
	}
	return corev1.ConditionStatus(status.String())
}

func (r *reader) provider(n *yaml.Node, path string) string {
	value := r.text(n, path)
	if names[value] == nil {
		r.refuse(n, path, value, "want aws, azure, karpenter for all NodePools, or static; leave it out for all nodes")
	}
	return value
}
