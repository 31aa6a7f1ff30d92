package testbed

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// UnknownUser is the User of an author that cannot be proved.
const UnknownUser = "unknown"

// Author is the client that made a change, with its request.
type Author struct {
	// User is the authenticated user, or UnknownUser.
	User string

	// UserAgent and FieldManager distinguish programs of the same user.
	UserAgent, FieldManager string

	// Verb and Subresource are those of the request.
	Verb, Subresource string

	// Reason says why the author is unknown.
	Reason string
}

// Known reports whether the author is proved.
func (a Author) Known() bool { return a.User != UnknownUser }

// String returns the author on one line.
func (a Author) String() string {
	if !a.Known() {
		return UnknownUser + " (" + a.Reason + ")"
	}
	verb := a.Verb
	if a.Subresource != "" {
		verb += " " + a.Subresource
	}
	return fmt.Sprintf("%s (%s, %s)", a.User, verb, a.UserAgent)
}

func unknown(format string, args ...any) Author {
	return Author{User: UnknownUser, Reason: fmt.Sprintf(format, args...)}
}

// ledger finds the request that made a change.
//
// Most responses have the object, and its resourceVersion identifies the change. But
// a request that changed nothing gets the resourceVersion of the previous change, and
// some responses have no object at all. In these cases the ledger compares the change
// itself with the possible requests. It excludes the requests that cannot have made the
// change. If several authors remain, the author is unknown.
type ledger struct {
	exact     map[string][]*request     // successful requests by the resourceVersion in the response
	indirect  map[objectName][]*request // successful requests whose response does not show all effects
	uncertain map[objectName][]*request // requests of which it is unknown whether they succeeded

	// These are known from the changes so far: when an object was requested at the
	// earliest, which object an indirect request without a UID was about, and for which
	// objects it is finished.
	born     map[types.UID]time.Time
	about    map[*request]types.UID
	finished map[effectOn]bool

	// suspects are the possible authors of the last change, if there are several.
	suspects []Author
}

type objectName struct {
	resource        schema.GroupResource
	namespace, name string
}

// effectOn is the effect of a request on an object.
type effectOn struct {
	request *request
	uid     types.UID
}

func newLedger(requests []*request) *ledger {
	l := &ledger{
		exact:     make(map[string][]*request),
		indirect:  make(map[objectName][]*request),
		uncertain: make(map[objectName][]*request),
		born:      make(map[types.UID]time.Time),
		about:     make(map[*request]types.UID),
		finished:  make(map[effectOn]bool),
	}
	for _, r := range requests {
		object := objectName{r.resource, r.namespace, r.name}
		// A create request does not affect existing objects.
		if r.uncertain() && (r.author.Verb != "create" || r.author.Subresource != "") {
			l.uncertain[object] = append(l.uncertain[object], r)
		}
		if !r.succeeded() {
			continue
		}
		if len(r.effects()) > 0 {
			l.indirect[object] = append(l.indirect[object], r)
		}
		// An update that returns the version it was based on has changed nothing.
		if version := r.answer.Metadata.ResourceVersion; version != "" && version != r.knewOf {
			l.exact[version] = append(l.exact[version], r)
		}
	}
	return l
}

// author returns the author of a change; before is the previous object, if known. It must
// be called for all changes in order.
func (l *ledger) author(change Change, before *unstructured.Unstructured) Author {
	l.suspects = nil
	if told := l.exact[change.ResourceVersion]; len(told) > 0 {
		return l.authorByAnswer(change, ableTo(change, before, told), effectsOf(change, before))
	}
	return l.authorByEffect(change, effectsOf(change, before))
}

// ableTo excludes the requests that cannot have made a change. A request that changes
// nothing gets the version of the previous change, so two concurrent requests may get the
// same version. The changed fields then show which request made the change.
func ableTo(change Change, before *unstructured.Unstructured, told []*request) []*request {
	if before == nil {
		return told
	}
	changed := changedFields(before.Object, change.Object.Object)
	left := slices.DeleteFunc(slices.Clone(told), func(r *request) bool {
		return r.author.Subresource == "status" && slices.ContainsFunc(changed, func(field string) bool { return strings.HasPrefix(field, "spec.") })
	})
	// The server may fill in fields that no patch names. So this distinguishes several
	// requests, but never excludes all of them.
	named := slices.DeleteFunc(slices.Clone(left), func(r *request) bool {
		return r.patched != nil && slices.ContainsFunc(changed, func(field string) bool { return !slices.Contains(r.patched, field) })
	})
	if len(named) > 0 {
		return named
	}
	return left
}

// changedFields returns the differing fields of two versions of an object, for example
// "metadata.labels". It skips fields that the server maintains.
func changedFields(before, after map[string]any) []string {
	was, is := sections(before), sections(after)
	maps.Copy(was, is)
	var changed []string
	for field := range was {
		section, key, _ := strings.Cut(field, ".")
		a, _, _ := unstructured.NestedFieldNoCopy(before, section, key)
		b, _, _ := unstructured.NestedFieldNoCopy(after, section, key)
		if !equality.Semantic.DeepEqual(a, b) {
			changed = append(changed, field)
		}
	}
	return changed
}

// sections returns the fields of an object or of a merge patch, two levels deep.
func sections(object map[string]any) map[string]bool {
	fields := map[string]bool{}
	for _, section := range []string{"metadata", "spec", "status"} {
		within, _ := object[section].(map[string]any)
		for key := range within {
			// A strategic merge patch may contain merge directives for a list:
			// "$setElementOrder/taints".
			if directive, field, found := strings.Cut(key, "/"); found && strings.HasPrefix(directive, "$") {
				key = field
			}
			fields[section+"."+key] = true
		}
	}
	for _, key := range []string{"resourceVersion", "managedFields", "generation"} {
		delete(fields, "metadata."+key)
	}
	return fields
}

// authorByAnswer judges the requests that got the version of the change.
func (l *ledger) authorByAnswer(change Change, told []*request, done []effect) Author {
	if i := slices.IndexFunc(told, (*request).created); change.Type == watch.Added && i >= 0 {
		l.born[change.UID] = told[i].received
		return told[i].author // only one request gets "created"
	}
	for _, r := range told {
		if r.author.Verb == "delete" {
			l.finished[effectOn{r, change.UID}] = true // the response shows the last effect of the request
		}
	}
	return l.judge(change, notAfterAnyAnswer(notAfter(told, change.Time)), done)
}

// authorByEffect judges the requests whose effect is this change.
func (l *ledger) authorByEffect(change Change, done []effect) Author {
	suspects := notAfter(l.suspectsByEffect(change, done), change.Time)
	if !slices.Contains(done, hastened) {
		// After a successful request, later requests have nothing to do. But a deletion can
		// be accelerated again and again.
		suspects = notAfterAnyAnswer(suspects)
	}
	author := l.judge(change, suspects, done)
	if author.Known() && len(suspects) == 1 {
		l.about[suspects[0]] = change.UID
		l.finished[effectOn{suspects[0], change.UID}] = !slices.Contains(done, condemned) && !slices.Contains(done, hastened)
	}
	return author
}

// judge returns the author if a single author is left.
func (l *ledger) judge(change Change, suspects []*request, done []effect) Author {
	if len(suspects) == 0 {
		return l.authorByElimination(change, done)
	}
	for _, rival := range l.lookup(l.uncertain, change) {
		if slices.ContainsFunc(suspects, rival.overlaps) {
			return unknown("%s was running, too, and got no response", rival)
		}
	}
	for _, other := range suspects[1:] {
		if other.author != suspects[0].author {
			for _, r := range suspects {
				l.suspects = append(l.suspects, r.author)
			}
			return unknown("%s and %s may both have made it", suspects[0], other)
		}
	}
	return suspects[0].author
}

// authorByElimination judges a write without a successful response: if the client has
// disconnected, the log says failed, although the object may have been written; if the server
// was killed, the log has no end of the request. If all possible requests are of the same author,
// it is that author: the server logs every request before it handles it.
func (l *ledger) authorByElimination(change Change, done []effect) Author {
	unmatched := unknown("no answered request in the audit log made it")
	if change.Type != watch.Modified {
		return unmatched
	}
	rivals := notAfter(l.lookup(l.uncertain, change), change.Time)
	for _, r := range rivals {
		able := r.author.Verb == "patch" || r.author.Verb == "update"
		if slices.Contains(done, terminating) { // only a deletion has this effect
			able = r.author.Verb == "delete"
		}
		if !able || r.author != rivals[0].author {
			return unmatched
		}
	}
	if len(rivals) == 0 {
		return unmatched
	}
	return rivals[0].author
}

// notAfterAnyAnswer excludes the requests that arrived after another request was answered: the
// change had already been made.
func notAfterAnyAnswer(requests []*request) []*request {
	for _, r := range requests {
		requests = notAfter(requests, r.ended)
	}
	return requests
}

// notAfter returns the requests that arrived before a time.
func notAfter(requests []*request, moment time.Time) []*request {
	return slices.DeleteFunc(slices.Clone(requests), func(r *request) bool { return r.received.After(moment) })
}

// suspectsByEffect returns the requests that have this effect, are about this object and
// not about another object with the same name, and had not finished with it before.
func (l *ledger) suspectsByEffect(change Change, done []effect) []*request {
	return slices.DeleteFunc(l.lookup(l.indirect, change), func(r *request) bool {
		uids := r.uids()
		if uid, ok := l.about[r]; ok && len(uids) == 0 {
			uids = []types.UID{uid}
		}
		return !slices.ContainsFunc(r.effects(), func(e effect) bool { return slices.Contains(done, e) }) ||
			len(uids) > 0 && !slices.Contains(uids, change.UID) ||
			r.ended.Before(l.born[change.UID]) ||
			l.finished[effectOn{r, change.UID}]
	})
}

// lookup returns the requests about the object, and about collections that may contain it.
func (l *ledger) lookup(requests map[objectName][]*request, change Change) []*request {
	resource := change.GVR.GroupResource()
	found := slices.Clone(requests[objectName{resource, change.Namespace, change.Name}])
	found = append(found, requests[objectName{resource, change.Namespace, ""}]...)
	if change.Namespace != "" {
		found = append(found, requests[objectName{resource, "", ""}]...)
	}
	return found
}

// effect is a visible effect of a request whose response does not show it.
type effect int

const (
	bound       effect = iota // the pod got a node
	condemned                 // the pod is marked for eviction
	terminating               // the deletion of the object has begun
	hastened                  // a running deletion got a shorter grace period
	deleted                   // the object is deleted
)

// effects returns what a request may have done in addition to, or instead of, writing the
// object in its response.
func (r *request) effects() []effect {
	switch verb, answer := r.author.Verb, r.answer; {
	case verb == "create" && r.author.Subresource == "binding":
		return []effect{bound}
	case verb == "create" && r.author.Subresource == "eviction":
		return []effect{condemned, terminating, hastened, deleted}
	case verb == "deletecollection", verb == "delete" && answer.Kind == "Status":
		return []effect{terminating, hastened, deleted}
	case verb == "delete":
		// The response shows the last effect. A pod's grace period is shortened before it
		// is deleted.
		return []effect{terminating, hastened}
	case answer.Metadata.DeletionTimestamp != nil && answer.Metadata.Grace == 0 && len(answer.Metadata.Finalizers) == 0:
		// Removing the last finalizer deletes the object. The response shows the object as
		// if it had been written.
		return []effect{deleted}
	}
	return nil
}

// uids returns the objects that the response names.
func (r *request) uids() []types.UID {
	var uids []types.UID
	for _, uid := range []types.UID{r.answer.Metadata.UID, r.answer.Details.UID} {
		if uid != "" {
			uids = append(uids, uid)
		}
	}
	for _, item := range r.answer.Items {
		uids = append(uids, item.Metadata.UID)
	}
	return uids
}

// overlaps reports whether two requests ran at the same time.
func (r *request) overlaps(other *request) bool {
	return !r.received.After(other.ended) && !other.received.After(r.ended)
}

// effectsOf derives the effects from a change.
func effectsOf(change Change, before *unstructured.Unstructured) []effect {
	if change.Type == watch.Deleted {
		return []effect{deleted}
	}
	if before == nil {
		return nil
	}
	var done []effect
	switch was, is := before.GetDeletionTimestamp(), change.Object.GetDeletionTimestamp(); {
	case is == nil:
	case was == nil:
		done = append(done, terminating)
	case is.Before(was) || graceOf(change.Object) < graceOf(before):
		done = append(done, hastened)
	}
	if nodeOf(before) == "" && nodeOf(change.Object) != "" {
		done = append(done, bound)
	}
	if !isCondemned(before) && isCondemned(change.Object) {
		done = append(done, condemned)
	}
	return done
}

func graceOf(object *unstructured.Unstructured) int64 {
	if grace := object.GetDeletionGracePeriodSeconds(); grace != nil {
		return *grace
	}
	return 0
}

func nodeOf(pod *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
	return name
}

func isCondemned(pod *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		kind, _ := condition["type"].(string)
		status, _ := condition["status"].(string)
		return kind == "DisruptionTarget" && strings.EqualFold(status, "true")
	})
}
