package provider_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/provider"
	"github.com/resourcestack/autohealer/internal/testkit"
)

type statement = dialect.RepairStatement

// parse reads a file that is right.
func parse(t *testing.T, text string) provider.File {
	t.Helper()
	file, err := provider.Parse([]byte(text))
	testkit.Must(t, err)
	return file
}

// aws is what every node has, and what Karpenter's provider for AWS recommends.
var aws = []statement{
	{Type: "Ready", Status: "False", Toleration: "30m0s"}, {Type: "Ready", Status: "Unknown", Toleration: "30m0s"}, {Type: "NetworkUnavailable", Status: "True", Toleration: "30m0s"},
	{Type: "AcceleratedHardwareReady", Status: "False", Toleration: "10m0s"}, {Type: "StorageReady", Status: "False", Toleration: "30m0s"},
	{Type: "NetworkingReady", Status: "False", Toleration: "30m0s"}, {Type: "KernelReady", Status: "False", Toleration: "30m0s"},
	{Type: "ContainerRuntimeReady", Status: "False", Toleration: "30m0s"},
}

// azure is what Karpenter's provider for Azure recommends, and the network.
var azure = []statement{
	{Type: "Ready", Status: "False", Toleration: "10m0s"}, {Type: "Ready", Status: "Unknown", Toleration: "10m0s"}, {Type: "NetworkUnavailable", Status: "True", Toleration: "30m0s"},
	{Type: "kubernetes.azure.com/NodeHealthy", Status: "False", Toleration: "0s"}, {Type: "PreemptionScheduled", Status: "True", Toleration: "0s"},
}

func TestStatementsOfTheProviders(t *testing.T) {
	got := provider.Statements(provider.File{})
	testkit.Equal(t, "without a pool", aws, got.Static)
	testkit.Equal(t, "AWS", aws, got.OfPool("karpenter.k8s.aws"))
	testkit.Equal(t, "Azure", azure, got.OfPool("karpenter.azure.com"))
	testkit.Equal(t, "another cloud", aws, got.OfPool("karpenter.kwok.sh"))
	testkit.Equal(t, "each once, with the longest toleration", append(aws[:8:8], azure[3:]...), got.All())
}

func TestStatementsOfAFile(t *testing.T) {
	xid := func(status, toleration string) statement {
		return statement{Type: "XidError", Status: status, Toleration: toleration}
	}
	with := func(more ...statement) []statement { return append(aws[:8:8], more...) }
	tolerating := func(how string, more ...statement) (list []statement) {
		for _, one := range aws {
			list = append(list, statement{Type: one.Type, Status: one.Status, Toleration: how})
		}
		return append(list, more...)
	}
	for name, test := range map[string]struct {
		file                    string
		static, aws, otherCloud []statement
	}{
		"a statement for all nodes, with the usual toleration": {"statements: [{type: XidError, status: true}]", with(xid("True", "30m0s")), with(xid("True", "30m0s")), with(xid("True", "30m0s"))},
		"a statement for every pool":                           {"statements: [{type: XidError, status: true, toleration: 5m, provider: karpenter}]", aws, with(xid("True", "5m0s")), with(xid("True", "5m0s"))},
		"a statement for one cloud":                            {"statements: [{type: XidError, status: unknown, provider: aws}]", aws, with(xid("Unknown", "30m0s")), aws},
		"a statement for nodes without a pool":                 {"statements: [{type: XidError, status: true, provider: static}]", with(xid("True", "30m0s")), aws, aws},
		"another default":                                      {"defaultToleration: 20m", tolerating("20m0s"), tolerating("20m0s"), tolerating("20m0s")},
		"another default for a statement of the file":          {"defaultToleration: 0s\nstatements: [{type: XidError, status: true}]", tolerating("0s", xid("True", "0s")), tolerating("0s", xid("True", "0s")), tolerating("0s", xid("True", "0s"))},
		"another toleration for what is stated already": {"statements: [{type: ContainerRuntimeReady, status: 'False', toleration: 1h, provider: static}]",
			append(aws[:7:7], statement{Type: "ContainerRuntimeReady", Status: "False", Toleration: "1h0m0s"}), aws, aws},
	} {
		t.Run(name, func(t *testing.T) {
			got := provider.Statements(parse(t, test.file))
			testkit.Equal(t, "static", test.static, got.Static)
			testkit.Equal(t, "aws", test.aws, got.OfPool("karpenter.k8s.aws"))
			testkit.Equal(t, "another cloud", test.otherCloud, got.Pools)
		})
	}
}

func TestParseNamesTheLineThatIsWrong(t *testing.T) {
	tests := []struct {
		name string
		text string
		says string
	}{
		{"nothing", "", "states nothing"},
		{"a remark", "# later\n", "states nothing"},
		{"an empty list", "statements: []\n", "states nothing"},
		{"an empty field", "statements:\n", "states nothing"},
		{"no YAML", "statements: [", "is not YAML: line 1"},
		{"two documents", "defaultToleration: 5m\n---\ndefaultToleration: 6m\n", "more than one document"},
		{"a broken second document", "defaultToleration: 5m\n---\n[", "more than one document"},
		{"a list", "- type: A\n", "line 1: want fields: defaultToleration or statements"},
		{"a word", "statements\n", "line 1: want fields"},
		{"an unknown field", "defaultToleration: 5m\nstatments: []\n", `line 2: statments: "": there is no such field: want defaultToleration or statements`},
		{"an unknown field of a statement", "statements:\n- type: A\n  status: 'True'\n  reason: x\n", `line 4: statements[0].reason: "": there is no such field: want provider, status, toleration or type`},
		{"a field twice", "defaultToleration: 5m\ndefaultToleration: 6m\n", `line 2: defaultToleration: "": is written twice`},
		{"statements that are no list", "statements:\n  type: A\n", `line 2: statements: "": want a list`},
		{"a statement that is a word", "statements:\n- XidError\n", `line 2: statements[0]: "": want fields`},
		{"no type", "statements:\n- status: 'True'\n", `line 2: statements[0].type: "": want a condition type`},
		{"a type and its status", "statements:\n- {type: A=True, status: 'True'}\n", `line 2: statements[0].type: "A=True": want a condition type alone`},
		{"a type without an end", "statements:\n- {type: " + strings.Repeat("x", 317) + ", status: 'True'}\n", "want a condition type alone"},
		{"a type of many", "statements:\n- {type: [A], status: 'True'}\n", `line 2: statements[0].type: "": want one word`},
		{"no status", "statements:\n- type: A\n", `line 2: statements[0].status: "": want the status in which the condition is unhealthy`},
		{"a status that is none", "statements:\n- {type: A, status: bad}\n", `line 2: statements[0].status: "bad": want True, False or Unknown`},
		{"a status that no condition has", "statements:\n- {type: A, status: Missing}\n", `"Missing": want True, False or Unknown`},
		{"a number of minutes", "statements:\n- {type: A, status: 'True', toleration: 5}\n", `line 2: statements[0].toleration: "5": want a duration`},
		{"a negative toleration", "statements:\n- type: B\n  status: 'True'\n- type: A\n  status: 'True'\n  toleration: -5m\n", `line 6: statements[1].toleration: "-5m": a duration cannot be negative`},
		{"a default in words", "defaultToleration: long\n", `line 1: defaultToleration: "long": want a duration`},
		{"a provider that is none", "statements:\n- {type: A, status: 'True', provider: gcp}\n", `line 2: statements[0].provider: "gcp": want aws, azure, karpenter for all NodePools, or static`},
		{"a statement twice", "statements:\n- {type: A, status: 'True'}\n- {type: A, status: true}\n", `line 3: statements[1]: "A=True": is stated twice`},
		{"a statement for all and for one", "statements:\n- {type: A, status: 'True', provider: static}\n- {type: A, status: true}\n", `line 3: statements[1]: "A=True": is stated twice`},
		{"a statement for every pool and for one cloud", "statements:\n- {type: A, status: 'True', provider: karpenter}\n- {type: A, status: true, provider: azure}\n", `line 3: statements[1]: "A=True": is stated twice`},
		{"a statement for one and for all", "statements:\n- {type: A, status: 'True'}\n- {type: A, status: true, provider: static}\n", `line 3: statements[1]: "A=True": is stated twice`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := provider.Parse([]byte(test.text))
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.says), "says %v, want %q", err, test.says)
		})
	}
	t.Run("but not of a statement for one and for the other", func(t *testing.T) {
		parse(t, "statements:\n- {type: A, status: 'True', provider: static}\n- {type: A, status: true, provider: karpenter}\n")
	})
	t.Run("nor of a value that is used again through a YAML anchor", func(t *testing.T) {
		parse(t, "statements:\n- {type: A, status: 'True', toleration: &t 5m}\n- {type: B, status: true, toleration: *t}\n")
	})
}

func TestNewSourceNamesTheFile(t *testing.T) {
	read := func(path string) (*provider.Source, error) {
		return provider.NewSource(path, slog.New(slog.DiscardHandler))
	}
	path := filepath.Join(t.TempDir(), "statements.yaml")
	if _, err := read(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
	testkit.Must(t, os.WriteFile(path, []byte("statements: 5"), 0o600))
	if _, err := read(path); err == nil || !strings.HasPrefix(err.Error(), path+": line 1: statements") {
		t.Errorf("a file that is wrong: %v", err)
	}
	testkit.Must(t, os.WriteFile(path, []byte("defaultToleration: 7m"), 0o600))
	statements, _ := testkit.Value(read(path)).Must(t).Latest()
	testkit.Same(t, statements.Static[0].Toleration, "7m0s", "the toleration")
}

// Whatever is in a file is refused, or compiles with what the providers state.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"statements: [{type: A, status: 'True', toleration: 5m, provider: static}]", "defaultToleration: 1h", "&a {statements: *a}",
		"statements: &a [*a]", "? [a]\n: b", "<<: {}", "statements: [null, {}]", "!!binary x", "--- \n...\n", "statements: [{type: &t A, status: *t}]", "[[[[",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := provider.Parse(text)
		if err != nil {
			testkit.Check(t, !strings.Contains(err.Error(), "\n") || strings.Contains(string(text), "\n"), "the error has several lines: %q", err)
			return
		}
		if _, err := (dialect.Repair{Name: "default", Statements: provider.Statements(file).All()}).Rule(); err != nil {
			t.Errorf("%q is taken, and does not compile: %v", text, err)
		}
	})
}
