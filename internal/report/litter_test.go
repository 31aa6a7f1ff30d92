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

// apply applies rows as somebody else, with force.
func (r *running) apply(manager string, rows ...map[string]string) {
	r.Helper()
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	if err := r.api.apply(manager, true, rows); err != nil {
		r.Error(err)
	}
}

func TestOnlyRowsThatNobodyKeepsAreStrays(t *testing.T) {
	r := newRows(false, State{
		Taken: map[string][]string{
			"Left": {"npd"}, "Shared": {"npd"}, "Kept": {"npd"}, "Beating": {"npd"}, "Yielded": {"npd"}, "SweptToo": {"npd"},
		},
		Yielded: map[string]string{"Yielded": "npd"},
	})
	r.want["Wanted"] = row{status: catalog.True}
	r.swept["Swept"] = true
	v := view{rows: map[string]wireRow{}, owners: map[string]map[string][]string{}}
	for _, kind := range []string{"Shell", "Owned", "Ours", "Told", "Wanted", "Swept", "Ready", "OnlyAnOwner"} {
		v.rows[kind] = wireRow{"type": kind, "status": ""}
		v.own("npd", kind, "type")
	}
	v.own("npd", "Owned", "status") // he says that it is empty
	v.own(FieldManager, "Ours", "status")
	v.rows["Told"]["status"] = "True"
	delete(v.rows, "OnlyAnOwner")
	v.rows["Unowned"] = wireRow{"type": "Unowned"}
	// What was taken from one who had said the same.
	r.swept["SweptToo"] = true
	for _, kind := range []string{"Left", "Shared", "Kept", "Beating", "Yielded", "SweptToo", "NotTaken"} {
		v.rows[kind] = wireRow{"type": kind, "status": "False"}
		v.own("npd", kind, "type")
		v.own("npd", kind, "status")
	}
	v.own("another", "Shared", "status")
	v.own("npd", "Kept", heartbeatTime) // he has written it since, and is read behind that
	v.rows["Beating"][heartbeatTime] = "2026-11-15T12:00:00Z"
	if diff := cmp.Diff([]string{"Left", "Shell"}, r.strays(&v)); diff != "" {
		t.Error(diff)
	}
}

func TestNoRowIsLeftWithoutAStatus(t *testing.T) {
	sick := func(r *running) finding.Report {
		return conditions(condition("A", catalog.True, "Sick", time.Now()), condition("B", catalog.False, "Fine", time.Now()))
	}
	for _, all := range []bool{false, true} {
		name := map[bool]string{false: "once", true: "each time"}[all]
		inBubble(t, "a row that was taken over "+name+" goes with its monitor", func(c *Config) { c.TakeOver = all }, func(r *running) {
			heartbeat(r)
			r.Take(sick(r))
			r.Complete()
			pass(time.Minute)
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(coalesce)
			if a, b := r.api.row("A"), r.api.row("B"); a != nil || b["status"] != "False" {
				r.Errorf("A is %v, B is %v", a, b)
			}
			if len(r.api.swept) != 1 || len(r.api.robbed) != 0 {
				r.Errorf("deleted: %v, with a status: %v", r.api.swept, r.api.robbed)
			}
		})
	}
	inBubble(t, "so does one that was taken by an agent of which nothing is remembered", nil, func(r *running) {
		heartbeat(r)
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Sick", heartbeatTime: "2026-01-01T00:00:00Z"}, map[string]string{"type": "B", "status": "True"})
		r.Take(conditions(condition("B", catalog.False, "Fine", time.Now())))
		r.Complete()
		synctest.Wait()
		if a, b := r.api.row("A"), r.api.row("B"); a != nil || b["status"] != "False" {
			r.Errorf("A is %v, B is %v", a, b)
		}
	})
	inBubble(t, "and one that such an agent had left", nil, func(r *running) {
		heartbeat(r)
		r.apply(FieldManager, map[string]string{"type": "A", "status": "True", "reason": "Sick"}, map[string]string{"type": "B", "status": "True"})
		r.apply(FieldManager, map[string]string{"type": "B", "status": "True"})
		if a := r.api.row("A"); a == nil || a["status"] != "" {
			r.Fatalf("A is %v", a)
		}
		r.Complete() // it has no conditions at all
		pass(10 * time.Minute)
		if a, b := r.api.row("A"), r.api.row("B"); a != nil || b != nil {
			r.Errorf("A is %v, B is %v", a, b)
		}
	})
	inBubble(t, "what another has written meanwhile is his", nil, func(r *running) {
		heartbeat(r)
		r.Take(sick(r))
		r.Complete()
		pass(time.Minute)
		r.api.refuseWith(func(q kubeapi.Request) error {
			if q.ContentType == mergePatch { // just before the row is deleted
				r.api.fail = nil
				r.api.rows["A"]["status"] = "False"
				r.api.owners["update:node-problem-detector"]["A"]["status"] = true
				r.api.version++
			}
			return nil
		})
		r.Take(finding.Report{Gone: []string{"A"}})
		pass(time.Hour)
		if a := r.api.row("A"); a["status"] != "False" || len(r.api.swept) != 0 || r.api.count("PATCH") < 3 {
			r.Errorf("A is %v", a)
		}
	})
	inBubble(t, "who writes a row without a status is not fought", nil, func(r *running) {
		r.Take(sick(r))
		r.Complete()
		for range 10 {
			r.api.update("odd", map[string]string{"type": "C", "reason": "Odd"})
			pass(10 * time.Minute)
		}
		if len(r.api.swept) != 1 {
			r.Errorf("deleted: %v", r.api.swept)
		}
		// It is another story if the row was whole in between.
		r.apply("gitops", map[string]string{"type": "C", "status": "True"})
		pass(6 * time.Minute)
		r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		pass(6 * time.Minute)
		if len(r.api.swept) != 2 || r.api.row("C") != nil {
			r.Errorf("deleted: %v", r.api.swept)
		}
	})
	inBubble(t, "rows of Kubernetes are left as they are", nil, func(r *running) {
		r.api.update("kubelet", map[string]string{"type": "Ready", "reason": "Starting"})
		r.Take(sick(r))
		r.Complete()
		pass(time.Hour)
		if r.api.row("Ready") == nil {
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
	inBubble(t, "a yielded row is ours again when the other lets it go", nil, func(r *running) {
		yield(r, theirs)
		r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
		pass(6 * time.Minute)
		if a := r.api.row("A"); a["status"] != "True" || a["reason"] != "Sick" || len(r.Counts().Yielded) != 0 {
			r.Errorf("A is %v: %+v", a, r.Counts())
		}
		pass(time.Hour)
		if r.api.owners[HandManager]["A"] != nil || r.api.row(placeholder) != nil {
			r.Errorf("what was handed over is there still: %v", r.api.owners)
		}
	})
	for name, also := range map[string]map[string]string{"with his status": theirs, "with the status that we left": nil} {
		inBubble(t, "and gone if there is no monitor of it either, "+name, nil, func(r *running) {
			yield(r, also)
			r.Take(finding.Report{Gone: []string{"A"}})
			pass(10 * time.Minute)
			if a := r.api.row("A"); a["reason"] != "TheirsAgain" || a["status"] == "" {
				r.Fatalf("A is %v", a)
			}
			r.apply("gitops", map[string]string{"type": "Else", "status": "True"})
			pass(20 * time.Minute)
			if a := r.api.row("A"); a != nil || r.api.row("B") == nil || r.api.row("Else") == nil {
				r.Errorf("A is %v, of %v", a, r.api.owners)
			}
		})
	}
	inBubble(t, "a deletion that is refused holds up nothing", nil, func(r *running) {
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
		r.Take(conditions(condition("B", catalog.True, "Now", time.Now())))
		synctest.Wait()
		if b := r.api.row("B"); b["reason"] != "Now" {
			r.Errorf("B is %v", b)
		}
		r.Take(finding.Report{Gone: []string{"B"}}) // and now the placeholder cannot be deleted
		pass(time.Second)
		if r.api.row(placeholder) == nil {
			r.Fatal("there is no placeholder")
		}
		r.Take(conditions(condition("B", catalog.True, "Again", time.Now())))
		synctest.Wait()
		if b := r.api.row("B"); b["reason"] != "Again" {
			r.Errorf("B is %v", b)
		}
		if n := strings.Count(r.log.String(), "level=WARN"); n != 2 {
			r.Errorf("said %d times:\n%s", n, r.log)
		}
		r.api.refuseWith(nil)
		pass(20 * time.Minute)
		if a := r.api.row("A"); a != nil || r.api.row(placeholder) != nil {
			r.Errorf("A is %v", a)
		}
	})
}
