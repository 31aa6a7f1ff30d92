package catalog

// conditions are the catalogue. Whoever edits it runs make generate.
//
// How the defaults were decided:
//
//   - None where Kubernetes taints for the condition itself: two who keep one
//     taint undo each other's work.
//   - PreferNoSchedule for a sign that is soft, or whose cause may lie outside of
//     the node: only NoExecute is bounded, and a time server that is down must not
//     close all nodes at once.
//   - NoSchedule for a node that is broken for what is new, while what runs may
//     still run. It takes nothing away and is taken back without a trace, so most
//     decisions are this one.
//   - NoExecute only where what runs is lost anyway and moving it helps. Its
//     evictions ask no PodDisruptionBudget, and many of these conditions come from
//     one line of a log that says nothing of the pods.
//
// What survives a reboot is hardware that is broken: a node that forgets it looks
// well. All else is better forgotten:
//
//   - the kernel's own knots end with the kernel (KernelDeadlock,
//     FrequentUnregisterNetDevice);
//   - filesystems are mounted anew and checked, and one that is still damaged says so
//     within minutes (XfsShutdown, ReadonlyFilesystem); so does Docker's store when
//     the containers in it are started (CorruptDockerOverlay2), and remembering
//     would outlive its repair;
//   - a GPU is reset with its node, which is what nearly all of its fatal errors ask
//     for, and one that is broken says so again when it is used, or not found
//     (GPUUnhealthy);
//   - what has been restarted too often begins to count anew (Frequent*Restart);
//   - what is asked for by a program is asked again (KubeletUnhealthy,
//     ContainerRuntimeUnhealthy, KubeProxyUnhealthy, NTPProblem).
var conditions = []Condition{
	{
		Type: "Ready", Source: Kubernetes, Healthy: True,
		Meaning: "The kubelet cannot run pods (False), or has not been heard of for a while (Unknown).",
		Native: []Taint{
			{False, NoExecute, "node.kubernetes.io/not-ready"},
			{Unknown, NoExecute, "node.kubernetes.io/unreachable"},
		},
		Why: "Kubernetes evicts for it, with tolerations that pods can set and a brake for whole zones; a second taint would go around both.",
	},
	{
		Type: "OutOfDisk", Source: Kubernetes, Healthy: False,
		Meaning: "There is no room on the node's disk for new pods.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/out-of-disk"}},
		Why:     "Only kubelets of long ago report it, with their own taint; those of today say DiskPressure.",
	},
	{
		Type: "MemoryPressure", Source: Kubernetes, Healthy: False,
		Meaning: "The node is short of memory.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/memory-pressure"}},
		Why:     "Kubernetes taints for it, and the kubelet evicts pods by their use and priority, which no taint could weigh.",
	},
	{
		Type: "DiskPressure", Source: Kubernetes, Healthy: False,
		Meaning: "The node is short of room or inodes on a disk that the kubelet watches.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/disk-pressure"}},
		Why:     "Kubernetes taints for it, and the kubelet first frees room by removing dead containers and images.",
	},
	{
		Type: "NetworkUnavailable", Source: Kubernetes, Healthy: False,
		Meaning: "The network of the node has not been set up.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/network-unavailable"}},
		Why:     "Kubernetes taints for it, and with some networks every new node has it for a moment.",
	},
	{
		Type: "PIDPressure", Source: Kubernetes, Healthy: False,
		Meaning: "The node is short of process IDs.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/pid-pressure"}},
		Why:     "Kubernetes taints for it, and the kubelet evicts pods by their use and priority.",
	},

	{
		Type: "KernelDeadlock", Source: KernelMonitor, Healthy: False,
		Meaning: "A task of the container runtime is stuck in the kernel and cannot even be killed.",
		Effect:  NoExecute, Duration: "5m", MaxUnhealthy: "10%",
		Why: "Pods there can be neither started nor probed, only a reboot helps, and replacements elsewhere do work; 5m outlast a stalled disk, and 10% keep a bad kernel from emptying the cluster.",
	},
	{
		Type: "XfsShutdown", Source: KernelMonitor, Healthy: False,
		Meaning: "XFS has shut a filesystem down after an error: every access to it fails.",
		Effect:  NoSchedule,
		Why:     "The log does not say whether it is the node's own filesystem or the volume of one pod, for which the others must not be evicted.",
	},
	{
		Type: "CperHardwareErrorFatal", Source: KernelMonitor, Healthy: False,
		Meaning: "The firmware has reported a hardware error that cannot be survived.",
		// The firmware says it once, and mostly the error itself makes the node reboot.
		SurvivesReboot: true,
		Effect:         NoSchedule,
		Why:            "Who can still report it has mostly rebooted since: what runs now runs, but the hardware has to be looked at before it gets more.",
	},
	{
		Type: "FrequentUnregisterNetDevice", Source: KernelMonitor, Healthy: False,
		Meaning: "The kernel keeps waiting for network devices of dead pods that it cannot free.",
		Effect:  NoSchedule,
		Why:     "Making and removing pod networks hangs, so new pods do not start; those that have their network keep it.",
	},
	{
		Type: "ReadonlyFilesystem", Source: ReadonlyMonitor, Healthy: False,
		Meaning: "The kernel has made a filesystem read-only after an error.",
		Effect:  NoSchedule,
		Why:     "The log does not say whether it is the node's own filesystem or the volume of one pod, for which the others must not be evicted.",
	},
	{
		Type: "CorruptDockerOverlay2", Source: DockerMonitor, Healthy: False,
		Meaning: "Docker's store of image layers is damaged.",
		Effect:  NoSchedule,
		Why:     "Containers on the damaged layers do not start; those that run have theirs mounted.",
	},
	{
		Type: "FrequentKubeletRestart", Source: SystemdMonitor, Healthy: False,
		Meaning: "The kubelet has been started again and again within minutes.",
		Effect:  PreferNoSchedule,
		Why:     "Containers outlive a kubelet, and one that stays down makes Ready Unknown; a bad setting brings this to all nodes at once, which must not close them all.",
	},
	{
		Type: "FrequentDockerRestart", Source: SystemdMonitor, Healthy: False,
		Meaning: "Docker has been started again and again within minutes.",
		Effect:  NoSchedule,
		Why:     "Each restart may take the node's containers with it; those that are there have come back so far, and new ones need not share their lot.",
	},
	{
		Type: "FrequentContainerdRestart", Source: SystemdMonitor, Healthy: False,
		Meaning: "containerd has been started again and again within minutes.",
		Effect:  NoSchedule,
		Why:     "Pulls and starts fail in the gaps; containers that run outlive them.",
	},
	{
		Type: "KubeletUnhealthy", Source: HealthChecker, Healthy: False,
		Meaning: "The kubelet does not answer when asked for its health.",
		Effect:  NoSchedule, Duration: "1m",
		Why: "A pod that is sent there may never start, while containers outlive a kubelet; a restart takes less than 1m, and if it is dead, Ready says so and Kubernetes evicts.",
	},
	{
		Type: "ContainerRuntimeUnhealthy", Source: HealthChecker, Healthy: False,
		Meaning: "The container runtime does not answer.",
		Effect:  NoSchedule, Duration: "1m",
		Why: "No pod can start there, while most containers outlive their runtime; a restart, which takes less than 1m, heals it more often than not.",
	},
	{
		Type: "KubeProxyUnhealthy", Source: HealthChecker, Healthy: False,
		Meaning: "kube-proxy does not answer when asked for its health.",
		Effect:  PreferNoSchedule, Duration: "1m",
		Why: "The rules that it has written still work, so only what is new on the network is lost; a bad setting stops it on all nodes at once, which must not close them all.",
	},
	{
		Type: "NTPProblem", Source: NTPMonitor, Healthy: False,
		Meaning: "The service that keeps the node's clock right is not running.",
		Effect:  PreferNoSchedule, Duration: "10m",
		Why: "A clock drifts slowly, so nothing is broken yet; what stops the service often stops it on all nodes, which must not close them all.",
	},
	{
		Type: "DiskBadBlock", Source: DiskMonitor, Healthy: False,
		Meaning: "A disk has a hundred or more sectors that cannot be read.",
		// The sectors stay what they are; a new disk mostly comes with a new node.
		SurvivesReboot: true,
		Effect:         NoSchedule,
		Why:            "The disk is dying, but not in this minute: what runs can be moved by somebody who knows what is stored there.",
	},
	{
		Type: "GPUUnhealthy", Source: GPUMonitor, Healthy: False,
		Meaning: "A GPU has failed in a way that only a reset, a reboot or a pair of hands cures.",
		Effect:  NoSchedule,
		Why:     "The other GPUs of the node still work, perhaps for days on something that must not be lost, and whoever resets the one that failed has to drain the node first.",
	},
}
