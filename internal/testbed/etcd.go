package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// etcdClient uses the JSON gateway of etcd's API, so that the module does not need the gRPC
// client with its dependencies.
type etcdClient struct{ http *http.Client }

func newEtcdClient(socket string) etcdClient {
	return etcdClient{http: &http.Client{Transport: &http.Transport{DialContext: dialSocket(socket)}}}
}

// etcdEvent is one write to one key.
type etcdEvent struct {
	Type   string  `json:"type"` // "DELETE", or empty for a put
	KV     etcdKV  `json:"kv"`
	PrevKV *etcdKV `json:"prev_kv"`
}

type etcdKV struct {
	Key            []byte `json:"key"`
	Value          []byte `json:"value"`
	CreateRevision int64  `json:"create_revision,string"`
	ModRevision    int64  `json:"mod_revision,string"`
}

// errCompacted says that etcd no longer has the requested revisions.
var errCompacted = errors.New("etcd has compacted away the changes that come next")

// everyKey is the range of all keys. It makes every revision visible, so that a watcher
// knows its position.
var everyKey = []byte{0}

// watch calls each with the writes from a revision on, grouped by revision, until the
// stream breaks. errCompacted is the only error that a new watch cannot fix.
func (e etcdClient) watch(ctx context.Context, from int64, each func([]etcdEvent)) error {
	body, err := e.post(ctx, "/v3/watch", map[string]any{"create_request": map[string]any{
		"key": everyKey, "range_end": everyKey, "start_revision": from, "prev_kv": true,
	}})
	if err != nil {
		return err
	}
	defer body.Close()
	for stream := json.NewDecoder(body); ; {
		var message struct {
			Result struct {
				Events          []etcdEvent `json:"events"`
				Canceled        bool        `json:"canceled"`
				CancelReason    string      `json:"cancel_reason"`
				CompactRevision int64       `json:"compact_revision,string"`
			} `json:"result"`
			Error *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := stream.Decode(&message); err != nil {
			return err
		}
		switch result := message.Result; {
		case message.Error != nil:
			return errors.New(message.Error.Message)
		case result.CompactRevision > 0:
			return fmt.Errorf("%w: wanted revision %d, the oldest is %d", errCompacted, from, result.CompactRevision)
		case result.Canceled:
			return errors.New(result.CancelReason)
		case len(result.Events) > 0:
			each(result.Events)
		}
	}
}

// revision returns the number of the latest write.
func (e etcdClient) revision(ctx context.Context) (int64, error) {
	body, err := e.post(ctx, "/v3/kv/range", map[string]any{"key": everyKey, "limit": 1})
	if err != nil {
		return 0, err
	}
	defer body.Close()
	var answer struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

func (e etcdClient) post(ctx context.Context, path string, message any) (io.ReadCloser, error) {
	content, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd"+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, fmt.Errorf("etcd: %s: %s", resp.Status, bytes.TrimSpace(reason))
	}
	return resp.Body, nil
}
