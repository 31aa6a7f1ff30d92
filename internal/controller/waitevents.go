package controller

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// announce publishes an Event about a health check, a node, or both. Either may be nil.
func (l *loop) announce(c *check, node *corev1.Node, what treat.EventReason, reason triage.Reason, words string) {
	word := treat.Event{Node: node, EventReason: what, Reason: reason, Message: words}
	if c != nil {
		word.Policy = treat.AboutCheck(c.object)
	}
	if word.Node != nil || word.Policy != nil {
		l.cfg.Event(word)
	}
}

// reportWaits reports that a node is unhealthy and, if it is not treated, why: once per
// reason. A cause that affects all nodes is reported on the health check only.
func (l *loop) reportWaits(p *nodeState, findings []triage.Reason) {
	maps.DeleteFunc(p.reported, func(rule triage.RuleID, _ triage.Code) bool { // a reason that returns is reported again
		return !slices.ContainsFunc(findings, func(is triage.Reason) bool { return is.Rule == rule })
	})
	for _, is := range findings {
		if isRepair(is.Rule) {
			l.reportRepairWait(p, is)
			continue
		}
		c := l.checkOf(is.Rule)
		if c == nil || c.isNew() { // the state of a new check lasts only a moment
			continue
		}
		was := p.reported[is.Rule]
		waits := isWait(is.Code)
		if !waits && is.Code != triage.Treating && is.Code != triage.Exhausted {
			if was != 0 && is.Code != triage.Recovering && is.Code != triage.Unclear {
				delete(p.reported, is.Rule) // report it again when it starts again
			}
			continue
		}
		if is.Code == was {
			continue
		}
		if p.reported == nil {
			p.reported = map[triage.RuleID]triage.Code{}
		}
		p.reported[is.Rule] = is.Code
		if was == 0 {
			l.announce(c, p.node, treat.DetectedUnhealthy, is, "")
			if value, labelled := p.node.Labels[remediation.ExcludeLabel]; labelled && value != remediation.ExcludeValue {
				l.announce(c, p.node, treat.InvalidNodeLabel, is, fmt.Sprintf("label %s is %q and asks for nothing; %q would have the node left alone", remediation.ExcludeLabel, value, remediation.ExcludeValue))
			}
		}
		switch {
		case is.Code == triage.Exhausted:
			l.announce(c, p.node, treat.NoTemplateLeft, is, "")
		case is.Code == triage.GateClosed || is.Code == triage.CoolingDown || is.Code == triage.OnHold:
			if c.skipped != is.Code {
				c.skipped = is.Code
				l.announce(c, nil, treat.RemediationSkipped, is, "")
			}
		case is.Code == triage.Retrying: // the refusal has been reported
		case waits:
			l.announce(c, p.node, treat.RemediationSkipped, is, "")
		default:
			c.skipped = 0
		}
	}
}
