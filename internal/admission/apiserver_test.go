package admission

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// A real API server presents a client certificate, as the documentation describes. One
// webhook server accepts its name, and the other expects another name.
func TestTheAPIServerShowsItsCertificate(t *testing.T) {
	ca, dir := newTestCA(t), t.TempDir()
	shows := ca.pair("the-api-server")
	key := testkit.Value(x509.MarshalPKCS8PrivateKey(shows.PrivateKey)).Must(t)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: shows.Certificate[0]})))
	write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	clients := write("clients.yaml", `
apiVersion: v1
kind: Config
users:
- name: '*'
  user: {client-certificate: cert.pem, client-key: key.pem}
`)
	config := write("admission.yaml", fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: %s
`, clients))
	cluster := testbed.New(t, testbed.Config{Flags: testbed.Flags{APIServer: []string{"--admission-control-config-file=" + config}}})
	admin := testkit.Value(kubernetes.NewForConfig(cluster.AdminConfig())).Must(t)
	known, unknown := &counter{judge: func() {}}, &counter{judge: func() {}}
	asks := func(kind *counter, name string) {
		url, trust := servesWith(t, Clients{CAFile: ca.file, Names: []string{name}}, kind)
		url = strings.Replace(url, "127.0.0.1", "localhost", 1) + kind.Path()
		testkit.Value(admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: name + ".example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
				ClientConfig:   admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: trust},
				ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"asks": name}},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{"CREATE"}, Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}},
			}},
		}, metav1.CreateOptions{})).Must(t)
	}
	asks(known, "the-api-server")
	asks(unknown, "another")
	create := func(asked string) error {
		_, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-", Labels: map[string]string{"asks": asked}}}, metav1.CreateOptions{})
		return err
	}
	// The API server takes a while to notice a webhook.
	testkit.Eventually(t, "a server that knows the API server", func() error {
		if err := create("the-api-server"); err != nil || known.all.Load() == 0 {
			return fmt.Errorf("it was asked %d times: %w", known.all.Load(), err)
		}
		return nil
	})
	testkit.Eventually(t, "a server that knows another client", func() error {
		return testkit.Says(create("another"), "tls:")
	})
	testkit.Check(t, unknown.all.Load() == 0, "a server has answered a client of another name")
}
