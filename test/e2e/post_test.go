package e2e

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/internal/faultproxy"
)

// office carries a controller's requests to the API server, and can keep some of them
// back.
type office struct{ *faultproxy.Proxy }

// letter is a request that is kept.
type letter = faultproxy.Request

// newPost opens a post office. It closes with the test.
func (w *ward) newPost(name string) office {
	w.t.Helper()
	return office{faultproxy.Start(w.t, w.Cluster, name)}
}

// keep keeps the next letters that match, as many as limit says; 0 means all until the
// box is emptied.
func (o office) keep(match func(*letter) bool, limit int) box { return box{o.Hold(match, limit)} }

// box is where letters are kept.
type box struct{ *faultproxy.Held }

// wait waits until n letters are in the box, and returns them.
func (b box) wait(w *ward, n int) []*letter {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	letters, err := b.Await(ctx, n)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.lastWords())
	}
	return letters[:n]
}

// addressee returns whom a letter about a node is about.
func addressee(l *letter) string { return strings.TrimPrefix(l.Path, "/api/v1/nodes/") }

// The kinds of writes that a controller makes.

func about(method, resource string) func(*letter) bool {
	return func(l *letter) bool { return l.Method == method && strings.Contains(l.Path+"/", "/"+resource+"/") }
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
func names(l *letter) bool {
	return updatesLedger(l) && bytes.Contains(bytes.ReplaceAll(l.Body, []byte(`\`), nil), []byte(`"grants":[{`))
}

// placesNoExecute and the others tell what a patch makes of the taints of a node
// that has none from others.
func placesNoExecute(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"effect":"NoExecute"`))
}

func placesNoSchedule(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"effect":"NoSchedule"`))
}

func removesTaint(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`"taints":null`))
}

// fences says that a patch does nothing but give the node a new version.
func fences(l *letter) bool {
	return changesNode(l) && bytes.Contains(l.Body, []byte(`\"fence\":`))
}
