package report

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
)

const (
	applyPatch = "application/apply-patch+yaml" // a superset of JSON
	mergePatch = "application/strategic-merge-patch+json"

	// placeholder is the type of a condition that the agent applies when it has no other. An
	// apply without conditions would remove the whole list and all of the status that has no
	// known owner. Much of the status that a kubelet creates with its Node has none. So the
	// agent applies this condition, and then deletes it.
	placeholder = "AutohealerPlaceholder"
)

// encode returns JSON. It cannot fail for maps of strings and numbers.
func encode(object any) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	return text
}

type object map[string]any

func (c *core) nodePath() string { return "/api/v1/nodes/" + url.PathEscape(c.cfg.Node) }

// applyConditions applies all conditions of one manager. The API server removes the conditions
// that this manager applied before and that are not included.
func (c *core) applyConditions(manager string, force bool, version string, list []apiCondition) kubeapi.Request {
	metadata := object{"name": c.cfg.Node}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	query := url.Values{"fieldManager": {manager}}
	if force {
		query.Set("force", "true")
	}
	if len(list) == 0 {
		list = []apiCondition{{"type": placeholder, "status": "Unknown", "reason": "NothingToReport", "message": "The agent has no conditions to report. This condition is removed at once."}}
	}
	return kubeapi.Request{
		Method: http.MethodPatch, Path: c.nodePath() + "/status?" + query.Encode(), ContentType: applyPatch, MetadataOnly: true,
		Body: encode(object{
			"apiVersion": "v1", "kind": "Node", "metadata": metadata,
			"status": object{"conditions": list},
		}),
	}
}

// toAPIConditions returns conditions in the form of the API, sorted by type.
func toAPIConditions(conditions map[string]condition, now time.Time) []apiCondition {
	list := make([]apiCondition, 0, len(conditions))
	for _, kind := range slices.Sorted(maps.Keys(conditions)) {
		list = append(list, conditions[kind].toAPI(kind, now))
	}
	return list
}

// deleteConditions deletes conditions as a whole, whichever managers own their fields. With a
// version, the deletion fails if the Node has changed since.
func (c *core) deleteConditions(version string, kinds ...string) kubeapi.Request {
	patches := make([]object, 0, len(kinds))
	for _, kind := range kinds {
		patches = append(patches, object{"type": kind, "$patch": "delete"})
	}
	body := object{"status": object{"conditions": patches}}
	if version != "" {
		body["metadata"] = object{"resourceVersion": version}
	}
	return kubeapi.Request{
		Method: http.MethodPatch, Path: c.nodePath() + "/status?" + url.Values{"fieldManager": {FieldManager}}.Encode(),
		ContentType: mergePatch, MetadataOnly: true,
		Body: encode(body),
	}
}

func (c *core) getNode(fresh bool) kubeapi.Request {
	path := c.nodePath()
	if !fresh {
		path += "?resourceVersion=0"
	}
	return kubeapi.Request{Method: http.MethodGet, Path: path}
}

func (c *core) applyLease(now time.Time) kubeapi.Request {
	const micro = "2006-01-02T15:04:05.000000Z07:00"
	name := LeaseName(c.cfg.Node)
	path := "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(c.cfg.LeaseNamespace) + "/leases/" + name +
		"?" + url.Values{"fieldManager": {FieldManager}, "force": {"true"}}.Encode()
	return kubeapi.Request{
		Method: http.MethodPatch, Path: path, ContentType: applyPatch, MetadataOnly: true,
		Body: encode(object{
			"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
			"metadata": object{
				"name": name, "namespace": c.cfg.LeaseNamespace,
				"labels": object{LeaseLabel: LeaseLabelValue},
				// Kubernetes deletes the Lease with the Node.
				"ownerReferences": []object{{"apiVersion": "v1", "kind": "Node", "name": c.cfg.Node, "uid": c.uid}},
			},
			"spec": object{
				"holderIdentity":       c.cfg.Holder,
				"leaseDurationSeconds": int(LeaseDuration / time.Second),
				"acquireTime":          c.began.Add(c.lease.skew).UTC().Format(micro),
				"renewTime":            now.Add(c.lease.skew).UTC().Format(micro),
			},
		}),
	}
}

func (c *core) eventsPath() string {
	return "/api/v1/namespaces/" + url.PathEscape(c.cfg.EventNamespace) + "/events"
}

// updateEvent raises the count of a stored Event. It sends the whole count, so the request may
// be sent twice.
func (c *core) updateEvent(w *queuedEvent) kubeapi.Request {
	return kubeapi.Request{
		Method: http.MethodPatch, Path: c.eventsPath() + "/" + w.stored.name, ContentType: mergePatch, MetadataOnly: true,
		Body: encode(object{"count": eventCount(w), "lastTimestamp": w.Time.UTC().Format(time.RFC3339)}),
	}
}

// eventCount returns the count of the Event that w is written to, in the range of the API.
func eventCount(w *queuedEvent) uint64 { return min(w.stored.count+w.count(), math.MaxInt32) }

func (c *core) createEvent(w *queuedEvent) kubeapi.Request {
	about := object{"apiVersion": "v1", "kind": "Node", "name": c.cfg.Node, "uid": c.cfg.Node}
	if c.uid != "" {
		about["uid"] = c.uid
	}
	if c.cfg.EventNamespace != defaultEventNamespace {
		// A Node has no namespace, but the API server requires the namespace of the Event
		// here.
		about["namespace"] = c.cfg.EventNamespace
	}
	first, kind, source := w.Time, "Normal", sourceName(w.source)
	if w.since.Before(first) {
		first = w.since
	}
	if w.Severity == finding.Warn {
		kind = "Warning"
	}
	return kubeapi.Request{
		Method: http.MethodPost, Path: c.eventsPath(),
		ContentType: "application/json", MetadataOnly: true,
		Body: encode(object{
			"apiVersion": "v1", "kind": "Event",
			"metadata":       object{"name": w.stored.name, "namespace": c.cfg.EventNamespace},
			"involvedObject": about,
			"reason":         w.Reason, "message": w.message(), "type": kind,
			"source":             object{"component": source, "host": c.cfg.Node},
			"reportingComponent": source, "reportingInstance": c.cfg.Node,
			"firstTimestamp": first.UTC().Format(time.RFC3339), "lastTimestamp": w.Time.UTC().Format(time.RFC3339),
			"count": eventCount(w),
		}),
	}
}
