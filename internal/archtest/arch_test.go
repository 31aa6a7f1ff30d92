package archtest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

const module = "github.com/resourcestack/autohealer"

// pkg is what `go list` says of a package of ours.
type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	Deps       []string
	Standard   bool
}

// room is the package's path within the module.
func (p pkg) room() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// law forbids a room to know some others.
type law struct {
	room   string // path or, with a trailing slash, everything below
	forbid func(dep string) bool
	why    string
}

// laws are the arrows that docs/architecture.md does not draw.
var laws = []law{
	{"internal/triage", outside("internal/triage"),
		"triage decides and does nothing else: with the standard library alone it has no clock of a cluster, no network and no logger to be led astray by"},
	{"internal/naive", outside("internal/naive"),
		"the naive twin says what a rule means, so it shares no code with the core that it is compared with"},
	{"internal/dialect", outside("internal/triage", "internal/taintkey", "internal/dialect"),
		"a dialect is a compiler from a user's words to a rule: nothing but the rule may come of it"},
	{"problem", outside("problem"),
		"third-party daemons import problem: it must not bring them our dependencies"},
	{"examples/", outside("examples", "problem"),
		"an example shows what somebody else can do, with what he is given"},
	{"catalog", outside("catalog"),
		"the agent carries the catalogue onto every node, and whoever reports to it may: knowledge brings no dependencies"},
	{"internal/probe/", anyOf("internal/intake", "internal/report"), "probe, intake and report meet only in the agent's main"},
	{"internal/probe/", anyOf("internal/kubeapi", "k8s.io/client-go", "k8s.io/api", "sigs.k8s.io"),
		"who looks at a node needs no cluster to do so: of Kubernetes a file knows label selectors, and nothing else"},
	{"internal/finding", outside("internal/finding", "catalog"), "detectors and reporters share these types and nothing else: combining their findings needs no look at the node and no way to the cluster"},
	{"internal/kubeapi", anyOf("internal/probe", "k8s.io", "sigs.k8s.io"), "the agent's client is small because it is its own"},
	{"internal/intake", anyOf("internal/probe", "internal/report"), "probe, intake and report meet only in the agent's main"},
	{"internal/intake", outside("internal/intake", "internal/finding", "internal/format", "internal/spelling", "catalog", "problem", "golang.org/x/sys"),
		"whoever anybody on the node may talk to has little to give away, and no way to the cluster"},
	{"internal/report", anyOf("internal/probe", "internal/intake"), "probe, intake and report meet only in the agent's main"},
	{"internal/report", outside("internal/report", "internal/kubeapi", "internal/finding", "internal/text", "internal/times", "catalog", "go.yaml.in/yaml"),
		"the agent stays small: its reporter uses neither client-go nor detectors"},
	{"cmd/autohealer-agent", anyOf("sigs.k8s.io/controller-runtime", "k8s.io/client-go", "k8s.io/api"),
		"the agent runs on every node and stays small"},
	{"cmd/autohealer-agent", anyOf("github.com/prometheus/client_golang", "github.com/prometheus/client_model", "github.com/prometheus/common"),
		"the agent writes its metrics itself: the client library would make it larger by a third, while procfs, which reads them, adds a few hundredths"},
	{"internal/observe", anyOf("internal/treat", "internal/remedy", "k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/client"),
		"who turns objects into facts has no client, so that it cannot write"},
	{"internal/karpenter", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"an object with only the fields that we know must never be written back: who reads them has no client, and no opinion"},
	{"internal/budget", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"a budget is counted as Karpenter counts it, whoever asks and whatever for"},
	{"internal/provider", anyOf("internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"who states what is unhealthy looks at no node, and treats none"},
	{"internal/validate", anyOf("internal/treat", "internal/remedy", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"the webhook and the controller must get the same verdict: who gives it looks at its case and at nothing else"},
	{"internal/treat", anyOf("internal/observe", "internal/remedy"), "who writes to the cluster does not decide what; internal/engine joins them"},
	{"internal/remedy", anyOf("internal/observe", "internal/treat"), "a remediator answers to its remediation object alone"},
	{"api/", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"whoever imports our types gets the types and what they are made of"},
	{"internal/configmaps", anyOf("internal/triage", "internal/observe", "internal/validate", "internal/treat", "internal/engine"),
		"who reads what people have written has no opinion of it"},
	{"internal/ownership", anyOf("internal/observe", "internal/treat", "k8s.io/client-go"),
		"the note on a node is read by one room and written by another, and knows neither"},
	{"internal/remediation", anyOf("internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"the contract with remediators is read by one room and written by another, and knows neither"},
	{"internal/nodelease", anyOf("internal/observe", "internal/treat", "internal/engine", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
		"who says whose a Lease is has no way to take it"},
	{"internal/nodewatch", anyOf("internal/observe", "internal/treat", "internal/engine", "sigs.k8s.io/controller-runtime"),
		"who reads nodes off the wire has no opinion of them"},
	{"internal/protowatch", anyOf("internal/observe", "internal/treat", "internal/engine", "internal/nodewatch", "internal/agentlease", "sigs.k8s.io/controller-runtime"),
		"who reads events off the wire knows no kind of them"},
	{"internal/agentlease", anyOf("internal/observe", "internal/ledger", "internal/engine"),
		"who listens to agents draws no conclusions: what it writes, the controller sees as it sees what agents write"},
	{"internal/repairblock", anyOf("internal/observe", "internal/dialect", "internal/ledger", "internal/validate", "internal/engine"),
		"who keeps repair blocks is told which can be followed, and concludes nothing from what stands in them"},
	{"internal/nodefacts", anyOf("internal/treat", "internal/ledger", "internal/engine"),
		"package nodefacts only counts nodes, on every replica; it writes nothing"},
	{"internal/watch", anyOf("internal/triage", "internal/observe", "internal/validate", "internal/treat", "internal/ledger", "internal/engine"),
		"package watch delivers objects and does not know what they mean"},
	{"internal/history", anyOf("internal/triage", "internal/dialect", "internal/observe", "internal/treat", "internal/engine", "internal/ownership", "internal/ledger", "internal/remediation", "internal/nodelease", "internal/karpenter", "internal/budget", "internal/provider", "internal/repairblock"),
		"who checks what was done must not share the code that decided it"},
	{"internal/status", anyOf("internal/observe", "internal/dialect", "internal/validate", "internal/ledger", "internal/engine", "internal/policy"),
		"the one writer of statuses serves every kind of policy, so it knows none"},
	{"internal/admission", anyOf("internal/treat", "internal/remedy", "internal/engine", "internal/ledger"),
		"who says whether a policy may be stored stores nothing, and is asked on replicas that do not lead"},
	{"internal/certificate", anyOf("internal/triage", "internal/observe", "internal/treat", "internal/engine", "internal/admission", "internal/validate"),
		"who keeps keys knows nothing of what they are for"},
	{"internal/engine", anyOf("internal/policy", "internal/treatment", "internal/controller", "internal/admission"),
		"the engine carries out plans for every kind of policy, so it knows none: a new kind is a folder of its own and a line in internal/controller"},
	{"internal/policy/", anyOf("internal/treatment", "internal/controller", "internal/admission"),
		"a policy compiles what users write to rules; internal/controller lists the policies"},
	{"internal/cli", anyOf("internal/treat", "internal/remedy"), "the command line shows what triage says and never writes around the API"},
	{"internal/web", anyOf("internal/treat", "internal/remedy"), "the page shows what triage says and never writes around the API"},
}

// notProduct are rooms that nothing a user runs may depend on, beside the demo.
var notProduct = []string{"internal/testbed", "internal/testkit", "internal/install", "internal/archtest", "internal/history", "internal/naive", "internal/probe/unit/unittest"}

// outside forbids everything but the standard library and the named rooms.
func outside(rooms ...string) func(string) bool {
	return func(dep string) bool {
		first, _, _ := strings.Cut(dep, "/")
		return strings.Contains(first, ".") && !anyOf(rooms...)(dep)
	}
}

// anyOf forbids the named rooms or modules and what is below them.
func anyOf(paths ...string) func(string) bool {
	return func(dep string) bool {
		dep = strings.TrimPrefix(dep, module+"/")
		return slices.ContainsFunc(paths, func(path string) bool { return dep == path || strings.HasPrefix(dep, path+"/") })
	}
}

func (l law) governs(p pkg) bool {
	below, whole := strings.CutSuffix(l.room, "/")
	return p.room() == below || whole && strings.HasPrefix(p.room(), l.room)
}

// breaches returns the dependencies that break the law.
func (l law) breaches(p pkg) []string {
	var broken []string
	for _, dep := range p.Deps {
		if l.forbid(dep) {
			broken = append(broken, dep)
		}
	}
	return broken
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Doc,Imports,Deps,Standard", module+"/...")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages: %v\n%s", err, complaints.String())
	}
	var list []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		list = append(list, p)
	}
	if len(list) < 4 {
		t.Fatalf("found %d packages: this test looks at nothing", len(list))
	}
	return list
}

func TestNoRoomImportsWhatItMustNotKnow(t *testing.T) {
	list := packages(t)
	judged := 0
	for _, p := range list {
		for _, l := range laws {
			if !l.governs(p) {
				continue
			}
			judged++
			for _, dep := range l.breaches(p) {
				t.Errorf("%s depends on %s: %s", p.room(), dep, l.why)
			}
		}
		if strings.HasPrefix(p.room(), "cmd/") && p.room() != "cmd/demo" {
			for _, dep := range p.Deps {
				if anyOf(notProduct...)(dep) {
					t.Errorf("%s depends on %s: what users run carries no test code", p.room(), dep)
				}
			}
		}
	}
	if judged == 0 {
		t.Error("no package was held against a law: this test looks at nothing")
	}
}

// The laws themselves are tried on made-up packages, so that one that cannot
// strike is noticed.
func TestEveryLawCanStrike(t *testing.T) {
	temptations := []string{
		"k8s.io/apimachinery/pkg/types", "k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/client",
		"github.com/prometheus/client_golang/prometheus",
		module + "/internal/probe/kmsg", module + "/internal/intake", module + "/internal/report",
		module + "/internal/observe", module + "/internal/treat", module + "/internal/remedy", module + "/internal/controller",
	}
	for _, l := range laws {
		p := pkg{ImportPath: module + "/" + strings.TrimSuffix(l.room, "/"), Deps: append([]string{"fmt", "time", "encoding/json"}, temptations...)}
		if !l.governs(p) {
			t.Errorf("the law on %s does not govern it", l.room)
		}
		if len(l.breaches(p)) == 0 {
			t.Errorf("the law on %s forbids nothing", l.room)
		}
		if slices.Contains(l.breaches(p), "fmt") {
			t.Errorf("the law on %s forbids the standard library", l.room)
		}
	}
}

// Whoever reaps the children of process 1 takes the exit codes of programs that others
// have started: in the agent only internal/probe/subprocess starts any, and it knows which.
func TestNobodyInTheAgentStartsProgramsButChild(t *testing.T) {
	list := packages(t)
	agent := slices.IndexFunc(list, func(p pkg) bool { return p.room() == "cmd/autohealer-agent" })
	if agent < 0 {
		t.Fatal("there is no agent")
	}
	judged := 0
	for _, p := range list {
		if p.room() != "cmd/autohealer-agent" && !slices.Contains(list[agent].Deps, p.ImportPath) {
			continue
		}
		judged++
		if slices.Contains(p.Imports, "os/exec") {
			t.Errorf("%s imports os/exec: the exit code of what it starts may be taken by internal/probe/subprocess; have that run it", p.room())
		}
	}
	if judged < 10 {
		t.Errorf("%d packages were looked at", judged)
	}
}

// The parser of schedules has no maintainer: what it does on bad input is caught in one
// place. The judge of recorded runs has it as well, and shares no code with that.
func TestSchedulesAreParsedBehindAFence(t *testing.T) {
	const parser = "github.com/robfig/cron/v3"
	fenced := 0
	for _, p := range packages(t) {
		switch {
		case !slices.Contains(p.Imports, parser):
		case p.room() == "internal/budget", p.room() == "internal/history":
			fenced++
		default:
			t.Errorf("%s imports %s: have internal/budget read the schedule (docs/design/2026-11-16-cron.md)", p.room(), parser)
		}
	}
	if fenced == 0 {
		t.Errorf("nobody imports %s: remove this test", parser)
	}
}

func TestEveryPackageSaysWhatItPromises(t *testing.T) {
	for _, p := range packages(t) {
		words := strings.Fields(p.Doc)
		if len(words) < 8 {
			t.Errorf("%s: its package doc is %q; say what the package promises, and one thing that it refuses to do", p.room(), p.Doc)
		}
	}
}
