package deploy_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certutil "k8s.io/client-go/util/cert"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestSecureMetrics scrapes a controller and an agent as documented in docs/how-to/monitor.md, with
// the tokens of two accounts and without a token.
func TestSecureMetrics(t *testing.T) {
	t.Parallel()
	c := cluster{testbed.New(t, testbed.Config{})}
	testkit.Must(t, install.Install(t.Context(), c.Cluster))
	testkit.Must(t, install.ApplyAgentRights(t.Context(), c.Cluster))
	testkit.Value(c.CreateNodes(t.Context(), testbed.Nodes{Count: 1})).Must(t)
	c.kubectl(t, "create", "namespace", "monitoring")
	c.kubectl(t, "apply", "--validate=strict", "-f", "extras/metrics-rights.yaml")
	_, bind, found := strings.Cut(shown(t, "../docs/how-to/monitor.md", "## Over TLS"), "kubectl create ")
	testkit.Require(t, found, "the page does not say how to give the right")
	c.kubectl(t, append([]string{"create"}, strings.Fields(bind)...)...)
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	testkit.Must(t, err)
	folder := t.TempDir()
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		testkit.Must(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	args := []string{"--metrics-secure", "--metrics-cert-dir=" + folder}
	controller := testkit.Value(install.Start(t.Context(), c.Cluster, install.Options{Args: args})).Must(t)
	agent := testkit.Value(install.StartAgent(t.Context(), c.Cluster, install.AgentOptions{
		Node: mine, Args: append(args, "--config.check-monitor="+testkit.Value(filepath.Abs("../config/health-checks.json")).Must(t)),
	})).Must(t)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(certificate)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}}
	defer client.CloseIdleConnections()
	scrape := func(address, account string) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			return err
		}
		if account != "" {
			config, err := c.ServiceAccountConfig(t.Context(), "monitoring", account)
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+config.BearerToken)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		page, err := io.ReadAll(response.Body)
		if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(page), "\nautohealer_")) {
			err = fmt.Errorf("%s: %.200s", response.Status, page)
		}
		return err
	}
	for name, address := range map[string]string{"controller": controller.Metrics, "agent": agent.Metrics} {
		for account, want := range map[string]string{"": "401 ", "unauthorized": "403 "} {
			testkit.Eventually(t, "an answer of the "+name+" to "+account, func() error {
				if err := scrape(address, account); err == nil || !strings.HasPrefix(err.Error(), want) {
					return fmt.Errorf("%w, want %s", err, want)
				}
				return nil
			})
		}
		testkit.Eventually(t, "the metrics of the "+name, func() error { return scrape(address, "prometheus") })
		if response, err := http.Get("http://" + address + "/metrics"); err == nil { //nolint:noctx // refused at once
			response.Body.Close()
			testkit.Check(t, response.StatusCode != http.StatusOK, "the metrics of the %s are served in plain text too", name)
		}
	}
}
