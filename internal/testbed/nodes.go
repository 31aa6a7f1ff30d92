package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// PoolLabel names the node pool that a node belongs to.
	PoolLabel = "karpenter.sh/nodepool"

	// fieldManager owns what the testbed itself writes.
	fieldManager = "testbed"

	// creators is how many nodes are created at a time. More do not make an API server on
	// two cores faster.
	creators = 16
)

// Nodes describes a set of realistic nodes: Ready, with capacity, addresses and the labels
// that every kubelet sets.
type Nodes struct {
	// Count is the number of nodes.
	Count int

	// Prefix and First determine the names. The default is node-0001, node-0002 and so on.
	Prefix string
	First  int

	// Zones and Pools are assigned in turn: every zone gets each pool. Empty means three
	// zones, zone-a to zone-c, and one pool, default.
	Zones, Pools []string

	// Labels and Annotations are set on every node.
	Labels, Annotations map[string]string

	// Images is the number of container images on each node. Conditions are set in addition
	// to the four of the kubelet. A real node of 15 KB has about 50 images and 6 more
	// conditions; see RealNodes.
	Images     int
	Conditions []corev1.NodeCondition
}

// RealNodes returns a set of nodes of realistic size, about 15 KB each: 50 images, and 10
// conditions.
func RealNodes(count int) Nodes {
	nodes := Nodes{Count: count, Images: 50}
	for _, kind := range []string{"KernelDeadlock", "ReadonlyFilesystem", "CorruptDockerOverlay2", "FrequentKubeletRestart", "FrequentContainerdRestart", "NTPProblem"} {
		nodes.Conditions = append(nodes.Conditions, corev1.NodeCondition{
			Type:    corev1.NodeConditionType(kind),
			Status:  corev1.ConditionFalse,
			Reason:  "No" + kind,
			Message: "nothing that points to " + kind + " has been seen",
		})
	}
	return nodes
}

// Validate returns all problems of the description.
func (n Nodes) Validate() error {
	var errs []error
	for _, number := range []struct {
		name  string
		value int
	}{{"Count", n.Count}, {"First", n.First}, {"Images", n.Images}} {
		if number.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d, less than 0", number.name, number.value))
		}
	}
	for i, condition := range n.Conditions {
		if condition.Type == "" || condition.Status == "" {
			errs = append(errs, fmt.Errorf("%s[%d] needs a type and a status", "Conditions", i))
		}
	}
	return errors.Join(errs...)
}

// CreateNodes creates the nodes and returns them as stored, in the order of their names. If
// kwok runs, it simulates their kubelets.
func (c *Cluster) CreateNodes(ctx context.Context, nodes Nodes) ([]*corev1.Node, error) {
	if err := nodes.Validate(); err != nil {
		return nil, fmt.Errorf("creating nodes: %w", err)
	}
	if c.Kwok != nil {
		annotations := map[string]string{FakeNodeAnnotation: FakeNodeValue}
		maps.Copy(annotations, nodes.Annotations)
		nodes.Annotations = annotations
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	now := time.Now()
	created := make([]*corev1.Node, nodes.Count)
	next := make(chan int)
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			for i := range next {
				node := nodes.node(i, now)
				made, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{FieldManager: fieldManager})
				if err != nil {
					cancel(fmt.Errorf("creating node %s: %w", node.Name, err))
					continue
				}
				created[i] = made
			}
		})
	}
	for i := range created {
		next <- i
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return created, nil
}

// SetCondition writes one condition of a node's status and leaves the others alone, like an
// agent on the node. Zero times become now.
func (c *Cluster) SetCondition(ctx context.Context, node string, condition corev1.NodeCondition) error {
	now := metav1.Now()
	if condition.LastHeartbeatTime.IsZero() {
		condition.LastHeartbeatTime = now
	}
	if condition.LastTransitionTime.IsZero() {
		condition.LastTransitionTime = now
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return fmt.Errorf("setting %s of node %s: %w", condition.Type, node, err)
	}
	// Conditions are merged by type: the patch has only the changed condition.
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager}, "status"); err != nil {
		return fmt.Errorf("setting %s of node %s: %w", condition.Type, node, err)
	}
	return nil
}

// node returns the node with index i of the set.
func (n Nodes) node(i int, now time.Time) *corev1.Node {
	var (
		zones  = orDefault(n.Zones, "zone-a", "zone-b", "zone-c")
		pools  = orDefault(n.Pools, "default")
		number = i + max(1, n.First)
		prefix = orDefault([]string{n.Prefix}, "node")[0]
	)
	name := fmt.Sprintf("%s-%04d", prefix, number)
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("8"),
		corev1.ResourceMemory:           resource.MustParse("32Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	allocatable := maps.Clone(capacity)
	allocatable[corev1.ResourceCPU] = resource.MustParse("7910m")
	allocatable[corev1.ResourceMemory] = resource.MustParse("30Gi")

	labels := map[string]string{
		corev1.LabelHostname:           name,
		corev1.LabelOSStable:           "linux",
		corev1.LabelArchStable:         "amd64",
		corev1.LabelTopologyRegion:     "region-1",
		corev1.LabelTopologyZone:       zones[i%len(zones)],
		corev1.LabelInstanceTypeStable: "m.2xlarge",
		PoolLabel:                      pools[i/len(zones)%len(pools)],
	}
	maps.Copy(labels, n.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: n.Annotations},
		Spec:       corev1.NodeSpec{ProviderID: "testbed:///" + labels[corev1.LabelTopologyZone] + "/" + name},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: allocatable,
			Conditions:  n.conditions(now),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.%d.%d.%d", 64+number>>16&63, number>>8&255, number&255)},
				{Type: corev1.NodeHostName, Address: name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: "amd64", OperatingSystem: "linux",
				MachineID: name, SystemUUID: name, BootID: name,
				KernelVersion: "6.12.0", OSImage: "Testbed Linux 1.0",
				ContainerRuntimeVersion: "containerd://2.1.0",
				KubeletVersion:          "v1.36.3",
			},
			Images: images(n.Images),
		},
	}
}

// conditions returns the conditions of the kubelet and of the set. The node joined a while
// ago and has been healthy since.
func (n Nodes) conditions(now time.Time) []corev1.NodeCondition {
	conditions := append([]corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
	}, n.Conditions...)
	for i := range conditions {
		if conditions[i].LastHeartbeatTime.IsZero() {
			conditions[i].LastHeartbeatTime = metav1.NewTime(now)
		}
		if conditions[i].LastTransitionTime.IsZero() {
			conditions[i].LastTransitionTime = metav1.NewTime(now)
		}
	}
	return conditions
}

// images returns n images, each with a tag and a digest, as the kubelet lists them.
func images(n int) []corev1.ContainerImage {
	images := make([]corev1.ContainerImage, n)
	for i := range images {
		repository := fmt.Sprintf("registry.example.com/team-%02d/service-%03d", i%7, i)
		digest := strings.Repeat(fmt.Sprintf("%08x", 0x9e3779b9*uint32(i+1)), 8)
		images[i] = corev1.ContainerImage{
			Names:     []string{repository + "@sha256:" + digest, fmt.Sprintf("%s:v1.%d.0", repository, i)},
			SizeBytes: int64(20+i) << 20,
		}
	}
	return images
}

// orDefault returns values, or the defaults if values is empty.
func orDefault(values []string, defaults ...string) []string {
	if strings.Join(values, "") == "" {
		return defaults
	}
	return values
}
