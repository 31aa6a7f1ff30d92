package archtest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

const module = "github.com/resourcestack/autohealer"

// pkg is a package of this module, as go list describes it.
type pkg struct {
	Dir        string
	ImportPath string
	Doc        string
	Imports    []string
	Deps       []string
	Standard   bool
}

// path is the path of the package within the module.
func (p pkg) path() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// importRule forbids some dependencies of a package.
type importRule struct {
	path   string // of the package or, with a trailing slash, of all packages below
	forbid func(dep string) bool
	why    string
}

// importRules are the arrows that docs/contributing/architecture.md does not draw.
var importRules = []importRule{
	{"internal/triage", outside("internal/triage"),
		"triage only decides: it has no clock, no network and no logger"},
	{"internal/naive", outside("internal/naive"),
		"the naive twin says what a rule means, so it shares no code with the core that it is compared with"},
	{"internal/policykind", outside("internal/triage", "internal/policykind"),
		"readers of stored records and compilers of policies share these names, so the package brings nothing else"},
	{"internal/schedule", outside("internal/schedule", "github.com/robfig/cron"),
		"a schedule is computed without side effects"},
	{"internal/dialect", outside("internal/triage", "internal/policykind", "internal/taintkey", "internal/dialect", "internal/schedule", "github.com/robfig/cron"),
		"a dialect compiles a policy into a rule, without side effects"},
	{"problem", outside("problem"),
		"third-party daemons import problem, so it must not bring them our dependencies"},
	{"examples/", outside("examples", "problem"),
		"an example uses only what third parties can use"},
	{"catalog", outside("catalog"),
		"the agent and third-party daemons link the catalogue, so it must not bring them dependencies"},
	{"internal/probe/", anyOf("internal/intake", "internal/report"), "probe, intake and report meet only in the agent's main"},
	{"internal/probe/", anyOf("internal/kubeapi", "k8s.io/client-go", "k8s.io/api", "sigs.k8s.io"),
		"a detector looks at the node and does not need the cluster; of Kubernetes it knows label selectors only"},
	{"internal/finding", outside("internal/finding", "catalog"), "detectors and the reporter share these types only; merging findings needs neither the node nor the cluster"},
	{"internal/kubeapi", anyOf("internal/probe", "k8s.io", "sigs.k8s.io"), "the agent has its own client, which is small"},
	{"internal/intake", anyOf("internal/probe", "internal/report"), "probe, intake and report meet only in the agent's main"},
	{"internal/intake", outside("internal/intake", "internal/finding", "internal/format", "internal/spelling", "internal/times", "catalog", "problem", "golang.org/x/sys"),
		"every process on the node may connect to the intake, so it has few dependencies and no access to the cluster"},
	{"internal/report", anyOf("internal/probe", "internal/intake"), "probe, intake and report meet only in the agent's main"},
	{"internal/report", outside("internal/report", "internal/kubeapi", "internal/finding", "internal/text", "internal/times", "catalog", "go.yaml.in/yaml"),
		"the agent stays small: its reporter uses neither client-go nor detectors"},
	{"cmd/autohealer-agent", anyOf("sigs.k8s.io/controller-runtime", "k8s.io/client-go", "k8s.io/api"),
		"the agent runs on every node and stays small"},
	{"cmd/autohealer-agent", anyOf("github.com/prometheus/client_golang", "github.com/prometheus/client_model", "github.com/prometheus/common"),
		"the agent writes its metrics itself: the client library would make the agent larger by a third"},
	{"internal/observe", anyOf("internal/treat", "k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/client"),
		"observe turns objects into facts; it has no client, so it cannot write"},
	{"internal/karpenter", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"these types have only the fields that we read, and writing them back would drop the others; so the package has no client"},
	{"internal/budget", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"a budget is counted as Karpenter counts it, for every caller"},
	{"internal/provider", anyOf("internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"a provider states which conditions are unhealthy; it looks at no node and treats none"},
	{"internal/validate", anyOf("internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"the webhook and the controller must get the same verdict, so validation looks at its arguments only"},
	{"internal/treat", anyOf("internal/observe"), "treat writes what it is told to write; internal/engine joins it with what decides"},
	{"api/", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"importing the API types brings the types and nothing else"},
	{"internal/configmaps", anyOf("internal/triage", "internal/observe", "internal/validate", "internal/treat", "internal/engine"),
		"configmaps parses what users have written; internal/validate judges it"},
	{"internal/ownership", anyOf("internal/observe", "internal/treat", "k8s.io/client-go"),
		"one package reads the ownership record and another writes it; the format knows neither"},
	{"internal/remediation", anyOf("internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"one package reads remediation objects and another writes them; the contract knows neither"},
	{"internal/nodelease", anyOf("internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"nodelease says who holds a Lease; it cannot take one"},
	{"internal/nodewatch", anyOf("internal/observe", "internal/treat", "internal/engine", "sigs.k8s.io/controller-runtime"),
		"nodewatch decodes nodes and draws no conclusions"},
	{"internal/protowatch", anyOf("internal/observe", "internal/treat", "internal/engine", "internal/nodewatch", "internal/agentlease", "sigs.k8s.io/controller-runtime"),
		"protowatch decodes watch events of any kind"},
	{"internal/agentlease", anyOf("internal/observe", "internal/ledger", "internal/engine"),
		"agentlease marks silent agents; the engine sees that like every other condition"},
	{"internal/repairblock", anyOf("internal/observe", "internal/dialect", "internal/ledger", "internal/validate", "internal/engine"),
		"repairblock stores repair blocks; its caller says which of them are valid"},
	{"internal/nodefacts", anyOf("internal/treat", "internal/ledger", "internal/engine"),
		"package nodefacts only counts nodes, on every replica; it writes nothing"},
	{"internal/watch", anyOf("internal/triage", "internal/observe", "internal/validate", "internal/treat", "internal/ledger", "internal/engine"),
		"package watch delivers objects and does not know what they mean"},
	{"internal/history", anyOf("internal/triage", "internal/dialect", "internal/observe", "internal/treat", "internal/engine", "internal/ownership", "internal/ledger", "internal/remediation", "internal/nodelease", "internal/karpenter", "internal/budget", "internal/provider", "internal/repairblock"),
		"the checker of recorded writes must not share the code that decided them"},
	{"internal/status", anyOf("internal/observe", "internal/dialect", "internal/validate", "internal/ledger", "internal/engine", "internal/policy"),
		"the one writer of statuses serves every kind of policy, so it knows none"},
	{"internal/admission", anyOf("internal/treat", "internal/engine", "internal/ledger"),
		"admission runs on every replica and writes nothing"},
	{"internal/certificate", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "internal/admission", "internal/validate"),
		"certificate keeps keys and does not know their users"},
	{"internal/engine", anyOf("internal/policy", "internal/treatment", "internal/controller", "internal/admission"),
		"the engine carries out plans for every kind of policy, so it knows none: a new kind is a folder of its own and a line in internal/controller"},
	{"internal/policy/", anyOf("internal/treatment", "internal/controller", "internal/admission"),
		"a policy compiles what users write to rules and knows treatments through interfaces; internal/controller joins them"},
	{"internal/treatment/", anyOf("internal/policy", "internal/controller", "internal/admission"),
		"a treatment carries out responses and knows policies through interfaces; internal/controller joins them"},
	{"internal/machine", anyOf("internal/karpenter", "internal/engine", "internal/observe"),
		"policies know machines of every provider through this package, so it knows none"},
}

// directImportRules forbid only what a package itself imports.
var directImportRules = []importRule{
	{"internal/engine", anyOf("internal/karpenter"),
		"the engine treats nodes of every provider; internal/observe answers its questions about one"},
}

// notProduct are packages for tests. Of the programs only the demo may depend on them.
var notProduct = []string{"internal/testbed", "internal/testkit", "internal/install", "internal/archtest", "internal/history", "internal/naive", "internal/enginetest", "internal/explore", "internal/probe/unit/unittest"}

// outside forbids everything but the standard library and the named packages.
func outside(paths ...string) func(string) bool {
	return func(dep string) bool {
		first, _, _ := strings.Cut(dep, "/")
		return strings.Contains(first, ".") && !anyOf(paths...)(dep)
	}
}

// anyOf forbids the named packages or modules and everything below them.
func anyOf(paths ...string) func(string) bool {
	return func(dep string) bool {
		dep = strings.TrimPrefix(dep, module+"/")
		return slices.ContainsFunc(paths, func(path string) bool { return dep == path || strings.HasPrefix(dep, path+"/") })
	}
}

// siblings are folders whose packages know each other through interfaces only: a kind of policy and a
// kind of treatment can be added and removed alone.
var siblings = []string{"internal/policy", "internal/treatment"}

// appliesTo reports whether the rule is about a package.
func (r importRule) appliesTo(p pkg) bool {
	path, isTree := strings.CutSuffix(r.path, "/")
	return p.path() == path || isTree && strings.HasPrefix(p.path(), r.path)
}

// violations returns the forbidden packages among the dependencies of a package.
func (r importRule) violations(deps []string) (forbidden []string) {
	for _, dep := range deps {
		if r.forbid(dep) {
			forbidden = append(forbidden, dep)
		}
	}
	return forbidden
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=Dir,ImportPath,Doc,Imports,Deps,Standard", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages: %v\n%s", err, stderr.String())
	}
	var list []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		// go test stores results, and runs a test again if a folder changes that the test itself has
		// read.
		testkit.Value(os.ReadDir(p.Dir)).Must(t)
		list = append(list, p)
	}
	testkit.Require(t, len(list) >= 4, "go list found only %d packages", len(list))
	return list
}

func TestImportRules(t *testing.T) {
	list := packages(t)
	checked := 0
	for _, p := range list {
		for _, rule := range importRules {
			if !rule.appliesTo(p) {
				continue
			}
			checked++
			for _, dep := range rule.violations(p.Deps) {
				t.Errorf("%s depends on %s: %s", p.path(), dep, rule.why)
			}
		}
		for _, rule := range directImportRules {
			if !rule.appliesTo(p) {
				continue
			}
			checked++
			for _, dep := range rule.violations(p.Imports) {
				t.Errorf("%s imports %s: %s", p.path(), dep, rule.why)
			}
		}
		for _, folder := range siblings {
			for _, dep := range p.Deps {
				if anyOf(folder)(p.ImportPath) && anyOf(folder)(dep) && !anyOf(p.ImportPath)(dep) {
					t.Errorf("%s depends on %s: packages of %s do not know each other", p.path(), dep, folder)
				}
			}
		}
		if strings.HasPrefix(p.path(), "cmd/") && p.path() != "cmd/demo" {
			for _, dep := range p.Deps {
				if anyOf(notProduct...)(dep) {
					t.Errorf("%s depends on %s: programs for users contain no test code", p.path(), dep)
				}
			}
		}
	}
	testkit.Check(t, checked != 0, "no import rule applies to any package")
}

// Every import rule forbids something, as made-up packages show.
func TestEveryImportRuleForbidsSomething(t *testing.T) {
	deps := []string{
		"fmt", "time", "encoding/json",
		"k8s.io/apimachinery/pkg/types", "k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/client",
		"github.com/prometheus/client_golang/prometheus",
		module + "/internal/probe/kmsg", module + "/internal/intake", module + "/internal/report",
		module + "/internal/observe", module + "/internal/treat", module + "/internal/controller", module + "/internal/karpenter",
	}
	for _, rule := range slices.Concat(importRules, directImportRules) {
		p := pkg{ImportPath: module + "/" + strings.TrimSuffix(rule.path, "/"), Deps: deps}
		forbidden := rule.violations(p.Deps)
		if !rule.appliesTo(p) || len(forbidden) == 0 || slices.Contains(forbidden, "fmt") {
			t.Errorf("the rule for %s applies: %t, and forbids %v", rule.path, rule.appliesTo(p), forbidden)
		}
	}
}

// The agent may be process 1 and then reaps all children, which takes the exit codes of
// programs from the code that has started them. So only internal/probe/subprocess starts
// programs in the agent.
func TestOnlySubprocessStartsProgramsInTheAgent(t *testing.T) {
	list := packages(t)
	agent := slices.IndexFunc(list, func(p pkg) bool { return p.path() == "cmd/autohealer-agent" })
	testkit.Require(t, agent >= 0, "go list did not find the agent")
	checked := 0
	for _, p := range list {
		if p.path() != "cmd/autohealer-agent" && !slices.Contains(list[agent].Deps, p.ImportPath) {
			continue
		}
		checked++
		if slices.Contains(p.Imports, "os/exec") {
			t.Errorf("%s imports os/exec; start programs with internal/probe/subprocess, which may take their exit codes otherwise", p.path())
		}
	}
	testkit.Check(t, checked >= 10, "only %d packages were checked", checked)
}

// The parser of schedules has no maintainer, so one package catches its panics. The checker
// of recorded writes uses the parser, too, and shares no code with that package.
func TestOnePackageParsesSchedules(t *testing.T) {
	const parser = "github.com/robfig/cron/v3"
	users := 0
	for _, p := range packages(t) {
		switch {
		case !slices.Contains(p.Imports, parser):
		case p.path() == "internal/schedule", p.path() == "internal/history":
			users++
		default:
			t.Errorf("%s imports %s: have internal/schedule read the schedule (docs/contributing/design/2026-11-16-cron.md)", p.path(), parser)
		}
	}
	testkit.Check(t, users != 0, "no package imports %s: remove this test", parser)
}

func TestEveryPackageIsDocumented(t *testing.T) {
	for _, p := range packages(t) {
		words := strings.Fields(p.Doc)
		if len(words) < 8 {
			t.Errorf("%s: its package doc is %q; say what the package is for, what it guarantees, and one thing that it does not do", p.path(), p.Doc)
		}
	}
}

// makeTarget runs make in a folder, and returns its standard output.
func makeTarget(t *testing.T, folder string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory", "-C", folder}, args...)...)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "KARPENTER=") // this test may run under make
	return string(testkit.Value(cmd.Output()).Must(t))
}

// The demo of node pools is an option of make demo, which a variable of the Makefile could
// switch on by mistake.
func TestMakeDemoShowsNodePoolsOnRequestOnly(t *testing.T) {
	for _, options := range [][]string{nil, {"KARPENTER=1"}} {
		recipe := makeTarget(t, "../..", append([]string{"-n", "demo"}, options...)...)
		if is := strings.Contains(recipe, " -karpenter"); is != (options != nil) {
			t.Errorf("make demo %v shows node pools: %t", options, is)
		}
	}
}

// The programs, the images and the chart have the same version.
func TestTheChartNamesTheVersion(t *testing.T) {
	const chart = "deploy/chart/Chart.yaml"
	folder := t.TempDir()
	for _, file := range []string{"Makefile", chart} {
		testkit.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, file)), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(folder, file), testkit.Value(os.ReadFile(filepath.Join("../..", file))).Must(t), 0o600))
	}
	found := regexp.MustCompile(`(?m)^version: (\d+\.\d+\.\d+)\nappVersion: v(.*)$`).FindSubmatch(testkit.Value(os.ReadFile(filepath.Join(folder, chart))).Must(t))
	testkit.Require(t, found != nil, "%s has no version with three numbers and an appVersion that begins with v", chart)
	testkit.Same(t, string(found[2]), string(found[1]), "the appVersion after v")
	release := "v" + string(found[1])

	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		out, err := cmd.CombinedOutput()
		testkit.Require(t, err == nil, "git %v: %v\n%s", args, err, out)
		return strings.TrimSpace(string(out))
	}
	// Both targets pass the version on.
	version := func(want string) {
		t.Helper()
		recipe := makeTarget(t, folder, "-n", "build", "images")
		for _, argument := range []string{"'-X main.version=" + want + "'", "-version '" + want + "'"} {
			testkit.Check(t, strings.Contains(recipe, argument), "no program gets %s:\n%s", argument, recipe)
		}
	}
	version(release + "+unknown") // without git
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--message", "first")
	commit := git("rev-parse", "--short", "HEAD")
	version(release + "+" + commit)
	git("tag", "--annotate", "--message", "another", "v99.0.0")
	version(release + "+" + commit)
	git("tag", release)
	version(release)
	testkit.Must(t, os.WriteFile(filepath.Join(folder, chart), []byte("# changed\nappVersion: "+release+"\n"), 0o600))
	version(release + "+" + commit + "-dirty")
}

func TestTheGateTestsEachPackageOnce(t *testing.T) {
	tested := strings.Fields(makeTarget(t, "../..", "tested-packages"))
	slices.Sort(tested)
	var all []string
	for _, p := range packages(t) {
		all = append(all, p.ImportPath)
	}
	slices.Sort(all)
	testkit.Equal(t, "the packages that make test runs", all, tested)
}

// The gate runs the tests of these packages without the race detector.
func TestSequentialPackagesStartNoGoroutine(t *testing.T) {
	makefile := testkit.Value(os.ReadFile("../../Makefile")).Must(t)
	list := regexp.MustCompile(`(?m)^SEQUENTIAL +:= (.+)$`).FindSubmatch(makefile)
	testkit.Require(t, list != nil, "the Makefile has no list SEQUENTIAL")
	concurrent := regexp.MustCompile(`(?m)^\s*go [\w(]|\.Go\(|\.Parallel\(\)`)
	for _, folder := range strings.Fields(string(list[1])) {
		files := testkit.Value(filepath.Glob(filepath.Join("../..", folder, "*.go"))).Must(t)
		testkit.Check(t, len(files) > 0, "%s has no files", folder)
		for _, file := range files {
			found := concurrent.Find(testkit.Value(os.ReadFile(file)).Must(t))
			testkit.Check(t, found == nil, "%s has %q: remove %s from SEQUENTIAL in the Makefile", file, found, folder)
		}
	}
}
