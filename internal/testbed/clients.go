package testbed

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLifetime is longer than the longest test; the clients do not renew.
const tokenLifetime = 24 * 60 * 60

// AdminConfig returns the configuration of a client with all rights and without a rate
// limit. It uses a token and not a certificate, so that it works through a Proxy as well.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Kubeconfig returns the path of the admin's kubeconfig file.
func (c *Cluster) Kubeconfig() string { return c.conf("admin.kubeconfig") }

// TokenOption changes a service account's token request.
type TokenOption func(*authenticationv1.TokenRequestSpec)

// WithNode binds the token to a Node, like the token of a pod on the node: the API server
// adds the node's name to the user, and the token becomes invalid when the Node is deleted.
func WithNode(name string) TokenOption {
	return func(spec *authenticationv1.TokenRequestSpec) {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
	}
}

// ServiceAccountConfig returns the configuration of a client with the identity of the
// service account and a token for a day. It creates the account if necessary, in an
// existing namespace. The account has only the rights that RBAC gives it.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string, options ...TokenOption) (*rest.Config, error) {
	accounts := c.client.CoreV1().ServiceAccounts(namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("creating service account %s/%s: %w", namespace, name, err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenLifetime))}}
	for _, option := range options {
		option(&request.Spec)
	}
	granted, err := accounts.CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token for service account %s/%s: %w", namespace, name, err)
	}
	config := c.AdminConfig()
	config.BearerToken = granted.Status.Token
	return config, nil
}

// Kubectl runs kubectl as the admin and returns its output. Plugins on the PATH use the
// cluster, too.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, "", args)
}

// KubectlApply applies manifests as the admin, server-side, and returns kubectl's output.
func (c *Cluster) KubectlApply(ctx context.Context, manifests string) (string, error) {
	return c.kubectl(ctx, manifests, []string{"apply", "--server-side", "-f", "-"})
}

func (c *Cluster) kubectl(ctx context.Context, input string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, c.programs["kubectl"], args...)
	cmd.WaitDelay = time.Second // for processes that a plugin leaves behind
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	// The default cache is keyed by host and port, which an earlier cluster may have used.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "KUBECACHEDIR="+c.folder.at("kubectl-cache"),
		"GOGC=off") // a quarter less CPU, for 30 MB more
	if err := runTethered(cmd, func(error) {}); err != nil {
		if ctx.Err() != nil { // the cause of its death
			err = context.Cause(ctx)
		}
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// newAdmin returns the admin's configuration for an API server at host.
func newAdmin(host string, ca *authority) *rest.Config {
	return &rest.Config{
		Host:            "https://" + host,
		BearerToken:     rand.Text(),
		TLSClientConfig: rest.TLSClientConfig{CAData: ca.pem},
		QPS:             -1, // no limit: throttling would distort measurements
	}
}

// writeKubeconfigs writes one file per identity. The components have certificates, as in
// most clusters.
func (c *Cluster) writeKubeconfigs() error {
	identities := map[string]*clientcmdapi.AuthInfo{"admin": {Token: c.admin.BearerToken}}
	for name, user := range map[string]string{
		"controller-manager": controllerManagerUser,
		"scheduler":          schedulerUser,
		"kwok":               kwokUser,
	} {
		pair, err := c.ca.client(user)
		if err != nil {
			return err
		}
		identities[name] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.cert, ClientKeyData: pair.key}
	}
	for name, identity := range identities {
		if err := writeKubeconfig(c.conf(name+".kubeconfig"), name, &clientcmdapi.Cluster{Server: c.admin.Host, CertificateAuthorityData: c.ca.pem}, identity); err != nil {
			return err
		}
	}
	return nil
}
