package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// clusters is how many clusters run pages at the same time.
const clusters = 2

// preparation is what a reader has done before a page, or before a section of it. Without one, a
// page starts with the baseline, and a section continues with the state of the section before.
type preparation struct {
	continues bool // with the state of the section before, and not with the baseline
	script    string
}

// prepared has pages and their sections.
var prepared = map[string]preparation{
	"docs/how-to/install.md": {script: `
helm uninstall autohealer --namespace autohealer-system
kubectl wait --for=delete --timeout=1m namespace/autohealer-agent`},
	"docs/how-to/limit-repairs.md#with-helm":            {},
	"docs/how-to/monitor.md#agents-with-the-podmonitor": {},
	"docs/how-to/uninstall.md#with-kubectl": {continues: true, script: `
kubectl wait --for=delete --timeout=1m namespace/autohealer-agent
kubectl apply -f deploy/install.yaml`},
	"docs/how-to/uninstall.md#remove-only-the-agents": {continues: true, script: `kubectl apply -f deploy/install.yaml`},
	"docs/how-to/upgrade.md#with-kubectl":             {},
	"docs/how-to/upgrade.md#roll-back":                {script: `helm upgrade autohealer deploy/chart --namespace autohealer-system --set 'enforce={Taint}'`},
	"docs/reference/cleanup.md":                       {script: `kubectl -n autohealer-system scale deployment autohealer-controller --replicas=0`},
	"docs/troubleshooting-agents.md": {script: `
kubectl create -f - <<'YAML'
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: autohealer-agent-worker-1, namespace: autohealer-system}}
YAML`},
	"docs/tutorial.md": {script: `kubectl create -f test/docs/testdata/tutorial.yaml`},
}

// TestCommands runs the commands of all pages. A page continues with the state that its earlier
// blocks have left.
func TestCommands(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	var pages [][]block
	blocked := 0
	for _, page := range commandPages(t) {
		known[page] = true
		var run []block
		for _, block := range testkit.Value(blocks(page, read(t, page))).Must(t) {
			known[page+"#"+block.under] = true
			if block.exempt != "" {
				blocked++
				t.Logf("%s is not run: %s", block, block.exempt)
				continue
			}
			run = append(run, block)
		}
		if run != nil {
			pages = append(pages, run)
		}
	}
	t.Logf("the blocks of %d pages run; %d blocks are exempt", len(pages), blocked)
	for page := range prepared {
		testkit.Check(t, known[page], "prepared has %s, which is not a page or a section with commands", page)
	}
	for i, pages := range divide(pages) {
		t.Run(fmt.Sprintf("cluster %d", i+1), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.stores(t)
			for _, blocks := range pages {
				if !f.broken {
					t.Run(strings.TrimSuffix(blocks[0].page, ".md"), func(t *testing.T) { f.runs(t, blocks) })
				}
			}
		})
	}
}

// divide divides the pages between the clusters, so that all take about the same time.
func divide(pages [][]block) (shares [clusters][][]block) {
	cost := func(blocks []block) (sum int) {
		for _, block := range blocks {
			sum += 1 + 10*strings.Count(block.script, "helm ") + 15*strings.Count(block.script, "install.yaml")
			if _, is := prepared[block.page+"#"+block.under]; is {
				sum += 15
			}
		}
		return sum
	}
	var load [clusters]int
	for _, page := range slices.SortedStableFunc(slices.Values(pages), func(a, b []block) int { return cost(b) - cost(a) }) {
		least := slices.Index(load[:], slices.Min(load[:]))
		load[least] += cost(page)
		shares[least] = append(shares[least], page)
	}
	return shares
}

// runs runs the blocks of a page.
func (f *fixture) runs(t *testing.T, blocks []block) {
	t.Helper()
	f.prepares(t, prepared[blocks[0].page])
	under := blocks[0].under
	for _, block := range blocks {
		if before, is := prepared[block.page+"#"+block.under]; is && block.under != under {
			f.prepares(t, before)
		}
		under = block.under
		out, err := f.run(t.Context(), block.script)
		testkit.Check(t, err == nil, "%s fails: %v\n%s\n%s", block, err, block.script, out)
	}
}

// prepares does what a reader has done before.
func (f *fixture) prepares(t *testing.T, before preparation) {
	t.Helper()
	if !before.continues {
		f.broken = true
		f.restores(t)
		f.broken = false
	}
	f.mustRun(t, before.script)
}
