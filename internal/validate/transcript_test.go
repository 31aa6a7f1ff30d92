package validate_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// TestTranscripts runs the transcripts in testdata, which contain every rejection and warning.
// With -rewrite it updates them.
func TestTranscripts(t *testing.T) {
	transcripts(t, "testdata/words", func(seen map[validate.Reason]bool) command { return (&fixture{seen: seen}).run },
		validate.Invalid, validate.HealthyStatus, validate.NearMiss, validate.Duplicate, validate.ReservedTaintKey, validate.Impact)
}

type command = func(*testing.T, *datadriven.TestData) string

// transcripts runs the transcripts of a folder, each with its own fixture. Together they show
// a refusal for each of the reasons.
func transcripts(t *testing.T, folder string, begin func(seen map[validate.Reason]bool) command, reasons ...validate.Reason) {
	t.Helper()
	seen := map[validate.Reason]bool{}
	datadriven.Walk(t, folder, func(t *testing.T, path string) {
		t.Helper()
		datadriven.RunTest(t, path, begin(seen))
	})
	for _, reason := range reasons {
		testkit.Check(t, seen[reason], "no transcript shows a refusal for %s", reason)
	}
}

// parse reads the object of a command.
func parse[T any](t *testing.T, command *datadriven.TestData) *T {
	t.Helper()
	object := new(T)
	if err := yaml.Unmarshal([]byte(command.Input), object); err != nil {
		command.Fatalf(t, "%v", err)
	}
	return object
}

// documents reads all objects of a file.
func documents[T any](t *testing.T, path string) (objects []*T) {
	t.Helper()
	for documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text(t, path)), 4096); ; {
		object := new(T)
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

// fixture validates the sets of a transcript.
type fixture struct {
	cluster cluster
	blind   bool // the nodes are unknown
	before  *v1alpha1.ConditionSet
	placed  func(triage.Rule) (tainted, emptied int)
	others  []*v1alpha1.ConditionSet
	seen    map[validate.Reason]bool
}

// run knows these commands:
//
//	nodes worker count=3    adds nodes; the body has their labels and conditions
//	blind                   makes the nodes unknown
//	other                   adds another set
//	in-force                sets the version in force
//	placed 7 emptied=5      sets how many matching nodes have the set's taint
//	judge, standing, ask    validates a set; ask is a dry run of the API server
//	clear                   removes all nodes and sets
func (d *fixture) run(t *testing.T, command *datadriven.TestData) string {
	t.Helper()
	switch command.Cmd {
	case "clear":
		*d = fixture{seen: d.seen}
	case "nodes":
		count := 1
		if command.HasArg("count") {
			command.ScanArgs(t, "count", &count)
		}
		if d.cluster == nil {
			d.cluster = cluster{}
		}
		if err := d.cluster.add(command.CmdArgs[0].Key, count, strings.Fields(command.Input)); err != nil {
			command.Fatalf(t, "%v", err)
		}
	case "blind":
		d.blind = true
	case "other":
		d.others = append(d.others, read(t, command))
	case "in-force":
		d.before = read(t, command)
		d.placed = nil
	case "placed":
		tainted, err := strconv.Atoi(command.CmdArgs[0].Key)
		if err != nil {
			command.Fatalf(t, "%v", err)
		}
		var emptied int
		command.ScanArgs(t, "emptied", &emptied)
		d.before, d.placed = nil, func(triage.Rule) (int, int) { return tainted, emptied }
	case "ask":
		c := d.caseOf(read(t, command))
		c.PreviewOnly = true
		return d.print(validate.ConditionSet(c))
	case "judge":
		return d.print(validate.ConditionSet(d.caseOf(read(t, command))))
	case "standing":
		return d.print(validate.StoredConditionSet(d.caseOf(read(t, command))))
	default:
		command.Fatalf(t, "no such command")
	}
	return ""
}

func (d *fixture) caseOf(set *v1alpha1.ConditionSet) validate.Case {
	c := validate.Case{Set: set, Before: d.before, Others: d.others, Placed: d.placed}
	if !d.blind {
		c.Reported, c.Impact = d.cluster.reported(), d.cluster.impact
	}
	return c
}

func (d *fixture) print(v validate.Verdict) string {
	var b strings.Builder
	for _, p := range v.Problems {
		d.seen[p.Reason] = true
		fmt.Fprintf(&b, "refused, %s\n  %s\n", p.Reason, p)
	}
	if v.Err() == nil {
		b.WriteString("accepted\n")
	}
	for _, w := range v.Warnings {
		fmt.Fprintf(&b, "warning\n  %s\n", w)
	}
	return b.String()
}

// read reads a set in short form.
func read(t *testing.T, command *datadriven.TestData) *v1alpha1.ConditionSet {
	t.Helper()
	set := parse[v1alpha1.ConditionSet](t, command)
	if set.Name == "" {
		set.Name = "mine"
	}
	if set.Spec.Unreadable != "" {
		return set
	}
	if set.Spec.Type == "" {
		set.Spec.Type = "Mine"
	}
	if set.Spec.Effect == "" {
		set.Spec.Effect = "NoExecute"
	}
	if set.Spec.TaintKey == "" {
		set.Spec.TaintKey = "example.com/mine"
	}
	return set
}

// The user documentation quotes messages. Every quoted message must exist.
func TestDocumentationQuotesExistingMessages(t *testing.T) {
	for _, test := range []struct {
		page        string
		sources     []string
		transcripts string
		atLeast     int // quotations
	}{
		{"reference/condition-set-validation.md", []string{"../../api/autohealer/v1alpha1/conditionset.go", "../dialect/conditionset.go"}, "testdata/words/*.txt", 8},
		{"reference/node-health-check-validation.md", nil, "testdata/health/*.txt", 8},
		{"reference/repair-policy-validation.md", []string{"../../deploy/repairpolicy_test.go"}, "testdata/repair/*.txt", 10},
		{"reference/guardrails.md", []string{"../../deploy/guardrails_test.go"}, "", 5},
	} {
		t.Run(test.page, func(t *testing.T) {
			_, section, ok := strings.Cut(text(t, "../../docs/"+test.page), "\n## What is refused\n")
			testkit.Require(t, ok, "the page has no such section")
			section, _, _ = strings.Cut(section, "\n## ")
			transcripts := testkit.Value(filepath.Glob(test.transcripts)).Must(t)
			var printed strings.Builder
			for _, path := range append(test.sources, transcripts...) {
				printed.WriteString(text(t, path))
			}
			quoted := 0
			for i, part := range strings.Split(section, "```") {
				quotation, isText := strings.CutPrefix(part, "text\n")
				if i%2 == 0 || !isText {
					continue // prose, YAML and commands
				}
				for line := range strings.Lines(strings.TrimSpace(quotation)) {
					quoted++
					if !strings.Contains(printed.String(), strings.TrimSpace(line)) {
						t.Errorf("the page quotes a message that does not exist: %s", line)
					}
				}
			}
			testkit.Check(t, quoted >= test.atLeast, "%d lines are quoted: this test looks at nothing", quoted)
		})
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	return string(testkit.Value(os.ReadFile(path)).Must(t))
}
