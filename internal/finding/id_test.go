package finding_test

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/finding"
)

func TestIDDistinguishesParts(t *testing.T) {
	if finding.ID("ab", "c") == finding.ID("a", "bc") || finding.ID("a") == finding.ID("a", "") {
		t.Error("other parts give the same hash")
	}
}
