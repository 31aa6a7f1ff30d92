package report

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/kubeapi"
)

const (
	applyPatch = "application/apply-patch+yaml" // of which JSON is a part
	mergePatch = "application/strategic-merge-patch+json"

	// placeholder is the type of the row of one who has no rows any more. A manager who
	// says no row takes the whole list with him, and all of the status, as far as nobody is
	// known to own it: so the API server has it, and much of what a kubelet has made with
	// its node nobody owns. So he says one that is of no use, and then it is deleted.
	placeholder = "AutohealerPlaceholder"
)

// encode makes JSON of what is made of strings and numbers, which cannot fail.
func encode(object any) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	return text
}

type object map[string]any

func (c *core) nodePath() string { return "/api/v1/nodes/" + url.PathEscape(c.cfg.Node) }

// applyRows says all rows of one manager: those that he said before and does not say now
// are removed.
func (c *core) applyRows(manager string, force bool, version string, rows []wireRow) kubeapi.Request {
	metadata := object{"name": c.cfg.Node}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	query := url.Values{"fieldManager": {manager}}
	if force {
		query.Set("force", "true")
	}
	if len(rows) == 0 {
		rows = []wireRow{{"type": placeholder, "status": "Unknown", "reason": "NothingToReport", "message": "The agent has no conditions any more. This row is removed at once."}}
	}
	return kubeapi.Request{
		Method: http.MethodPatch, Path: c.nodePath() + "/status?" + query.Encode(), ContentType: applyPatch, MetadataOnly: true,
		Body: encode(object{
			"apiVersion": "v1", "kind": "Node", "metadata": metadata,
			"status": object{"conditions": rows},
		}),
	}
}

// wireRows are rows as they are written now.
func wireRows(rows map[string]row, now time.Time) []wireRow {
	list := make([]wireRow, 0, len(rows))
	for _, kind := range slices.Sorted(maps.Keys(rows)) {
		list = append(list, rows[kind].wire(kind, now))
	}
	return list
}

// erase deletes rows as a whole, whoever owns something of them: with a version, only
// as they were in that version of the Node.
func (c *core) erase(version string, kinds ...string) kubeapi.Request {
	gone := make([]object, 0, len(kinds))
	for _, kind := range kinds {
		gone = append(gone, object{"type": kind, "$patch": "delete"})
	}
	body := object{"status": object{"conditions": gone}}
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
				// The Lease goes with the node.
				"ownerReferences": []object{{"apiVersion": "v1", "kind": "Node", "name": c.cfg.Node, "uid": c.uid}},
			},
			"spec": object{
				"holderIdentity":       c.cfg.Holder,
				"leaseDurationSeconds": int(LeaseDuration / time.Second),
				"acquireTime":          c.began.Add(c.skew).UTC().Format(micro),
				"renewTime":            now.Add(c.skew).UTC().Format(micro),
			},
		}),
	}
}

func (c *core) createEvent(w *waiting) kubeapi.Request {
	about := object{"apiVersion": "v1", "kind": "Node", "name": c.cfg.Node, "uid": c.cfg.Node}
	if c.uid != "" {
		about["uid"] = c.uid
	}
	if c.cfg.EventNamespace != defaultEventNamespace {
		// A node has no namespace, but the API server wants that of the Event to be its own.
		about["namespace"] = c.cfg.EventNamespace
	}
	first, kind, source := w.Time, "Normal", sourceName(w.source)
	if w.more > 0 && w.since.Before(first) {
		first = w.since
	}
	if w.Severity == finding.Warn {
		kind = "Warning"
	}
	return kubeapi.Request{
		Method: http.MethodPost, Path: "/api/v1/namespaces/" + url.PathEscape(c.cfg.EventNamespace) + "/events",
		ContentType: "application/json", MetadataOnly: true,
		Body: encode(object{
			"apiVersion": "v1", "kind": "Event",
			"metadata":       object{"name": eventName(c.cfg.Node, w.ID), "namespace": c.cfg.EventNamespace},
			"involvedObject": about,
			"reason":         w.Reason, "message": w.words(), "type": kind,
			"source":             object{"component": source, "host": c.cfg.Node},
			"reportingComponent": source,
			"firstTimestamp":     first.UTC().Format(time.RFC3339), "lastTimestamp": w.Time.UTC().Format(time.RFC3339),
			"count": min(w.stands(), 1<<31-1),
		}),
	}
}
