package pools

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
func (p *pool) newProxy() proxy {
	p.t.Helper()
	return proxy{faultproxy.Start(p.t, p.Cluster, "proxy-"+p.name)}
}

// hold holds all matching requests until the result is closed or emptied.
func (c proxy) hold(match func(*heldRequest) bool) heldRequests {
	return heldRequests{c.Hold(match, 0)}
}

// deliver forwards requests, and checks the status code of the response; 0 for any.
func (p *pool) deliver(requests []*heldRequest, code int) {
	p.t.Helper()
	faultproxy.DeliverAll(p.t, requests, code)
}

// heldRequests are the held requests of one kind.
type heldRequests struct{ *faultproxy.Held }

// wait waits for a request, and returns all held requests.
func (b heldRequests) wait(p *pool) []*heldRequest {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), maxWait)
	defer cancel()
	requests, err := b.Await(ctx, 1)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.LogTail())
	}
	return requests
}

// The kinds of writes in a termination.

// namesClaim reports whether a ledger write names a claim.
func namesClaim(l *heldRequest) bool {
	return l.Method == http.MethodPut && strings.HasSuffix(l.Path, "/configmaps/"+ledgerName) && bytes.Contains(l.Body, []byte("NodeClaim.karpenter.sh"))
}

func aboutClaim(method string, l *heldRequest) bool {
	return l.Method == method && strings.Contains(l.Path, "/karpenter.sh/v1/nodeclaims/")
}

func marks(l *heldRequest) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.Body, []byte(`"`+markAnnotation+`":"`))
}

func unmarks(l *heldRequest) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.Body, []byte(`"`+markAnnotation+`":null`))
}

func deletes(l *heldRequest) bool { return aboutClaim(http.MethodDelete, l) }
