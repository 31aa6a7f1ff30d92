package pools

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/internal/faultproxy"
)

// courier carries a controller's requests to the API server, and can keep some of them.
type courier struct{ *faultproxy.Proxy }

// letter is a request that is kept.
type letter = faultproxy.Request

// newCourier is at work for as long as the test.
func (p *pool) newCourier() courier {
	p.t.Helper()
	return courier{faultproxy.Start(p.t, p.Cluster, "courier-"+p.name)}
}

// keep keeps all letters that match, until the box is closed or emptied.
func (c courier) keep(match func(*letter) bool) box { return box{c.Hold(match, 0)} }

// arrive delivers letters, and says with what answer; 0 for any.
func (p *pool) arrive(letters []*letter, code int) {
	p.t.Helper()
	faultproxy.DeliverAll(p.t, letters, code)
}

// box is where letters of a kind are kept.
type box struct{ *faultproxy.Held }

// wait waits until there is a letter, and returns all that there are.
func (b box) wait(p *pool) []*letter {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	letters, err := b.Await(ctx, 1)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.lastWords())
	}
	return letters
}

// The kinds of writes of which a termination is made.

// namesClaim says that a page of the ledger names a claim.
func namesClaim(l *letter) bool {
	return l.Method == http.MethodPut && strings.HasSuffix(l.Path, "/configmaps/"+ledgerName) && bytes.Contains(l.Body, []byte("NodeClaim.karpenter.sh"))
}

func aboutClaim(method string, l *letter) bool {
	return l.Method == method && strings.Contains(l.Path, "/karpenter.sh/v1/nodeclaims/")
}

func marks(l *letter) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.Body, []byte(`"`+markAnnotation+`":"`))
}

func spares(l *letter) bool {
	return aboutClaim(http.MethodPatch, l) && bytes.Contains(l.Body, []byte(`"`+markAnnotation+`":null`))
}

func deletes(l *letter) bool { return aboutClaim(http.MethodDelete, l) }
