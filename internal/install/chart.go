package install

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// RunJobs runs the containers of Jobs in Namespace until the end of the test, with the tokens of
// their pods. It is for clusters without kubelets in which Helm installs the chart.
func RunJobs(tb testing.TB, c *testbed.Cluster) {
	tb.Helper()
	program := testkit.Value(Build(tb.Context(), "cmd/autohealer-controller")).Must(tb)
	api := testkit.Value(kubernetes.NewForConfig(c.AdminConfig())).Must(tb)
	ctx, cancel := context.WithCancel(tb.Context())
	var wg sync.WaitGroup
	tb.Cleanup(func() { cancel(); wg.Wait() })
	run := func(pod *corev1.Pod) error {
		config, err := c.ServiceAccountConfig(ctx, Namespace, pod.Spec.ServiceAccountName)
		if err != nil {
			return err
		}
		kubeconfig, err := c.WriteKubeconfig(pod.Name, config)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, program, append(slices.Clone(pod.Spec.Containers[0].Args), "--kubeconfig="+kubeconfig)...)
		cmd.Env = append(os.Environ(), "POD_NAMESPACE="+Namespace)
		phase := corev1.PodSucceeded
		out, err := cmd.CombinedOutput()
		if err != nil {
			phase = corev1.PodFailed
		}
		tb.Logf("%s: %v\n%s", pod.Name, err, out)
		_, err = api.CoreV1().Pods(Namespace).Patch(ctx, pod.Name, types.MergePatchType, fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase), metav1.PatchOptions{}, "status")
		return err
	}
	wg.Go(func() {
		for ran := map[types.UID]bool{}; ctx.Err() == nil; {
			pods, err := api.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name"})
			for i := range pods.Items {
				if pod := &pods.Items[i]; !ran[pod.UID] {
					ran[pod.UID] = true
					err = errors.Join(err, run(pod))
				}
			}
			if err != nil && ctx.Err() == nil {
				tb.Error(err)
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
}

// StartDeployed runs a controller with the token and the arguments of the Deployment of the chart,
// or with o.Args of its container, as the only one behind the Service of the webhook, and returns
// when it is alive. leave removes it from the Service. No controller of Kubernetes may write the endpoints of the pods.
func StartDeployed(ctx context.Context, c *testbed.Cluster, o Options) (controller *Controller, leave func(context.Context) error, err error) {
	if o.Args == nil {
		api, err := kubernetes.NewForConfig(c.AdminConfig())
		if err != nil {
			return nil, nil, err
		}
		deployment, err := api.AppsV1().Deployments(Namespace).Get(ctx, Account, metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		o.Args = deployment.Spec.Template.Spec.Containers[0].Args
	}
	address, err := c.Address()
	if err != nil {
		return nil, nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, nil, err
	}
	o.Args, o.Unready = append(slices.Clone(o.Args), "--webhook-bind-address=:"+port), true
	for i := range o.Args {
		o.Args[i] = strings.ReplaceAll(o.Args[i], "$(POD_NAMESPACE)", Namespace)
	}
	controller, err = Start(ctx, c, o)
	if err != nil {
		return nil, nil, err
	}
	leave, err = SetEndpoints(ctx, c, number)
	return controller, leave, err
}
