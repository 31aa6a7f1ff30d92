package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

const root = "../.."

// source returns the text of all Go files below a folder, except tests.
func source(t *testing.T, folder string) string {
	t.Helper()
	var all strings.Builder
	testkit.Must(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	}))
	return all.String()
}

// found returns what the first group of a pattern matches in the Go files below some folders.
func found(t *testing.T, pattern string, folders ...string) []string {
	t.Helper()
	var names []string
	for _, folder := range folders {
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(source(t, folder), -1) {
			names = append(names, match[1])
		}
	}
	testkit.Check(t, len(names) > 0, "%s matches nothing", pattern)
	return names
}

// The parser has found every name of a metric that a search for texts finds.
func TestEveryMetricIsListed(t *testing.T) {
	page := string(testkit.Value(os.ReadFile(filepath.Join(root, "docs/reference/metrics.md"))).Must(t))
	names := found(t, `"(autohealer_\w*[a-z])"`, "internal", "cmd")
	testkit.Check(t, len(names) >= 30, "%d metrics: this test does not look at all of them", len(names))
	for _, name := range names {
		testkit.Check(t, strings.Contains(page, "| `"+name+"` |"), "%s is not on the page", name)
	}
}

// The expressions of the dashboard and of the alerts ask for metrics and labels that the programs
// have. A histogram has buckets, a counter has a rate, and a gauge has neither.
func TestDashboardAndAlertsUseMetricsOfThePrograms(t *testing.T) {
	known := map[string]metric{}
	for _, program := range []string{"./cmd/autohealer-controller", "./cmd/autohealer-agent"} {
		for _, m := range testkit.Value(readMetrics(root, program)).Must(t) {
			known[m.name] = m
		}
	}
	// Libraries and Prometheus itself make these.
	known["process_resident_memory_bytes"] = metric{kind: "gauge", labels: []string{"job", "pod", "instance"}}
	var (
		name   = regexp.MustCompile(`\b(?:autohealer|problem|process)_\w+`)
		labels = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"|by \(([\w, ]+)\)|\$labels\.(\w+)|{{ *(\w+) *}}`)
	)
	check := func(title, expression, text string) {
		t.Helper()
		names := name.FindAllString(expression, -1)
		testkit.Check(t, len(names) == 1, "%s: %s uses the metrics %v, want one", title, expression, names)
		for _, used := range names {
			base, isBucket := strings.CutSuffix(used, "_bucket")
			m, found := known[base]
			testkit.Check(t, found, "%s: no program has %s", title, used)
			want := "gauge"
			switch {
			case isBucket:
				want = "histogram"
			case strings.Contains(expression, "rate("):
				want = "counter"
			}
			testkit.Check(t, !found || m.kind == want, "%s: %s is a %s, and %s wants a %s", title, used, m.kind, expression, want)
			for _, match := range labels.FindAllStringSubmatch(expression+" "+text, -1) {
				for _, label := range strings.FieldsFunc(strings.Join(match[1:], ","), func(r rune) bool { return r == ',' || r == ' ' }) {
					isKeyword := label == "else" || label == "end" // of a template
					testkit.Check(t, isKeyword || slices.Contains(m.labels, label) || isBucket && label == "le", "%s: %s has the labels %v and not %s", title, used, m.labels, label)
				}
			}
		}
	}
	read := func(path string, into any) {
		t.Helper()
		testkit.Must(t, yaml.Unmarshal(testkit.Value(os.ReadFile(filepath.Join(root, path))).Must(t), into))
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	read("deploy/chart/files/dashboard.json", &dashboard)
	checked := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			checked++
			check(panel.Title, target.Expr, target.LegendFormat)
		}
	}
	testkit.Check(t, checked > 25, "the dashboard has %d expressions", checked)
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	read("deploy/chart/alerts.yaml", &rules)
	testkit.Require(t, len(rules.Groups) == 1 && len(rules.Groups[0].Rules) >= 12, "the groups of alerts are %v", rules.Groups)
	for _, rule := range rules.Groups[0].Rules {
		check(rule.Alert, rule.Expr, rule.Annotations["summary"]+rule.Annotations["description"])
	}
}

// readSource reads the metrics of a package that has one file.
func readSource(t *testing.T, text string) *metricReader {
	t.Helper()
	r := &metricReader{files: token.NewFileSet()}
	file := testkit.Value(parser.ParseFile(r.files, "metrics.go", "package p\n"+text, parser.SkipObjectResolution)).Must(t)
	r.readPackage([]*ast.File{file})
	return r
}

func TestReadMetrics(t *testing.T) {
	r := readSource(t, `
var desc = prometheus.NewDesc("a", "One.", []string{"x"}, nil)
func (c *C) Collect(to chan<- prometheus.Metric) { to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, 1) }
func controller() {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help + "."}, []string{"y"})
	}
	m := &M{b: gauge("b", "Two"), c: gauge("c", "Three")}
	m.d = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "d", Help: "Four."})
	m.e = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "e", Help: "Five."}, policykind.Labels("z"))
}
func agent() []*metrictext.Family {
	family := func(name, kind, help string, labels ...string) *metrictext.Family {
		return &metrictext.Family{Name: "agent_" + name, Kind: kind, Labels: labels, Help: help}
	}
	single := func(name, help string, value float64) *metrictext.Family { return family(name, metrictext.Gauge, help) }
	return []*metrictext.Family{family("f", metrictext.Counter, "Six.", "v", "w"), single("g", "Seven.", f(1))}
}`)
	want := []metric{
		{"a", "counter", "One.", []string{"x"}},
		{"b", "gauge", "Two.", []string{"y"}},
		{"c", "gauge", "Three.", []string{"y"}},
		{"d", "histogram", "Four.", nil},
		{"e", "counter", "Five.", []string{"policy_kind", "policy", "z"}},
		{"agent_f", "counter", "Six.", []string{"v", "w"}},
		{"agent_g", "gauge", "Seven.", nil},
	}
	testkit.NoDiff(t, cmp.Diff(want, r.found, cmp.AllowUnexported(metric{})), "the metrics (-want +got)")
	testkit.Check(t, len(r.errs) == 0, "errors: %v", r.errs)
}

// What cannot be read is an error with the file and the line.
func TestUnreadableMetricsAreErrors(t *testing.T) {
	for name, test := range map[string]struct{ source, says string }{
		"a name from elsewhere":     {`var m = prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "One."})`, "metrics.go:2:56: cannot tell this text"},
		"a name of a called func":   {"func f() {\n\tg := func(name string) { h(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: \"One.\"})) }\n\tg(x())\n}", "(called in metrics.go:4:2)"},
		"no help":                   {`var m = prometheus.NewGauge(prometheus.GaugeOpts{Name: "a"})`, "metrics.go:2:29: this metric has no name, type or help"},
		"labels from elsewhere":     {`var m = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "a", Help: "One."}, labels())`, "metrics.go:2:79: cannot tell these labels"},
		"options in a variable":     {`var o = prometheus.GaugeOpts{Name: "a"}`, "metrics.go:2:9: cannot read this metric"},
		"another constructor":       {`var m = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "a"}, nil)`, "metrics.go:2:9: cannot read this metric"},
		"a description without use": {`var d = prometheus.NewDesc("a", "One.", nil, nil)`, "metrics.go:2:9: cannot read this metric"},
		"a func that is not called": {`func f() { g := func(name string) any { return prometheus.NewGauge(prometheus.GaugeOpts{Name: name}) }; h(g) }`, "metrics.go:2:48: cannot read this metric"},
		"a list without types":      {`var l = []metrictext.Family{{Name: "a"}}`, "metrics.go:2:9: cannot read this metric"},
		"another name":              {`import p "github.com/prometheus/client_golang/prometheus"`, "metrics.go:2:8: want this import under its own name"},
		"automatic registration":    {`import "github.com/prometheus/client_golang/prometheus/promauto"`, "metrics.go:2:8: want no promauto"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := readSource(t, test.source).errs
			said := slices.ContainsFunc(errs, func(err error) bool { return strings.Contains(err.Error(), test.says) })
			testkit.Check(t, said, "%v, want one with %q", errs, test.says)
		})
	}
}

func TestAddFlags(t *testing.T) {
	p := newPage("Flags", "Flags", 1)
	testkit.Must(t, p.addFlags(`it works. Flags:
  -dir directory
    	directory of a|b (default "/var")
  -on
    	switch it on

Other flags:
  -off
    	switch it off (default true)
  -old
    	ignored: nothing uses it
`))
	testkit.NoDiff(t, cmp.Diff("---\ntitle: Flags\nweight: 1\n---\n# Flags\n"+`
it works.

| flag | default | meaning |
|---|---|---|
| `+"`--dir=directory` | `/var`"+` | directory of a\|b |
| `+"`--on` | `false`"+` | switch it on |

### Other flags

| flag | default | meaning |
|---|---|---|
| `+"`--off` | `true`"+` | switch it off |
| `+"`--old`"+` |  | ignored: nothing uses it |
`, p.String()), "the page (-want +got)")
	testkit.Fails(t, p.addFlags("Flags:\n  -a\n    \tone\n    \ttwo"), `line 4 is "    \ttwo"`)
	testkit.Fails(t, p.addFlags("Flags:\n  -a"), `line 2 is "  -a"`)
}

func TestEverySubcommandIsListed(t *testing.T) {
	var want []string
	for _, verb := range found(t, `args\[0\] == "(\w+)"`, "cmd/autohealer-agent") {
		want = append(want, "autohealer-agent "+verb)
	}
	for _, verb := range found(t, `newSubcommand\("(\w+)"`, "cmd/autohealer-controller") {
		want = append(want, "autohealer-controller "+verb)
	}
	for _, c := range commands {
		if strings.Contains(c.name, " ") {
			testkit.Check(t, slices.Contains(want, c.name), "there is no %s", c.name)
			want = slices.DeleteFunc(want, func(name string) bool { return name == c.name })
		}
	}
	testkit.Check(t, len(want) == 0, "the list has no %v", want)
}

func TestEventsAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	isDescribed := func(reason, when string) {
		testkit.Check(t, regexp.MustCompile(`^[A-Z]\w+$`).MatchString(reason) && !seen[reason], "the reason %q, or it is there twice", reason)
		testkit.Check(t, regexp.MustCompile(`^[A-Z][^|<]*\.$`).MatchString(when), "%s: %q is not a sentence", reason, when)
		seen[reason] = true
	}
	for _, kind := range treat.EventKinds() {
		isDescribed(kind.Reason, kind.When)
		testkit.Check(t, kind.On != "" && kind.Action != "" && (kind.Type == "Normal" || kind.Type == "Warning"), "%+v lacks something", kind)
	}
	agent := source(t, "internal/probe") + source(t, "internal/intake") + source(t, "cmd/autohealer-agent")
	for _, reason := range finding.Reasons() {
		isDescribed(reason.Name, reason.When)
		fault, isFault := strings.CutPrefix(reason.Name, "Plugin")
		testkit.Check(t, strings.Contains(agent, `"`+reason.Name+`"`) || isFault && strings.Contains(agent, `= "`+fault+`"`), "the agent has no reason %s", reason.Name)
	}
	for _, fault := range found(t, `Fault = "(\w+)"`, "internal/probe/subprocess") {
		// The monitor has ended when a program is cancelled, and reports nothing.
		testkit.Check(t, seen["Plugin"+fault] || fault == "Cancelled", "Plugin%s is not described", fault)
	}
}

func TestCRDs(t *testing.T) {
	for _, c := range testkit.Value(readCRDs(filepath.Join(root, "deploy/chart/crds"))).Must(t) {
		_, err := os.Stat(filepath.Join(root, "docs/reference", kebab(c.Spec.Names.Kind)+".md"))
		testkit.Check(t, err == nil, "%s has no page: %v", c.Spec.Names.Kind, err)
	}
	folder := t.TempDir()
	_, err := crdPage(folder)
	testkit.Fails(t, err, "it has no CRDs")
	testkit.Must(t, os.WriteFile(filepath.Join(folder, "a.yaml"), []byte("spec: {versions: [{schema: {openAPIV3Schema: {oneOf: []}}}]}"), 0o600))
	_, err = crdPage(folder)
	testkit.Fails(t, err, `a.yaml: error unmarshaling JSON: while decoding JSON: json: unknown field "oneOf"`)
}

func TestBetween(t *testing.T) {
	one, ten := int64(1), int64(10)
	for _, test := range []struct {
		least, most *int64
		unit, want  string
	}{
		{nil, nil, "entry", ""},
		{&one, nil, "", "at least 1"},
		{&one, nil, "entry", "at least 1 entry"},
		{nil, &ten, "entry", "at most 10 entries"},
		{&one, &ten, "character", "1 to 10 characters"},
	} {
		testkit.Same(t, between(test.least, test.most, test.unit), test.want, "the bounds")
	}
}

func TestCommandWantsTwoFolders(t *testing.T) {
	for _, args := range [][]string{nil, {root}, {root, t.TempDir()}, {"a", "b", "c"}} {
		testkit.Check(t, command(args) != nil, "%q was taken", args)
	}
}
