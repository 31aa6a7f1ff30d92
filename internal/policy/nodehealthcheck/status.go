package nodehealthcheck

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/summary"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// rowPause is the additional delay of a status write per listed node. Storing a row costs
// the API server about a millisecond of CPU, which it needs for treatments in a storm.
const rowPause = 20 * time.Millisecond

// deferredStatusEvery is the interval for restoring the StandingBack condition if the
// other controller removes it. A short interval would make both controllers fight.
const deferredStatusEvery = 10 * time.Minute

var checkType = metav1.TypeMeta{APIVersion: remediation.CheckAPIVersion, Kind: remediation.CheckKind}

// WriteStatuses updates the statuses of health checks.
func (h *Policy) WriteStatuses(ctx context.Context, now time.Time) {
	for name, c := range h.known {
		counts, _ := h.host.Core().Population(checkRule(name))
		nodes, policy := c.summarize(counts), policykind.PolicyOf(checkRule(name))
		if h.deferring { // the health check is in force, by another controller
			h.host.PolicyMetrics().Forget(policy)
		} else {
			h.host.PolicyMetrics().SetNodes(policy, nodes.States())
			h.host.PolicyMetrics().SetReady(policy, c.isReady())
		}
		if nodes.Count(func(code triage.Code) bool { return code == c.skipped }) == 0 {
			c.skipped = 0 // report it again next time
		}
		if counts.CalmUntil.After(now) { // no node change may announce the end of the cooldown
			h.host.Statuses().ScheduleAt(counts.CalmUntil)
		}
		if !h.deferring {
			h.reportStorm(c, counts)
		}
		if !c.status.Stale && (h.deferring || c.status.Stored.ObservedNodes != nil && *c.status.Stored.ObservedNodes == counts.Selected) {
			continue
		}
		replace := treat.StatusOf[remediationv1alpha1.NodeHealthCheckStatus](h.host.Writer(), checkType, c.object.UID)
		write := status.Write[remediationv1alpha1.NodeHealthCheckStatus]{
			Resource: "nodehealthchecks/status", Kind: "nodeHealthCheck", Name: name,
			Status: func() remediationv1alpha1.NodeHealthCheckStatus { return h.statusOf(c, counts) },
			Send: func(ctx context.Context, name string, status remediationv1alpha1.NodeHealthCheckStatus) (string, error) {
				status.LastUpdateTime = new(metav1.NewTime(now.Truncate(time.Second)))
				return replace(ctx, name, status)
			},
			Delay: c.statusDelay(),
		}
		if h.deferring { // the other controller owns all other fields
			write.Pause = deferredStatusEvery
			write.Status = func() remediationv1alpha1.NodeHealthCheckStatus { return h.deferredStatus(c) }
			write.Send = func(ctx context.Context, name string, status remediationv1alpha1.NodeHealthCheckStatus) (string, error) {
				standing, reason := *meta.FindStatusCondition(status.Conditions, remediationv1alpha1.StandingBack), ""
				if status.Reason == standing.Message {
					reason = status.Reason
				}
				return h.host.Writer().HealthCheckConditions(ctx, name, reason, standing, *meta.FindStatusCondition(status.Conditions, remediationv1alpha1.Ready))
			}
		}
		c.status.Update(ctx, now, h.host.Statuses(), write)
	}
}

// Status returns the status of a health check as the policy would write it now, and whether
// there is such a health check.
func (h *Policy) Status(name string) (s remediationv1alpha1.NodeHealthCheckStatus, isKnown bool) {
	c := h.known[name]
	switch {
	case c == nil:
		return s, false
	case h.deferring:
		return h.deferredStatus(c), true
	}
	counts, _ := h.host.Core().Population(checkRule(name))
	return h.statusOf(c, counts), true
}

// statusDelay returns by how much the next status write is delayed. Only changes of listed
// nodes wait longer with their number, not changes of the health check itself.
func (c *check) statusDelay() time.Duration {
	isOn, calmSince := stormOf(c.status.Stored)
	isDisabled := meta.IsStatusConditionTrue(c.status.Stored.Conditions, remediationv1alpha1.Disabled)
	if c.status.Stored.ObservedGeneration != c.object.Generation || c.storm != (storm{isOn, !calmSince.IsZero()}) || isDisabled != (c.disabled != "") {
		return 0
	}
	return time.Duration(min(len(c.nodes), remediationv1alpha1.MaxListedNodes)) * rowPause
}

// deferredStatus sets the conditions StandingBack and Ready, and keeps everything that the other
// controller has written. If the controller cannot determine whether there is another one, nothing else
// may say why the health check is not followed, so the reason says it too.
func (h *Policy) deferredStatus(c *check) remediationv1alpha1.NodeHealthCheckStatus {
	status, message := *c.status.Stored.DeepCopy(), h.medik8s.message()
	set := func(kind string, is metav1.ConditionStatus) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: is, Reason: "AnotherController", Message: message, ObservedGeneration: c.object.Generation,
		})
	}
	set(remediationv1alpha1.StandingBack, metav1.ConditionTrue)
	set(remediationv1alpha1.Ready, metav1.ConditionFalse)
	if isUnknown, _ := h.medik8s.isUnknown(); isUnknown {
		status.Reason = message
	}
	return status
}

// statusOf returns the status of a health check.
func (h *Policy) statusOf(c *check, counts triage.Population) remediationv1alpha1.NodeHealthCheckStatus {
	rows, treated := h.unhealthyNodes(c)
	status := remediationv1alpha1.NodeHealthCheckStatus{
		ObservedGeneration: c.object.Generation,
		ObservedNodes:      new(counts.Selected),
		HealthyNodes:       new(counts.Selected - counts.Unhealthy - counts.Recovering),
		InTreatment:        new(treated),
		Mode:               string(c.switches().Mode()),
		UnhealthyNodes:     rows,
		Conditions:         slices.Clone(c.status.Stored.Conditions),
		AcceptedSpec:       cmp.Or(c.accepted, c.status.Stored.AcceptedSpec),
		LastUpdateTime:     c.status.Stored.LastUpdateTime, // set when it is written
	}
	if counts.Gate >= 0 {
		status.MaxUnhealthyNodes = new(counts.Gate)
	}
	sentence := c.summarize(counts).Sentence(h.host.CurrentReason)
	switch paused := c.switches().Paused; {
	case c.disabled != "":
		status.Phase, status.Reason = remediationv1alpha1.PhaseDisabled, c.disabled+": "+c.problem
	case paused != "":
		status.Phase, status.Reason = remediationv1alpha1.PhasePaused, paused+"; "+sentence
	case treated > 0:
		status.Phase, status.Reason = remediationv1alpha1.PhaseRemediating, sentence
	default:
		status.Phase, status.Reason = remediationv1alpha1.PhaseEnabled, sentence
	}
	switch {
	case c.mode.Problem != "":
		status.Reason = remediationv1alpha1.ReasonInvalid + ": " + c.mode.Problem + "; " + status.Reason
	case c.mode.Observe:
		status.Reason = "mode Observe: nodes are evaluated, but no remediation starts; " + status.Reason
	}
	if c.invalid != "" {
		status.Reason = c.invalidReason + ": " + c.invalidMessage() + "; " + status.Reason
	}
	c.setConditions(&status, counts)
	return status
}

// isReady reports whether the newest version is in force.
func (c *check) isReady() bool { return c.disabled == "" && c.invalid == "" && c.mode.Problem == "" }

// switches returns how much of the health check acts. It has a field of its own for a pause.
func (c *check) switches() observe.Switches {
	s := c.mode
	if requests := c.object.Spec.PauseRequests; len(requests) > 0 {
		s.Paused = "paused by " + strings.Join(requests, ", ")
	}
	return s
}

// setConditions sets the conditions of the health check.
func (c *check) setConditions(status *remediationv1alpha1.NodeHealthCheckStatus, counts triage.Population) {
	set := func(kind string, is bool, reason, message string, since time.Time) {
		condition := metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: c.object.Generation,
		}
		if is {
			condition.Status = metav1.ConditionTrue
		}
		if !since.IsZero() {
			condition.LastTransitionTime = metav1.NewTime(since.Truncate(time.Second))
		}
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	meta.RemoveStatusCondition(&status.Conditions, remediationv1alpha1.StandingBack)
	if c.disabled == "" {
		set(remediationv1alpha1.Disabled, false, remediationv1alpha1.ReasonEnabled, "the health check is in force", time.Time{})
	} else {
		set(remediationv1alpha1.Disabled, true, c.disabled, c.problem, time.Time{})
	}
	reason := cmp.Or(c.disabled, string(status.Phase))
	switch {
	case c.invalid != "":
		reason = c.invalidReason
	case c.mode.Problem != "":
		reason = remediationv1alpha1.ReasonInvalid
	}
	set(remediationv1alpha1.Ready, c.isReady(), reason, status.Reason, time.Time{})
	if c.rule.Bound.Cooldown == 0 {
		meta.RemoveStatusCondition(&status.Conditions, remediationv1alpha1.StormActive)
		meta.RemoveStatusCondition(&status.Conditions, remediationv1alpha1.StormCooldownActive)
		return
	}
	const change = remediationv1alpha1.ReasonThresholdChange
	storm, cooling := "no more nodes are unhealthy than allowed", "there is no storm, or it is not over"
	if counts.Storm {
		storm = "nothing new starts until the storm has been over for " + c.rule.Bound.Cooldown.String()
	}
	isCooling := counts.Storm && !counts.CalmSince.IsZero()
	if isCooling {
		cooling = "nothing new starts before " + counts.CalmUntil.UTC().Format(time.RFC3339)
	}
	set(remediationv1alpha1.StormActive, counts.Storm, change, storm, time.Time{})
	set(remediationv1alpha1.StormCooldownActive, isCooling, change, cooling, counts.CalmSince)
}

// stormOf reads the state of a storm that an earlier term stored.
func stormOf(status remediationv1alpha1.NodeHealthCheckStatus) (isOn bool, calmSince time.Time) {
	if meta.IsStatusConditionTrue(status.Conditions, remediationv1alpha1.StormCooldownActive) {
		calmSince = meta.FindStatusCondition(status.Conditions, remediationv1alpha1.StormCooldownActive).LastTransitionTime.Time
	}
	return meta.IsStatusConditionTrue(status.Conditions, remediationv1alpha1.StormActive), calmSince
}

// reportStorm publishes the begin and end of a storm and of its cooldown.
func (h *Policy) reportStorm(c *check, counts triage.Population) {
	is := storm{isOn: counts.Storm, isCooling: counts.Storm && !counts.CalmSince.IsZero()}
	if is == c.storm {
		return
	}
	was := c.storm
	c.storm, c.status.Stale = is, true
	var event treat.EventReason
	var message string
	switch {
	case is.isCooling:
		event, message = treat.StormRecoveryCooldownStarted, "the storm is over; nothing new starts before "+counts.CalmUntil.UTC().Format(time.RFC3339)
	case is.isOn && !was.isOn:
		event = treat.StormRecoveryStarted
		message = fmt.Sprintf("a storm: %d of %d selected nodes are %s, at most %d may be; nothing new starts", counts.GateUnhealthy(), counts.GateTotal(), counts.GateUnhealthyText(), counts.Gate)
	case is.isOn: // unhealthy nodes exceed the threshold again
		event, message = treat.StormRecoveryStarted, "the storm is back; no new remediation starts"
	default:
		event, message = treat.StormRecoveryEnded, "the storm is over, and so is the wait after it"
	}
	h.host.Logger().Info("storm", "nodeHealthCheck", c.object.Name, "isOn", is.isOn, "isCooling", is.isCooling)
	h.publishEvent(c, nil, event, triage.Reason{}, message)
}

// summarize counts the nodes by state. GateClosed and CoolingDown change for all nodes at
// once, so the counts derive them from the storm.
func (c *check) summarize(counts triage.Population) *summary.Nodes {
	isCooling := counts.Storm && !counts.CalmSince.IsZero()
	nodes := &summary.Nodes{Selected: counts.Selected, Removed: counts.Departed}
	for name, reason := range c.nodes {
		switch {
		case reason.Code == triage.GateClosed && isCooling:
			reason.Code = triage.CoolingDown
		case reason.Code == triage.CoolingDown && !isCooling:
			reason.Code = triage.GateClosed
		}
		nodes.Add(name, reason)
	}
	return nodes
}

// unhealthyNodes lists the unhealthy nodes, and counts the nodes with a remediation
// object.
func (h *Policy) unhealthyNodes(c *check) (rows []remediationv1alpha1.UnhealthyNode, treated int) {
	objects := h.remediations.ObjectsOf(checkRule(c.object.Name))
	names := slices.Collect(maps.Keys(objects))
	for name, reason := range c.nodes {
		// An unclear condition does not make a node unhealthy.
		if _, isListed := objects[name]; !isListed && reason.Code != triage.Unclear {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		one, other := c.nodes[a], c.nodes[b]
		return cmp.Or(cmp.Compare(min(len(objects[b]), 1), min(len(objects[a]), 1)),
			cmp.Compare(one.Code, other.Code), one.Since.Compare(other.Since), cmp.Compare(a, b))
	})
	names = names[:min(len(names), remediationv1alpha1.MaxListedNodes)]
	rows = make([]remediationv1alpha1.UnhealthyNode, 0, len(names))
	for _, name := range names {
		rows = append(rows, h.unhealthyNode(c, name, objects[name]))
	}
	return rows, len(objects)
}

func (h *Policy) unhealthyNode(c *check, name string, objects []remediation.Object) remediationv1alpha1.UnhealthyNode {
	row := remediationv1alpha1.UnhealthyNode{Name: name}
	slices.SortFunc(objects, func(a, b remediation.Object) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.GroupKind().String(), b.GroupKind().String()), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range objects {
		r := remediationv1alpha1.Remediation{
			Resource: corev1.ObjectReference{
				APIVersion: o.GroupVersion().String(), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID,
			},
			Started: metav1.NewTime(o.Created), TemplateName: o.Template,
		}
		if !o.TimedOutAt.IsZero() {
			r.TimedOut = new(metav1.NewTime(o.TimedOutAt))
		}
		if !o.HealthySince.IsZero() {
			row.ConditionsHealthyTimestamp = new(metav1.NewTime(o.HealthySince))
		}
		row.Remediations = append(row.Remediations, r)
	}
	reason, isKnown := c.nodes[name]
	switch {
	case !isKnown && h.host.Node(name) == nil:
		row.Reason, row.Message = triage.NodeGone.String(), h.host.Explain(name, "the node is gone")
		return row
	case !isKnown: // the health check is not followed, or the object is for another node
		row.Reason, row.Message = c.disabled, h.host.Explain(name, cmp.Or(c.problem, "the node has a remediation that is not for it"))
		return row
	}
	reason = h.host.CurrentReason(name, reason)
	row.Reason, row.Message = reason.Code.String(), h.host.Explain(name, reason.Sentence())
	switch reason.Code {
	case triage.Recovering:
		row.HealthyDelayed = new(true)
	case triage.Recovered: // remaining objects were to be deleted at once
		if at := slices.IndexFunc(objects, func(o remediation.Object) bool { return o.Deleting }); at >= 0 && row.ConditionsHealthyTimestamp == nil {
			row.ConditionsHealthyTimestamp = new(metav1.NewTime(objects[at].DeletedAt))
		}
	}
	return row
}
