package testbed

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Recording is every change of the recorded resources, in the order in which
// they were made.
type Recording []Change

// Change is one write to one object.
type Change struct {
	// Type is watch.Added, watch.Modified or watch.Deleted.
	Type watch.EventType

	// GVR is the recorded resource, as Config.Record names it.
	GVR schema.GroupVersionResource

	Namespace, Name string
	UID             types.UID
	ResourceVersion string

	// Object is the object after the write, as it is stored; after a deletion,
	// what it was before, with the resourceVersion of the deletion.
	Object *unstructured.Unstructured

	// Author is who made the change. Where the log leaves open which of several it was,
	// he is not known, and Suspects are those several.
	Author   Author
	Suspects []Author

	// Time is when the recorder saw the change, a few milliseconds after it
	// was made.
	Time time.Time
}

// Recording waits until everything that has been written up to now is recorded
// and its authors are known, and returns a copy of all of it.
func (c *Cluster) Recording(ctx context.Context) (Recording, error) {
	return c.RecordingOf(ctx, func(Change) bool { return true })
}

// RecordingOf is Recording for one who wants a part of it, and who may look at the
// objects of the others but not change them. What is not wanted need not be copied:
// a test that shares a cluster would else pay for all that came before it.
func (c *Cluster) RecordingOf(ctx context.Context, isWanted func(Change) bool) (Recording, error) {
	if c.recorder == nil {
		return nil, errors.New("reading the recording: there is none, because Config.Record is empty")
	}
	recording, err := c.recorder.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the recording: %w", err)
	}
	recording = slices.DeleteFunc(recording, func(c Change) bool { return !isWanted(c) })
	for i := range recording {
		recording[i].Object = recording[i].Object.DeepCopy()
	}
	return recording, nil
}

// recorder follows etcd and not the API server. A watch of the API server
// cannot be continued when the server has been restarted: its cache begins
// with the restart, and every older resourceVersion is answered with "too old".
// etcd remembers, keeps one order for all resources, and does not break when
// the API server does. A resourceVersion is nothing but its revision.
type recorder struct {
	resources []schema.GroupVersionResource
	within    map[schema.GroupVersionResource][]string
	etcd      etcdClient
	audit     *auditLog
	cancel    context.CancelFunc
	done      chan struct{}

	mu     sync.Mutex
	seen   int64         // everything up to this revision is in writes
	writes []write       // of the recorded resources only
	broken error         // why nothing can be added any more
	moved  chan struct{} // closed, and replaced, when seen or broken changes
}

// write is a change as etcd has it. It is decoded when somebody reads the recording,
// and only then, and once: tests read it over and over.
type write struct {
	kind     watch.EventType
	resource schema.GroupVersionResource
	revision int64
	value    []byte
	object   func() (*unstructured.Unstructured, error) // not to be changed by who asks
	time     time.Time
}

func newRecorder(resources []schema.GroupVersionResource, within map[schema.GroupVersionResource][]string, etcdSocket, auditPath string) *recorder {
	return &recorder{
		resources: resources,
		within:    within,
		etcd:      newEtcdClient(etcdSocket),
		audit:     newAuditLog(auditPath),
		done:      make(chan struct{}),
		moved:     make(chan struct{}),
	}
}

func (r *recorder) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.follow(ctx)
	}()
}

func (r *recorder) stop() {
	if r.cancel == nil {
		return
	}
	r.cancel()
	<-r.done
	r.etcd.http.CloseIdleConnections()
}

// follow takes the watch up again, where it broke off, until ctx ends or etcd
// has forgotten what comes next.
func (r *recorder) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.etcd.watch(ctx, r.position()+1, r.record)
		if errors.Is(err, errCompacted) {
			r.fail(err)
			return
		}
		select { // etcd is down; it will be back, or the cluster is over
		case <-ctx.Done():
		case <-time.After(glance):
		}
	}
}

func (r *recorder) position() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// record takes in the writes of one revision or several.
func (r *recorder) record(events []etcdEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, event := range events {
		r.seen = event.KV.ModRevision
		w := write{kind: watch.Modified, revision: event.KV.ModRevision, value: event.KV.Value, time: now}
		switch {
		case event.Type == "DELETE" && event.PrevKV == nil:
			r.broken = fmt.Errorf("etcd no longer knows what it deleted at revision %d (%s)", w.revision, event.KV.Key)
			continue
		case event.Type == "DELETE":
			w.kind, w.value = watch.Deleted, event.PrevKV.Value
		case event.KV.CreateRevision == event.KV.ModRevision:
			w.kind = watch.Added
		}
		if resource, ok := matchResource(r.resources, event.KV.Key, w.value); ok && r.isWithin(resource, event.KV.Key) {
			w.resource = resource
			w.object = sync.OnceValues(func() (*unstructured.Unstructured, error) { return decodeStored(w.value, w.revision) })
			r.writes = append(r.writes, w)
		}
	}
	close(r.moved)
	r.moved = make(chan struct{})
}

// isWithin says whether an object under a key is in a namespace that is recorded.
// A key ends in the namespace and the name.
func (r *recorder) isWithin(resource schema.GroupVersionResource, key []byte) bool {
	namespaces := r.within[resource]
	return namespaces == nil || slices.Contains(namespaces, path.Base(path.Dir(string(key))))
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = err
	close(r.moved)
	r.moved = make(chan struct{})
}

// read returns everything up to now. The order of its three waits matters: what
// is in etcd now was written by requests that the audit log has begun to tell of.
func (r *recorder) read(ctx context.Context) (Recording, error) {
	now, err := r.etcd.revision(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking etcd how far it is: %w", err)
	}
	writes, err := r.upTo(ctx, now)
	if err != nil {
		return nil, err
	}
	requests, err := r.audit.settled(ctx)
	if err != nil {
		return nil, err
	}
	return attribute(writes, requests)
}

// upTo waits until the writes up to a revision are there.
func (r *recorder) upTo(ctx context.Context, revision int64) ([]write, error) {
	for {
		r.mu.Lock()
		seen, writes, broken, moved := r.seen, r.writes, r.broken, r.moved
		r.mu.Unlock()
		switch {
		case broken != nil:
			return nil, broken
		case seen >= revision:
			// What came later may be the work of requests that are still under way.
			end := sort.Search(len(writes), func(i int) bool { return writes[i].revision > revision })
			return writes[:end], nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for revision %d, at %d: %w", revision, seen, context.Cause(ctx))
		}
	}
}

// attribute makes a recording of what etcd and the audit log tell. Its objects are those
// of the writes.
func attribute(writes []write, requests []*request) (Recording, error) {
	book := newLedger(requests)
	before := make(map[types.UID]*unstructured.Unstructured)
	recording := make(Recording, 0, len(writes))
	for _, w := range writes {
		object, err := w.object()
		if err != nil {
			return nil, fmt.Errorf("decoding %s at revision %d: %w", w.resource.Resource, w.revision, err)
		}
		change := Change{
			Type:            w.kind,
			GVR:             w.resource,
			Namespace:       object.GetNamespace(),
			Name:            object.GetName(),
			UID:             object.GetUID(),
			ResourceVersion: object.GetResourceVersion(),
			Object:          object,
			Time:            w.time,
		}
		change.Author = book.author(change, before[change.UID])
		change.Suspects = book.suspects
		before[change.UID] = object
		recording = append(recording, change)
	}
	return recording, nil
}
