package treat

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/triage"
)

// EventReason is the kind of an Event.
type EventReason uint8

// Kinds of Events. [EventKinds] describes them.
const (
	TaintsChanged EventReason = iota // the code of the reason says how
	Accepted
	NotAccepted
	Held
	NotSaved
	LabelMissing
	MirrorNameTaken
	RecordUnreadable
	PauseUnreadable
	AttemptsUnreadable
	GivenUp

	// The following are Events of remediations, with the names that medik8s uses.

	DetectedUnhealthy
	RemediationCreated
	RemediationSkipped
	RemediationRemoved
	NoTemplateLeft
	InvalidNodeLabel
	Disabled
	Enabled
	StormRecoveryStarted
	StormRecoveryCooldownStarted
	StormRecoveryEnded

	AgentSilent
	AgentHeard

	// The following are Events of repairs and of the ready timeout.

	RepairPending
	RepairBlocked
	NodeRepaired
	TerminationCancelled
	ReadyTimeoutRecovery
	PoolHeld
	PoolReleased

	// The following are Events of repair blocks of NodePools.

	RepairBlockRefused
	RepairSchemaLost
	RepairBlockVanished
	RepairBlockRestored

	OwnershipUnclear
)

// EventKind describes the Events with one reason.
type EventKind struct {
	Reason string
	Action string
	Type   string // Normal or Warning
	On     string // kinds of objects that get the Event, as far as they exist
	When   string // the controller writes it
}

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning

	// validateAction is the action of Events about a validation, without a write.
	validateAction = "Evaluate"

	// Values of On that several kinds share.
	onSet         = "ConditionSet, ConfigMap"
	onNodeAndSet  = "Node, ConditionSet, ConfigMap"
	onCheck       = "NodeHealthCheck"
	onRemediation = "Node, NodeHealthCheck, RepairPolicy"
	onRepair      = "Node, NodeClaim, NodePool, RepairPolicy"
	onPool        = "NodePool"
)

// eventKinds describes the Events of each kind. TaintsChanged is described by [taintEvents].
var eventKinds = [...]EventKind{
	TaintsChanged: {Action: validateAction, Type: normal},
	Accepted: {"Accepted", validateAction, normal, "ConditionSet, ConfigMap, NodeHealthCheck, RepairPolicy, NodePool, Guardrails",
		"A version is in force: a new version of a ConfigMap or a repair block, or a version after a problem. Or the ConditionSet is no longer held."},
	NotAccepted: {"NotAccepted", validateAction, warning, "ConditionSet, ConfigMap, NodeHealthCheck, RepairPolicy, NodePool, Guardrails, Node",
		"The newest version, or the annotation for the mode, is invalid and not in force. On a Node: the controller removed the taint of such a ConditionSet."},
	Held:               {"Held", validateAction, warning, onSet, "The ConditionSet places no new taint, because it may match healthy nodes."},
	NotSaved:           {"NotSaved", validateAction, warning, "ConfigMap", "The newest version is not in force, because the controller could not store it."},
	LabelMissing:       {"LabelMissing", validateAction, warning, "ConfigMap", "The ConfigMap has ConditionSets and lacks the label; the message has the command."},
	MirrorNameTaken:    {"MirrorNameTaken", validateAction, warning, "ConfigMap, NodePool", "A ConditionSet or a RepairPolicy of a user has the name of the mirror."},
	RecordUnreadable:   {"RecordUnreadable", validateAction, warning, "Node", "The controller cannot read its record on the Node."},
	PauseUnreadable:    {"PauseUnreadable", validateAction, warning, "Node", "The controller cannot read until when the Node is paused."},
	AttemptsUnreadable: {"AttemptsUnreadable", validateAction, warning, "Node", "The controller cannot read how often the Node was treated."},
	GivenUp: {"GivenUp", validateAction, warning, "Node, NodeClaim, NodePool, NodeHealthCheck, RepairPolicy",
		"The node was treated as often as maxAttempts of the Guardrails allows; no further treatment starts."},

	DetectedUnhealthy:  {"DetectedUnhealthy", validateAction, normal, "Node, NodeHealthCheck", "The node has been unhealthy for the duration of a condition."},
	RemediationCreated: {"RemediationCreated", "CreateRemediation", normal, onRemediation, "The controller created a remediation object."},
	RemediationSkipped: {"RemediationSkipped", "CreateRemediation", warning, onRemediation,
		"A remediation is due and does not start, or the API server refused a write. Only on the NodeHealthCheck if the cause stops all of its nodes."},
	RemediationRemoved: {"RemediationRemoved", "RemoveRemediation", normal, onRemediation, "The controller deleted a remediation object."},
	NoTemplateLeft:     {"NoTemplateLeft", validateAction, warning, "Node, NodeHealthCheck", "The last remediation failed or timed out, and the node is still unhealthy."},
	InvalidNodeLabel:   {"InvalidNodeLabel", validateAction, warning, "Node, NodeHealthCheck", "An unhealthy node has the exclude label with a value without effect."},
	Disabled:           {"Disabled", validateAction, warning, "NodeHealthCheck", "A template is missing or invalid."},
	Enabled:            {"Enabled", validateAction, normal, "NodeHealthCheck", "The problem of Disabled is solved."},
	StormRecoveryStarted: {"StormRecoveryStarted", validateAction, warning, onCheck,
		"A storm: more nodes are unhealthy than the limit allows. No new remediation starts."},
	StormRecoveryCooldownStarted: {"StormRecoveryCooldownStarted", validateAction, warning, onCheck, "The storm is over. New remediations start after the cooldown."},
	StormRecoveryEnded:           {"StormRecoveryEnded", validateAction, normal, onCheck, "The storm and its cooldown are over. New remediations start."},

	AgentSilent: {triage.AgentSilent, validateAction, warning, "Node", "The agent has not renewed its Lease; the controller set its conditions to Unknown."},
	AgentHeard:  {"AgentHeard", validateAction, normal, "Node", "The agent renews its Lease or writes its conditions again."},

	RepairPending: {"NodeRepairPending", validateAction, normal, onRepair, "The node is unhealthy; the controller repairs it at the time in the message if it stays so."},
	RepairBlocked: {"NodeRepairBlocked", "DeleteNodeClaim", warning, onRepair,
		"The repair of the node is due and does not start, or the API server refused a write to the NodeClaim."},
	NodeRepaired:         {"NodeRepair", "DeleteNodeClaim", warning, onRepair, "The controller deleted the NodeClaim, or ended its drain by force."},
	TerminationCancelled: {"NodeRepairCancelled", "KeepNodeClaim", normal, onRepair, "The controller had marked the NodeClaim, and does not delete it."},
	ReadyTimeoutRecovery: {"NodeReadyTimeoutRecovery", "DeleteNodeClaim", warning, onRepair, "The node did not become Ready in time, and the controller deleted its NodeClaim."},
	PoolHeld:             {"NodePoolHeld", validateAction, warning, onPool, "Too many nodes of the NodePool in a row did not become Ready; the controller pauses their replacement."},
	PoolReleased:         {"NodePoolReleased", validateAction, normal, onPool, "The pause has ended: a node became Ready, or the NodePool changed."},

	RepairBlockRefused:  {"RepairBlockRefused", validateAction, warning, onPool, "The repair block is invalid. The last valid block stays in force."},
	RepairSchemaLost:    {"RepairSchemaLost", validateAction, warning, onPool, "The CRD of NodePools has lost the schema of repair blocks. The last valid block stays in force."},
	RepairBlockVanished: {"RepairBlockVanished", validateAction, warning, onPool, "The repair block is gone, and the controller cannot tell whether a user removed it. It stays in force."},
	RepairBlockRestored: {"RepairBlockRestored", "Restore", normal, onPool, "The controller put the schema or the block back."},

	OwnershipUnclear: {"OwnershipUnclear", validateAction, warning, onNodeAndSet,
		"The Node has a taint with the key and effect of the ConditionSet, and no record proves that the controller placed it."},
}

// taintEvents describes the Events of the kind TaintsChanged, and those of failed writes.
func taintEvents() []EventKind {
	const place, remove = "PlaceTaint", "RemoveTaint"
	return []EventKind{
		{triage.Tainted.String(), place, warning, onNodeAndSet, "The controller placed a taint. The message says so if another client had removed it."},
		{triage.FellBack.String(), place, warning, onNodeAndSet,
			"The controller placed NoSchedule instead of NoExecute: a limit is reached, the window is closed, or the ConditionSet excludes control-plane nodes."},
		{triage.Recovered.String(), remove, normal, onNodeAndSet, "The controller removed the taint: the conditions no longer match."},
		{triage.Deselected.String(), remove, normal, onNodeAndSet, "The controller removed the taint: the ConditionSet no longer selects the node."},
		{triage.RuleGone.String(), remove, normal, "Node", "The controller removed the taint: the ConditionSet is deleted."},
		{triage.DryRun.String(), remove, normal, onNodeAndSet, "The controller removed the taint: the ConditionSet no longer acts, because of its mode."},
		{triage.Superseded.String(), remove, normal, onNodeAndSet, "The controller removed the taint: a stronger taint of another ConditionSet replaces it."},
		{"Failed" + place, place, warning, onNodeAndSet, "The API server refused to place a taint."},
		{"Failed" + remove, remove, warning, onNodeAndSet, "The API server refused to remove a taint."},
		{"FailedRestore", "Restore", warning, onPool, "The controller could not put the schema of repair blocks or a block back."},
	}
}

// EventKinds describes all Events of the controller.
func EventKinds() []EventKind { return append(taintEvents(), eventKinds[TaintsChanged+1:]...) }

// IsFinding reports whether the Event describes a finding of a policy, not a write.
func (r EventReason) IsFinding() bool {
	switch r {
	case GivenUp, DetectedUnhealthy, RemediationSkipped, NoTemplateLeft, InvalidNodeLabel, RepairPending, RepairBlocked:
		return true
	default:
		return false
	}
}

// reportsState reports whether the Event describes something that lasts, which the next leader
// finds again: why a policy is not in force, or why it begins nothing.
func (e Event) reportsState() bool {
	what := eventKinds[e.EventReason]
	return what.Type == corev1.EventTypeWarning && what.Action == validateAction || e.EventReason == RemediationSkipped && e.Node == nil
}
