package testbed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Stages and levels of the audit log.
const (
	stageReceived = "RequestReceived"
	levelMetadata = "Metadata"
)

// auditPolicy logs the writes to the resources and their subresources, with responses,
// because only these have the new resourceVersion. It also logs the stage RequestReceived,
// which shows running requests and requests that a killed server never answered. With allMetadata it
// logs the metadata of all other requests of service accounts.
func auditPolicy(resources []schema.GroupVersionResource, within map[schema.GroupVersionResource][]string, allMetadata bool) ([]byte, error) {
	everywhere := []map[string]any{}
	rules := []map[string]any{}
	writes := func(of []map[string]any) map[string]any {
		return map[string]any{"level": "RequestResponse", "resources": of, "verbs": []string{"create", "update", "patch", "delete", "deletecollection"}}
	}
	for _, r := range resources {
		resource := map[string]any{"group": r.Group, "resources": []string{r.Resource, r.Resource + "/*"}}
		namespaces := within[r]
		if namespaces == nil {
			everywhere = append(everywhere, resource)
			continue
		}
		rule := writes([]map[string]any{resource})
		// A client may also delete a collection in all namespaces.
		rule["namespaces"] = append([]string{""}, namespaces...)
		rules = append(rules, rule)
	}
	if len(everywhere) > 0 { // a rule without resources means all of them
		rules = append(rules, writes(everywhere))
	}
	if allMetadata {
		rules = append(rules, map[string]any{"level": levelMetadata, "userGroups": []string{"system:serviceaccounts"}, "omitStages": []string{stageReceived}})
	}
	return json.Marshal(map[string]any{
		"apiVersion":        "audit.k8s.io/v1",
		"kind":              "Policy",
		"omitManagedFields": true,
		"rules":             append(rules, map[string]any{"level": "None"}),
	})
}

// auditLog reads the API server's audit log while it grows.
type auditLog struct {
	path string

	mu       sync.Mutex
	offset   int64 // already read
	requests []*request
	pending  map[types.UID]*request // running requests by audit ID
}

// request is a write request to a recorded resource.
type request struct {
	author    Author
	resource  schema.GroupResource
	namespace string
	name      string // of the object; empty for a collection
	dryRun    bool

	received time.Time
	ended    time.Time // when it was answered, or when the server died
	answered bool
	code     int
	answer   auditObject
	knewOf   string   // the resourceVersion on which an update is based
	patched  []string // the fields of a merge patch, for example "metadata.labels"; nil if it may change any
}

// auditObject has the relevant fields of an object, a list or a status in the log.
type auditObject struct {
	Kind     string `json:"kind"`
	Metadata struct {
		UID               types.UID    `json:"uid"`
		ResourceVersion   string       `json:"resourceVersion"`
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		Grace             int64        `json:"deletionGracePeriodSeconds"`
		Finalizers        []string     `json:"finalizers"`
	} `json:"metadata"`
	Details struct {
		UID types.UID `json:"uid"`
	} `json:"details"`
	Items []auditObject `json:"items"`
}

type auditEvent struct {
	AuditID          types.UID  `json:"auditID"`
	Level            string     `json:"level"`
	Stage            string     `json:"stage"`
	RequestURI       string     `json:"requestURI"`
	Verb             string     `json:"verb"`
	User             auditUser  `json:"user"`
	ImpersonatedUser *auditUser `json:"impersonatedUser"`
	UserAgent        string     `json:"userAgent"`
	ObjectRef        struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject            json.RawMessage  `json:"requestObject"` // a patch need not be an object
	ResponseObject           auditObject      `json:"responseObject"`
	RequestReceivedTimestamp metav1.MicroTime `json:"requestReceivedTimestamp"`
	StageTimestamp           metav1.MicroTime `json:"stageTimestamp"`
}

type auditUser struct {
	Username string `json:"username"`
}

// serverEnded is the stage of a line that the testbed adds when the API server has ended:
// running requests will never be answered.
const serverEnded = "ServerEnded"

func newAuditLog(path string) *auditLog {
	return &auditLog{path: path, pending: make(map[types.UID]*request)}
}

// markEnd logs the end of the API server. The line break before it ends an incomplete line
// of a killed server.
func (l *auditLog) markEnd() {
	line, _ := json.Marshal(map[string]any{"stage": serverEnded, "stageTimestamp": metav1.NowMicro()})
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // the folder is deleted, so nothing reads the log
	}
	defer f.Close()
	_, _ = fmt.Fprintf(f, "\n%s\n", line)
}

// settled returns all requests up to now, after all running requests are answered or lost.
func (l *auditLog) settled(ctx context.Context) ([]*request, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.readOn(); err != nil {
		return nil, err
	}
	begun := len(l.requests)
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	for {
		waiting := firstPending(l.requests[:begun])
		if waiting == nil {
			return l.requests[:begun:begun], nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the response to %s: %w", waiting, context.Cause(ctx))
		case <-look.C:
		}
		if err := l.readOn(); err != nil {
			return nil, err
		}
	}
}

// forget forgets all requests up to now. The API server has ended.
func (l *auditLog) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests, l.pending = nil, make(map[types.UID]*request)
}

func firstPending(requests []*request) *request {
	for _, r := range requests {
		if r.ended.IsZero() {
			return r
		}
	}
	return nil
}

// readOn reads the new complete lines.
func (l *auditLog) readOn() error {
	f, err := os.Open(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing written yet
	}
	if err != nil {
		return fmt.Errorf("reading the audit log: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(l.offset, io.SeekStart); err != nil {
		return fmt.Errorf("reading the audit log: %w", err)
	}
	for lines := bufio.NewReaderSize(f, 1<<20); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the audit log: %w", err)
		}
		l.offset += int64(len(line))
		var event auditEvent
		if len(bytes.TrimSpace(line)) == 0 || json.Unmarshal(line, &event) != nil {
			continue // an incomplete line of a killed server
		}
		if event.Level == levelMetadata {
			continue // not a write to a recorded resource
		}
		l.take(event)
	}
}

func (l *auditLog) take(event auditEvent) {
	switch event.Stage {
	case stageReceived:
		r := newRequest(event)
		l.requests = append(l.requests, r)
		l.pending[event.AuditID] = r
	case "ResponseComplete", "Panic":
		r, ok := l.pending[event.AuditID]
		if !ok {
			return
		}
		delete(l.pending, event.AuditID)
		r.ended, r.answered = event.StageTimestamp.Time, event.Stage != "Panic"
		r.code, r.answer = event.ResponseStatus.Code, event.ResponseObject
		switch event.Verb {
		case "update":
			var sent auditObject
			_ = json.Unmarshal(event.RequestObject, &sent)
			r.knewOf = sent.Metadata.ResourceVersion
		case "patch":
			r.patched = patchedFields(event.RequestObject)
		}
	case serverEnded:
		for id, r := range l.pending {
			r.ended = event.StageTimestamp.Time
			delete(l.pending, id)
		}
	}
}

// patchedFields returns the fields that a merge patch can change, or nil for other types of
// patches: a JSON patch is a list, and an apply, which has its kind, may also remove fields
// that it does not name.
func patchedFields(patch json.RawMessage) []string {
	var sent map[string]any
	if json.Unmarshal(patch, &sent) != nil || sent["kind"] != nil {
		return nil
	}
	return slices.AppendSeq([]string{}, maps.Keys(sections(sent)))
}

func newRequest(event auditEvent) *request {
	user := event.User
	if event.ImpersonatedUser != nil {
		user = *event.ImpersonatedUser // the user whose rights were used
	}
	r := &request{
		author: Author{
			User:        user.Username,
			UserAgent:   event.UserAgent,
			Verb:        event.Verb,
			Subresource: event.ObjectRef.Subresource,
		},
		resource:  schema.GroupResource{Group: event.ObjectRef.APIGroup, Resource: event.ObjectRef.Resource},
		namespace: event.ObjectRef.Namespace,
		name:      event.ObjectRef.Name,
		received:  event.RequestReceivedTimestamp.Time,
	}
	var query url.Values
	if uri, err := url.Parse(event.RequestURI); err == nil {
		query = uri.Query()
	}
	r.dryRun = query.Has("dryRun")
	if !strings.HasPrefix(event.Verb, "delete") {
		// The server's default for clients without a field manager.
		r.author.FieldManager = query.Get("fieldManager")
		if r.author.FieldManager == "" {
			r.author.FieldManager, _, _ = strings.Cut(event.UserAgent, "/")
		}
	}
	return r
}

func (r *request) String() string {
	object := r.resource.String()
	if r.author.Subresource != "" {
		object += "/" + r.author.Subresource
	}
	return fmt.Sprintf("%s %s %s/%s by %s", r.author.Verb, object, r.namespace, r.name, r.author.User)
}

// created reports whether the request created the object.
func (r *request) created() bool { return r.succeeded() && r.code == http.StatusCreated }

// succeeded reports whether the request succeeded.
func (r *request) succeeded() bool { return r.answered && r.code/100 == 2 && !r.dryRun }

// uncertain reports whether it is unknown if the request succeeded.
func (r *request) uncertain() bool { return (!r.answered || r.code == 0 || r.code >= 500) && !r.dryRun }
