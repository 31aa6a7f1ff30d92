package report

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// apply applies conditions as another manager, with force.
func (r *running) apply(manager string, rows ...map[string]string) {
	r.Helper()
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	testkit.Must(r, r.api.apply(manager, true, rows))
}

func TestOrphanedFindsOnlyConditionsWithoutWriter(t *testing.T) {
	r := newConditions(false, State{
		Taken: map[string][]string{
			"Left": {"npd"}, "Shared": {"npd"}, "Kept": {"npd"}, "Beating": {"npd"}, "Yielded": {"npd"}, "SweptToo": {"npd"},
		},
		Yielded: map[string]string{"Yielded": "npd"},
	})
	r.wanted["Wanted"] = condition{status: catalog.True}
	r.orphans.deleted["Swept"] = true
	v := nodeView{conditions: map[string]apiCondition{}, owners: map[string]map[string][]string{}}
	for _, kind := range []string{"Shell", "Owned", "Ours", "Told", "Wanted", "Swept", "Ready", "OnlyAnOwner"} {
		v.conditions[kind] = apiCondition{"type": kind, "status": ""}
		v.addOwner("npd", kind, "type")
	}
	v.addOwner("npd", "Owned", "status") // the manager sets an empty status
	v.addOwner(FieldManager, "Ours", "status")
	v.conditions["Told"]["status"] = "True"
	delete(v.conditions, "OnlyAnOwner")
	v.conditions["Unowned"] = apiCondition{"type": "Unowned"}
	// A condition taken over from a manager that wrote the same values.
	r.orphans.deleted["SweptToo"] = true
	for _, kind := range []string{"Left", "Shared", "Kept", "Beating", "Yielded", "SweptToo", "NotTaken"} {
		v.conditions[kind] = apiCondition{"type": kind, "status": "False"}
		v.addOwner("npd", kind, "type")
		v.addOwner("npd", kind, "status")
	}
	v.addOwner("another", "Shared", "status")
	v.addOwner("npd", "Kept", heartbeatTime) // written since, but not yet in this read
	v.conditions["Beating"][heartbeatTime] = "2026-11-15T12:00:00Z"
	testkit.NoDiff(t, cmp.Diff([]string{"Left", "Shell"}, r.orphaned(&v)), "the orphaned conditions")
}

func TestNoConditionIsLeftWithoutAStatus(t *testing.T) {
	unhealthy := func(r *running) finding.Report {
		return reportOf(newCondition("A", catalog.True, "Unhealthy", time.Now()), newCondition("B", catalog.False, "Fine", time.Now()))
	}
	for _, all := range []bool{false, true} {
		name := map[bool]string{false: "once", true: "each time"}[all]
		inBubble(t, "removes a condition taken over "+name+" with its monitor", func(c *Config) { c.TakeOver = all }, func(r *running) {
			heartbeat(r)
			r.starts(unhealthy(r), time.Minute)
			r.takes(finding.Report{Gone: []string{"A"}}, coalesce)
			a, b := r.api.condition("A"), r.api.condition("B")
			testkit.Check(r, a == nil && b["status"] == "False", "A is %v, B is %v", a, b)
			testkit.Check(r, len(r.api.deleted) == 1 && len(r.api.deletedWithWriter) == 0,
				"deleted: %v, with a status: %v", r.api.deleted, r.api.deletedWithWriter)
		})
	}
	inBubble(t, "removes a condition that an agent without saved state took over", nil, func(r *running) {
		heartbeat(r)
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Unhealthy", heartbeatTime: "2026-01-01T00:00:00Z"}, map[string]string{"type": "B", "status": "True"})
		r.starts(reportOf(newCondition("B", catalog.False, "Fine", time.Now())), 0)
		a, b := r.api.condition("A"), r.api.condition("B")
		testkit.Check(r, a == nil && b["status"] == "False", "A is %v, B is %v", a, b)
	})
	inBubble(t, "removes a condition that an agent without saved state left behind", nil, func(r *running) {
		heartbeat(r)
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Unhealthy"}, map[string]string{"type": "B", "status": "True"})
		r.apply(FieldManager, map[string]string{"type": "B", "status": "True"})
		a := r.api.condition("A")
		testkit.Require(r, a != nil && a["status"] == "", "A is %v", a)
		r.Complete() // it has no conditions at all
		pass(10 * time.Minute)
		if a, b := r.api.condition("A"), r.api.condition("B"); a != nil || b != nil {
			r.Errorf("A is %v, B is %v", a, b)
		}
	})
	inBubble(t, "keeps a condition that another manager wrote meanwhile", nil, func(r *running) {
		heartbeat(r)
		r.starts(unhealthy(r), time.Minute)
		r.api.refuseWith(func(q kubeapi.Request) error {
			if q.ContentType == mergePatch { // just before the row is deleted
				r.api.fail = nil
				r.api.conditions["A"]["status"] = "False"
				r.api.owners["update:node-problem-detector"]["A"]["status"] = true
				r.api.version++
			}
			return nil
		})
		r.takes(finding.Report{Gone: []string{"A"}}, time.Hour)
		a := r.api.condition("A")
		testkit.Check(r, a["status"] == "False" && len(r.api.deleted) == 0 && r.api.count("PATCH") >= 3, "A is %v", a)
	})
	inBubble(t, "deletes a condition without a status only once", nil, func(r *running) {
		r.Take(unhealthy(r))
		r.Complete()
		for range 10 {
			r.api.update("odd", map[string]string{"type": "C", "reason": "Odd"})
			pass(10 * time.Minute)
		}
		testkit.Same(r, len(r.api.deleted), 1, "deleted: %v", r.api.deleted)
		// The agent deletes it again if the condition had a writer in between.
		r.apply("gitops", map[string]string{"type": "C", "status": "True"})
		pass(6 * time.Minute)
		r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		pass(6 * time.Minute)
		testkit.Check(r, len(r.api.deleted) == 2 && r.api.condition("C") == nil, "deleted: %v", r.api.deleted)
	})
	inBubble(t, "leaves the conditions of Kubernetes alone", nil, func(r *running) {
		r.api.update("kubelet", map[string]string{"type": "Ready", "reason": "Starting"})
		r.starts(unhealthy(r), time.Hour)
		testkit.Check(r, r.api.condition("Ready") != nil, "Ready is gone")
	})
	yield := func(r *running, also map[string]string) {
		r.starts(unhealthy(r), time.Minute)
		for _, reason := range []string{"Theirs", "TheirsAgain"} {
			row := map[string]string{"type": "A", "reason": reason}
			maps.Copy(row, also)
			r.apply("gitops", row)
			pass(6 * time.Minute)
		}
		testkit.MustBeSame(r, r.Counts().Yielded["A"], "gitops", "the manager that A is yielded to: %+v", r.Counts())
	}
	theirs := map[string]string{"status": "Unknown"}
	inBubble(t, "takes back a yielded condition when the other manager stops applying it", nil, func(r *running) {
		yield(r, theirs)
		r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		pass(6 * time.Minute)
		a := r.api.condition("A")
		testkit.Check(r, a["status"] == "True" && a["reason"] == "Unhealthy" && len(r.Counts().Yielded) == 0, "A is %v: %+v", a, r.Counts())
		pass(time.Hour)
		testkit.Check(r, r.api.owners[HandManager]["A"] == nil && r.api.condition(placeholder) == nil, "fields are still handed over: %v", r.api.owners)
	})
	for name, also := range map[string]map[string]string{"with his status": theirs, "with the status that we left": nil} {
		inBubble(t, "removes a released condition without a monitor, "+name, nil, func(r *running) {
			yield(r, also)
			r.takes(finding.Report{Gone: []string{"A"}}, 10*time.Minute)
			a := r.api.condition("A")
			testkit.Require(r, a["reason"] == "TheirsAgain" && a["status"] != "", "A is %v", a)
			r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
			pass(20 * time.Minute)
			a = r.api.condition("A")
			testkit.Check(r, a == nil && r.api.condition("B") != nil && r.api.condition("Else") != nil, "A is %v, of %v", a, r.api.owners)
		})
	}
	inBubble(t, "a refused deletion delays no other write", nil, func(r *running) {
		heartbeat(r)
		r.starts(unhealthy(r), time.Minute)
		r.api.refuseWith(func(q kubeapi.Request) error {
			if q.ContentType == mergePatch {
				return &kubeapi.StatusError{Code: 403, Message: "no"}
			}
			return nil
		})
		r.takes(finding.Report{Gone: []string{"A"}}, time.Second)
		r.takes(reportOf(newCondition("B", catalog.True, "Now", time.Now())), 0)
		testkit.Same(r, r.api.condition("B")["reason"], "Now", "the reason of B")
		r.Take(finding.Report{Gone: []string{"B"}}) // now the placeholder cannot be deleted
		pass(time.Second)
		testkit.Require(r, r.api.condition(placeholder) != nil, "there is no placeholder")
		r.takes(reportOf(newCondition("B", catalog.True, "Again", time.Now())), 0)
		testkit.Same(r, r.api.condition("B")["reason"], "Again", "the reason of B")
		testkit.Same(r, strings.Count(r.log.String(), "level=WARN"), 2, "warnings:\n%s", r.log)
		r.api.refuseWith(nil)
		pass(20 * time.Minute)
		a := r.api.condition("A")
		testkit.Check(r, a == nil && r.api.condition(placeholder) == nil, "A is %v", a)
	})
}
