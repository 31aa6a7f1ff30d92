package guardrails

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A scrape at any time finds the series of a rail that stays, and none of a domain that is gone.
func TestSetKeepsSeries(t *testing.T) {
	m := NewMetrics()
	pace := triage.RailCount{Rail: triage.Paced, Limit: 5, Used: 1, Held: 2}
	m.set(triage.RailUse{Rails: []triage.RailCount{pace, {Rail: triage.MaxInTopology, Domain: "zone=a", Limit: 3}}})
	kept := m.used.WithLabelValues("pace", "")
	pace.Used = 4
	m.set(triage.RailUse{Rails: []triage.RailCount{pace}})
	testkit.Same(t, testutil.ToFloat64(kept), 4, "the first series of the pace")
	testkit.Same(t, testutil.CollectAndCount(m), 3, "series")
}
