package install

import (
	"context"
	"fmt"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// AgentAccount is the service account of agents, and its namespace.
const AgentAccount = "autohealer-agent"

// ApplyAgentRights applies the rights of agents and the admission policies, in addition to
// Install.
func ApplyAgentRights(ctx context.Context, c *testbed.Cluster) error {
	return install(ctx, c, agentTemplates)
}

// AgentOptions say how to run an agent.
type AgentOptions struct {
	// Node of the agent, which must exist.
	Node string
	// Program is the executable; if empty, it is built.
	Program string
	// StateDir is its folder; if empty, it stores no state.
	StateDir string
	// Account is its service account, in the namespace of agents. Empty means AgentAccount.
	Account string
	// Through is the proxy to the API server; nil means none.
	Through *testbed.Proxy
	// Args are added to its command line, and take precedence. They name its files.
	Args []string
}

// Agent is a running agent.
type Agent struct {
	*testbed.Part
	// Status and Metrics are the addresses of its servers.
	Status, Metrics string
	// Pod is the name of its pod, in the namespace of agents.
	Pod string
	// Token and CA are the files that the kubelet would mount. Mount replaces one.
	Token, CA string
}

// Mount replaces the content of a mounted file at once, like the kubelet.
func (a *Agent) Mount(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// StartAgent runs an agent with the token that the kubelet would mount into its pod, and
// returns when it answers. A node has at most one.
func StartAgent(ctx context.Context, c *testbed.Cluster, o AgentOptions) (*Agent, error) {
	if o.Program == "" {
		var err error
		if o.Program, err = Build(ctx, "cmd/autohealer-agent"); err != nil {
			return nil, err
		}
	}
	if o.Account == "" {
		o.Account = AgentAccount
	}
	a := &Agent{Pod: "agent-" + o.Node}
	kubeconfig, err := a.access(ctx, c, o)
	if err != nil {
		return nil, fmt.Errorf("giving the agent of node %s its access: %w", o.Node, err)
	}
	a.Status, err = c.Address()
	if err != nil {
		return nil, err
	}
	a.Metrics, err = c.Address()
	if err != nil {
		return nil, err
	}
	port := func(address string) string { return address[len("127.0.0.1:"):] }
	a.Part, err = c.Run(ctx, testbed.Program{
		Name: a.Pod,
		Path: o.Program,
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--lease-namespace=" + Namespace, "--state-dir=" + o.StateDir, "--log-format=text",
			"--port=" + port(a.Status), "--prometheus-port=" + port(a.Metrics),
		}, o.Args...),
		Env:   []string{"GORACE=halt_on_error=1", "NODE_NAME=" + o.Node, "POD_NAME=" + a.Pod},
		Ready: func(ctx context.Context) error { return testkit.Answers(ctx, "http://"+a.Status+"/conditions") },
	})
	return a, err
}

// access creates the pod of an agent, which no kubelet runs, and a kubeconfig with the
// token that is bound to it.
func (a *Agent) access(ctx context.Context, c *testbed.Cluster, o AgentOptions) (string, error) {
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return "", err
	}
	pod, err := admin.CoreV1().Pods(AgentAccount).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: a.Pod, Labels: map[string]string{"app.kubernetes.io/name": AgentAccount}},
		Spec: corev1.PodSpec{
			NodeName: o.Node, ServiceAccountName: o.Account, AutomountServiceAccountToken: new(false),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "agent", Image: "resourcestack/autohealer-agent"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	config, err := c.ServiceAccountConfig(ctx, AgentAccount, o.Account, func(spec *authenticationv1.TokenRequestSpec) {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	})
	if err != nil {
		return "", err
	}
	if o.Through != nil {
		config = o.Through.Config(config)
	}
	if a.Token, err = c.WriteFile(a.Pod+".token", []byte(config.BearerToken)); err != nil {
		return "", err
	}
	if a.CA, err = c.WriteFile(a.Pod+".ca.crt", config.CAData); err != nil {
		return "", err
	}
	config.BearerTokenFile, config.CAFile = a.Token, a.CA
	return c.WriteKubeconfig(a.Pod, config)
}
