package validate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/spelling"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

// minStart is the shortest time that a machine needs from its creation until its node
// is Ready.
const minStart = 2 * time.Minute

func policyPath(i int, part string) string {
	return fmt.Sprintf("%s.policies[%d].%s", block, i, part)
}

// repairsHealthy rejects a status that healthy nodes report. Each policy is sufficient by
// itself, so the pool would be replaced node by node, for ever.
func repairsHealthy(s *repairAnalysis) (problems, _ []Problem) {
	for i, p := range s.spec.Policies {
		status := parsed(p)
		if p.ConditionStatus == "" || !catalog.Healthy(p.ConditionType, status) {
			continue
		}
		is := known(p.ConditionType)
		problems = append(problems, Problem{policyPath(i, "conditionStatus"), fmt.Sprintf(
			"%s=%s is what a healthy node reports, so the nodes that are well would be replaced, one after the other and without end. Write conditionStatus: \"%s\", which says: %s",
			truncate(p.ConditionType), status, is.Unhealthy(), is.Meaning), HealthyStatus})
	}
	return problems, nil
}

// parsed returns the status of a policy in Kubernetes' spelling.
func parsed(p v1alpha1.ConditionRepair) string {
	if status, err := triage.ParseStatus(p.ConditionStatus); err == nil {
		return status.String()
	}
	return p.ConditionStatus
}

// repairConditionNames warns of policies without effect: conditions without a status that the
// provider of the nodes does not state, and condition types that no node reports.
func repairConditionNames(s *repairAnalysis) (_, warnings []Problem) {
	names := nameWarnings{reported: s.Reported}
	for i, p := range s.spec.Policies {
		name, path := p.ConditionType, policyPath(i, "conditionType")
		switch {
		case names.isEvent(path, name):
		case s.stated(name) && p.ConditionStatus == "":
			if without := s.withoutStatement(name); len(without) > 0 {
				names.warnings = append(names.warnings, warning(path, "the provider does not call %s unhealthy, so this does nothing for %s; %s", truncate(name), listFirst(without), s.suggestion(name)))
			}
		case s.stated(name):
		case p.ConditionStatus == "":
			names.warnings = append(names.warnings, warning(path, "no provider of these nodes calls %s unhealthy, so this does nothing; %s", truncate(name), s.suggestion(name)))
		default:
			names.check(path, name)
		}
	}
	return nil, names.all()
}

// withoutStatement lists the selected nodes whose provider does not state a condition.
func (s *repairAnalysis) withoutStatement(conditionType string) (nodes []string) {
	for _, one := range s.selected {
		if !states(one.statements, conditionType) {
			nodes = append(nodes, one.name)
		}
	}
	return nodes
}

// suggestion suggests a correction for a condition without a status that no provider states.
func (s *repairAnalysis) suggestion(name string) string {
	if is, ok := catalog.Lookup(name); ok {
		return fmt.Sprintf("to have it repaired all the same, write conditionStatus: \"%s\" beside it", is.Unhealthy())
	}
	types := slices.Clone(s.Reported)
	for _, one := range s.statements {
		types = append(types, one.Type)
	}
	if right, slip := spelling.NearestCondition(name, types...); slip {
		return fmt.Sprintf("did you mean %s?", truncate(right))
	}
	return "to have it repaired all the same, write beside it the conditionStatus in which it is unhealthy"
}

// shortToleration warns of a toleration so short that a start or a reboot causes a replacement.
func shortToleration(s *repairAnalysis) (_, warnings []Problem) {
	hasty := func(path, written, status string) {
		if wait, err := triage.ParseDuration(written); written != "" && err == nil && wait < minUnready {
			warnings = append(warnings, warning(path, "a node that merely starts anew, or whose network is cut for a moment, %s for longer than %s; want at least %s, for example 10m", status, text.Duration(wait), text.Duration(minUnready)))
		}
	}
	own := false
	for i, p := range s.spec.Policies {
		if p.ConditionType != triage.Ready || parsed(p) == triage.True.String() {
			continue
		}
		own = own || p.ConditionStatus == "" && p.Reason == ""
		status := "is not Ready"
		if p.ConditionStatus != "" {
			status = "has Ready=" + parsed(p)
		}
		hasty(policyPath(i, "toleration"), p.Toleration, status)
	}
	if !own && s.stated(triage.Ready) {
		hasty(block+".defaultTolerationDuration", s.spec.DefaultTolerationDuration, "is not Ready")
	}
	if wait, err := triage.ParseDuration(s.spec.ReadyTimeout); s.spec.ReadyTimeout != "" && err == nil && wait < minStart {
		warnings = append(warnings, warning(block+".readyTimeout", "a machine takes longer than %s to start, so that every new node would be replaced before it is Ready; want at least %s, for example the default of 10m", text.Duration(wait), text.Duration(minStart)))
	}
	return nil, warnings
}

// ReadyTimeoutsOffMessage says why a ready timeout has no effect.
const ReadyTimeoutsOffMessage = "it has no effect, because the controller runs without --feature-gates=NodeReadyTimeoutRecovery=true"

// oldName warns of the deprecated name of a field.
func oldName(s *repairAnalysis) (_, warnings []Problem) {
	if old := s.spec.MaxUnhealthy; old != nil && s.spec.MaxConcurrent == nil {
		warnings = append(warnings, warning(block+".maxUnhealthy", "this is the old name of maxConcurrent; want maxConcurrent: %s", old))
	}
	return nil, warnings
}

// unusedFields warns of fields that have no effect in this block, and of a drain without a limit.
func unusedFields(s *repairAnalysis) (_, warnings []Problem) {
	if waitsFor := func(signal triage.Signal) bool { return signal.For < triage.Never }; !slices.ContainsFunc(s.rule.When.Signals, waitsFor) && (s.spec.ReadyTimeout == "" || !s.hasPool) {
		warnings = append(warnings, warning(block, "all conditions are tolerated for ever, so no node is repaired; want a toleration other than Never, or a readyTimeout for the nodes of a NodePool"))
	}
	if s.spec.TerminationGracePeriod == "" && s.spec.Termination == v1alpha1.Graceful {
		warnings = append(warnings, warning(block+".termination", "this policy sets no limit for a drain. A pod that cannot be evicted keeps the node, and its slot under maxConcurrent. Set terminationGracePeriod. If a drain hangs, change termination to Forceful"))
	}
	if s.spec.TerminationGracePeriod != "" && s.spec.Termination != v1alpha1.Graceful {
		warnings = append(warnings, warning(block+".terminationGracePeriod", "it means nothing while nodes go by force, as they do without termination: Graceful"))
	}
	if s.spec.ReadyTimeout != "" && !s.hasPool {
		warnings = append(warnings, warning(block+".readyTimeout", "it means nothing here, because only the nodes of a NodePool have one; want a policy with nodePool, or the controller's --node-ready-timeout"))
	}
	if s.spec.ReadyTimeout != "" && s.hasPool && s.ReadyTimeoutsOff {
		warnings = append(warnings, warning(block+".readyTimeout", ReadyTimeoutsOffMessage))
	}
	if s.template != nil && s.hasPool {
		warnings = append(warnings, warning("spec.remediationTemplate", "it means nothing for the nodes of a NodePool, which are replaced"))
	}
	if len(s.spec.Policies) == 0 && s.spec.DefaultTolerationDuration == "" {
		var types []string
		for _, one := range s.statements {
			if !slices.Contains(types, one.Type) {
				types = append(types, one.Type)
			}
		}
		warnings = append(warnings, warning(block, "it names no condition, so every condition that a provider calls unhealthy is repaired after the time that the provider recommends (%s)", shortList(types)))
	}
	return nil, warnings
}

// unusualRepairBound warns of a bound that allows no repair, and of bounds that allow all
// repairs at once.
func unusualRepairBound(s *repairAnalysis) (_, warnings []Problem) {
	for _, bound := range repairBounds(s.spec) {
		if limit, err := triage.ParseLimit(bound.written); err == nil && limit.Number == 0 {
			return nil, []Problem{warning(block+"."+bound.field, "with %s nothing is ever repaired; want at least 1, or enabled: false to stop for a while", bound.written)}
		}
	}
	total, where := 0, ""
	switch {
	case len(s.poolSizes) > 1: // the bounds are those of each pool
		total = slices.Max(s.poolSizes)
		where = fmt.Sprintf(" in each pool, of which the largest has %d of the nodes,", total)
	case s.found != nil && s.found.Selected > 1:
		total = s.found.Selected
		where = " for " + nodes(total)
	}
	var all []string
	for _, bound := range repairBounds(s.spec) {
		if limit, err := triage.ParseLimit(bound.written); err == nil && (limit.Percent && limit.Number == 100 || total > 0 && limit.Of(total) >= total) {
			all = append(all, bound.field+" "+bound.written)
		}
	}
	if len(all) < 2 { // the other bound has a default, which protects the nodes
		return nil, nil
	}
	return nil, []Problem{warning(block, "%s%s are no limits: when something makes all nodes look unhealthy, all are replaced at once; want less of one of them, for example the default of 20%%", strings.Join(all, " and "), where)}
}

// repairBound is a bound as the user has written it.
type repairBound struct{ field, written string }

// repairBounds returns the bounds that a block sets.
func repairBounds(spec *v1alpha1.RepairSpec) (bounds []repairBound) {
	for _, one := range []struct {
		field string
		limit *intstr.IntOrString
	}{{"unhealthyThreshold", spec.UnhealthyThreshold}, {"maxConcurrent", spec.MaxConcurrent}, {"maxUnhealthy", spec.MaxUnhealthy}} {
		if one.limit != nil && one.limit.String() != "" {
			bounds = append(bounds, repairBound{one.field, one.limit.String()})
		}
	}
	return bounds
}
