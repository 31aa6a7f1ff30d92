package history

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestReadsAllLedgerVersions(t *testing.T) {
	read := func(text string) (ledgerState, error) {
		return readLedger(&unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"ledger": text}}})
	}
	var pages []ledgerState
	for _, name := range []string{"page-v0.json", "page-v1.json"} {
		text := testkit.Value(os.ReadFile("../ledger/testdata/" + name)).Must(t)
		p, err := read(string(text))
		testkit.Require(t, err == nil && len(p.Grants) == 7 && p.Grants[1].Rule == "ConditionSet/disk-broken", "%s: %+v, %v", name, p, err)
		pages = append(pages, p)
	}
	testkit.Equal(t, "the versions differ", pages[0], pages[1])
	if _, err := read(`{"rules":["a"],"grants":[{"rule":[1]}]}`); err == nil {
		t.Error("readLedger accepts a rule that the ledger does not name")
	}
}
