package history

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestReadsAllLedgerVersions(t *testing.T) {
	read := func(text string) (ledgerState, error) {
		return readLedger(&unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"ledger": text}}})
	}
	var pages []ledgerState
	for _, name := range []string{"page-v0.json", "page-v1.json"} {
		text, err := os.ReadFile("../ledger/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := read(string(text))
		if err != nil || len(p.Grants) != 7 || p.Grants[1].Rule != "ConditionSet/disk-broken" {
			t.Fatalf("%s: %+v, %v", name, p, err)
		}
		pages = append(pages, p)
	}
	if diff := cmp.Diff(pages[0], pages[1]); diff != "" {
		t.Errorf("the versions differ (-before versions +1):\n%s", diff)
	}
	if _, err := read(`{"rules":["a"],"grants":[{"rule":[1]}]}`); err == nil {
		t.Error("readLedger accepts a rule that the ledger does not name")
	}
}
