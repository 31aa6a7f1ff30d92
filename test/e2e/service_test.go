package e2e

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestService calls the webhook through its Service, with unchanged manifests. The API
// server resolves the Service by itself, from endpoints with an address of this machine in
// place of a pod's.
func TestService(t *testing.T) {
	t.Parallel() // the test mostly waits
	w := newFixture(t, func(cfg *testbed.Config) {
		cfg.Flags.APIServer = append(cfg.Flags.APIServer, "--enable-aggregator-routing=true")
	}).scope(t, "service")
	w.createNodes(healthyNodes(10))
	for _, template := range []string{"rights", "guard", "webhook", "controller"} {
		text := testkit.Value(deploy.Manifest("controller/" + template + ".yaml")).Must(w.t)
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
		// Kubernetes 1.30 says the second.
		if err == nil || !strings.Contains(err.Error(), "no endpoints available") && !strings.Contains(err.Error(), `endpoints "autohealer-webhook" not found`) {
			return errors.Join(errors.New("the webhook answers"), err)
		}
		return nil
	}
	testkit.Must(w.t, unreachable())

	remove := testkit.Value(install.SetEndpoints(t.Context(), w.Cluster, port)).Must(w.t)
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

	testkit.Must(w.t, remove(t.Context()))
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
