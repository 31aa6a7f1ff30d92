package validate

import (
	"fmt"
	"slices"

	"github.com/resourcestack/autohealer/catalog"
)

// healthyStatus rejects a set if healthy nodes report all of its conditions. If one
// condition is unhealthy, the others only narrow the set, for example: the kubelet does
// not answer although the node is Ready. healthyStatus then warns, because this is often
// a mistake.
func healthyStatus(s *analysis) (problems, warnings []Problem) {
	healthy := s.healthy()
	if len(healthy) == 0 {
		return nil, nil
	}
	told := make([]string, len(healthy))
	for i, name := range healthy {
		told[i] = name + "=" + string(known(name).Healthy)
	}
	verb := "is"
	if len(told) > 1 {
		verb = "are"
	}
	if !s.actsOnHealthy() {
		return nil, []Problem{warning(field(healthy[0], ".status"), "%s %s what a healthy node reports; the set matches those of them that also meet its other conditions", joinAnd(told), verb)}
	}
	text := fmt.Sprintf("%s %s what a healthy node reports, so the set would act on the nodes that are well", joinAnd(told), verb)
	switch {
	case s.reach == nil:
	case s.reach.Matching == 0:
		text += ". No node matches now, but every healthy node that reports it would"
	default:
		text += fmt.Sprintf(": %s, and it would %s", s.reach.matches(), s.reach.actions())
	}
	condition := known(healthy[0])
	text += fmt.Sprintf(". Write %s: %s, which says: %s If you mean healthy nodes with something else about them, add the condition that says what", s.statusField(), condition.Unhealthy(), condition.Meaning)
	return []Problem{{field(healthy[0], ".status"), text, HealthyStatus}}, nil
}

// healthy returns the condition types that the set matches in their healthy status.
func (s *analysis) healthy() []string {
	return slices.DeleteFunc(s.types(), func(name string) bool { return !catalog.Healthy(name, string(s.status(name))) })
}

// actsOnHealthy reports whether the set matches healthy statuses only.
func (s *analysis) actsOnHealthy() bool {
	healthy := len(s.healthy())
	return healthy > 0 && healthy == len(s.Set.Spec.Conditions)
}

func known(conditionType string) catalog.Condition {
	c, _ := catalog.Lookup(conditionType)
	return c
}

// kubeletConditions are the conditions that all become Unknown when the kubelet stops reporting.
// A kubelet that reports never sets them to Unknown.
var kubeletConditions = []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"}

// silentKubelet warns of a set that can never match: it wants the kubelet both to be
// silent and to report a status.
func silentKubelet(s *analysis) (_, warnings []Problem) {
	var silent, heard []string
	for _, name := range s.types() {
		switch status := s.status(name); {
		case !slices.Contains(kubeletConditions, name):
		case status == catalog.Unknown:
			silent = append(silent, name)
		case status == catalog.True || status == catalog.False:
			heard = append(heard, name+"="+string(status))
		}
	}
	if len(silent) == 0 || len(heard) == 0 {
		return nil, nil
	}
	return nil, []Problem{warning(field(silent[0], ".status"), "the set will never match: when %s is Unknown, the kubelet is silent, and Kubernetes makes all of its conditions Unknown, so that %s cannot stand; use one of them alone", silent[0], joinAnd(heard))}
}

// unusedEvenSilent warns of evenSilent on a status other than Unknown, where it has no effect.
func unusedEvenSilent(s *analysis) (_, warnings []Problem) {
	idle := slices.DeleteFunc(s.types(), func(name string) bool {
		status := s.status(name)
		return !s.Set.Spec.Conditions[name].EvenSilent || status != catalog.True && status != catalog.False
	})
	if len(idle) == 0 {
		return nil, nil
	}
	return nil, []Problem{warning(field(idle[0], ".evenSilent"), "it does nothing for %s: only the status Unknown can be that of a silent agent", shortList(idle))}
}

// nativeTaint warns of a set that only repeats a taint that Kubernetes sets itself.
func nativeTaint(s *analysis) (_, warnings []Problem) {
	types := s.types()
	if len(types) != 1 {
		return nil, nil
	}
	status := s.status(types[0])
	for _, taint := range known(types[0]).Native {
		if status == taint.Status {
			return nil, []Problem{warning(field(types[0], ""), "Kubernetes places %s:%s for %s=%s by itself; there is no default for it: %s", taint.Key, taint.Effect, types[0], status, known(types[0]).Why)}
		}
	}
	return nil, nil
}
