package testbed

import (
	"net/http/httptest"
	"testing"
)

func TestRequest(t *testing.T) {
	for _, test := range []struct {
		method, url string
		want        Request
	}{
		{"GET", "/api/v1/nodes", Request{Verb: "list", Version: "v1", Resource: "nodes"}},
		{"GET", "/api/v1/nodes?watch=true&resourceVersion=5", Request{Verb: "watch", Version: "v1", Resource: "nodes"}},
		{"GET", "/api/v1/nodes?watch=1", Request{Verb: "watch", Version: "v1", Resource: "nodes"}},
		{"GET", "/api/v1/nodes?watch=false", Request{Verb: "list", Version: "v1", Resource: "nodes"}},
		{"GET", "/api/v1/nodes/n1", Request{Verb: "get", Version: "v1", Resource: "nodes", Name: "n1"}},
		{"PATCH", "/api/v1/nodes/n1/status", Request{Verb: "patch", Version: "v1", Resource: "nodes", Subresource: "status", Name: "n1"}},
		{"DELETE", "/api/v1/nodes/n1", Request{Verb: "delete", Version: "v1", Resource: "nodes", Name: "n1"}},
		{"DELETE", "/api/v1/nodes", Request{Verb: "deletecollection", Version: "v1", Resource: "nodes"}},
		{"POST", "/api/v1/namespaces/ns/pods/p/eviction", Request{Verb: "create", Version: "v1", Resource: "pods", Subresource: "eviction", Namespace: "ns", Name: "p"}},
		{"GET", "/api/v1/namespaces/ns", Request{Verb: "get", Version: "v1", Resource: "namespaces", Name: "ns"}},
		{"PUT", "/api/v1/namespaces/ns/finalize", Request{Verb: "update", Version: "v1", Resource: "namespaces", Subresource: "finalize", Name: "ns"}},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", Request{Verb: "update", Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Namespace: "ns", Name: "l"}},
		{"POST", "/apis/apps/v1/namespaces/ns/deployments", Request{Verb: "create", Group: "apps", Version: "v1", Resource: "deployments", Namespace: "ns"}},
		{"GET", "/apis/apps/v1", Request{Verb: "get"}},
		{"GET", "/api", Request{Verb: "get"}},
		{"GET", "/", Request{Verb: "get"}},
		{"GET", "/readyz", Request{Verb: "get"}},
	} {
		r := httptest.NewRequest(test.method, test.url, nil)
		test.want.Path = r.URL.Path
		if got := parseRequest(r); got != test.want {
			t.Errorf("%s %s:\n got %+v\nwant %+v", test.method, test.url, got, test.want)
		}
	}
}

func TestOn(t *testing.T) {
	request := Request{Verb: "patch", Resource: "nodes", Subresource: "status"}
	for match, want := range map[[2]string]bool{
		{"patch", "nodes/status"}:  true,
		{"*", "nodes/status"}:      true,
		{"patch", "*"}:             true,
		{"patch", "nodes"}:         false,
		{"update", "nodes/status"}: false,
	} {
		if got := On(match[0], match[1])(request); got != want {
			t.Errorf("On(%q, %q) of %+v is %v", match[0], match[1], request, got)
		}
	}
}
