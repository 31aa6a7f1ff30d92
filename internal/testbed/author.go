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

// Author is who made a change, and how.
type Author struct {
	// User is whose rights were used, or UnknownUser.
	User string

	// UserAgent and FieldManager tell programs of the same user apart.
	UserAgent, FieldManager string

	// Verb and Subresource are those of the request.
	Verb, Subresource string

	// Reason says why the author is unknown.
	Reason string
}

// Known says whether the author is proved.
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
// Most answers carry the object, and its resourceVersion names the change. But
// a request that changed nothing is answered with the resourceVersion of the
// change before it, and some answers carry no object at all: what they did must
// be read off the change itself. Of those who may have been the author, the
// ones are struck out who cannot have been; when more than one remains, nobody
// is named.
type ledger struct {
	exact     map[string][]*request     // carried out; by the resourceVersion in the answer
	indirect  map[objectName][]*request // carried out, but the answer does not tell all of it
	uncertain map[objectName][]*request // nobody knows whether they were carried out

	// What the changes so far have taught: when an object was asked for at the
	// earliest, whom an indirect request that names no UID was about, and to
	// whom it can have done nothing more.
	born     map[types.UID]time.Time
	about    map[*request]types.UID
	finished map[deed]bool

	// suspects are those of whom one has made the change that was asked about last, if
	// nobody can tell which of them.
	suspects []Author
}

type objectName struct {
	resource        schema.GroupResource
	namespace, name string
}

// deed is what one request did to one object.
type deed struct {
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
		finished:  make(map[deed]bool),
	}
	for _, r := range requests {
		object := objectName{r.resource, r.namespace, r.name}
		// One that creates does nothing to what is there already.
		if r.uncertain() && (r.author.Verb != "create" || r.author.Subresource != "") {
			l.uncertain[object] = append(l.uncertain[object], r)
		}
		if !r.succeeded() {
			continue
		}
		if len(r.effects()) > 0 {
			l.indirect[object] = append(l.indirect[object], r)
		}
		// An update that returns what it was made from has changed nothing.
		if version := r.answer.Metadata.ResourceVersion; version != "" && version != r.knewOf {
			l.exact[version] = append(l.exact[version], r)
		}
	}
	return l
}

// author returns who made a change; before is the object as it was, if known.
// It is to be asked about all changes in their order.
func (l *ledger) author(change Change, before *unstructured.Unstructured) Author {
	l.suspects = nil
	if told := l.exact[change.ResourceVersion]; len(told) > 0 {
		return l.authorByAnswer(change, ableTo(change, before, told), effectsOf(change, before))
	}
	return l.authorByEffect(change, effectsOf(change, before))
}

// ableTo leaves out the requests that cannot have made a change. A request that changes
// nothing is told the version of the change before it, so two requests at the same time
// may both be told of one change: the fields that changed tell which of them made it.
func ableTo(change Change, before *unstructured.Unstructured, told []*request) []*request {
	if before == nil {
		return told
	}
	changed := changedFields(before.Object, change.Object.Object)
	left := slices.DeleteFunc(slices.Clone(told), func(r *request) bool {
		return r.author.Subresource == "status" && slices.ContainsFunc(changed, func(field string) bool { return strings.HasPrefix(field, "spec.") })
	})
	// The server may fill in fields that no patch names, so this tells requests apart and
	// acquits none that is alone.
	named := slices.DeleteFunc(slices.Clone(left), func(r *request) bool {
		return r.patched != nil && slices.ContainsFunc(changed, func(field string) bool { return !slices.Contains(r.patched, field) })
	})
	if len(named) > 0 {
		return named
	}
	return left
}

// changedFields returns the fields of two versions of an object that differ, as
// "metadata.labels". The server itself maintains the ones that it leaves out.
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
			// A strategic merge patch may say of a list how to merge it: "$setElementOrder/taints".
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

// authorByAnswer judges those who were told of the change.
func (l *ledger) authorByAnswer(change Change, told []*request, done []effect) Author {
	if i := slices.IndexFunc(told, (*request).created); change.Type == watch.Added && i >= 0 {
		l.born[change.UID] = told[i].received
		return told[i].author // only one is told "created"
	}
	for _, r := range told {
		if r.author.Verb == "delete" {
			l.finished[deed{r, change.UID}] = true // the answer tells the last thing it did
		}
	}
	return l.judge(change, notAfterAnyAnswer(notAfter(told, change.Time)), done)
}

// authorByEffect judges those who do what was done.
func (l *ledger) authorByEffect(change Change, done []effect) Author {
	suspects := notAfter(l.suspectsByEffect(change, done), change.Time)
	if !slices.Contains(done, hastened) {
		// Whoever succeeds with one of the others leaves nothing to do for those
		// who come later; a deletion can be hastened again and again.
		suspects = notAfterAnyAnswer(suspects)
	}
	author := l.judge(change, suspects, done)
	if author.Known() && len(suspects) == 1 {
		l.about[suspects[0]] = change.UID
		l.finished[deed{suspects[0], change.UID}] = !slices.Contains(done, condemned) && !slices.Contains(done, hastened)
	}
	return author
}

// judge names the author when only one is left.
func (l *ledger) judge(change Change, suspects []*request, done []effect) Author {
	if len(suspects) == 0 {
		return l.authorByElimination(change, done)
	}
	for _, rival := range l.lookup(l.uncertain, change) {
		if slices.ContainsFunc(suspects, rival.overlaps) {
			return unknown("%s was under way too and never answered", rival)
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

// authorByElimination judges a write that nobody was told of: one whose client
// had gone is logged as failed, although the object may have been written. When
// all that can have made the change are such requests of one author, it was
// that one. A request without any end in the log proves nothing: then the server
// was killed, and the log may lack others.
func (l *ledger) authorByElimination(change Change, done []effect) Author {
	nobody := unknown("no answered request in the audit log has made it")
	if change.Type != watch.Modified {
		return nobody
	}
	rivals := notAfter(l.lookup(l.uncertain, change), change.Time)
	for _, r := range rivals {
		able := r.author.Verb == "patch" || r.author.Verb == "update"
		if slices.Contains(done, terminating) { // only a deletion does that
			able = r.author.Verb == "delete"
		}
		if !r.answered || !able || r.author != rivals[0].author {
			return nobody
		}
	}
	if len(rivals) == 0 {
		return nobody
	}
	return rivals[0].author
}

// notAfterAnyAnswer strikes out the requests that came when one of the others
// was answered already: they found the change made.
func notAfterAnyAnswer(requests []*request) []*request {
	for _, r := range requests {
		requests = notAfter(requests, r.ended)
	}
	return requests
}

// notAfter returns the requests that had been received by a moment.
func notAfter(requests []*request, moment time.Time) []*request {
	return slices.DeleteFunc(slices.Clone(requests), func(r *request) bool { return r.received.After(moment) })
}

// suspectsByEffect returns the requests that do what was done to the object,
// were about this object and no namesake, and had not finished with it before.
func (l *ledger) suspectsByEffect(change Change, done []effect) []*request {
	return slices.DeleteFunc(l.lookup(l.indirect, change), func(r *request) bool {
		uids := r.uids()
		if uid, ok := l.about[r]; ok && len(uids) == 0 {
			uids = []types.UID{uid}
		}
		return !slices.ContainsFunc(r.effects(), func(e effect) bool { return slices.Contains(done, e) }) ||
			len(uids) > 0 && !slices.Contains(uids, change.UID) ||
			r.ended.Before(l.born[change.UID]) ||
			l.finished[deed{r, change.UID}]
	})
}

// lookup returns the requests about the object, and about collections it may be in.
func (l *ledger) lookup(requests map[objectName][]*request, change Change) []*request {
	resource := change.GVR.GroupResource()
	found := slices.Clone(requests[objectName{resource, change.Namespace, change.Name}])
	found = append(found, requests[objectName{resource, change.Namespace, ""}]...)
	if change.Namespace != "" {
		found = append(found, requests[objectName{resource, "", ""}]...)
	}
	return found
}

// effect is what can be seen of a request whose answer does not say.
type effect int

const (
	bound       effect = iota // the pod has got a node
	condemned                 // the pod is marked for eviction
	terminating               // the deletion of the object has begun
	hastened                  // the deletion, begun before, will take less time
	deleted                   // the object is gone
)

// effects returns what a request may have done beside, or instead of, writing
// the object that its answer carries.
func (r *request) effects() []effect {
	switch verb, answer := r.author.Verb, r.answer; {
	case verb == "create" && r.author.Subresource == "binding":
		return []effect{bound}
	case verb == "create" && r.author.Subresource == "eviction":
		return []effect{condemned, terminating, hastened, deleted}
	case verb == "deletecollection", verb == "delete" && answer.Kind == "Status":
		return []effect{terminating, hastened, deleted}
	case verb == "delete":
		// The answer names the last thing that was done; a pod's grace period
		// is cut short before it is deleted.
		return []effect{terminating, hastened}
	case answer.Metadata.DeletionTimestamp != nil && answer.Metadata.Grace == 0 && len(answer.Metadata.Finalizers) == 0:
		// With the last finalizer goes the object; the answer shows it as it
		// would have been written.
		return []effect{deleted}
	}
	return nil
}

// uids returns the objects that the answer says the request was about.
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

// overlaps says that the two requests were under way at the same time.
func (r *request) overlaps(other *request) bool {
	return !r.received.After(other.ended) && !other.received.After(r.ended)
}

// effectsOf reads off a change what was done to the object.
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
