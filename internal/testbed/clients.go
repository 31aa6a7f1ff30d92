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

// tokenLifetime outlasts the longest soak; the clients do not renew.
const tokenLifetime = 24 * 60 * 60

// AdminConfig returns the configuration of a client that may do everything,
// as fast as it likes. It identifies itself by a token and not by a certificate,
// so that it works through a Proxy as well.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Kubeconfig returns the path of the admin's kubeconfig file.
func (c *Cluster) Kubeconfig() string { return c.conf("admin.kubeconfig") }

// TokenOption shapes a service account's token.
type TokenOption func(*authenticationv1.TokenRequestSpec)

// WithNode binds the token to a Node, as the token of a pod that runs there
// would be: the API server tells the node's name wherever it tells the user's,
// and the token is void once the Node is gone.
func WithNode(name string) TokenOption {
	return func(spec *authenticationv1.TokenRequestSpec) {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
	}
}

// ServiceAccountConfig returns the configuration of a client that works as the
// service account, with a token of the TokenRequest API that holds for a day.
// The account is made when it is not there; its namespace must be, and it may
// do only what RBAC allows it.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string, options ...TokenOption) (*rest.Config, error) {
	accounts := c.client.CoreV1().ServiceAccounts(namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("making service account %s/%s: %w", namespace, name, err)
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

// Kubectl runs kubectl as the admin and returns what it printed. Plugins on the
// PATH find the cluster too.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, "", args)
}

// KubectlApply applies manifests as the admin, server-side, and returns what
// kubectl printed.
func (c *Cluster) KubectlApply(ctx context.Context, manifests string) (string, error) {
	return c.kubectl(ctx, manifests, []string{"apply", "--server-side", "-f", "-"})
}

func (c *Cluster) kubectl(ctx context.Context, input string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, c.programs["kubectl"], args...)
	cmd.WaitDelay = time.Second // for what a plugin may leave behind
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	// The default cache is keyed by host and port, which another cluster may
	// have had an hour ago.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "KUBECACHEDIR="+c.folder.at("kubectl-cache"))
	if err := runTethered(cmd, func(error) {}); err != nil {
		if ctx.Err() != nil { // it was killed for that, and says only how
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
		QPS:             -1, // no limit: a throttled client would be what a test measures
	}
}

// writeKubeconfigs writes one file per identity. The components have
// certificates, as in most clusters.
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
