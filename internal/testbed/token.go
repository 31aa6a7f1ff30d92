package testbed

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tokenLeeway is how long the API server accepts an expired token, because of clock skew.
// It also caches authentications for a few seconds.
const tokenLeeway = time.Minute

// PodToken returns the token that the kubelet would mount into a pod, with a shorter
// lifetime: the API server accepts it for the lifetime and a few seconds. The TokenRequest
// API grants no less than ten minutes.
func (c *Cluster) PodToken(ctx context.Context, namespace, name string, lifetime time.Duration) (string, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	account, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	of := func(object metav1.Object) map[string]any {
		return map[string]any{"name": object.GetName(), "uid": object.GetUID()}
	}
	ends := time.Now().Add(lifetime - tokenLeeway)
	return c.signToken(map[string]any{
		"iss": tokenIssuer, "aud": []string{tokenIssuer}, "jti": rand.Text(), "sub": "system:serviceaccount:" + namespace + ":" + account.Name,
		"iat": ends.Add(-time.Hour).Unix(), "nbf": ends.Add(-time.Hour).Unix(), "exp": ends.Unix(),
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": of(account), "pod": of(pod), "node": of(node)},
	})
}

// signToken creates a JWT, signed with the key of the API server.
func (c *Cluster) signToken(claims map[string]any) (string, error) {
	text, err := os.ReadFile(c.conf("service-account.key"))
	if err != nil {
		return "", fmt.Errorf("signing a token: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", errors.New("signing a token: the key is not in PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("signing a token: %w", err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("signing a token: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + encode(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", fmt.Errorf("signing a token: %w", err)
	}
	signature := make([]byte, 64) // P-256: two numbers of 32 bytes
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + encode(signature), nil
}
