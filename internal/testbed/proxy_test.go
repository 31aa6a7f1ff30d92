package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestProxy(t *testing.T) {
	c := New(t, Config{})
	// Each test has its own proxy, a client through it, and a node.
	setUp := func(t *testing.T) (*Proxy, kubernetes.Interface, *corev1.Node) {
		t.Helper()
		p := testkit.Value(c.Proxy()).Must(t)
		return p, clientFor(t, p.Config(c.AdminConfig())), createNode(t, c, strings.ToLower(fmt.Sprintf("n%x", time.Now().UnixNano())))
	}
	label := func(ctx context.Context, client kubernetes.Interface, node *corev1.Node, value string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"test":%q}}}`, value)
		_, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	labelled := func(t *testing.T, node *corev1.Node) string {
		t.Helper()
		return testkit.Value(c.client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})).Must(t).Labels["test"]
	}
	numHits := func(t *testing.T, rule *Rule, want int) {
		t.Helper()
		if got := rule.Hits(); got != want {
			t.Errorf("affected %d requests, want %d", got, want)
		}
	}
	patches := On("patch", "nodes")

	t.Run("forwards identities", func(t *testing.T) {
		p := testkit.Value(c.Proxy()).Must(t)
		for want, config := range map[string]*rest.Config{
			adminUser:                             c.AdminConfig(),
			"system:serviceaccount:default:guest": testkit.Value(c.ServiceAccountConfig(t.Context(), "default", "guest")).Must(t),
		} {
			review, err := clientFor(t, p.Config(config)).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			testkit.Check(t, err == nil && review.Status.UserInfo.Username == want, "%v, %v; want %s", review, err, want)
		}
	})

	t.Run("speaks HTTP/2", func(t *testing.T) {
		p := testkit.Value(c.Proxy()).Must(t)
		client := testkit.Value(rest.HTTPClientFor(p.Config(c.AdminConfig()))).Must(t)
		resp, err := client.Get(p.url + "/version")
		testkit.Must(t, err)
		defer resp.Body.Close()
		if _, _ = io.Copy(io.Discard, resp.Body); resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s", resp.Proto, resp.Status)
		}
	})

	t.Run("delays", func(t *testing.T) {
		p, client, node := setUp(t)
		const d = 300 * time.Millisecond
		rule := p.Inject(patches, Delay(d), 1)
		began := time.Now()
		testkit.Must(t, label(t.Context(), client, node, "late"))
		if took := time.Since(began); took < d {
			t.Errorf("after %s already", took)
		}
		numHits(t, rule, 1)
	})

	t.Run("answers with an error of the API", func(t *testing.T) {
		p, client, node := setUp(t)
		for _, test := range []struct {
			fault Fault
			is    func(error) bool
		}{
			{Conflict(), apierrors.IsConflict},
			{InternalError(), apierrors.IsInternalError},
			{TooManyRequests(0), apierrors.IsTooManyRequests},
		} {
			rule := p.Inject(patches, test.fault, 1)
			if err := label(t.Context(), client, node, "refused"); !test.is(err) {
				t.Errorf("%s: %v", test.fault, err)
			}
			numHits(t, rule, 1)
		}
		if got := labelled(t, node); got != "" {
			t.Errorf("the API server has seen %q", got)
		}
	})

	t.Run("answers 429 with the time to wait, which client-go obeys", func(t *testing.T) {
		p, client, node := setUp(t)
		rule := p.Inject(patches, TooManyRequests(time.Second), 1)
		began := time.Now()
		testkit.Must(t, label(t.Context(), client, node, "waiting"))
		if took := time.Since(began); took < time.Second {
			t.Errorf("tried again after %s", took)
		}
		numHits(t, rule, 1)
	})

	t.Run("cuts a request before the API server sees it", func(t *testing.T) {
		p, client, node := setUp(t)
		rule := p.Inject(patches, CutRequest(), 1)
		if err := label(t.Context(), client, node, "cut"); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Errorf("error %v", err)
		}
		numHits(t, rule, 1)
		if got := labelled(t, node); got != "" {
			t.Errorf("the API server has seen %q", got)
		}
	})

	t.Run("cuts the answer to a write that happened", func(t *testing.T) {
		p, client, node := setUp(t)
		rule := p.Inject(patches, CutResponse(), 1)
		if err := label(t.Context(), client, node, "done"); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Errorf("error %v", err)
		}
		numHits(t, rule, 1)
		if got := labelled(t, node); got != "done" {
			t.Errorf("the API server has seen %q", got)
		}
	})

	t.Run("holds requests until the rule is lifted", func(t *testing.T) {
		p, client, node := setUp(t)
		rule := p.Inject(patches, Hold(), 0)
		answers := make(chan error, 2)
		for range 2 {
			go func() { answers <- label(t.Context(), client, node, "held") }()
		}
		testkit.Must(t, rule.Wait(within(t, limit), 2))
		if got := labelled(t, node); got != "" {
			t.Errorf("the API server has seen %q", got)
		}
		rule.Lift()
		if err := errors.Join(<-answers, <-answers); err != nil {
			t.Error(err)
		}
		if got := labelled(t, node); got != "held" {
			t.Errorf("the API server has seen %q", got)
		}
	})

	t.Run("releases a held request whose client gives up", func(t *testing.T) {
		p, client, node := setUp(t)
		p.Inject(patches, Hold(), 0)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := label(ctx, client, node, "given up"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("affects only matching requests, up to the limit", func(t *testing.T) {
		p, client, node := setUp(t)
		first := p.Inject(func(r Request) bool { return patches(r) && r.Name == node.Name }, Conflict(), 2)
		second := p.Inject(patches, InternalError(), 1)
		other := p.Inject(On("patch", "nodes/status"), InternalError(), 0)
		for i, is := range []func(error) bool{apierrors.IsConflict, apierrors.IsConflict, apierrors.IsInternalError, func(err error) bool { return err == nil }} {
			if err := label(t.Context(), client, node, "often"); !is(err) {
				t.Errorf("request %d: %v", i+1, err)
			}
		}
		numHits(t, first, 2)
		numHits(t, second, 1)
		numHits(t, other, 0)
		other.Lift()
		other.Lift() // a second call has no effect
		if err := other.Wait(within(t, 50*time.Millisecond), 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 hits of the 500, after 0") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("drops the watches that are open", func(t *testing.T) {
		p, client, node := setUp(t)
		var watches []watch.Interface
		for range 3 {
			w := testkit.Value(client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: node.ResourceVersion})).Must(t)
			defer w.Stop()
			watches = append(watches, w)
		}
		testkit.Must(t, label(t.Context(), client, node, "seen"))
		for _, w := range watches {
			if event := <-w.ResultChan(); event.Type != watch.Modified {
				t.Fatalf("%v", event)
			}
		}
		if n := p.DropWatches(); n != 3 {
			t.Errorf("%d watches dropped, not 3", n)
		}
		for _, w := range watches {
			for range w.ResultChan() { // until it is closed
			}
		}
		if n := p.DropWatches(); n != 0 {
			t.Errorf("%d watches dropped twice", n)
		}
		if err := label(t.Context(), client, node, "alive"); err != nil {
			t.Errorf("a request that is not a watch fails, too: %v", err)
		}
	})

	t.Run("cuts everything off until it is healed", func(t *testing.T) {
		p, client, node := setUp(t)
		w := testkit.Value(client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: node.ResourceVersion})).Must(t)
		defer w.Stop()
		p.Partition()
		for range w.ResultChan() { // until it is closed
		}
		if err := label(within(t, limit), client, node, "partitioned"); err == nil {
			t.Error("a write went through")
		}
		if p.Refused() < 2 {
			t.Errorf("%d connections refused; there was one and another was tried", p.Refused())
		}
		if got := labelled(t, node); got != "" {
			t.Errorf("the API server has seen %q", got)
		}
		other := clientFor(t, testkit.Value(c.Proxy()).Must(t).Config(c.AdminConfig()))
		if err := label(t.Context(), other, node, "other"); err != nil {
			t.Errorf("the client of another proxy: %v", err)
		}
		p.Heal()
		if err := label(t.Context(), client, node, "healed"); err != nil {
			t.Error(err)
		}
	})

	t.Run("does not answer while the API server is down", func(t *testing.T) {
		_, client, node := setUp(t)
		testkit.Must(t, c.APIServer.Kill())
		if err := label(within(t, limit), client, node, "refused"); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Errorf("error %v", err)
		}
		testkit.Must(t, c.APIServer.Restart(within(t, limit)))
		if err := label(t.Context(), client, node, "back"); err != nil {
			t.Error(err)
		}
	})

	t.Run("waits for running requests when it is closed", func(t *testing.T) {
		p, client, node := setUp(t)
		begun, goOn, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		p.Inject(func(Request) bool {
			close(begun)
			<-goOn
			return false
		}, Hold(), 1)
		go func() { _ = label(t.Context(), client, node, "begun") }()
		<-begun
		go func() {
			defer close(closed)
			p.close()
		}()
		select {
		case <-closed:
			t.Error("closed while a request is running")
		case <-time.After(100 * time.Millisecond):
		}
		close(goOn)
		<-closed
	})
}

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
