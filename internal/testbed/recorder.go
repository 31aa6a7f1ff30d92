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

// Recording is every change of the recorded resources, in order.
type Recording []Change

// Change is one write to one object.
type Change struct {
	// Type is watch.Added, watch.Modified or watch.Deleted.
	Type watch.EventType

	// GVR is the recorded resource, as in Config.Record.
	GVR schema.GroupVersionResource

	Namespace, Name string
	UID             types.UID
	ResourceVersion string

	// Object is the stored object after the write. For a deletion it is the last state,
	// with the resourceVersion of the deletion.
	Object *unstructured.Unstructured

	// Author is the client that made the change. If the log allows several authors, Author
	// is unknown, and Suspects has them.
	Author   Author
	Suspects []Author

	// Time is when the recorder saw the change, a few milliseconds after the write.
	Time time.Time
}

// Recording waits until all writes up to now are recorded with their authors, and returns a
// copy.
func (c *Cluster) Recording(ctx context.Context) (Recording, error) {
	return c.RecordingOf(ctx, func(Change) bool { return true })
}

// RecordingOf returns a part of the Recording. isWanted may read the objects but not change
// them. Unwanted changes are not copied, so that a test on a shared cluster does not pay
// for the earlier tests.
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

// Lost returns the recordings that restored backups have replaced, each until the restore. A
// Recording after a restore has the changes of the backup, and then those since the restore.
func (c *Cluster) Lost() []Recording {
	if c.recorder == nil {
		return nil
	}
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	return slices.Clone(c.recorder.lost)
}

// recorder watches etcd and not the API server. A watch of the API server cannot continue
// after a restart of the server: its cache begins with the restart, and it answers every
// older resourceVersion with "too old". etcd remembers, has one order for all resources,
// and survives a crash of the API server. A resourceVersion is etcd's revision.
type recorder struct {
	resources []schema.GroupVersionResource
	within    map[schema.GroupVersionResource][]string
	etcd      etcdClient
	audit     *auditLog
	cancel    context.CancelFunc
	done      chan struct{}

	mu     sync.Mutex
	base   Recording     // what a restored backup had, before the writes
	lost   []Recording   // what restored backups have replaced
	seen   int64         // all writes up to this revision are in writes
	writes []write       // of the recorded resources only
	broken error         // why no more writes can be added
	moved  chan struct{} // closed, and replaced, when seen or broken changes
}

// write is a change in etcd. It is decoded once, when a test first reads it, because tests
// read the recording repeatedly.
type write struct {
	kind     watch.EventType
	resource schema.GroupVersionResource
	revision int64
	value    []byte
	object   func() (*unstructured.Unstructured, error) // callers must not change it
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

// follow continues the watch where it broke off, until ctx ends or etcd has compacted the
// next revisions.
func (r *recorder) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.etcd.watch(ctx, r.position()+1, r.record)
		if errors.Is(err, errCompacted) {
			r.fail(err)
			return
		}
		select { // etcd is down; it will be back, or the cluster has stopped
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

func (r *recorder) position() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// record adds the writes of one or more revisions.
func (r *recorder) record(events []etcdEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, event := range events {
		r.seen = event.KV.ModRevision
		w := write{kind: watch.Modified, revision: event.KV.ModRevision, value: event.KV.Value, time: now}
		switch {
		case event.Type == "DELETE" && event.PrevKV == nil:
			r.broken = fmt.Errorf("etcd no longer has the object that was deleted at revision %d (%s)", w.revision, event.KV.Key)
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

// isWithin reports whether an object under a key is in a recorded namespace. A key ends in
// the namespace and the name.
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

// read returns everything up to now. The order of its three waits matters: the audit log
// has already begun to report the requests of all writes in etcd.
func (r *recorder) read(ctx context.Context) (Recording, error) {
	now, err := r.etcd.revision(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading etcd's revision: %w", err)
	}
	writes, err := r.upTo(ctx, now)
	if err != nil {
		return nil, err
	}
	requests, err := r.audit.settled(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	base := r.base
	r.mu.Unlock()
	return attribute(base, writes, requests)
}

// rewind replaces the recording by the recording of a backup, which is about to be restored.
// etcd is stopped, and all has the writes up to now. Requests of the past are forgotten: etcd
// uses their revisions again.
func (r *recorder) rewind(backup, all Recording, revision int64) {
	r.audit.forget()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base, r.writes, r.seen = backup, nil, revision
	r.lost = append(r.lost, all)
}

// upTo waits until the writes up to a revision are recorded.
func (r *recorder) upTo(ctx context.Context, revision int64) ([]write, error) {
	for {
		r.mu.Lock()
		seen, writes, broken, moved := r.seen, r.writes, r.broken, r.moved
		r.mu.Unlock()
		switch {
		case broken != nil:
			return nil, broken
		case seen >= revision:
			// Later writes may belong to requests that are still running.
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

// attribute combines the writes in etcd with the audit log, and adds them to a recording. It
// shares the objects of the writes.
func attribute(base Recording, writes []write, requests []*request) (Recording, error) {
	book := newLedger(requests)
	before := make(map[types.UID]*unstructured.Unstructured)
	recording := append(make(Recording, 0, len(base)+len(writes)), base...)
	for _, change := range base {
		before[change.UID] = change.Object
	}
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
