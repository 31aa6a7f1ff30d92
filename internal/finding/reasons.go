package finding

// Reason is a reason of Events that the agent itself chooses. Rules and daemons choose the others.
type Reason struct {
	Name string
	// Severity is that of its Events. It is empty for the reason of a condition that the agent
	// cannot determine: then [Condition.Changed] decides.
	Severity Severity
	// When is when the agent reports it; without a Severity, why it cannot determine the condition.
	When string
}

// Reasons describes the reasons that the agent itself chooses.
func Reasons() []Reason {
	return []Reason{
		{"ConditionCleared", Info, "A user has cleared a condition that the agent had found in a log."},
		{"ClearRefused", Warn, "The agent cannot clear a condition that an annotation of the Node names."},
		{"ConfigInvalid", Warn, "A configuration file is invalid. Its last valid version stays in force, if there is one."},
		{"ConfigLoaded", Info, "A configuration file is valid again and in force."},
		{"ConfigRemoved", Warn, "A configuration file was deleted, and its monitor has stopped."},
		{"UnitRestarted", Warn, "The agent restarted an unhealthy service, as a file asks for."},
		{"UnitRestartFailed", Warn, "The agent tried to restart an unhealthy service, and systemd refused."},

		{"LogUnreadable", "", "The agent could not read the log for a minute."},
		{"MonitorEnded", "", "The monitor crashed; the agent starts it again."},
		{"MonitorHangs", "", "The monitor has not reported for a minute."},
		{"NotCheckedYet", "", "The first check of the condition has not ended yet."},
		{"CheckHangs", "", "The check exceeded its timeout. It starts again when it has ended."},
		{"CheckPanicked", "", "The check crashed, because of a bug of the agent."},
		{"CheckNotAllowed", "", "The agent lacks a right that the check needs."},
		{"CheckNotPossible", "", "The agent cannot see what the check looks at, because the pod lacks a mount or a namespace of the host."},
		{"CheckStopped", "", "The check was stopped before it had an answer."},
		{"StartingUp", "", "The service is unhealthy and has just started."},
		{"PluginUnclear", "", "The program exited with a code other than 0 and 1."},
		{"PluginTimeout", "", "The program exceeded its timeout, and the agent killed it."},
		{"PluginHangs", "", "An earlier run of the program cannot be killed."},
		{"PluginKilled", "", "Another process or the kernel killed the program."},
		{"PluginMissing", "", "The program or its interpreter does not exist."},
		{"PluginIsFolder", "", "The path of the program is a folder."},
		{"PluginNotExecutable", "", "The file of the program is not executable."},
		{"PluginNotAProgram", "", "The system cannot execute the file of the program."},
		{"PluginNotStarted", "", "The system could not start a process."},
		{"SourceSilent", "", "The daemon reported the condition before, and has stopped."},
		{"SourceNeverHeard", "", "The daemon has never reported the condition."},
	}
}
