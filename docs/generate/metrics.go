package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/policykind"
)

// metricPage returns the page about the metrics of both programs.
func metricPage(repository string) (string, error) {
	p := newPage("Metrics", "Metrics", 72)
	p.add("This page lists the metrics of the controller and of the agent. [Monitor](../how-to/monitor.md) shows how to scrape them, and [alerts](alerts.md) says what to do about each alert.")
	for _, program := range []struct{ name, about string }{
		{"controller", "`policy_kind` is `ConditionSet`, `NodeHealthCheck`, `RepairPolicy`, `NodePool` (for its repair block) or `ReadyTimeout`; `policy` is its name, or that of the NodePool. " +
			"On a replica that does not lead, metrics of policies are absent or 0. The controller also serves metrics of its libraries, for example `process_resident_memory_bytes`."},
		{"agent", "[Agent metrics](agent-metrics.md) explains these metrics. A metric without a value is absent. The agent also serves the [metrics of the machine](machine-metrics.md) that a file asks for."},
	} {
		metrics, err := readMetrics(repository, "./cmd/autohealer-"+program.name)
		if err != nil {
			return "", err
		}
		p.add("## Metrics of the %s", program.name)
		p.add("%s", program.about)
		p.header("metric", "type", "labels", "meaning")
		for _, m := range metrics {
			p.row(code(m.name), m.kind, codes(m.labels), plain(m.help))
		}
	}
	return p.String(), nil
}

// metric is a metric of a program.
type metric struct {
	name, kind, help string
	labels           []string
}

// machineMetrics is a package whose metrics get their names from a file of the user. A test of
// that package compares them with docs/reference/machine-metrics.md.
const machineMetrics = "internal/probe/stats"

// The packages that metrics are declared with.
const (
	prometheus = "github.com/prometheus/client_golang/prometheus"
	module     = "github.com/resourcestack/autohealer"
)

// readMetrics returns the metrics of all packages of a program, sorted by name.
func readMetrics(repository, program string) ([]metric, error) {
	const ofModule = `{{if .Module}}{{if .Module.Main}}{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`
	list := exec.Command("go", "list", "-deps", "-f", ofModule, program)
	list.Dir = repository
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages of %s: %w", program, err)
	}
	repository, err = filepath.Abs(repository)
	if err != nil {
		return nil, err
	}
	r := &metricReader{files: token.NewFileSet()}
	packages := map[string][]*ast.File{}
	for _, path := range strings.Fields(string(out)) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(repository, path)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(r.files, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if folder := filepath.Dir(name); folder != machineMetrics {
			packages[folder] = append(packages[folder], file)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		r.readPackage(packages[folder])
	}
	slices.SortFunc(r.found, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	return r.found, errors.Join(r.errs...)
}

// metricReader reads the metrics that Go files declare. It follows calls of functions that are
// values of variables, like "gauge" in
//
//	gauge := func(name, help string) *prometheus.GaugeVec { … }
//	… gauge("autohealer_guardrail_used", "…")
//
// and reports every declaration that it has not understood.
type metricReader struct {
	files *token.FileSet
	found []metric
	errs  []error
	// Of the current package: which declarations were understood, the variables of descriptions
	// (prometheus.NewDesc), and the types of the metrics that have them.
	understood map[ast.Node]bool
	variables  map[ast.Expr]string
	types      map[string]string
	// call is the call of the function that is read, if it is the value of a variable.
	call *ast.CallExpr
}

// scope has the values of names: a string, a list of strings, or a function.
type scope map[string]any

func (r *metricReader) readPackage(files []*ast.File) {
	r.understood, r.variables, r.types = map[ast.Node]bool{}, map[ast.Expr]string{}, map[string]string{}
	for _, file := range files {
		r.checkImports(file)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, value := range n.Values {
					r.variables[value] = n.Names[i].Name
				}
			case *ast.CallExpr:
				if strings.HasSuffix(selector(n.Fun), "ConstMetric") && len(n.Args) > 1 {
					kind := strings.TrimSuffix(strings.TrimPrefix(selector(n.Args[1]), "prometheus."), "Value")
					r.types[selector(n.Args[0])] = strings.ToLower(kind)
				}
			}
			return true
		})
	}
	for _, file := range files {
		for _, declaration := range file.Decls {
			r.read(declaration, scope{})
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if isMetric(n) && !r.understood[n] {
				r.fail(n, "cannot read this metric: want prometheus.New... with its options, metrictext.Family, or prometheus.NewDesc in a variable of a prometheus.MustNewConstMetric")
			}
			return true
		})
	}
}

// checkImports refuses imports under another name, which selector would not recognize.
func (r *metricReader) checkImports(file *ast.File) {
	for _, spec := range file.Imports {
		switch path, _ := strconv.Unquote(spec.Path.Value); {
		case path == prometheus+"/promauto":
			r.fail(spec, "want no promauto: NewMetrics returns metrics that are not registered yet")
		case spec.Name != nil && (path == prometheus || path == module+"/internal/metrictext" || path == module+"/internal/policykind"):
			r.fail(spec, "want this import under its own name")
		}
	}
}

// isMetric reports whether a node declares a metric.
func isMetric(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		name, ok := strings.CutPrefix(selector(n.Fun), "prometheus.New")
		return ok && name != "ConstMetric"
	case *ast.CompositeLit:
		if list, ok := n.Type.(*ast.ArrayType); ok && selector(list.Elt) == "metrictext.Family" {
			return true // its elements have no type of their own
		}
		name := selector(n.Type)
		return name == "metrictext.Family" || strings.HasPrefix(name, "prometheus.") && strings.HasSuffix(name, "Opts")
	}
	return false
}

// read reads the metrics of a part of a file.
func (r *metricReader) read(part ast.Node, known scope) {
	ast.Inspect(part, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			function, isFunction := n.Rhs[0].(*ast.FuncLit)
			if name, ok := n.Lhs[0].(*ast.Ident); ok && isFunction && len(n.Rhs) == 1 {
				known[name.Name] = function
				return false // its calls are read
			}
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok {
				if function, ok := known[name.Name].(*ast.FuncLit); ok {
					outer := r.call
					r.call = n
					r.read(function.Body, bind(function, n.Args, known))
					r.call = outer
				}
			} else if isMetric(n) {
				r.readCall(n, known)
			}
		case *ast.CompositeLit:
			if selector(n.Type) == "metrictext.Family" {
				r.readFamily(n, known)
			}
		}
		return true
	})
}

// readCall reads the call of a function of package prometheus.
func (r *metricReader) readCall(call *ast.CallExpr, known scope) {
	name := strings.TrimPrefix(selector(call.Fun), "prometheus.New")
	kind, isVector := strings.CutSuffix(name, "Vec")
	if name == "Desc" && len(call.Args) == 4 {
		if kind = r.types[r.variables[call]]; kind == "" {
			return
		}
		m := metric{name: r.text(call, call.Args[0], known), kind: kind, help: r.text(call, call.Args[1], known), labels: r.list(call.Args[2], known)}
		r.found = append(r.found, m)
		r.understood[call] = true
		return
	}
	if !slices.Contains([]string{"Gauge", "Counter", "Histogram", "Summary"}, kind) {
		return
	}
	options, ok := call.Args[0].(*ast.CompositeLit)
	if !ok {
		return
	}
	fields := fieldsOf(options)
	m := metric{name: r.text(options, fields["Name"], known), kind: strings.ToLower(kind), help: r.text(options, fields["Help"], known)}
	if isVector {
		m.labels = r.list(call.Args[1], known)
	}
	r.found = append(r.found, m)
	r.understood[call], r.understood[options] = true, true
}

// readFamily reads a metric of the agent.
func (r *metricReader) readFamily(literal *ast.CompositeLit, known scope) {
	fields := fieldsOf(literal)
	m := metric{name: r.text(literal, fields["Name"], known), kind: r.text(literal, fields["Kind"], known), help: r.text(literal, fields["Help"], known)}
	if labels := fields["Labels"]; labels != nil {
		m.labels = r.list(labels, known)
	}
	r.found = append(r.found, m)
	r.understood[literal] = true
}

// bind returns the scope of a called function: its parameters have the values of the arguments, as
// far as these are texts.
func bind(function *ast.FuncLit, args []ast.Expr, known scope) scope {
	inner := maps.Clone(known)
	i := 0
	for _, field := range function.Type.Params.List {
		for _, name := range field.Names {
			delete(inner, name.Name)
			if _, isVariadic := field.Type.(*ast.Ellipsis); isVariadic {
				if list, ok := evaluateAll(args[i:], known); ok {
					inner[name.Name] = list
				}
			} else if i < len(args) {
				if value, ok := evaluate(args[i], known); ok {
					inner[name.Name] = value
				}
			}
			i++
		}
	}
	return inner
}

// text returns the value of a text of a declaration. It reports an expression that has none, or that
// is missing.
func (r *metricReader) text(declaration ast.Node, e ast.Expr, known scope) string {
	value, ok := evaluate(e, known)
	text, _ := value.(string)
	switch {
	case e == nil:
		r.fail(declaration, "this metric has no name, type or help")
	case !ok || text == "":
		r.fail(e, "cannot tell this text of a metric: want literals, or a parameter of a function that is called with literals")
	}
	return text
}

// list returns the value of a list of labels.
func (r *metricReader) list(e ast.Expr, known scope) []string {
	value, ok := evaluate(e, known)
	list, isList := value.([]string)
	if !ok || !isList {
		r.fail(e, "cannot tell these labels of a metric: want a list of literals, policykind.Labels, or a parameter of a function that is called with literals")
	}
	return list
}

// evaluate returns the value of an expression, a string or a list of strings, if it can be told
// from the source.
func evaluate(e ast.Expr, known scope) (any, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, _ := evaluate(e.X, known)
		y, _ := evaluate(e.Y, known)
		left, isText := x.(string)
		right, areTexts := y.(string)
		return left + right, isText && areTexts && e.Op == token.ADD
	case *ast.Ident:
		if e.Name == "nil" {
			return []string(nil), true
		}
		value, ok := known[e.Name]
		return value, ok
	case *ast.SelectorExpr:
		value, ok := map[string]string{"metrictext.Counter": metrictext.Counter, "metrictext.Gauge": metrictext.Gauge}[selector(e)]
		return value, ok
	case *ast.CompositeLit:
		return evaluateAll(e.Elts, known)
	case *ast.CallExpr:
		more, ok := evaluateAll(e.Args, known)
		return policykind.Labels(more...), ok && selector(e.Fun) == "policykind.Labels" && e.Ellipsis == token.NoPos
	}
	return nil, false
}

func evaluateAll(list []ast.Expr, known scope) ([]string, bool) {
	var texts []string
	for _, e := range list {
		value, ok := evaluate(e, known)
		text, isText := value.(string)
		if !ok || !isText {
			return nil, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

// fieldsOf returns the values of a struct by field.
func fieldsOf(literal *ast.CompositeLit) map[string]ast.Expr {
	fields := map[string]ast.Expr{}
	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			fields[selector(pair.Key)] = pair.Value
		}
	}
	return fields
}

// selector returns a name, with the package or variable before it.
func selector(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return selector(e.X) + "." + e.Sel.Name
	}
	return ""
}

// fail reports what cannot be read, and where.
func (r *metricReader) fail(n ast.Node, message string) {
	if r.call != nil {
		message += fmt.Sprintf(" (called in %s)", r.files.Position(r.call.Pos()))
	}
	r.errs = append(r.errs, fmt.Errorf("%s: %s", r.files.Position(n.Pos()), message))
}
