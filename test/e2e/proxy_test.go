package e2e

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/internal/faultproxy"
)

// proxy carries a controller's requests to the API server, and can keep some of them
// back.
type proxy struct{ *faultproxy.Proxy }

// heldRequest is a request that is kept.
type heldRequest = faultproxy.Request

// newProxy opens a post office. It closes with the test.
func (w *scope) newProxy(name string) proxy {
	w.t.Helper()
	return proxy{faultproxy.Start(w.t, w.Cluster, name)}
}

// hold keeps the next letters that match, as many as limit says; 0 means all until the
// box is emptied.
func (o proxy) hold(match func(*heldRequest) bool, limit int) heldRequests {
	return heldRequests{o.Hold(match, limit)}
}

// heldRequests is where letters are kept.
type heldRequests struct{ *faultproxy.Held }

// wait waits until n letters are in the box, and returns them.
func (b heldRequests) wait(w *scope, n int) []*heldRequest {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	letters, err := b.Await(ctx, n)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.logTail())
	}
	return letters[:n]
}

// target returns whom a letter about a node is about.
func target(l *heldRequest) string { return strings.TrimPrefix(l.Path, "/api/v1/nodes/") }

// The kinds of writes that a controller makes.

func about(method, resource string) func(*heldRequest) bool {
	return func(l *heldRequest) bool { return l.Method == method && strings.Contains(l.Path+"/", "/"+resource+"/") }
}

var (
	createsLedger = about(http.MethodPost, "configmaps")
	updatesLedger = about(http.MethodPut, "configmaps")
	changesNode   = about(http.MethodPatch, "nodes")
	tellsStatus   = about(http.MethodPatch, "conditionsets")
	tellsEvent    = about(http.MethodPost, "events")
	claimsLease   = about(http.MethodPost, "leases")
	renewsLease   = about(http.MethodPut, "leases")
)

// names says that a page of the ledger names somebody.
func names(l *heldRequest) bool {
	return updatesLedger(l) && bytes.Contains(bytes.ReplaceAll(l.Body, []byte(`\`), nil), []byte(`"grants":[{`))
}

// placesNoExecute and the others tell what a patch makes of the taints of a node
// that has none from others.
func placesNoExecute(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"effect":"NoExecute"`))
}

func placesNoSchedule(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"effect":"NoSchedule"`))
}

func removesTaint(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"taints":null`))
}

// fences says that a patch does nothing but give the node a new version.
func fences(l *heldRequest) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`\"fence\":`))
}
