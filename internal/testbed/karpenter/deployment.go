package karpenter

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// Deployment is a workload for which Karpenter creates nodes.
type Deployment struct {
	// Name of the Deployment, in the namespace default.
	Name string
	// Pool on which its pods run.
	Pool string
	// Replicas is the number of its pods. PodsPerNode of them fit on a node.
	Replicas int
	// GracePeriod that its pods need to stop, in whole seconds. Zero means one second.
	GracePeriod time.Duration
	// Tolerations of its pods.
	Tolerations []corev1.Toleration
}

// Validate returns all problems of the deployment.
func (d Deployment) Validate() error {
	var errs []error
	for _, field := range []struct{ name, value string }{{"Name", d.Name}, {"Pool", d.Pool}} {
		if field.value == "" {
			errs = append(errs, fmt.Errorf("%s is empty", field.name))
		}
	}
	if d.Replicas < 0 {
		errs = append(errs, fmt.Errorf("%s is %d, less than 0", "Replicas", d.Replicas))
	}
	if d.GracePeriod < 0 || d.GracePeriod%time.Second != 0 {
		errs = append(errs, fmt.Errorf("%s: %s is not a whole number of seconds", "GracePeriod", d.GracePeriod))
	}
	return errors.Join(errs...)
}

// Deploy creates the Deployment and does not wait for its pods.
func (k *Karpenter) Deploy(ctx context.Context, d Deployment) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("making a deployment: %w", err)
	}
	if _, err := k.client.AppsV1().Deployments(metav1.NamespaceDefault).Create(ctx, d.object(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making deployment %s: %w", d.Name, err)
	}
	return nil
}

func (d Deployment) object() *appsv1.Deployment {
	labels := map[string]string{"app": d.Name}
	grace := max(1, int64(d.GracePeriod/time.Second))
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(d.Replicas)), //nolint:gosec // a small number
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector:                  map[string]string{testbed.PoolLabel: d.Pool},
					Tolerations:                   d.Tolerations,
					TerminationGracePeriodSeconds: &grace,
					Containers: []corev1.Container{{
						Name: "main", Image: "registry.example.com/" + d.Name,
						// A node has four CPUs, but not all for pods.
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}},
					}},
				},
			},
		},
	}
}

// Whole returns what a Deployment lacks, or nil if all of its pods run, each on a Ready
// node that is not being deleted. It does not ask whether the pods are Ready: when kwok
// renews a node's Lease late on a busy machine, the node controller sets Ready=False on the
// node's pods, and kwok, unlike a kubelet, never sets it back.
func (k *Karpenter) Whole(ctx context.Context, name string) error {
	d, err := k.client.AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading deployment %s: %w", name, err)
	}
	pods, err := k.client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return fmt.Errorf("listing the pods of deployment %s: %w", name, err)
	}
	nodes, err := k.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: testbed.PoolLabel + "=" + d.Spec.Template.Spec.NodeSelector[testbed.PoolLabel]})
	if err != nil {
		return fmt.Errorf("listing the nodes of deployment %s: %w", name, err)
	}
	good := map[string]bool{}
	for _, node := range nodes.Items {
		good[node.Name] = node.DeletionTimestamp == nil && isReady(node)
	}
	running := int32(0)
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && good[pod.Spec.NodeName] {
			running++
		}
	}
	if want := *d.Spec.Replicas; running != want || d.Status.Replicas != want {
		return fmt.Errorf("deployment %s has %d pods running on good nodes and %d in all, of %d", name, running, d.Status.Replicas, want)
	}
	return nil
}

// AwaitWhole waits until a Deployment lacks nothing. If ctx ends before, the error says
// what it lacks.
func (k *Karpenter) AwaitWhole(ctx context.Context, name string) error {
	return await(ctx, "deployment "+name, func(ctx context.Context) error { return k.Whole(ctx, name) })
}

func isReady(node corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
