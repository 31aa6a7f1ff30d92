package e2e

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/internal/faultproxy"
)

// proxy forwards a controller's requests to the API server, and can hold some of them.
type proxy struct{ *faultproxy.Proxy }

// heldRequest is a held request.
type heldRequest = faultproxy.Request

// newProxy starts a proxy until the end of the test.
func (w *scope) newProxy(name string) proxy {
	w.t.Helper()
	return proxy{faultproxy.Start(w.t, w.Cluster, name)}
}

// hold holds the next matching requests up to the limit; 0 means all until the result is
// emptied.
func (o proxy) hold(match func(*heldRequest) bool, limit int) heldRequests {
	return heldRequests{o.Hold(match, limit)}
}

// heldRequests are the held requests of one kind.
type heldRequests struct{ *faultproxy.Held }

// wait waits until n requests are held, and returns them.
func (b heldRequests) wait(w *scope, n int) []*heldRequest {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), maxWait)
	defer cancel()
	requests, err := b.Await(ctx, n)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.LogTail())
	}
	return requests[:n]
}

// target returns the node that a request is about.
func target(l *heldRequest) string { return strings.TrimPrefix(l.Path, "/api/v1/nodes/") }

// The kinds of writes that a controller makes.

func about(method, resource string) func(*heldRequest) bool {
	return func(l *heldRequest) bool { return l.Method == method && strings.Contains(l.Path+"/", "/"+resource+"/") }
}

var (
	createsLedger = about(http.MethodPost, "configmaps")
	updatesLedger = about(http.MethodPut, "configmaps")
	changesNode   = about(http.MethodPatch, "nodes")
	writesStatus  = about(http.MethodPatch, "conditionsets")
	writesEvent   = about(http.MethodPost, "events")
	claimsLease   = about(http.MethodPost, "leases")
	renewsLease   = about(http.MethodPut, "leases")
)

// names reports whether a ledger write names a node.
func names(l *heldRequest) bool {
	return updatesLedger(l) && bytes.Contains(bytes.ReplaceAll(l.Body, []byte(`\`), nil), []byte(`"grants":[{`))
}

// placesNoExecute and the others report what a patch does to the taints of a node without
// other writers' taints.
func placesNoExecute(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"effect":"NoExecute"`))
}

func placesNoSchedule(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"effect":"NoSchedule"`))
}

func removesTaint(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"taints":null`))
}

// fences reports whether a patch only gives the node a new version.
func fences(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`\"fence\":`))
}
