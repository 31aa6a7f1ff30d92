package pools

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/internal/faultproxy"
)

// proxy carries a controller's requests to the API server, and can keep some of them.
type proxy struct{ *faultproxy.Proxy }

// heldRequest is a request that is kept.
type heldRequest = faultproxy.Request

// newProxy is at work for as long as the test.
func (p *pool) newProxy() proxy {
	p.t.Helper()
	return proxy{faultproxy.Start(p.t, p.Cluster, "courier-"+p.name)}
}

// hold keeps all letters that match, until the box is closed or emptied.
func (c proxy) hold(match func(*heldRequest) bool) heldRequests {
	return heldRequests{c.Hold(match, 0)}
}

// deliver delivers letters, and says with what answer; 0 for any.
func (p *pool) deliver(letters []*heldRequest, code int) {
	p.t.Helper()
	faultproxy.DeliverAll(p.t, letters, code)
}

// heldRequests is where letters of a kind are kept.
type heldRequests struct{ *faultproxy.Held }

// wait waits until there is a letter, and returns all that there are.
func (b heldRequests) wait(p *pool) []*heldRequest {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	letters, err := b.Await(ctx, 1)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.logTail())
	}
	return letters
}

// The kinds of writes of which a termination is made.

// namesClaim says that a page of the ledger names a claim.
func namesClaim(l *heldRequest) bool {
	return l.Method == http.MethodPut && strings.HasSuffix(l.Path, "/configmaps/"+ledgerName) && bytes.Contains(l.Body, []byte("NodeClaim.karpenter.sh"))
}

func aboutClaim(method string, l *heldRequest) bool {
	return l.Method == method && strings.Contains(l.Path, "/karpenter.sh/v1/nodeclaims/")
}

func marks(l *heldRequest) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.Body, []byte(`"`+markAnnotation+`":"`))
}

func spares(l *heldRequest) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.Body, []byte(`"`+markAnnotation+`":null`))
}

func deletes(l *heldRequest) bool { return aboutClaim(http.MethodDelete, l) }
