package validate

import (
	"cmp"
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Case is what a verdict is asked for.
type Case struct {
	Set *v1alpha1.ConditionSet // as it is to be
	// Before is the set as it is in force; nil if it is new, or was not accepted.
	Before *v1alpha1.ConditionSet
	// Stored is the set as it is stored, whether it is followed or not; nil if it is new,
	// or if it is not being changed.
	Stored *v1alpha1.ConditionSet
	// Others are all other sets, also those from ConfigMaps. Whoever judges sets
	// that stand side by side gives those that go before this one if the two
	// cannot stand together.
	Others []*v1alpha1.ConditionSet
	// Reported are the condition types that nodes report; nil if nobody knows.
	Reported []string
	// Impact answers what a rule would find now, beyond what others find, as
	// [triage.Core.Impact] does; nil if nobody knows.
	Impact func(rule triage.Rule, beyond ...triage.Rule) (triage.Impact, error)
	// Placed answers how many of the nodes that the rule of the set matches have the
	// set's taint already, as the rule would place it or stronger, or as NoSchedule in
	// place of NoExecute, and how many of them NoExecute. It is nil unless whoever asks
	// takes over from somebody, and knows nothing of what was in force but this.
	Placed func(rule triage.Rule) (tainted, emptied int)
	// OnlyAsked says that nothing is stored: somebody wants to know what would be,
	// and is told also that nothing would.
	OnlyAsked bool
}

// Reason is why a set is refused, in a word that fits a status.
type Reason string

// The reasons.
const (
	// Invalid: it cannot be followed, because a field says nothing that could be.
	Invalid Reason = "Invalid"
	// HealthyStatus: it asks for what healthy nodes report.
	HealthyStatus Reason = "HealthyStatus"
	// NearMiss: a condition type looks like a misspelled one.
	NearMiss Reason = "NearMiss"
	// Duplicate: another set has the same type, or asks the same of the same nodes.
	Duplicate Reason = "Duplicate"
	// ReservedTaintKey: somebody else places and removes taints of that key.
	ReservedTaintKey Reason = "ReservedTaintKey"
	// Impact: it matches more nodes than its bound allows, already now.
	Impact Reason = "Impact"
)

// Problem is one thing that keeps a set out.
type Problem struct {
	Field  string // path, such as spec.conditions[OutOfDisk].status
	Text   string // what is wrong, what would come of it, and the way out
	Reason Reason
}

func (p Problem) String() string { return p.Field + ": " + p.Text }

// Verdict is what there is to say of a set.
type Verdict struct {
	Problems []Problem // none if the set is accepted
	Warnings []string  // one line each
}

// Err is nil if there is no problem, and otherwise says all of them, one to a
// line.
func (v Verdict) Err() error {
	if len(v.Problems) == 0 {
		return nil
	}
	lines := make([]string, len(v.Problems))
	for i, p := range v.Problems {
		lines[i] = p.String()
	}
	return errors.New(strings.Join(lines, "\n"))
}

// check looks for one kind of mistake.
type check func(*study) (problems []Problem, warnings []string)

// standing are the checks of what a set says, by itself and beside the others.
// All others ask what nodes report, and nodes come and go: a set that is in force
// must not fall because of that.
var standing = []check{compiles, reservedKey, healthyStatus, duplicate}

// arriving are the checks that are made once, when a set is written.
var arriving = []check{nearMiss, impactOverBound, annotation, notReported, fewReports, silentKubelet, idleSilence, nativeTaint, oddBound, noNodes}

// Judge says everything that there is to say of a set which is being written. To make a
// dry run of one, and nothing else, is never refused.
func Judge(c Case) Verdict {
	s := look(c)
	v := s.run(standing)
	rest := s.run(arriving)
	v.Problems = append(v.Problems, rest.Problems...)
	v.Warnings = append(v.Warnings, rest.Warnings...)
	if line := s.impactLine(v); line != "" {
		v.Warnings = append([]string{line}, v.Warnings...)
	}
	if c.Stored != nil && c.Set.Spec.DryRun {
		then := c.Stored.Spec
		then.DryRun = true
		v = tolerated(v, equality.Semantic.DeepEqual(c.Set.Spec, then))
	}
	return v
}

// Standing says what must be true of a set that is in force already: all that
// Judge says and that does not depend on the nodes of the moment, and no
// warnings.
func Standing(c Case) Verdict {
	return Verdict{Problems: look(c).run(standing).Problems}
}

// Before says which of two sets came first; of two duplicates that are both followed,
// or both not yet, that one stays.
// One that has no time of creation yet comes after all that have.
func Before(a, b *v1alpha1.ConditionSet) bool {
	one, other := a.CreationTimestamp, b.CreationTimestamp
	if one.IsZero() != other.IsZero() {
		return other.IsZero()
	}
	return cmp.Or(one.Compare(other.Time), cmp.Compare(a.Name, b.Name)) < 0
}
