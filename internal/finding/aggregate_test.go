package finding_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func at(second int) time.Time { return time.Unix(int64(second), 0) }

func TestAdd(t *testing.T) {
	var a finding.Aggregate
	for _, step := range []struct {
		name, from string
		condition  finding.Condition
		gone       string
		want       finding.Report
	}{
		{"the first report counts", "a", finding.Condition{Type: "X", Status: catalog.False, Reason: "Fine", Since: at(1)}, "",
			finding.Report{Conditions: []finding.Condition{{Type: "X", Status: catalog.False, Reason: "Fine", Since: at(1)}}}},
		{"a second source with the same status changes nothing", "b", finding.Condition{Type: "X", Status: catalog.False, Reason: "AlsoFine", Since: at(2)}, "", finding.Report{}},
		{"true if one source reports it", "b", finding.Condition{Type: "X", Status: catalog.True, Reason: "Unhealthy", Since: at(3)}, "",
			finding.Report{Conditions: []finding.Condition{{Type: "X", Status: catalog.True, Reason: "Unhealthy", Since: at(3)}}}},
		{"the reason of the source that reports it longest stays", "a", finding.Condition{Type: "X", Status: catalog.True, Reason: "UnhealthyToo", Since: at(4)}, "", finding.Report{}},
		{"the reason of the other source when the first one recovers", "b", finding.Condition{Type: "X", Status: catalog.False, Reason: "Well", Since: at(5)}, "",
			finding.Report{Conditions: []finding.Condition{{Type: "X", Status: catalog.True, Reason: "UnhealthyToo", Since: at(4)}}}},
		{"unknown if a source cannot check it", "a", finding.Condition{Type: "X", Status: catalog.Unknown, Reason: "Blind", Since: at(6)}, "",
			finding.Report{Conditions: []finding.Condition{{Type: "X", Status: catalog.Unknown, Reason: "Blind", Since: at(6)}}}},
		{"the status of the other source when a source stops reporting it", "a", finding.Condition{}, "X",
			finding.Report{Conditions: []finding.Condition{{Type: "X", Status: catalog.False, Reason: "Well", Since: at(5)}}}},
		{"gone when no source reports it", "b", finding.Condition{}, "X", finding.Report{Gone: []string{"X"}}},
		{"removed only once", "b", finding.Condition{}, "X", finding.Report{}},
	} {
		var r finding.Report
		if step.gone != "" {
			r.Gone = []string{step.gone}
		} else {
			r.Conditions = []finding.Condition{step.condition}
		}
		testkit.Equal(t, step.name, step.want, a.Add(step.from, r))
	}
	if left := a.Conditions(); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// A consumer that only follows the changes knows the same conditions.
func TestTheChangesAddUpToTheConditions(t *testing.T) {
	changesToTrue := 0
	rapid.Check(t, func(t *rapid.T) {
		var a finding.Aggregate
		followed := map[string]finding.Condition{}
		for i := range rapid.IntRange(1, 30).Draw(t, "steps") {
			from := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "from")
			kind := rapid.SampledFrom([]string{"X", "Y"}).Draw(t, "type")
			r := finding.Report{Events: []finding.Event{{ID: strconv.Itoa(i)}}}
			if rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
				r.Gone = []string{kind}
			} else {
				r.Conditions = []finding.Condition{{
					Type: kind, Status: rapid.SampledFrom([]catalog.Status{catalog.True, catalog.False, catalog.Unknown}).Draw(t, "status"),
					Reason: from, Since: at(rapid.IntRange(0, 5).Draw(t, "since")),
				}}
			}
			out := a.Add(from, r)
			testkit.Require(t, len(out.Events) == 1, "%d events came out of one", len(out.Events))
			for _, kind := range out.Gone {
				if _, was := followed[kind]; !was {
					t.Fatalf("%s is gone that was not there", kind)
				}
				delete(followed, kind)
			}
			for _, condition := range out.Conditions {
				testkit.Require(t, followed[condition.Type] != condition, "a change of %s is told that is none", condition.Type)
				followed[condition.Type] = condition
				if condition.Status == catalog.True {
					changesToTrue++
				}
			}
			var want []finding.Condition
			for _, condition := range followed {
				want = append(want, condition)
			}
			slices.SortFunc(want, func(a, b finding.Condition) int {
				if a.Type < b.Type {
					return -1
				}
				return 1
			})
			if got := a.Conditions(); !slices.Equal(want, got) {
				t.Fatalf("the aggregate says %v, its changes %v", got, want)
			}
		}
	})
	t.Logf("saw %d changes to true", changesToTrue)
	testkit.Check(t, changesToTrue != 0, "no condition was ever true: the test proves nothing")
}
