package e2e

import (
	"errors"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestService calls the webhook through its Service, with unchanged manifests. The API
// server resolves the Service by itself, from an EndpointSlice with an address of this
// machine in place of a pod's.
func TestService(t *testing.T) {
	t.Parallel() // the test mostly waits
	w := newFixture(t, func(cfg *testbed.Config) {
		cfg.Flags.APIServer = append(cfg.Flags.APIServer, "--enable-aggregator-routing=true")
	}).scope(t, "service")
	w.createNodes(healthyNodes(10))
	manifests := testkit.Value(fs.Glob(deploy.Manifests, "controller/*.yaml")).Must(w.t)
	for _, name := range manifests {
		text := testkit.Value(deploy.Manifests.ReadFile(name)).Must(w.t)
		testkit.Value(w.KubectlApply(t.Context(), string(text))).Must(w.t)
	}
	const name = "autohealer-webhook." + install.Namespace + ".svc"
	port := w.anyPort()
	controller := w.start(install.Options{Args: []string{"--webhooks=true", "--webhook-bind-address=:" + strconv.Itoa(port)}})
	controller.Webhook = net.JoinHostPort("localhost", strconv.Itoa(port))
	if got := w.shownNames(controller); !slices.Equal(got, []string{name}) {
		t.Errorf("the certificate is for %v", got)
	}
	d := w.warningClient()
	trap, good := w.policy("trap", when("OutOfDisk=False")), w.policy("good")
	unreachable := func() error {
		err := d.api.Create(t.Context(), good.DeepCopy(), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "no endpoints available") {
			return errors.Join(errors.New("the webhook answers"), err)
		}
		return nil
	}
	testkit.Must(w.t, unreachable())

	slice := w.endpoints(port)
	testkit.Must(w.t, w.api.Create(t.Context(), slice))
	w.eventually("the webhook to answer through its Service", func() error {
		return refused(d.api.Create(t.Context(), trap.DeepCopy(), client.DryRunAll), "10 of 10 selected nodes", "evict the pods of 4")
	})
	testkit.Must(w.t, d.api.Create(t.Context(), good.DeepCopy()))
	w.hasStatus("good", isAccepted(metav1.ConditionTrue, "Followed"))

	// Replacing the certificate refuses no request through the Service, either.
	w.replaceCertificate([]*install.Controller{controller}, nil)
	for range 5 {
		w.reconnect()
		if err := refused(d.api.Create(t.Context(), trap.DeepCopy())); err != nil {
			t.Error(err)
		}
	}

	testkit.Must(w.t, w.api.Delete(t.Context(), slice))
	w.eventually("the Service to have no endpoints", func() error {
		w.reconnect() // an open connection needs no endpoints
		return unreachable()
	})
	testkit.Must(w.t, d.api.Delete(t.Context(), good.DeepCopy()))
}

// anyPort returns a port for a server that listens on all addresses.
func (w *scope) anyPort() int {
	w.t.Helper()
	address, err := w.Address()
	testkit.Must(w.t, err)
	_, text, err := net.SplitHostPort(address)
	testkit.Must(w.t, err)
	return testkit.Value(strconv.Atoi(text)).Must(w.t)
}

// endpoints returns the endpoints of the webhook's Service: an address of this machine that
// is not loopback, because endpoints may not be loopback addresses.
func (w *scope) endpoints(port int) *discoveryv1.EndpointSlice {
	w.t.Helper()
	addresses := testkit.Value(net.InterfaceAddrs()).Must(w.t)
	for _, address := range addresses {
		network, ok := address.(*net.IPNet)
		if !ok || network.IP.To4() == nil || !network.IP.IsGlobalUnicast() {
			continue
		}
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: install.Namespace, Name: "autohealer-webhook-1",
				Labels: map[string]string{discoveryv1.LabelServiceName: "autohealer-webhook"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{network.IP.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new("webhooks"), Port: new(int32(port))}}, //nolint:gosec // a port is small
		}
	}
	w.t.Fatal("this machine has no address but loopback, and endpoints may not have that one")
	return nil
}
