package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// lanes is how many clusters run pages at the same time.
const lanes = 2

// prepared has the commands that a reader has run before a page, or before a section of it. Such
// a section does not continue with the state of the section before: a reader does only one of them.
var prepared = map[string]string{
	"docs/how-to/install.md":                            uninstall,
	"docs/how-to/limit-repairs.md#with-helm":            ``,
	"docs/how-to/monitor.md#agents-with-the-podmonitor": ``,
	"docs/how-to/uninstall.md#with-kubectl":             uninstall + "\nkubectl apply -f deploy/install.yaml",
	"docs/how-to/uninstall.md#shared-objects":           ``,
	"docs/how-to/upgrade.md#with-kubectl":               ``,
	"docs/how-to/upgrade.md#roll-back":                  `helm upgrade autohealer deploy/chart --namespace autohealer-system --set 'enforce={Taint}'`,
	"docs/reference/cleanup.md":                         `kubectl -n autohealer-system scale deployment autohealer-controller --replicas=0`,
	"docs/troubleshooting-agents.md":                    lease,
	"docs/tutorial.md":                                  `kubectl create -f test/docs/testdata/tutorial.yaml`,
}

const uninstall = `helm uninstall autohealer --namespace autohealer-system
kubectl wait --for=delete --timeout=1m namespace/autohealer-agent`

const lease = `kubectl create -f - <<'YAML'
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: autohealer-agent-worker-1, namespace: autohealer-system}}
YAML`

// TestCommands runs the commands of all pages. A page continues with the state that its earlier
// blocks have left.
func TestCommands(t *testing.T) {
	t.Parallel()
	run, exempt := map[string][]block{}, 0
	var pages []string
	for _, page := range commandPages(t) {
		for _, block := range testkit.Value(blocks(page, read(t, page))).Must(t) {
			if block.exempt != "" {
				exempt++
				t.Logf("%s is not run: %s", block, block.exempt)
				continue
			}
			if !slices.Contains(pages, page) {
				pages = append(pages, page)
			}
			run[page] = append(run[page], block)
		}
	}
	t.Logf("%d blocks are exempt", exempt)
	for lane := range lanes {
		t.Run(fmt.Sprintf("cluster %d", lane+1), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.stores(t)
			for i, page := range pages {
				if i%lanes == lane && !f.broken {
					t.Run(strings.TrimSuffix(page, ".md"), func(t *testing.T) { f.runs(t, run[page]) })
				}
			}
		})
	}
}

// runs runs the blocks of a page.
func (f *fixture) runs(t *testing.T, blocks []block) {
	t.Helper()
	f.broken = true
	f.restores(t)
	f.broken = false
	f.mustRun(t, prepared[blocks[0].page])
	under := ""
	for _, block := range blocks {
		if script, is := prepared[block.page+"#"+block.under]; is && block.under != under {
			f.restores(t)
			f.mustRun(t, script)
		}
		under = block.under
		out, err := f.run(t.Context(), block.script)
		testkit.Check(t, err == nil, "%s fails: %v\n%s\n%s", block, err, block.script, out)
	}
}
