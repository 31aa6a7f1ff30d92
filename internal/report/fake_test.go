package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/kubeapi"
)

// fake is an API server for one Node that tracks field ownership as server-side apply does.
// cluster_test.go runs the same cases against a real API server.
type fake struct {
	mu                sync.Mutex
	version           int
	leases            int // version of the store of Leases, if it is a separate store
	uid               string
	conditions        map[string]map[string]string
	owners            map[string]map[string]map[string]bool // by manager, type and field
	events            map[string]map[string]any
	order             []string // of events
	lease             map[string]any
	renewed           int
	deleted           []string // deleted conditions, and among them those with a writer
	deletedWithWriter []string
	guarded           bool                       // enforce the admission policies of agents: the agent may not remove conditions of others
	losers            map[string]map[string]bool // managers that lost a field of a condition, by type
	wiped             bool                       // an apply without conditions removed fields that have no owner
	cache             []byte                     // response to cached reads while the cache is stale
	requests          []string
	times             []time.Time
	bodies            []string
	// fail is called before every request is executed, lose after it.
	fail, lose func(kubeapi.Request) error
}

func newFake() *fake {
	return &fake{
		uid: "uid-1", version: 1, conditions: map[string]map[string]string{}, events: map[string]map[string]any{},
		owners: map[string]map[string]map[string]bool{}, losers: map[string]map[string]bool{},
	}
}

// kept reports whether a condition has more than the fields that remain after a take-over.
func (f *fake) kept(kind string) bool {
	row := f.conditions[kind]
	for manager, owned := range f.owners {
		if owned[kind]["status"] && !f.losers[kind][manager] {
			return true
		}
	}
	return row["status"] != "" && row["lastHeartbeatTime"] != ""
}

func (f *fake) Do(ctx context.Context, r kubeapi.Request) (kubeapi.Answer, error) {
	if ctx.Err() != nil {
		return kubeapi.Answer{}, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path, err := url.Parse(r.Path)
	if err != nil {
		return kubeapi.Answer{}, err
	}
	f.requests = append(f.requests, r.Method+" "+r.Path)
	f.times = append(f.times, time.Now())
	f.bodies = append(f.bodies, string(r.Body))
	if f.fail != nil {
		if err := f.fail(r); err != nil {
			return kubeapi.Answer{}, err
		}
	}
	var answer kubeapi.Answer
	switch {
	case r.Method == http.MethodGet && strings.HasPrefix(r.Path, "/api/v1/nodes/"):
		if answer.Body = f.cache; f.cache == nil || path.RawQuery == "" {
			answer.Body = f.node()
		}
	case r.Method == http.MethodPatch && strings.HasSuffix(path.Path, "/status"):
		err = f.patch(r, path.Query())
		answer = kubeapi.Answer{Body: f.node()}
	case r.Method == http.MethodPatch && strings.Contains(path.Path, "/leases/"):
		f.lease, f.renewed = map[string]any{}, f.renewed+1
		err = json.Unmarshal(r.Body, &f.lease)
		version := f.version
		if f.leases > 0 {
			f.leases++
			version = f.leases
		}
		answer.Body = fmt.Appendf(nil, `{"metadata": {"resourceVersion": "%d"}}`, version)
	case r.Method == http.MethodPatch && strings.Contains(path.Path, "/events/"):
		err = f.patchEvent(path.Path[strings.LastIndexByte(path.Path, '/')+1:], r.Body)
	case r.Method == http.MethodPost:
		err = f.post(r.Body)
	default:
		err = fmt.Errorf("unknown request %s %s", r.Method, r.Path)
	}
	if err == nil && f.lose != nil {
		err = f.lose(r)
	}
	return answer, err
}

func (f *fake) post(body []byte) error {
	var event map[string]any
	if err := json.Unmarshal(body, &event); err != nil {
		return err
	}
	name := event["metadata"].(map[string]any)["name"].(string)
	if f.events[name] != nil {
		return &kubeapi.StatusError{Code: 409, Reason: "AlreadyExists", Message: name}
	}
	f.events[name] = event
	f.order = append(f.order, name)
	return nil
}

func (f *fake) patchEvent(name string, body []byte) error {
	event := f.events[name]
	if event == nil {
		return &kubeapi.StatusError{Code: 404, Reason: "NotFound", Message: name}
	}
	return json.Unmarshal(body, &event)
}

// expireEvents deletes all Events, as the API server does an hour after the last write.
func (f *fake) expireEvents() { f.change(func() { clear(f.events) }) }

func (f *fake) patch(r kubeapi.Request, query url.Values) error {
	var node struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Status struct {
			Conditions []map[string]string `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(r.Body, &node); err != nil {
		return err
	}
	if v := node.Metadata.ResourceVersion; v != "" && v != strconv.Itoa(f.version) {
		return &kubeapi.StatusError{Code: 409, Reason: "Conflict", Message: "the object has been modified"}
	}
	if r.ContentType == mergePatch {
		for _, row := range node.Status.Conditions {
			if row["$patch"] != "delete" {
				return errors.New("a merge patch may only delete conditions")
			}
			if kind := row["type"]; f.conditions[kind] != nil && kind != placeholder {
				f.deleted = append(f.deleted, kind)
				if f.kept(kind) {
					f.deletedWithWriter = append(f.deletedWithWriter, kind)
				}
			}
			f.drop(row["type"])
		}
		f.version++
		return nil
	}
	return f.apply(query.Get("fieldManager"), query.Get("force") == "true", node.Status.Conditions)
}

func (f *fake) apply(manager string, force bool, rows []map[string]string) error {
	refused := &kubeapi.StatusError{Code: 409, Reason: "Conflict", Message: "conflicts"}
	next := map[string]map[string]bool{}
	for _, row := range rows {
		kind := row["type"]
		next[kind] = map[string]bool{}
		for field, value := range row {
			next[kind][field] = true
			for other, owned := range f.owners {
				if other != manager && owned[kind][field] && f.conditions[kind][field] != value {
					how := ` with subresource "status"`
					name, updates := strings.CutPrefix(other, "update:")
					if updates {
						how += " using v1"
					}
					refused.Causes = append(refused.Causes, kubeapi.Cause{Reason: "FieldManagerConflict",
						Message: "conflict with " + strconv.Quote(name) + how, Field: fmt.Sprintf(".status.conditions[type=%q].%s", kind, field)})
				}
			}
		}
	}
	if len(refused.Causes) > 0 && !force {
		return refused
	}
	before := f.owners[manager]
	if refused := f.guard(manager, next); refused != nil {
		return refused
	}
	for _, row := range rows {
		f.set(manager, row["type"], row)
	}
	f.wiped = f.wiped || (len(before) > 0 && len(rows) == 0)
	f.owners[manager] = next
	for kind, fields := range before {
		for field := range fields {
			if !f.owned(kind, field) {
				delete(f.conditions[kind], field)
			}
		}
		if f.owned(kind, "type") {
			f.conditions[kind]["type"] = kind
			continue
		}
		// The list entry has its own owners. Without them the entry goes, with all its fields.
		if f.written(manager, kind, fields) {
			f.deletedWithWriter = append(f.deletedWithWriter, kind)
		}
		f.drop(kind)
	}
	f.version++
	return nil
}

// written reports whether a manager other than an agent has written a condition that an agent
// no longer applies.
func (f *fake) written(manager, kind string, had map[string]bool) bool {
	for other, owned := range f.owners {
		if !isOurs(manager) || isOurs(other) {
			continue
		}
		if owned[kind][heartbeatTime] && !had[heartbeatTime] || owned[kind]["status"] && (!had["status"] || !f.losers[kind][other]) {
			return true
		}
	}
	return false
}

// drop deletes a condition, whichever managers own its fields.
func (f *fake) drop(kind string) {
	delete(f.conditions, kind)
	for _, owned := range f.owners {
		delete(owned, kind)
	}
}

// guard refuses an agent that removes conditions of others, or writes too many.
func (f *fake) guard(manager string, next map[string]map[string]bool) error {
	if isOurs(manager) && len(next) > MostConditions {
		return &kubeapi.StatusError{Code: 403, Message: "an agent may write at most 100 conditions"}
	}
	for kind, fields := range f.owners[manager] {
		kept := next[kind] != nil
		for other, owned := range f.owners {
			kept = kept || other != manager && owned[kind]["type"]
		}
		if f.guarded && isOurs(manager) && !kept && !fields["status"] && f.conditions[kind]["status"] != "" && f.conditions[kind][heartbeatTime] != "" {
			return &kubeapi.StatusError{Code: 403, Message: "an agent may not remove " + kind}
		}
	}
	return nil
}

func (f *fake) owned(kind, field string) bool {
	for _, owned := range f.owners {
		if owned[kind][field] {
			return true
		}
	}
	return false
}

// set changes a condition. The manager becomes the only owner of the changed fields.
func (f *fake) set(manager, kind string, row map[string]string) (changed []string) {
	if f.conditions[kind] == nil {
		f.conditions[kind] = map[string]string{}
	}
	for field, value := range row {
		if f.conditions[kind][field] == value {
			continue
		}
		f.conditions[kind][field] = value
		changed = append(changed, field)
		for other, owned := range f.owners {
			if other != manager && owned[kind][field] {
				delete(owned[kind], field)
				if f.losers[kind] == nil {
					f.losers[kind] = map[string]bool{}
				}
				f.losers[kind][other] = true
			}
		}
	}
	return changed
}

// update is a write without server-side apply, as by node-problem-detector.
func (f *fake) update(manager string, row map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	manager = "update:" + manager
	if f.owners[manager] == nil {
		f.owners[manager] = map[string]map[string]bool{}
	}
	kind := row["type"]
	for _, field := range f.set(manager, kind, row) {
		if f.owners[manager][kind] == nil {
			f.owners[manager][kind] = map[string]bool{}
		}
		f.owners[manager][kind][field] = true
	}
	f.version++
}

func (f *fake) node() []byte {
	var conditions []map[string]string
	for _, kind := range slices.Sorted(maps.Keys(f.conditions)) {
		conditions = append(conditions, f.conditions[kind])
	}
	var managed []object
	for manager, owned := range f.owners {
		name, updates := strings.CutPrefix(manager, "update:")
		operation := "Apply"
		if updates {
			operation = "Update"
		}
		keys := object{}
		for kind, fields := range owned {
			of := object{}
			for field := range fields {
				of["f:"+field] = object{}
			}
			if fields["type"] {
				of["."] = object{}
			}
			keys["k:"+string(encode(object{"type": kind}))] = of
		}
		managed = append(managed, object{"manager": name, "operation": operation, "subresource": "status",
			"fieldsV1": object{"f:status": object{"f:conditions": keys}}})
	}
	return encode(object{
		"metadata": object{"name": "n", "uid": f.uid, "resourceVersion": strconv.Itoa(f.version), "managedFields": managed},
		"status":   object{"conditions": conditions},
	})
}

// freeze makes the cache stale, or up to date again.
func (f *fake) freeze(behind bool) {
	f.cache = nil
	if behind {
		f.cache = f.node()
	}
}

// change changes fields of the fake while the reporter runs.
func (f *fake) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
}

func (f *fake) condition(kind string) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.conditions[kind])
}

func (f *fake) count(prefix string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, req := range f.requests {
		if strings.HasPrefix(req, prefix) {
			n++
		}
	}
	return n
}

func (f *fake) event(name string) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.events[name]
}

func (f *fake) lastEvent() map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.order) == 0 {
		return nil
	}
	return f.events[f.order[len(f.order)-1]]
}

func (f *fake) stored() (n int) {
	f.change(func() { n = len(f.events) })
	return n
}

func (f *fake) renewals() (n int) {
	f.change(func() { n = f.renewed })
	return n
}

func (f *fake) refuseWith(fail func(kubeapi.Request) error) { f.change(func() { f.fail = fail }) }

func (f *fake) loseWith(lose func(kubeapi.Request) error) { f.change(func() { f.lose = lose }) }

var errNoRoute = errors.New("no route to host")

func away(kubeapi.Request) error { return errNoRoute }

// answers fails requests whose method and path start with prefix.
func answers(prefix string, code int) func(kubeapi.Request) error {
	return func(r kubeapi.Request) error {
		if strings.HasPrefix(r.Method+" "+r.Path, prefix) {
			return &kubeapi.StatusError{Code: code, Message: http.StatusText(code)}
		}
		return nil
	}
}

// eventTotal returns how many occurrences the stored Events stand for.
func (f *fake) eventTotal() (sum uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, event := range f.events {
		count, _ := event["count"].(float64)
		sum += uint64(count)
	}
	return sum
}
