package catalog

// events are what the shipped monitors report without a condition.
var events = []Event{
	{"OOMKilling", []Source{KernelMonitor}, "The kernel has killed a process for want of memory."},
	{"TaskHung", []Source{KernelMonitor}, "A task has been stuck in the kernel for minutes."},
	{"UnregisterNetDevice", []Source{KernelMonitor}, "The kernel waits for a network device that is still in use; several within minutes make FrequentUnregisterNetDevice."},
	{"KernelOops", []Source{KernelMonitor, ABRTAdaptor}, "The kernel has run into an error of its own and gone on."},
	{"Ext4Error", []Source{KernelMonitor}, "An ext4 filesystem is damaged."},
	{"Ext4Warning", []Source{KernelMonitor}, "An ext4 filesystem has found something odd."},
	{"IOError", []Source{KernelMonitor}, "A block of a disk could not be read or written."},
	{"MemoryReadError", []Source{KernelMonitor}, "The memory has corrected an error while it was read."},
	{"CperHardwareErrorCorrected", []Source{KernelMonitor}, "The firmware has reported a hardware error that was corrected."},
	{"CperHardwareErrorRecoverable", []Source{KernelMonitor}, "The firmware has reported a hardware error that the system can recover from."},
	{"CorruptDockerImage", []Source{DockerMonitor}, "Docker could not store a layer that it had pulled."},
	{"DockerContainerStartupFailure", []Source{DockerMonitor}, "A container was dead before it had started."},
	{"KubeletStart", []Source{SystemdMonitor}, "The kubelet was started; several within minutes make FrequentKubeletRestart."},
	{"DockerStart", []Source{SystemdMonitor}, "Docker was started; several within minutes make FrequentDockerRestart."},
	{"ContainerdStart", []Source{SystemdMonitor}, "containerd was started; several within minutes make FrequentContainerdRestart."},
	{"NTPIsDown", []Source{NTPMonitor}, "The clock's service was found not running; while it stays so, NTPProblem stands."},
	{"ConntrackFull", []Source{NetworkMonitor}, "The table of network connections is full, and new ones are dropped."},
	{"DNSUnreachable", []Source{NetworkMonitor}, "A name could not be resolved on the node."},
	{"IPTablesVersionsMismatch", []Source{IPTablesMonitor}, "Rules stand in both the old and the new iptables, where they do not see each other."},
	{"CCPPCrash", []Source{ABRTAdaptor}, "A program has crashed."},
	{"UncaughtException", []Source{ABRTAdaptor}, "A program has ended by an exception that nobody caught."},
	{"XorgCrash", []Source{ABRTAdaptor}, "The display server has crashed."},
	{"VMcore", []Source{ABRTAdaptor}, "The system has crashed and left a dump of its memory."},
}
