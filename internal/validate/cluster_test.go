package validate_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/triage"
)

// node is a node of a test cluster.
type node struct {
	labels     map[string]string
	conditions map[string]triage.Status
}

// cluster evaluates rules by checking every node. It ignores the reasons of conditions.
type cluster map[string]node

func (c cluster) reported() []string {
	types := map[string]bool{}
	for _, n := range c {
		for name := range n.conditions {
			types[name] = true
		}
	}
	// Not nil: in a cluster without nodes it is known that no condition is reported.
	return slices.AppendSeq([]string{}, maps.Keys(types))
}

func (c cluster) impact(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error) {
	if err := rule.Validate(); err != nil {
		return triage.Impact{}, err
	}
	var found triage.Impact
	for _, name := range slices.Sorted(maps.Keys(c)) {
		n := c[name]
		if !n.meets(rule.Selector) {
			continue
		}
		found.Selected++
		others := func(other triage.Rule) bool { return n.meets(other.Selector) && n.has(other.When.Signals) }
		isOpen := func(s triage.Signal) bool {
			return n.conditions[s.Condition] == triage.Missing || n.conditions[s.Condition] == triage.Unknown
		}
		if !n.has(rule.When.Signals) {
			if n.has(slices.DeleteFunc(slices.Clone(rule.When.Signals), isOpen)) {
				found.Open++
			}
			continue
		}
		if slices.ContainsFunc(beyond, others) {
			continue
		}
		found.Matching++
		_, is := n.labels["node-role.kubernetes.io/control-plane"]
		_, was := n.labels["node-role.kubernetes.io/master"]
		if is || was {
			found.ControlPlane++
		}
		if len(found.First) < triage.MostNamed {
			found.First = append(found.First, name)
		}
	}
	return found, nil
}

func (n node) meets(who triage.Selector) bool {
	for _, r := range who.Requirements() {
		value, present := n.labels[r.Key]
		is := present && slices.Contains(r.Values, value)
		if met := map[triage.Operator]bool{triage.In: is, triage.NotIn: !is, triage.Exists: present, triage.Absent: !present}[r.Op]; !met {
			return false
		}
	}
	return true
}

func (n node) has(signals []triage.Signal) bool {
	for _, s := range signals {
		if n.conditions[s.Condition] != s.Status { // an absent condition is Missing, which no set matches
			return false
		}
	}
	return true
}

// add creates nodes base-1 and so on. Words like pool=a are labels, and words like
// Ready:True are conditions.
func (c cluster) add(base string, count int, words []string) error {
	for i := range count {
		n := node{map[string]string{}, map[string]triage.Status{}}
		for _, word := range words {
			if name, status, ok := strings.Cut(word, ":"); ok {
				parsed, err := triage.ParseStatus(status)
				if err != nil {
					return err
				}
				n.conditions[name] = parsed
				continue
			}
			key, value, ok := strings.Cut(word, "=")
			if !ok {
				return fmt.Errorf("%q is neither a label like pool=a nor a condition like Ready:True", word)
			}
			n.labels[key] = value
		}
		c[fmt.Sprintf("%s-%d", base, i+1)] = n
	}
	return nil
}
