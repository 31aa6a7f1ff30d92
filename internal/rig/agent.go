package rig

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// AgentAccount is the service account of agents, and its namespace.
const AgentAccount = "autohealer-agent"

// InstallAgent applies the rights of agents and the guard, beside what Install does.
func InstallAgent(ctx context.Context, c *testbed.Cluster) error {
	return install(ctx, c, []string{"agent/*.yaml"})
}

// AgentOptions say how an agent is run.
type AgentOptions struct {
	// Node that it is about, which must be there.
	Node string
	// Program is the executable; empty builds it.
	Program string
	// StateDir is its folder; empty means that it forgets.
	StateDir string
	// Args are added to its command line, and win. They name its files.
	Args []string
}

// Agent is the agent's program at work.
type Agent struct {
	*testbed.Part
	// Status and Metrics are the addresses of what it serves.
	Status, Metrics string
}

// StartAgent runs an agent with the token that the kubelet would mount into its pod,
// and returns when it answers. There is one of each node.
func StartAgent(ctx context.Context, c *testbed.Cluster, o AgentOptions) (*Agent, error) {
	if o.Program == "" {
		var err error
		if o.Program, err = build(ctx, "autohealer-agent"); err != nil {
			return nil, err
		}
	}
	name := "agent-" + o.Node
	kubeconfig, err := agentAccess(ctx, c, name, o.Node)
	if err != nil {
		return nil, fmt.Errorf("giving the agent of node %s its access: %w", o.Node, err)
	}
	status, err := c.Address()
	figures, err2 := c.Address()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	port := func(address string) string { return address[len("127.0.0.1:"):] }
	part, err := c.Run(ctx, testbed.Program{
		Name: name,
		Path: o.Program,
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--lease-namespace=" + Namespace, "--state-dir=" + o.StateDir,
			"--port=" + port(status), "--prometheus-port=" + port(figures),
		}, o.Args...),
		Env:   []string{"GORACE=halt_on_error=1", "NODE_NAME=" + o.Node, "POD_NAME=" + name},
		Ready: func(ctx context.Context) error { return answers(ctx, "http://"+status+"/conditions") },
	})
	if err != nil {
		return nil, err
	}
	return &Agent{Part: part, Status: status, Metrics: figures}, nil
}

// agentAccess makes the pod of an agent, which nobody runs, and a kubeconfig with the
// token that is bound to it.
func agentAccess(ctx context.Context, c *testbed.Cluster, name, node string) (string, error) {
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		return "", err
	}
	pod, err := admin.CoreV1().Pods(AgentAccount).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": AgentAccount}},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: AgentAccount, AutomountServiceAccountToken: new(false),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "agent", Image: "resourcestack/autohealer-agent"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	config, err := c.ServiceAccountConfig(ctx, AgentAccount, AgentAccount, func(spec *authenticationv1.TokenRequestSpec) {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	})
	if err != nil {
		return "", err
	}
	return c.WriteKubeconfig(name, config)
}
