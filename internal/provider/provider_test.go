package provider_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func TestStatements(t *testing.T) {
	const half = "30m0s"
	anywhere := []statement{{Type: "Ready", Status: "False", Toleration: half}, {Type: "Ready", Status: "Unknown", Toleration: half}, {Type: "NetworkUnavailable", Status: "True", Toleration: half}}
	aws := []statement{
		{Type: "AcceleratedHardwareReady", Status: "False", Toleration: half}, {Type: "StorageReady", Status: "False", Toleration: half},
		{Type: "NetworkingReady", Status: "False", Toleration: half}, {Type: "KernelReady", Status: "False", Toleration: half},
		{Type: "ContainerRuntimeReady", Status: "False", Toleration: half},
	}
	with := func(file string, providers ...provider.Provider) []provider.Provider {
		var all []provider.Provider
		for _, p := range providers {
			all = append(all, parse(t, file).Add(p))
		}
		return all
	}
	tests := []struct {
		name      string
		providers []provider.Provider
		want      []statement
	}{
		{"no provider", nil, []statement{}},
		{"plain nodes", []provider.Provider{provider.Static()}, anywhere},
		{"Karpenter", []provider.Provider{provider.Karpenter()}, append(anywhere[:3:3], aws...)},
		{"both, each statement once", []provider.Provider{provider.Static(), provider.Karpenter()}, append(anywhere[:3:3], aws...)},
		{"a user's statement with the toleration that the provider recommends",
			with("statements: [{type: XidError, status: true}]", provider.Static()),
			append(anywhere[:3:3], statement{Type: "XidError", Status: "True", Toleration: half})},
		{"a user's statement for another provider",
			with("statements: [{type: XidError, status: true, provider: karpenter}]", provider.Static()), anywhere},
		{"a user's statement for this provider, with a toleration",
			with("statements: [{type: XidError, status: unknown, provider: static, toleration: 5m}]", provider.Static()),
			append(anywhere[:3:3], statement{Type: "XidError", Status: "Unknown", Toleration: "5m0s"})},
		{"another toleration for what is stated already",
			with("statements: [{type: NetworkUnavailable, status: 'True', toleration: 10m}]", provider.Static()),
			[]statement{anywhere[0], anywhere[1], {Type: "NetworkUnavailable", Status: "True", Toleration: "10m0s"}}},
		{"another default, and an exception from it",
			with("defaultToleration: 0s\nstatements: [{type: Ready, status: Unknown, toleration: 1h}]", provider.Static()),
			[]statement{{Type: "Ready", Status: "False", Toleration: "0s"}, {Type: "Ready", Status: "Unknown", Toleration: "1h0m0s"}, {Type: "NetworkUnavailable", Status: "True", Toleration: "0s"}}},
		{"of two tolerations the longer",
			with("statements: [{type: Ready, status: 'False', toleration: 10m, provider: static}, {type: Ready, status: 'Unknown', toleration: 2h, provider: static}]", provider.Static(), provider.Karpenter()),
			append([]statement{{Type: "Ready", Status: "False", Toleration: half}, {Type: "Ready", Status: "Unknown", Toleration: "2h0m0s"}, anywhere[2]}, aws...)},
		{"two files, one after the other",
			[]provider.Provider{parse(t, "statements: [{type: B, status: 'True'}]").Add(parse(t, "statements: [{type: A, status: 'True', toleration: 1m}]").Add(provider.Static()))},
			append(anywhere[:3:3], statement{Type: "A", Status: "True", Toleration: "1m0s"}, statement{Type: "B", Status: "True", Toleration: half})},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := provider.Statements(test.providers...)
			testkit.Equal(t, "statements", test.want, got)
			if len(got) > 0 {
				if _, err := (dialect.Repair{Name: "default", Statements: got}).Rule(); err != nil {
					t.Errorf("the statements do not compile: %v", err)
				}
			}
		})
	}
}

func TestProvidersKeepTheirStatementsToThemselves(t *testing.T) {
	for _, p := range []provider.Provider{provider.Static(), provider.Karpenter(), parse(t, "defaultToleration: 5m").Add(provider.Static())} {
		first := p.RepairPolicy()[0]
		p.RepairPolicy()[0].Type = "Spoiled"
		if p.RepairPolicy()[0] != first {
			t.Errorf("%s: a caller can change the provider's statements", p.Name())
		}
	}
	if d := parse(t, "defaultToleration: 5m").Add(provider.Karpenter()); d.DefaultToleration() != 5*time.Minute || d.Name() != "karpenter" {
		t.Errorf("%s recommends %s", d.Name(), d.DefaultToleration())
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
		{"a provider that is none", "statements:\n- {type: A, status: 'True', provider: aws}\n", `line 2: statements[0].provider: "aws": want karpenter or static`},
		{"a statement twice", "statements:\n- {type: A, status: 'True'}\n- {type: A, status: true}\n", `line 3: statements[1]: "A=True": is stated twice`},
		{"a statement for all and for one", "statements:\n- {type: A, status: 'True', provider: static}\n- {type: A, status: true}\n", `line 3: statements[1]: "A=True": is stated twice`},
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

func TestReadFileNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "statements.yaml")
	if _, err := provider.ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
	testkit.Must(t, os.WriteFile(path, []byte("statements: 5"), 0o600))
	if _, err := provider.ReadFile(path); err == nil || !strings.HasPrefix(err.Error(), path+": line 1: statements") {
		t.Errorf("a file that is wrong: %v", err)
	}
	testkit.Must(t, os.WriteFile(path, []byte("defaultToleration: 7m"), 0o600))
	file, err := provider.ReadFile(path)
	testkit.Must(t, err)
	if d := file.Add(provider.Static()).DefaultToleration(); d != 7*time.Minute {
		t.Errorf("recommends %s", d)
	}
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
		statements := provider.Statements(file.Add(provider.Static()), file.Add(provider.Karpenter()))
		if _, err := (dialect.Repair{Name: "default", Statements: statements}).Rule(); err != nil {
			t.Errorf("%q is taken, and does not compile: %v", text, err)
		}
	})
}
