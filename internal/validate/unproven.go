package validate

import (
	"fmt"
	"slices"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/catalog"
)

// Unproven returns the condition types of a set that no node reports yet, if the set may
// match healthy nodes once they are reported. This is the case if the catalog does not
// know the healthy status of these types, and no other condition of the set is known to
// be unhealthy. A set with dryRun, and a set whose impact the user accepted, need no
// proof. With a nil reported, the result has every type that the catalog does not know.
func Unproven(set *v1alpha1.ConditionSet, reported []string) (types []string) {
	s := &analysis{Case: Case{Set: set}}
	if set.Spec.Observes() || s.acceptsImpact() {
		return nil
	}
	for _, name := range s.types() {
		_, isKnown := catalog.Lookup(name)
		switch status := s.status(name); {
		case catalog.Healthy(name, string(status)):
		case isKnown || status == catalog.Unknown:
			return nil
		case !slices.Contains(reported, name):
			types = append(types, name)
		}
	}
	return types
}

// fewReports warns that the controller holds the set at first, because too few nodes
// report its conditions.
func fewReports(s *analysis) (_, warnings []Problem) {
	types := Unproven(s.Set, nil)
	if s.compileErr != nil || len(types) == 0 || len(Unproven(s.Set, s.Reported)) > 0 || s.reach == nil || s.reach.Selected == 0 || s.isFew() || s.reach.over() {
		return nil, nil
	}
	return nil, []Problem{warning(field(types[0], ""), "%d of %s do not report %s yet; the set places no taint until enough of them do to tell that it does not match healthy nodes, or until no further node has begun to for some minutes", s.reach.Open, nodes(s.reach.Selected), shortList(types))}
}

// isFew reports whether the set stays within its bound even if every node that does not
// report its conditions yet will match.
func (s *analysis) isFew() bool { return s.reach.Matching+s.reach.Open <= s.reach.limit }

// Proof is the second verdict on a set that was accepted before enough nodes reported its
// conditions.
type Proof struct {
	Problems []Problem // why admission would reject the set now
	// Proven says that the set is accepted even if every node that does not report its
	// conditions yet will match.
	Proven   bool
	Matching int
	Limit    int    // how many nodes maxUnhealthy allows now; 0 if that is not known
	Text     string // what is known and how to proceed; empty if the set is proven or rejected
}

// Prove validates a set again against the current nodes, as if it were written now.
func Prove(c Case, unproven []string) Proof {
	s := analyze(c)
	switch problems := slices.Concat(s.run(permanentChecks).Problems, s.run(admissionChecks).Problems); {
	case len(problems) > 0:
		refused := Proof{Problems: problems}
		if s.reach != nil {
			refused.Limit = s.reach.limit
		}
		return refused
	case s.reach == nil:
		return Proof{}
	case s.reach.over(), // and accepted anyway: its full impact is already reached
		s.reach.Selected > 0 && s.isFew():
		return Proof{Proven: true, Matching: s.reach.Matching, Limit: s.reach.limit}
	}
	return Proof{Matching: s.reach.Matching, Limit: s.reach.limit, Text: fmt.Sprintf(
		"%s, and %d more may match once they report %s, while maxUnhealthy allows %s. If the set asks for what a healthy node reports, correct spec.conditions; if it does not, annotate the %s with %s: \"true\"",
		s.reach.matches(), s.reach.Open, shortList(unproven), s.reach.allowed(), s.kind(), v1alpha1.AcceptImpactAnnotation)}
}
