package validate

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Case is the input for the verdict on a ConditionSet.
type Case struct {
	Set *v1alpha1.ConditionSet // the new version
	// Before is the version in force; nil if the set is new or was not accepted.
	Before *v1alpha1.ConditionSet
	// Stored is the stored version, whether it is in force or not. It is nil if the set
	// is new or is not being changed.
	Stored *v1alpha1.ConditionSet
	// Others are all other sets, including those from ConfigMaps. A caller that validates
	// several stored sets passes only the sets that take precedence over this one.
	Others []*v1alpha1.ConditionSet
	// Reported are the condition types that nodes report; nil if they are unknown.
	Reported []string
	// Impact returns what a rule would match now, beyond what other rules match, as
	// [triage.Core.Impact] does; nil if the nodes are unknown.
	Impact func(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error)
	// Placed returns how many of the nodes that the set's rule matches already have the
	// set's taint, and how many of them have it with NoExecute. A stronger taint counts,
	// and NoSchedule counts in place of NoExecute. A caller sets Placed only if it took
	// over from another leader and does not know which version was in force.
	Placed func(rule triage.Rule) (tainted, emptied int)
	// PreviewOnly says that the set is not stored: the caller only wants to know its impact,
	// and also wants a line if the set matches no node.
	PreviewOnly bool
}

// Reason is why a set is rejected, in a form that fits a status.
type Reason string

// Reasons for the rejection of a set.
const (
	// Invalid: a field has a value from which no rule can be compiled.
	Invalid Reason = "Invalid"
	// HealthyStatus: the set matches what healthy nodes report.
	HealthyStatus Reason = "HealthyStatus"
	// NearMiss: a condition type looks misspelled.
	NearMiss Reason = "NearMiss"
	// Duplicate: another set has the same type, or matches the same conditions on the same nodes.
	Duplicate Reason = "Duplicate"
	// ReservedTaintKey: another component owns the taints with this key.
	ReservedTaintKey Reason = "ReservedTaintKey"
	// Impact: the set already matches more nodes than its bound allows.
	Impact Reason = "Impact"
)

// Problem is one reason to reject a set, or to warn of it.
type Problem struct {
	Field  string // path, for example spec.conditions[OutOfDisk].status; empty for the whole set
	Text   string // what is wrong, the consequence, and the correction
	Reason Reason // of a rejection
}

// warning returns a problem for which a set is not rejected.
func warning(field, format string, args ...any) Problem {
	return Problem{Field: field, Text: fmt.Sprintf(format, args...)}
}

// String returns one line. Names may contain line breaks.
func (p Problem) String() string {
	if p.Field == "" {
		return oneLine(p.Text)
	}
	return oneLine(p.Field + ": " + p.Text)
}

// Lines returns the lines of problems.
func Lines(problems []Problem) []string {
	list := make([]string, len(problems))
	for i, p := range problems {
		list[i] = p.String()
	}
	return list
}

// oneLine replaces all white space by single blanks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Verdict is the result of a validation.
type Verdict struct {
	Problems []Problem // none if the set is accepted
	Warnings []Problem
}

// Err returns nil if there is no problem, and otherwise an error with one problem per
// line.
func (v Verdict) Err() error {
	if len(v.Problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(Lines(v.Problems), "\n"))
}

// check looks for one kind of mistake.
type check func(*analysis) (problems, warnings []Problem)

// permanentChecks are the checks that depend only on this set and the other sets. The other
// checks depend on what nodes report, which changes all the time. A set in force must not
// be rejected for that.
var permanentChecks = []check{compiles, reservedKey, healthyStatus, duplicate}

// admissionChecks are the checks that run once, when a set is written.
var admissionChecks = []check{nearMiss, impactOverBound, annotation, notReported, fewReports, silentKubelet, unusedEvenSilent, nativeTaint, unusualBound, noNodes}

// ConditionSet returns all problems and warnings of a set that is being written. A change that
// only switches the set to mode Observe is never rejected.
func ConditionSet(c Case) Verdict {
	s := analyze(c)
	v := s.run(permanentChecks)
	rest := s.run(admissionChecks)
	v.Problems = append(v.Problems, rest.Problems...)
	v.Warnings = append(v.Warnings, rest.Warnings...)
	if line := s.impactLine(v); line != "" {
		v.Warnings = append([]Problem{{Text: line}}, v.Warnings...)
	}
	if c.Stored != nil && c.Set.Spec.Observes() {
		then := c.Stored.Spec
		then.DryRun, then.Mode = c.Set.Spec.DryRun, c.Set.Spec.Mode
		v = warnOnly(v, equality.Semantic.DeepEqual(c.Set.Spec, then))
	}
	return v
}

// StoredConditionSet returns the problems of a set that is in force: those problems of
// ConditionSet that do not depend on the current nodes. It returns no warnings.
func StoredConditionSet(c Case) Verdict {
	return Verdict{Problems: analyze(c).run(permanentChecks).Problems}
}

// Before reports whether set a was created before set b. If both of two duplicates are in
// force, or neither is, the earlier set wins. A set without a creation timestamp
// comes last.
func Before(a, b *v1alpha1.ConditionSet) bool {
	one, other := a.CreationTimestamp, b.CreationTimestamp
	if one.IsZero() != other.IsZero() {
		return other.IsZero()
	}
	return cmp.Or(one.Compare(other.Time), cmp.Compare(a.Name, b.Name)) < 0
}
