package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	// WebhookConfig is the name of the webhook configuration in the manifests.
	WebhookConfig = "autohealer"
	// WebhookSecret is the Secret with its certificate.
	WebhookSecret = "autohealer-webhook-cert"

	webhookManifest = "controller/webhook.yaml"
	// loopback is the host of a webhook that runs next to the API server. The certificate
	// has names and no addresses.
	loopback = "localhost"
)

// UseWebhook registers one controller's webhook by the manifest of deploy/, with only its
// address changed. It returns when the API server calls it.
func UseWebhook(ctx context.Context, c *testbed.Cluster, controller *Controller) error {
	client, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return err
	}
	config, err := webhookConfig(controller.Webhook)
	if err != nil {
		return err
	}
	configs := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	for {
		old, err := configs.Get(ctx, config.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = configs.Create(ctx, config, metav1.CreateOptions{})
		} else if err == nil {
			for i := range old.Webhooks {
				old.Webhooks[i].ClientConfig.URL = config.Webhooks[i].ClientConfig.URL
			}
			_, err = configs.Update(ctx, old, metav1.UpdateOptions{})
		}
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	const glance, limit = 50 * time.Millisecond, 30 * time.Second
	look := time.NewTicker(glance)
	defer look.Stop()
	for deadline := time.Now().Add(limit); ; <-look.C {
		err := asks(ctx, c, controller)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the webhook of %s is not called: %w", controller, err)
		}
	}
}

// RemoveWebhook removes the registration of the webhook.
func RemoveWebhook(ctx context.Context, c *testbed.Cluster) error {
	client, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return err
	}
	return client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, WebhookConfig, metav1.DeleteOptions{})
}

const (
	webhookService = "autohealer-webhook"
	webhookPort    = "webhooks"
)

// SetEndpoints makes a controller that listens on a port of this machine the only endpoint of the
// Service of the webhook, and returns a function that removes it. A new API server reads
// EndpointSlices, that of Kubernetes 1.30 reads Endpoints, and controllers of Kubernetes write both
// in a real cluster.
func SetEndpoints(ctx context.Context, c *testbed.Cluster, port int) (remove func(context.Context) error, err error) {
	address, err := ownAddress()
	if err != nil {
		return nil, err
	}
	api, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return nil, err
	}
	slices, endpoints := api.DiscoveryV1().EndpointSlices(Namespace), api.CoreV1().Endpoints(Namespace)
	remove = func(ctx context.Context) error {
		return errors.Join(
			client.IgnoreNotFound(slices.Delete(ctx, webhookService, metav1.DeleteOptions{})),
			client.IgnoreNotFound(endpoints.Delete(ctx, webhookService, metav1.DeleteOptions{})))
	}
	if err := remove(ctx); err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{Name: webhookService, Labels: map[string]string{
		discoveryv1.LabelServiceName: webhookService,
		discoveryv1.LabelSkipMirror:  "true",
	}}
	number := int32(port) //nolint:gosec // a port is small
	if _, err := slices.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new(webhookPort), Port: &number}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := endpoints.Create(ctx, &corev1.Endpoints{ //nolint:staticcheck // Kubernetes 1.30 needs them
		ObjectMeta: meta,
		Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // as above
			Addresses: []corev1.EndpointAddress{{IP: address}},
			Ports:     []corev1.EndpointPort{{Name: webhookPort, Port: number}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return remove, nil
}

// ownAddress returns an address of this machine. Endpoints may not have a loopback address.
func ownAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no address but loopback")
}

// webhookConfig returns the configuration of the manifest, for a webhook on loopback.
func webhookConfig(address string) (*admissionv1.ValidatingWebhookConfiguration, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("registering a controller that serves no webhooks: %w", err)
	}
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := webhookObject("ValidatingWebhookConfiguration", config); err != nil {
		return nil, err
	}
	for i := range config.Webhooks {
		where := &config.Webhooks[i].ClientConfig
		url := "https://" + net.JoinHostPort(loopback, port) + *where.Service.Path
		where.URL, where.Service = &url, nil
	}
	return config, nil
}

// webhookObject reads the object of a kind from the manifest.
func webhookObject(kind string, into any) error {
	text, err := webhookText(kind)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(text, into)
}

// webhookText returns the part of the manifest with a kind.
func webhookText(kind string) ([]byte, error) {
	manifest, err := deploy.Manifest(webhookManifest)
	if err != nil {
		return nil, err
	}
	for _, part := range bytes.Split(manifest, []byte("\n---\n")) {
		if bytes.Contains(part, []byte("\nkind: "+kind+"\n")) {
			return part, nil
		}
	}
	return nil, fmt.Errorf("the template %s of deploy/chart has no %s", webhookManifest, kind)
}

// probe is a set that is never stored.
const probe = `{"apiVersion": "autohealer.resourcestack.com/v1alpha1", "kind": "ConditionSet", "metadata": {"name": "webhook-probe"},
	"spec": {"type": "WebhookProbe", "effect": "PreferNoSchedule", "taintKey": "example.com/webhook-probe", "dryRun": true, "conditions": {"WebhookProbe": {"status": "True"}}}}`

// asks returns why the API server does not call a controller's webhook yet. The controller
// counts the calls.
func asks(ctx context.Context, c *testbed.Cluster, controller *Controller) error {
	config := c.AdminConfig()
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	before, err := asked(ctx, controller)
	if err != nil {
		return err
	}
	// It does not matter whether the set is admitted.
	said := client.RESTClient().Post().AbsPath("/apis/autohealer.resourcestack.com/v1alpha1/conditionsets").
		Param("dryRun", metav1.DryRunAll).Body([]byte(probe)).Do(ctx).Error()
	after, err := asked(ctx, controller)
	if err == nil && after == before {
		err = errors.Join(errors.New("it was not called"), said)
	}
	return err
}

var answered = regexp.MustCompile(`(?m)^autohealer_admission_duration_seconds_count\{.*\} (.*)$`)

// asked returns the controller's count of calls.
func asked(ctx context.Context, controller *Controller) (string, error) {
	_, page, err := testkit.Get(ctx, "http://"+controller.Metrics+"/metrics")
	return fmt.Sprintf("%s", answered.FindAllString(page, -1)), err
}
