// Package naive says what the conditions and bounds of a rule mean, in the plainest way. The
// naive core in the tests of package triage builds on it, and so does package history, which
// judges what the controller did. It shares no code with either, and no program may contain
// it.
package naive

import (
	"math"
	"slices"
	"time"
)

// Status is the status of a condition.
type Status uint8

// The statuses, in the order of package triage. Missing means that the node does not report
// the condition.
const (
	Missing Status = iota
	True
	False
	Unknown
)

// AgentSilent is the reason of an Unknown condition whose agent does not report.
const AgentSilent = "AgentSilent"

// Condition is a condition of a node.
type Condition struct {
	Status Status
	Reason string
}

// Signal is a status that a condition must have, and for how long.
type Signal struct {
	Condition  string
	Status     Status
	Reason     string        // empty matches any reason
	For        time.Duration // Never for a signal that takes its status and reason out of the rule
	EvenSilent bool          // matches Unknown with the reason AgentSilent, too
}

// When has the conditions of a rule: all of them must match, or any.
type When struct {
	All     bool
	Signals []Signal
}

// Limit is a number of nodes or a percentage, of unhealthy or of healthy nodes.
type Limit struct {
	Number                    int
	Percent, RoundUp, Healthy bool
	Few, FewNumber            int // of at most Few nodes, a percentage is FewNumber
}

// Verdict says whether conditions match.
type Verdict int

// The verdicts. Unclear means that a condition is Unknown and no signal names that.
const (
	Not Verdict = iota
	Unclear
	Holds
)

// Never is the duration of a signal that does not count.
const Never time.Duration = math.MaxInt64

// Groups lists the conditions of a rule in the order of their first signal, without those
// that have no signal that counts.
func Groups(w When) (conditions []string) {
	for _, s := range w.Signals {
		counts := func(other Signal) bool { return other.Condition == s.Condition && other.For < Never }
		if slices.ContainsFunc(w.Signals, counts) && !slices.Contains(conditions, s.Condition) {
			conditions = append(conditions, s.Condition)
		}
	}
	return conditions
}

// SignalsOf returns the signals of a condition.
func SignalsOf(w When, condition string) (signals []Signal) {
	for _, s := range w.Signals {
		if s.Condition == condition {
			signals = append(signals, s)
		}
	}
	return signals
}

// Group evaluates the signals of a condition, and returns the duration of the matching
// signal.
func Group(signals []Signal, row Condition) (v Verdict, wait time.Duration) {
	if row.Status == Unknown {
		v = Unclear
	}
	named := false
	for _, s := range signals {
		silent := row.Status == Unknown && row.Reason == AgentSilent
		if s.Status != row.Status || s.Reason != "" && s.Reason != row.Reason || silent && !s.EvenSilent {
			continue
		}
		// A signal that names the reason wins over one for any reason.
		if names := s.Reason != ""; v != Holds || names && !named || names == named && s.For < wait {
			wait, named = s.For, names
		}
		v = Holds
	}
	if v == Holds && wait == Never {
		return Not, 0
	}
	return v, wait
}

// Combine combines the verdicts on the conditions of a rule.
func Combine(all bool, verdicts ...Verdict) Verdict {
	switch {
	case len(verdicts) == 0:
		return Not
	case all:
		return slices.Min(verdicts)
	}
	return slices.Max(verdicts)
}

// Allows is how many nodes may be unhealthy or in treatment under a limit; -1 for any
// number.
func Allows(l *Limit, selected int) int {
	if l == nil {
		return -1
	}
	n := l.Number
	if l.Percent {
		if l.Few > 0 && selected <= l.Few {
			n = l.FewNumber
		}
		hundredths := selected * n
		isNone := n == 0
		n = hundredths / 100
		switch {
		case l.RoundUp && hundredths%100 > 0:
			n++
		case !l.RoundUp && n < 1 && !isNone:
			n = 1
		}
	}
	if l.Healthy {
		n = selected - n
	}
	return max(n, 0)
}
