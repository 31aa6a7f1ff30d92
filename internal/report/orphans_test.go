package report

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
)

// apply applies conditions as another manager, with force.
func (r *running) apply(manager string, rows ...map[string]string) {
	r.Helper()
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	if err := r.api.apply(manager, true, rows); err != nil {
		r.Error(err)
	}
}

func TestOrphanedFindsOnlyConditionsWithoutWriter(t *testing.T) {
	r := newConditions(false, State{
		Taken: map[string][]string{
			"Left": {"npd"}, "Shared": {"npd"}, "Kept": {"npd"}, "Beating": {"npd"}, "Yielded": {"npd"}, "SweptToo": {"npd"},
		},
		Yielded: map[string]string{"Yielded": "npd"},
	})
	r.wanted["Wanted"] = condition{status: catalog.True}
	r.deletedOrphans["Swept"] = true
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
	r.deletedOrphans["SweptToo"] = true
	for _, kind := range []string{"Left", "Shared", "Kept", "Beating", "Yielded", "SweptToo", "NotTaken"} {
		v.conditions[kind] = apiCondition{"type": kind, "status": "False"}
		v.addOwner("npd", kind, "type")
		v.addOwner("npd", kind, "status")
	}
	v.addOwner("another", "Shared", "status")
	v.addOwner("npd", "Kept", heartbeatTime) // written since, but not yet in this read
	v.conditions["Beating"][heartbeatTime] = "2026-11-15T12:00:00Z"
	if diff := cmp.Diff([]string{"Left", "Shell"}, r.orphaned(&v)); diff != "" {
		t.Error(diff)
	}
}

func TestNoConditionIsLeftWithoutAStatus(t *testing.T) {
	sick := func(r *running) finding.Report {
		return reportOf(newCondition("A", catalog.True, "Sick", time.Now()), newCondition("B", catalog.False, "Fine", time.Now()))
	}
	for _, all := range []bool{false, true} {
		name := map[bool]string{false: "once", true: "each time"}[all]
		inBubble(t, "removes a condition taken over "+name+" with its monitor", func(c *Config) { c.TakeOver = all }, func(r *running) {
			heartbeat(r)
			r.Take(sick(r))
			r.Complete()
			pass(time.Minute)
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(coalesce)
			if a, b := r.api.condition("A"), r.api.condition("B"); a != nil || b["status"] != "False" {
				r.Errorf("A is %v, B is %v", a, b)
			}
			if len(r.api.deleted) != 1 || len(r.api.deletedWithWriter) != 0 {
				r.Errorf("deleted: %v, with a status: %v", r.api.deleted, r.api.deletedWithWriter)
			}
		})
	}
	inBubble(t, "removes a condition that an agent without saved state took over", nil, func(r *running) {
		heartbeat(r)
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Sick", heartbeatTime: "2026-01-01T00:00:00Z"}, map[string]string{"type": "B", "status": "True"})
		r.Take(reportOf(newCondition("B", catalog.False, "Fine", time.Now())))
		r.Complete()
		synctest.Wait()
		if a, b := r.api.condition("A"), r.api.condition("B"); a != nil || b["status"] != "False" {
			r.Errorf("A is %v, B is %v", a, b)
		}
	})
	inBubble(t, "removes a condition that an agent without saved state left behind", nil, func(r *running) {
		heartbeat(r)
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Sick"}, map[string]string{"type": "B", "status": "True"})
		r.apply(FieldManager, map[string]string{"type": "B", "status": "True"})
		if a := r.api.condition("A"); a == nil || a["status"] != "" {
			r.Fatalf("A is %v", a)
		}
		r.Complete() // it has no conditions at all
		pass(10 * time.Minute)
		if a, b := r.api.condition("A"), r.api.condition("B"); a != nil || b != nil {
			r.Errorf("A is %v, B is %v", a, b)
		}
	})
	inBubble(t, "keeps a condition that another manager wrote meanwhile", nil, func(r *running) {
		heartbeat(r)
		r.Take(sick(r))
		r.Complete()
		pass(time.Minute)
		r.api.refuseWith(func(q kubeapi.Request) error {
			if q.ContentType == mergePatch { // just before the row is deleted
				r.api.fail = nil
				r.api.conditions["A"]["status"] = "False"
				r.api.owners["update:node-problem-detector"]["A"]["status"] = true
				r.api.version++
			}
			return nil
		})
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(time.Hour)
		if a := r.api.condition("A"); a["status"] != "False" || len(r.api.deleted) != 0 || r.api.count("PATCH") < 3 {
			r.Errorf("A is %v", a)
		}
	})
	inBubble(t, "deletes a condition without a status only once", nil, func(r *running) {
		r.Take(sick(r))
		r.Complete()
		for range 10 {
			r.api.update("odd", map[string]string{"type": "C", "reason": "Odd"})
			pass(10 * time.Minute)
		}
		if len(r.api.deleted) != 1 {
			r.Errorf("deleted: %v", r.api.deleted)
		}
		// The agent deletes it again if the condition had a writer in between.
		r.apply("gitops", map[string]string{"type": "C", "status": "True"})
		pass(6 * time.Minute)
		r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		pass(6 * time.Minute)
		if len(r.api.deleted) != 2 || r.api.condition("C") != nil {
			r.Errorf("deleted: %v", r.api.deleted)
		}
	})
	inBubble(t, "leaves the conditions of Kubernetes alone", nil, func(r *running) {
		r.api.update("kubelet", map[string]string{"type": "Ready", "reason": "Starting"})
		r.Take(sick(r))
		r.Complete()
		pass(time.Hour)
		if r.api.condition("Ready") == nil {
			r.Error("Ready is gone")
		}
	})
	yield := func(r *running, also map[string]string) {
		r.Take(sick(r))
		r.Complete()
		pass(time.Minute)
		for _, reason := range []string{"Theirs", "TheirsAgain"} {
			row := map[string]string{"type": "A", "reason": reason}
			maps.Copy(row, also)
			r.apply("gitops", row)
			pass(6 * time.Minute)
		}
		if r.Counts().Yielded["A"] != "gitops" {
			r.Fatalf("%+v", r.Counts())
		}
	}
	theirs := map[string]string{"status": "Unknown"}
	inBubble(t, "takes back a yielded condition when the other manager stops applying it", nil, func(r *running) {
		yield(r, theirs)
		r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		pass(6 * time.Minute)
		if a := r.api.condition("A"); a["status"] != "True" || a["reason"] != "Sick" || len(r.Counts().Yielded) != 0 {
			r.Errorf("A is %v: %+v", a, r.Counts())
		}
		pass(time.Hour)
		if r.api.owners[HandManager]["A"] != nil || r.api.condition(placeholder) != nil {
			r.Errorf("fields are still handed over: %v", r.api.owners)
		}
	})
	for name, also := range map[string]map[string]string{"with his status": theirs, "with the status that we left": nil} {
		inBubble(t, "removes a released condition without a monitor, "+name, nil, func(r *running) {
			yield(r, also)
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(10 * time.Minute)
			if a := r.api.condition("A"); a["reason"] != "TheirsAgain" || a["status"] == "" {
				r.Fatalf("A is %v", a)
			}
			r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
			pass(20 * time.Minute)
			if a := r.api.condition("A"); a != nil || r.api.condition("B") == nil || r.api.condition("Else") == nil {
				r.Errorf("A is %v, of %v", a, r.api.owners)
			}
		})
	}
	inBubble(t, "a refused deletion delays no other write", nil, func(r *running) {
		heartbeat(r)
		r.Take(sick(r))
		r.Complete()
		pass(time.Minute)
		r.api.refuseWith(func(q kubeapi.Request) error {
			if q.ContentType == mergePatch {
				return &kubeapi.StatusError{Code: 403, Message: "no"}
			}
			return nil
		})
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(time.Second)
		r.Take(reportOf(newCondition("B", catalog.True, "Now", time.Now())))
		synctest.Wait()
		if b := r.api.condition("B"); b["reason"] != "Now" {
			r.Errorf("B is %v", b)
		}
		r.Take(finding.Report{Gone: []string{"B"}}) // now the placeholder cannot be deleted
		pass(time.Second)
		if r.api.condition(placeholder) == nil {
			r.Fatal("there is no placeholder")
		}
		r.Take(reportOf(newCondition("B", catalog.True, "Again", time.Now())))
		synctest.Wait()
		if b := r.api.condition("B"); b["reason"] != "Again" {
			r.Errorf("B is %v", b)
		}
		if n := strings.Count(r.log.String(), "level=WARN"); n != 2 {
			r.Errorf("logged %d times:\n%s", n, r.log)
		}
		r.api.refuseWith(nil)
		pass(20 * time.Minute)
		if a := r.api.condition("A"); a != nil || r.api.condition(placeholder) != nil {
			r.Errorf("A is %v", a)
		}
	})
}
