package admission

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// testCA is a CA that signs certificates.
type testCA struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newTestCA(tb testing.TB) *testCA {
	tb.Helper()
	a := &testCA{tb: tb}
	a.cert, a.key = a.sign("authority", true)
	a.file = filepath.Join(tb.TempDir(), "ca.pem")
	testkit.Must(tb, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600))
	return a
}

func (a *testCA) sign(name string, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.tb.Helper()
	key := testkit.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).Must(a.tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, parentKey := template, key
	if a.cert != nil {
		parent, parentKey = a.cert, a.key
	}
	raw := testkit.Value(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)).Must(a.tb)
	cert := testkit.Value(x509.ParseCertificate(raw)).Must(a.tb)
	return cert, key
}

// pair returns a certificate of that name.
func (a *testCA) pair(name string) *tls.Certificate {
	a.tb.Helper()
	cert, key := a.sign(name, false)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// counter is a handler that counts concurrent requests.
type counter struct {
	now, most, all atomic.Int64
	judge          func()
}

func (*counter) Path() string { return "/count" }
func (*counter) Ready() error { return nil }
func (c *counter) Handle(context.Context, admission.Request) admission.Response {
	c.all.Add(1)
	for now := c.now.Add(1); ; {
		most := c.most.Load()
		if now <= most || c.most.CompareAndSwap(most, now) {
			break
		}
	}
	defer c.now.Add(-1)
	c.judge()
	return admission.Allowed("")
}

// serves starts a server on loopback and returns its URL.
func serves(tb testing.TB, clients Clients, kinds ...Kind) (url string, metrics *Metrics) {
	tb.Helper()
	metrics = NewMetrics()
	return start(tb, newTestCA(tb), clients, metrics, kinds...), metrics
}

// servesWith does the same and returns the CA of its certificate.
func servesWith(tb testing.TB, clients Clients, kinds ...Kind) (url string, trust []byte) {
	tb.Helper()
	ca := newTestCA(tb)
	return start(tb, ca, clients, NewMetrics(), kinds...), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

func start(tb testing.TB, ca *testCA, clients Clients, metrics *Metrics, kinds ...Kind) (url string) {
	tb.Helper()
	certificate := ca.pair("server")
	server := testkit.Value(NewServer(Config{
		Address:     "127.0.0.1:1", // not used
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil },
		Clients:     clients, Kinds: kinds, Metrics: metrics, Logger: discard,
	})).Must(tb)
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0")).Must(tb)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.serve(ctx, listener) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	return "https://" + listener.Addr().String()
}

// caller returns a client that presents a certificate, if there is one.
func caller(shows *tls.Certificate) *http.Client {
	config := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the identity of the server is not tested here
	if shows != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shows, nil }
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: time.Minute}
}

// review returns an AdmissionReview of about this many bytes.
func review(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","resource":{"group":"autohealer.resourcestack.com","version":"v1alpha1","resource":"conditionsets"},"object":{"metadata":{"name":"a"},"spec":{"type":"A","effect":"NoSchedule","taintKey":"example.com/a","conditions":{"A":{"status":"True"}`)
	for i := 0; b.Len() < size-100; i++ {
		fmt.Fprintf(&b, `,"A%07d":{"status":"True"}`, i)
	}
	b.WriteString(`}}}}}`)
	return b.Bytes()
}

func post(client *http.Client, url string, body io.Reader) (status int, answer string, err error) {
	response, err := client.Post(url, "application/json", body)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// Large requests of unknown clients, in any number, must fit into a third of the 512 MiB of
// the manifest.
func TestLargeRequestsFitIntoMemory(t *testing.T) {
	const room, callers = 160 << 20, 10
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(room / 2))
	url, metrics := serves(t, Clients{}, newSetFixture().kind(t))
	var peak atomic.Uint64
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak.Store(max(peak.Load(), now.HeapAlloc))
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	statuses := map[int]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	large, tooLarge := review(maxBody-1000), review(69*100_000)
	send := func(body func() io.Reader) {
		all.Go(func() {
			client := caller(nil)
			defer client.CloseIdleConnections()
			status, answer, err := post(client, url+conditionSetPath, body())
			mu.Lock()
			defer mu.Unlock()
			switch {
			case status == http.StatusOK && !strings.Contains(answer, "spec.conditions: there are") && !strings.Contains(answer, "too large"):
				t.Errorf("a review was judged: %.300s", answer)
			case err == nil:
				statuses[status]++
			}
		})
	}
	// On a busy machine the server may reject all of the requests as slow.
	for rounds := 0; statuses[http.StatusOK] == 0 && rounds < 20; rounds++ {
		for range callers {
			send(func() io.Reader { return bytes.NewReader(large) })
			send(func() io.Reader { return bytes.NewReader(tooLarge) })
			send(func() io.Reader { return io.MultiReader(bytes.NewReader(large)) }) // without a Content-Length
		}
		all.Wait()
	}
	close(ended)
	watching.Wait()
	t.Logf("peak of the heap: %d MiB; statuses: %v", peak.Load()>>20, statuses)
	if statuses[http.StatusOK] == 0 || testutil.ToFloat64(metrics.rejections.WithLabelValues("too_large")) == 0 {
		t.Errorf("statuses: %v", statuses)
	}
	if peak.Load() > room {
		t.Errorf("the heap has grown to %d MiB, want at most %d", peak.Load()>>20, room>>20)
	}
}

// A client that announces a large request and sends nothing is rejected and does not delay
// others.
func TestStalledRequestsDoNotHoldUpOthers(t *testing.T) {
	kind := &counter{judge: func() {}}
	url, metrics := serves(t, Clients{}, kind)
	var stalled []*tls.Conn
	for range 4 {
		connection := testkit.Value(tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true})).Must(t)
		defer connection.Close()
		fmt.Fprintf(connection, "POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", maxBody)
		stalled = append(stalled, connection)
	}
	if status, answer, err := post(caller(nil), url+"/count", bytes.NewReader(review(1000))); err != nil || status != http.StatusOK {
		t.Errorf("a small request: %d %s, %v", status, answer, err)
	}
	for _, connection := range stalled {
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		testkit.Must(t, err)
		response.Body.Close()
		if s := response.StatusCode; s != http.StatusRequestTimeout && s != http.StatusTooManyRequests {
			t.Errorf("a request that is not sent is answered %d", s)
		}
	}
	testkit.Check(t, testutil.ToFloat64(metrics.rejections.WithLabelValues("slow")) != 0, "no request was slow")
	if status, answer, err := post(caller(nil), url+"/count", io.MultiReader(bytes.NewReader(review(1000)))); err != nil || status != http.StatusLengthRequired {
		t.Errorf("a request without a length: %d %s, %v", status, answer, err)
	}
	if n := kind.all.Load(); n != 1 {
		t.Errorf("%d requests were judged, want 1", n)
	}
}

func TestRequestsWaitForTheirTurn(t *testing.T) {
	kind, release := &counter{}, make(chan struct{})
	kind.judge = func() { <-release }
	url, metrics := serves(t, Clients{}, kind)
	var all sync.WaitGroup
	var busy, answered atomic.Int64
	firstBusy := make(chan struct{})
	for range 100 {
		all.Go(func() {
			client := caller(nil)
			defer client.CloseIdleConnections()
			status, answer, err := post(client, url+"/count", bytes.NewReader(review(1000)))
			switch {
			case err == nil && status == http.StatusTooManyRequests:
				if busy.Add(1) == 1 {
					close(firstBusy)
				}
			case err == nil && status == http.StatusOK:
				answered.Add(1)
			default:
				t.Errorf("%d: %s %v", status, answer, err)
			}
		})
	}
	select {
	case <-firstBusy:
	case <-time.After(time.Minute):
		t.Error("all requests wait")
	}
	close(release)
	all.Wait()
	if most := kind.most.Load(); most != 32 {
		t.Errorf("%d were judged at a time, want 32", most)
	}
	if kind.all.Load() != answered.Load() || busy.Load() == 0 || float64(busy.Load()) != testutil.ToFloat64(metrics.rejections.WithLabelValues("busy")) {
		t.Errorf("%d were judged, %d answered, %d turned away", kind.all.Load(), answered.Load(), busy.Load())
	}
}

func TestOnlyTheAPIServerIsAnswered(t *testing.T) {
	ca, other := newTestCA(t), newTestCA(t)
	kind := &counter{judge: func() {}}
	url, _ := serves(t, Clients{CAFile: ca.file, Names: []string{"kube-apiserver", "another"}}, kind)
	for name, test := range map[string]struct {
		shows *tls.Certificate
		want  bool
	}{
		"no certificate":                {nil, false},
		"a certificate of another name": {ca.pair("system:node:a"), false},
		"another authority":             {other.pair("kube-apiserver"), false},
		"the API server":                {ca.pair("kube-apiserver"), true},
	} {
		before := kind.all.Load()
		client := caller(test.shows)
		status, answer, err := post(client, url+"/count", bytes.NewReader(review(1000)))
		client.CloseIdleConnections()
		if got := err == nil && status == http.StatusOK; got != test.want || kind.all.Load()-before != map[bool]int64{true: 1}[test.want] {
			t.Errorf("%s is answered: %t (%d %s %v)", name, got, status, answer, err)
		}
	}
	// A new authority needs no restart.
	testkit.Must(t, os.Rename(other.file, ca.file))
	client := caller(other.pair("another"))
	defer client.CloseIdleConnections()
	if status, answer, err := post(client, url+"/count", bytes.NewReader(review(1000))); err != nil || status != http.StatusOK {
		t.Errorf("%d %s %v", status, answer, err)
	}
}

func TestClientsValidate(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	testkit.Must(t, os.WriteFile(empty, nil, 0o600))
	good := newTestCA(t).file
	for _, test := range []struct {
		clients Clients
		says    string
	}{
		{Clients{}, ""},
		{Clients{CAFile: good, Names: []string{"a"}}, ""},
		{Clients{Names: []string{"a"}}, "without the file"},
		{Clients{CAFile: good}, "want the name"},
		{Clients{CAFile: good, Names: []string{""}}, "want the name"},
		{Clients{CAFile: empty, Names: []string{"a"}}, "no certificate in PEM"},
		{Clients{CAFile: empty + "x", Names: []string{"a"}}, "no such file"},
	} {
		err := test.clients.Validate()
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v, want %q", test.clients, err, test.says)
		}
	}
}

// The limits are those of the schema.
func TestSizesAreThoseOfTheSchema(t *testing.T) {
	selector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Values: make([]string, 5)}, {}}, MatchLabels: map[string]string{"a": "b"}}
	if got := selectorSize("f", selector); got.count != 8 {
		t.Errorf("a selector is counted as %+v", got)
	}
	allows := func(name string, path ...string) int {
		text := testkit.Value(deploy.CRD(name)).Must(t)
		var crd map[string]any
		testkit.Must(t, yaml.Unmarshal(text, &crd))
		versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
		at := []string{"schema", "openAPIV3Schema"}
		for _, name := range path {
			at = append(at, "properties", name)
		}
		found, _, _ := unstructured.NestedMap(versions[0].(map[string]any), at...)
		for _, key := range []string{"maxItems", "maxProperties"} {
			if n, is := found[key].(int64); is {
				return int(n)
			}
		}
		t.Fatalf("%s has no bound of %v", name, path)
		return 0
	}
	const sets, checks, policies = "conditionsets.autohealer.resourcestack.com", "nodehealthchecks.remediation.medik8s.io", "repairpolicies.autohealer.resourcestack.com"
	pool := &karpenter.NodePool{}
	pool.Spec.Repair = &v1alpha1.RepairSpec{}
	for _, test := range []struct{ got, want int }{
		{sizesOfSet(&v1alpha1.ConditionSet{})[0].most, allows(sets, "spec", "conditions")},
		{sizesOfCheck(&remediationv1alpha1.NodeHealthCheck{})[0].most, allows(checks, "spec", "unhealthyConditions")},
		{sizesOfCheck(&remediationv1alpha1.NodeHealthCheck{})[1].most, allows(checks, "spec", "escalatingRemediations")},
		{sizesOfPolicy(&v1alpha1.RepairPolicy{})[0].most, allows(policies, "spec", "repair", "policies")},
		{sizesOfPool(pool)[0].most, allows(policies, "spec", "repair", "policies")},
	} {
		testkit.Check(t, test.got == test.want, "%d are judged, and the schema allows %d", test.got, test.want)
	}
}
