package testbed

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// These cases cannot be produced on a real cluster on demand. Times are in milliseconds
// after a start time; a request runs from its first to its second time.
func TestLedger(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }
	asked := func(user string, from, to int, shape ...func(*request)) *request {
		r := &request{
			author:   Author{User: user, Verb: "patch"},
			resource: NodesResource.GroupResource(), name: "n",
			received: at(from), ended: at(to), answered: true, code: 200,
		}
		r.answer.Metadata.UID = "uid"
		for _, s := range shape {
			s(r)
		}
		return r
	}
	version := func(v string) func(*request) {
		return func(r *request) { r.answer.Metadata.ResourceVersion = v }
	}
	lost := func(r *request) { r.answered, r.code, r.answer = false, 0, auditObject{} }
	failed := func(code int) func(*request) {
		return func(r *request) { r.code, r.answer = code, auditObject{} }
	}
	create := func(r *request) { r.author.Verb = "create" }
	on := func(name string) func(*request) { return func(r *request) { r.name = name } }
	deletion := func(uid types.UID) func(*request) {
		return func(r *request) {
			r.author.Verb = "delete"
			r.answer = auditObject{Kind: "Status"}
			r.answer.Details.UID = uid
		}
	}
	const unknown = UnknownUser

	type requests = []*request
	for _, test := range []struct {
		name     string
		kind     watch.EventType
		requests requests
		want     string
		reason   string
	}{
		{"uses the response with the version", watch.Modified, requests{asked("alice", 0, 9, version("5")), asked("bob", 0, 9, version("6"))}, "alice", ""},
		{"excludes a request that came after another response", watch.Modified, requests{
			asked("bob", 4, 5, version("5")), asked("alice", 0, 3, version("5")),
		}, "alice", ""},
		{"excludes a request that came after the change was seen", watch.Modified, requests{asked("bob", 11, 15, version("5"))}, unknown, "no answered request"},
		{"does not choose between two at the same time", watch.Modified, requests{
			asked("alice", 0, 3, version("5")), asked("bob", 1, 4, version("5")),
		}, unknown, "may both have made it"},
		{"need not choose between two of the same author", watch.Modified, requests{asked("alice", 0, 3, version("5")), asked("alice", 1, 4, version("5"))}, "alice", ""},
		{"excludes an update that returns its base version", watch.Modified, requests{
			asked("alice", 0, 3, version("5")), asked("bob", 1, 4, version("5"), func(r *request) { r.author.Verb, r.knewOf = "update", "5" }),
		}, "alice", ""},
		{"excludes a dry run", watch.Modified, requests{asked("bob", 0, 3, version("5"), func(r *request) { r.dryRun = true })}, unknown, ""},
		{"does not trust a response while a lost request may be the author", watch.Modified, requests{
			asked("alice", 0, 3, version("5")), asked("bob", 1, 9, lost),
		}, unknown, "got no response"},
		{"does not trust a response while a failed request may be the author", watch.Modified, requests{
			asked("alice", 0, 3, version("5")), asked("bob", 1, 9, failed(504)),
		}, unknown, "got no response"},
		{"ignores refused requests", watch.Modified, requests{asked("alice", 0, 3, version("5")), asked("bob", 1, 9, failed(409))}, "alice", ""},
		{"ignores lost requests about other objects", watch.Modified, requests{asked("alice", 0, 3, version("5")), asked("bob", 1, 9, lost, on("other"))}, "alice", ""},
		{"ignores lost requests of another time", watch.Modified, requests{asked("alice", 5, 8, version("5")), asked("bob", 0, 4, lost)}, "alice", ""},
		{"ignores lost requests to create other objects", watch.Modified, requests{
			asked("alice", 0, 3, version("5")), asked("bob", 1, 9, lost, on(""), create),
		}, "alice", ""},
		{"uses the response created", watch.Added, requests{
			asked("bob", 1, 2, version("5")), asked("alice", 0, 3, version("5"), func(r *request) { r.code = 201 }), asked("carol", 0, 9, lost),
		}, "alice", ""},
		{"names a lost request if there is no other possible author", watch.Modified, requests{asked("bob", 1, 9, lost), asked("alice", 0, 3, version("4"))}, "bob", ""},
		{"does not choose between two lost requests", watch.Modified, requests{asked("alice", 1, 9, lost), asked("bob", 1, 9, lost)}, unknown, "no answered request"},
		{"names a failed request if there is no other possible author", watch.Modified, requests{
			asked("alice", 1, 9, failed(504)), asked("alice", 2, 9, failed(500)), asked("bob", 0, 3, version("4")), asked("carol", 11, 12, failed(504)),
		}, "alice", ""},
		{"does not choose between two failed requests", watch.Modified, requests{
			asked("alice", 1, 9, failed(504)), asked("bob", 1, 9, failed(504)),
		}, unknown, "no answered request"},
		{"does not choose between a failed and a lost request", watch.Modified, requests{
			asked("alice", 1, 9, failed(504)), asked("bob", 1, 9, lost),
		}, unknown, "no answered request"},
		{"does not attribute a deletion to a failed patch", watch.Deleted, requests{asked("alice", 1, 9, failed(504))}, unknown, ""},
		{"attributes a deletion by the UID in the status", watch.Deleted, requests{
			asked("alice", 0, 9, deletion("another")), asked("bob", 0, 9, deletion("uid")),
		}, "bob", ""},
		{"does not choose between two deletions", watch.Deleted, requests{asked("alice", 0, 9, deletion("uid")), asked("bob", 0, 9, deletion("uid"))}, unknown, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			change := Change{
				Type: test.kind, GVR: NodesResource, Name: "n", UID: "uid", ResourceVersion: "5",
				Object: new(unstructured.Unstructured), Time: at(10),
			}
			book := newLedger(test.requests)
			got := book.author(change, nil)
			if got.User != test.want || !strings.Contains(got.Reason, test.reason) {
				t.Errorf("author %q because %q, want %q because of %q", got.User, got.Reason, test.want, test.reason)
			}
			if got.Known() != (got.Reason == "") {
				t.Errorf("author %q with the reason %q", got.User, got.Reason)
			}
			if isOpen := strings.Contains(got.Reason, "may both"); isOpen != (len(book.suspects) > 1) {
				t.Errorf("%q, and the suspects are %v", got.Reason, book.suspects)
			}
		})
	}
}

// A deletion whose client has disconnected is logged as failed, although it may have begun.
func TestLedgerNamesADeletionThatIsLoggedAsFailed(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	asked := func(user, verb string) *request {
		return &request{author: Author{User: user, Verb: verb}, resource: NodesResource.GroupResource(), name: "n", received: at(0), ended: at(3), answered: true, code: 504}
	}
	alive := map[string]any{}
	deleting := map[string]any{"metadata": map[string]any{"deletionTimestamp": "2026-01-02T03:04:35Z"}}
	for name, test := range map[string]struct {
		requests []*request
		after    map[string]any
		want     string
	}{
		"a deletion":             {[]*request{asked("alice", "delete")}, deleting, "alice"},
		"a patch cannot delete":  {[]*request{asked("alice", "patch")}, deleting, UnknownUser},
		"a deletion cannot edit": {[]*request{asked("alice", "delete")}, alive, UnknownUser},
		"two deletions":          {[]*request{asked("alice", "delete"), asked("bob", "delete")}, deleting, UnknownUser},
	} {
		change := Change{Type: watch.Modified, GVR: NodesResource, Name: "n", UID: "uid", ResourceVersion: "7", Object: &unstructured.Unstructured{Object: test.after}, Time: at(10)}
		if got := newLedger(test.requests).author(change, &unstructured.Unstructured{Object: alive}); got.User != test.want {
			t.Errorf("%s: the author is %s, want %s", name, got, test.want)
		}
	}
}

// An eviction names no UID. It belongs to the first pod with the name that it can have
// affected. Later changes of that pod, or of another pod with the name, do not belong to
// it.
func TestLedgerFollowsAnEviction(t *testing.T) {
	began := time.Now()
	const evictor, deleter = "alice", "bob"
	eviction := &request{
		author:   Author{User: evictor, Verb: "create", Subresource: "eviction"},
		resource: PodsResource.GroupResource(), namespace: "ns", name: "p",
		received: began, ended: began.Add(time.Second), answered: true, code: 201, answer: auditObject{Kind: "Status"},
	}
	deletion := &request{
		author:   Author{User: deleter, Verb: "delete"},
		resource: PodsResource.GroupResource(), namespace: "ns", name: "p",
		received: began.Add(2 * time.Second), ended: began.Add(3 * time.Second), answered: true, code: 200, answer: auditObject{Kind: "Pod"},
	}
	deletion.answer.Metadata.UID, deletion.answer.Metadata.ResourceVersion = "first", "9"
	book := newLedger([]*request{deletion, eviction})
	var (
		alive     = map[string]any{}
		marked    = map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "DisruptionTarget", "status": "True"}}}}
		dying     = map[string]any{"metadata": map[string]any{"deletionTimestamp": "2026-01-02T03:04:35Z", "deletionGracePeriodSeconds": int64(30)}}
		dyingFast = map[string]any{"metadata": map[string]any{"deletionTimestamp": "2026-01-02T03:04:06Z", "deletionGracePeriodSeconds": int64(1)}}
	)
	for i, test := range []struct {
		uid           types.UID
		before, after map[string]any
		want          string
	}{
		{"first", alive, marked, evictor},
		{"first", marked, dying, evictor},
		{"first", dying, dyingFast, deleter},
		{"second", alive, marked, UnknownUser},
		{"second", alive, dying, UnknownUser},
	} {
		change := Change{
			Type: watch.Modified, GVR: PodsResource, Namespace: "ns", Name: "p", UID: test.uid,
			ResourceVersion: "7", Object: &unstructured.Unstructured{Object: test.after},
			Time: began.Add(time.Minute), // the recorder is slow, and sees everything at the end
		}
		if got := book.author(change, &unstructured.Unstructured{Object: test.before}); got.User != test.want {
			t.Errorf("step %d: author %s, want %s", i+1, got, test.want)
		}
	}
}

// A request that ended before a pod was requested was about another pod.
func TestLedgerKnowsWhenAnObjectWasBorn(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	asked := func(user, subresource string, from int, version string) *request {
		r := &request{
			author:   Author{User: user, Verb: "create", Subresource: subresource},
			resource: PodsResource.GroupResource(), namespace: "ns", name: "p",
			received: at(from), ended: at(from + 1), answered: true, code: 201,
		}
		r.answer.Metadata.ResourceVersion = version
		return r
	}
	book := newLedger([]*request{
		asked("alice", "eviction", 0, ""), // of a pod that was already terminating
		asked("carol", "", 2, "7"),
		asked("bob", "eviction", 4, ""),
	})
	pod := Change{
		Type: watch.Added, GVR: PodsResource, Namespace: "ns", Name: "p", UID: "uid", ResourceVersion: "7",
		Object: &unstructured.Unstructured{Object: map[string]any{}}, Time: at(10),
	}
	if got := book.author(pod, nil); got.User != "carol" {
		t.Errorf("made by %s", got)
	}
	end := pod
	end.Type, end.ResourceVersion = watch.Deleted, "8"
	if got := book.author(end, pod.Object); got.User != "bob" {
		t.Errorf("evicted by %s", got)
	}
}

// Two concurrent requests may both get the version of the same change.
func TestLedgerKnowsWhichFieldsARequestCanChange(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	asked := func(user, subresource, patch string) *request {
		r := &request{
			author:   Author{User: user, Verb: "patch", Subresource: subresource},
			resource: NodesResource.GroupResource(), name: "n",
			received: at(0), ended: at(3), answered: true, code: 200, patched: patchedFields([]byte(patch)),
		}
		r.answer.Metadata.ResourceVersion = "7"
		return r
	}
	const (
		taints = `{"spec":{"$setElementOrder/taints":[{"key":"k"}],"taints":[{"key":"k"}]}}`
		labels = `{"metadata":{"resourceVersion":"6","labels":{"l":"v"}}}`
		apply  = `{"apiVersion":"v1","kind":"Node","spec":{"taints":[]}}`
		list   = `[{"op":"remove","path":"/spec/taints"}]`
	)
	tainted := map[string]any{"metadata": map[string]any{"resourceVersion": "7"}, "spec": map[string]any{"taints": []any{"k"}}}
	labelled := map[string]any{"metadata": map[string]any{"resourceVersion": "7", "labels": map[string]any{"l": "v"}}}
	for name, test := range map[string]struct {
		requests []*request
		after    map[string]any
		want     string
	}{
		"a status write changes no spec":      {[]*request{asked("alice", "", list), asked("bob", "status", list)}, tainted, "alice"},
		"a status write may change a label":   {[]*request{asked("alice", "", list), asked("bob", "status", list)}, labelled, UnknownUser},
		"a patch of labels sets no taint":     {[]*request{asked("alice", "", taints), asked("bob", "", labels)}, tainted, "alice"},
		"a patch of taints sets no label":     {[]*request{asked("alice", "", taints), asked("bob", "", labels)}, labelled, "bob"},
		"two patches of taints":               {[]*request{asked("alice", "", taints), asked("bob", "", taints)}, tainted, UnknownUser},
		"an apply may remove other fields":    {[]*request{asked("alice", "", apply), asked("bob", "", labels)}, labelled, UnknownUser},
		"a JSON patch may change all fields":  {[]*request{asked("alice", "", list), asked("bob", "", labels)}, labelled, UnknownUser},
		"the server may fill in other fields": {[]*request{asked("alice", "", labels)}, tainted, "alice"},
	} {
		change := Change{Type: watch.Modified, GVR: NodesResource, Name: "n", UID: "uid", ResourceVersion: "7", Object: &unstructured.Unstructured{Object: test.after}, Time: at(10)}
		before := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"resourceVersion": "6"}}}
		if got := newLedger(test.requests).author(change, before); got.User != test.want {
			t.Errorf("%s: the author is %s, want %s", name, got, test.want)
		}
	}
}
