package catalog

// conditions is the catalog. Run make generate after a change.
//
// How the default effects were chosen:
//
//   - None if Kubernetes itself sets a taint for the condition. Two components that manage the same
//     taint would undo each other's changes.
//   - PreferNoSchedule for a weak sign, or one whose cause may be outside the node. Only NoExecute
//     is bounded, and a time server that is down must not close all nodes at once.
//   - NoSchedule for a node that cannot run new pods while existing pods may still run. It removes
//     nothing and is easily reverted, so it is the most frequent choice.
//   - NoExecute only if running pods are lost anyway and moving them helps. Its evictions ignore
//     PodDisruptionBudgets, and many conditions come from a single log line that says nothing about
//     the pods.
//
// A problem survives a reboot only if hardware is broken: if the agent forgot it, the node would
// look healthy. All other problems are forgotten at a reboot:
//
//   - Deadlocks of the kernel end with the kernel (KernelDeadlock, FrequentUnregisterNetDevice).
//   - Filesystems are mounted and checked again, and a damaged one is reported within minutes
//     (XfsShutdown, ReadonlyFilesystem). The same is true for Docker's storage when its containers
//     start (CorruptDockerOverlay2). A remembered problem would outlive the repair.
//   - A GPU is reset with its node, which fixes nearly all of its fatal errors. A broken GPU
//     reports its error again when it is used, or is not found (GPUUnhealthy).
//   - Restart counters start again at zero (Frequent*Restart).
//   - Checks run again (KubeletUnhealthy, ContainerRuntimeUnhealthy, RuntimeHung,
//     KubeProxyUnhealthy, NTPProblem).
var conditions = []Condition{
	{
		Type: "Ready", Source: Kubernetes, Healthy: True,
		Meaning: "The kubelet cannot run pods (False), or has not reported for a while (Unknown).",
		Native: []Taint{
			{False, NoExecute, "node.kubernetes.io/not-ready"},
			{Unknown, NoExecute, "node.kubernetes.io/unreachable"},
		},
		Why: "Kubernetes evicts for it, with tolerations that pods can set and a limit for whole zones; a second taint would bypass both.",
	},
	{
		Type: "OutOfDisk", Source: Kubernetes, Healthy: False,
		Meaning: "There is no room on the node's disk for new pods.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/out-of-disk"}},
		Why:     "Only very old kubelets report it, with their own taint; current kubelets report DiskPressure.",
	},
	{
		Type: "MemoryPressure", Source: Kubernetes, Healthy: False,
		Meaning: "The node is short of memory.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/memory-pressure"}},
		Why:     "Kubernetes taints for it, and the kubelet evicts pods by their use and priority, which a taint cannot take into account.",
	},
	{
		Type: "DiskPressure", Source: Kubernetes, Healthy: False,
		Meaning: "The node is short of space or inodes on a disk that the kubelet watches.",
		Native:  []Taint{{True, NoSchedule, "node.kubernetes.io/disk-pressure"}},
		Why:     "Kubernetes taints for it, and the kubelet first frees space by removing dead containers and images.",
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
		Meaning: "A task of the container runtime or of the kubelet is stuck in the kernel and cannot even be killed.",
		Effect:  NoExecute, Duration: "5m", MaxUnhealthy: "10%",
		Why: "Pods there can be neither started nor probed, only a reboot helps, and replacements work on other nodes; 5m is longer than a disk stalls, and 10% keeps a bad kernel from emptying the cluster.",
	},
	{
		Type: "XfsShutdown", Source: KernelMonitor, Healthy: False,
		Meaning: "XFS has shut a filesystem down after an error: every access to it fails.",
		Effect:  NoSchedule,
		Why:     "The log does not say whether it is the node's own filesystem or the volume of a single pod, because of which other pods must not be evicted.",
	},
	{
		Type: "CperHardwareErrorFatal", Source: KernelMonitor, Healthy: False,
		Meaning: "The firmware has reported a fatal hardware error.",
		// The firmware reports it once, and usually the error itself reboots the node.
		SurvivesReboot: true,
		Effect:         NoSchedule,
		Why:            "A node that still reports it has usually rebooted since; its pods run, but the hardware needs an inspection before the node gets new pods.",
	},
	{
		Type: "FrequentUnregisterNetDevice", Source: KernelMonitor, Healthy: False,
		Meaning: "The kernel keeps waiting for network devices of dead pods that it cannot free.",
		Effect:  NoSchedule,
		Why:     "Creating and removing pod networks hangs, so new pods do not start; running pods keep their network.",
	},
	{
		Type: "ReadonlyFilesystem", Source: ReadonlyMonitor, Healthy: False,
		Meaning: "The kernel has made a filesystem read-only after an error.",
		Effect:  NoSchedule,
		Why:     "The log does not say whether it is the node's own filesystem or the volume of a single pod, because of which other pods must not be evicted.",
	},
	{
		Type: "CorruptDockerOverlay2", Source: DockerMonitor, Healthy: False,
		Meaning: "Docker's storage of image layers is damaged.",
		Effect:  NoSchedule,
		Why:     "Containers on the damaged layers do not start; running containers already have their layers mounted.",
	},
	{
		Type: "FrequentKubeletRestart", Source: SystemdMonitor, Healthy: False,
		Meaning: "The kubelet has restarted repeatedly within minutes.",
		Effect:  PreferNoSchedule,
		Why:     "Containers survive a restart of the kubelet, and a kubelet that stays down makes Ready Unknown; a bad setting restarts it on all nodes at once, which must not close them all.",
	},
	{
		Type: "FrequentDockerRestart", Source: SystemdMonitor, Healthy: False,
		Meaning: "Docker has restarted repeatedly within minutes.",
		Effect:  NoSchedule,
		Why:     "Each restart may stop the node's containers; existing containers have come back so far, and new pods can avoid the risk.",
	},
	{
		Type: "FrequentContainerdRestart", Source: SystemdMonitor, Healthy: False,
		Meaning: "containerd has restarted repeatedly within minutes.",
		Effect:  NoSchedule,
		Why:     "Image pulls and container starts fail during restarts; running containers survive them.",
	},
	{
		Type: "KubeletUnhealthy", Source: HealthChecker, Healthy: False,
		Meaning: "The kubelet does not answer when asked for its health.",
		Effect:  NoSchedule, Duration: "1m",
		Why: "A new pod may never start there, while running containers survive; a restart takes less than 1m, and if the kubelet is dead, Ready becomes Unknown and Kubernetes evicts.",
	},
	{
		Type: "ContainerRuntimeUnhealthy", Source: HealthChecker, Healthy: False,
		Meaning: "The container runtime does not answer.",
		Effect:  NoSchedule, Duration: "1m",
		Why: "No pod can start there, while most running containers survive; a restart takes less than 1m and usually fixes it.",
	},
	{
		Type: "KubeProxyUnhealthy", Source: HealthChecker, Healthy: False,
		Meaning: "kube-proxy does not answer when asked for its health.",
		Effect:  PreferNoSchedule, Duration: "1m",
		Why: "Its existing rules still work, so only changes of Services are missing; a bad setting stops it on all nodes at once, which must not close them all.",
	},
	{
		Type: "NTPProblem", Source: NTPMonitor, Healthy: False,
		Meaning: "The service that synchronises the node's clock is not running.",
		Effect:  PreferNoSchedule, Duration: "10m",
		Why: "A clock drifts slowly, so nothing is broken yet; the cause often stops the service on all nodes, which must not close them all.",
	},
	{
		Type: "DiskBadBlock", Source: DiskMonitor, Healthy: False,
		Meaning: "A disk has a hundred or more sectors that cannot be read.",
		// The sectors stay broken. A new disk usually comes with a new node.
		SurvivesReboot: true,
		Effect:         NoSchedule,
		Why:            "The disk is failing slowly: a user who knows its data has time to move the workloads.",
	},
	{
		Type: "GPUUnhealthy", Source: GPUMonitor, Healthy: False,
		Meaning: "A GPU has failed in a way that only a reset, a reboot or a replacement fixes.",
		Effect:  NoSchedule,
		Why:     "The other GPUs of the node still work, possibly on jobs that take days, and a reset of the failed GPU requires a drain of the node first.",
	},
	{
		Type: "BadCPU", Source: ThirdParty, Healthy: False,
		Meaning: "A processor returns wrong results, or reports errors that it cannot correct.",
		// A processor does not heal. A new one usually comes with a new node.
		SurvivesReboot: true,
		Effect:         NoSchedule,
		Why:            "New pods avoid the processor; a user should check the results of running pods before they continue on another node.",
	},
	{
		Type: "RuntimeHung", Source: ThirdParty, Healthy: False,
		Meaning: "The container runtime accepts requests and does not finish them.",
		Effect:  NoSchedule, Duration: "1m",
		Why: "Pods can neither start nor stop there, while running containers continue; a runtime that is only busy answers within 1m.",
	},
}
