package conditionset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

var accepting = map[string]string{v1alpha1.AcceptImpactAnnotation: "true"}

// setNamed returns a set of generation 1: NoSchedule while Disk is True.
func setNamed(name string, changes ...func(*v1alpha1.ConditionSet)) *v1alpha1.ConditionSet {
	set := &v1alpha1.ConditionSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("u-" + name), Generation: 1, ResourceVersion: "1"},
		Spec: v1alpha1.ConditionSetSpec{
			Type: name, Effect: corev1.TaintEffectNoSchedule, TaintKey: "example.com/" + name,
			Conditions: map[string]v1alpha1.SetCondition{"Disk": {Status: "True"}},
		},
	}
	for _, change := range changes {
		change(set)
	}
	return set
}

func asking(condition string, status v1alpha1.ConditionStatus) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) {
		s.Spec.Conditions = map[string]v1alpha1.SetCondition{condition: {Status: status}}
	}
}

func createdAt(second int64) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) { s.CreationTimestamp = metav1.Unix(second, 0) }
}

func typed(kind string) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) { s.Spec.Type = kind }
}

// acceptedBefore gives a set an Accepted status for a generation.
func acceptedBefore(generation int64) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) {
		s.Status.ObservedGeneration = generation
		s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, ObservedGeneration: generation}}
	}
}

// refusedBefore gives a set a rejected status for a generation.
func refusedBefore(generation int64, reason validate.Reason) func(*v1alpha1.ConditionSet) {
	return func(s *v1alpha1.ConditionSet) {
		s.Status.ObservedGeneration = generation
		s.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.Accepted, Status: metav1.ConditionFalse, Reason: string(reason), Message: "spec.conditions: as it was told: then", ObservedGeneration: generation,
		}}
	}
}

// makeUnhealthy creates ten nodes, some of them with a bad disk.
func (c *fixture) makeUnhealthy(unhealthy int) {
	c.t.Helper()
	for i := range 10 {
		node := named(fmt.Sprintf("node-%d", i), "1")
		status := corev1.ConditionFalse
		if i < unhealthy {
			status = corev1.ConditionTrue
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: "Disk", Status: status}, {Type: "Ready", Status: corev1.ConditionTrue}}
		c.upsertNode(node)
	}
}

// reports makes a node report a condition as False.
func (c *fixture) reports(name, condition string) {
	c.t.Helper()
	node := named(name, "2")
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeConditionType(condition), Status: corev1.ConditionFalse}}
	c.upsertNode(node)
}

// vets runs the part of a round that validates sets.
func (c *fixture) vets(sets ...*v1alpha1.ConditionSet) (due time.Time) {
	c.t.Helper()
	for _, set := range sets {
		c.upsert(time.Now(), set)
	}
	c.validateDue(time.Now(), true)
	return c.validateWaiting(time.Now())
}

// is checks that a set is followed, or rejected for a reason.
func (c *fixture) is(name string, reason validate.Reason) {
	c.t.Helper()
	pol := c.known[name]
	counts, isFollowed := c.core.Population(setRule(name))
	status := c.statusOf(pol, counts)
	accepted := status.Conditions[0]
	if accepted.Type != v1alpha1.Accepted || accepted.ObservedGeneration != pol.set.Generation {
		c.t.Fatalf("the first condition of %s is %+v", name, accepted)
	}
	switch {
	case reason == "" && (!isFollowed || accepted.Status != metav1.ConditionTrue):
		c.t.Errorf("%s is not followed: %s: %s", name, accepted.Reason, accepted.Message)
	case reason != "" && (isFollowed != pol.keepsPrevious() || accepted.Status != metav1.ConditionFalse || accepted.Reason != string(reason)):
		c.t.Errorf("%s is followed: %t, and %s (%s: %s); want it refused: %s", name, isFollowed, accepted.Status, accepted.Reason, accepted.Message, reason)
	case reason != "" && !strings.Contains(accepted.Message, "spec."):
		c.t.Errorf("the words on %s name no field: %s", name, accepted.Message)
	}
}

const followed validate.Reason = ""

func TestHarmfulSetsAreNotFollowed(t *testing.T) {
	for name, test := range map[string]struct {
		set       *v1alpha1.ConditionSet
		unhealthy int
		want      validate.Reason
	}{
		"valid":                                        {setNamed("a"), 4, followed},
		"matches healthy nodes":                        {setNamed("a", asking("OutOfDisk", "False")), 0, validate.HealthyStatus},
		"misspelled condition":                         {setNamed("a", asking("KubletUnhealthy", "True")), 0, validate.NearMiss},
		"reserved taint key":                           {setNamed("a", func(s *v1alpha1.ConditionSet) { s.Spec.TaintKey = "node.kubernetes.io/x" }), 0, validate.ReservedTaintKey},
		"invalid status":                               {setNamed("a", asking("Disk", "perhaps")), 0, validate.Invalid},
		"matches too many nodes":                       {setNamed("a"), 5, validate.Impact},
		"matches too many nodes, dry run":              {setNamed("a", func(s *v1alpha1.ConditionSet) { s.Spec.DryRun = true }), 5, followed},
		"matches too many nodes, accepted by the user": {setNamed("a", func(s *v1alpha1.ConditionSet) { s.Annotations = accepting }), 5, followed},
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.makeUnhealthy(test.unhealthy)
				c.vets(test.set)
				c.is("a", test.want)
				c.vets() // nothing is reported twice
				events := 0
				if test.want != followed {
					events = 1
				}
				if len(c.events) != events || c.lines("set not accepted") != events || c.lines("set accepted") != 1-events {
					t.Errorf("Events: %v\n%s", c.events, c.log.String())
				}
			})
		})
	}
}

// A ConditionSet takes over from its copy in a ConfigMap, and the copy waits for its deletion, even
// if more nodes match by then than a new set may match.
func TestCopiesTakeOver(t *testing.T) {
	inConfigMap := func(name string, second int64) *v1alpha1.ConditionSet {
		return setNamed(name, typed("Disk"), createdAt(second), acceptedBefore(1), func(s *v1alpha1.ConditionSet) {
			s.Namespace, s.Spec.TaintKey = "autohealer-system", "example.com/disk"
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "m", UID: s.UID}}
		})
	}
	for _, configMap := range []string{"a/sets/Disk", "z/sets/Disk"} { // before and after the ConditionSet
		t.Run(configMap, func(t *testing.T) {
			open(t, func(c *fixture) {
				version := func(generation int64, changes ...func(*v1alpha1.ConditionSet)) *v1alpha1.ConditionSet {
					return setNamed("m", append(changes, typed("Disk"), createdAt(9), func(s *v1alpha1.ConditionSet) {
						s.Generation, s.Spec.TaintKey = generation, "example.com/disk"
					})...)
				}
				c.makeUnhealthy(2)
				c.vets(inConfigMap(configMap, 5))
				c.is(configMap, followed)
				c.makeUnhealthy(8)
				c.vets(version(1))
				c.is("m", followed)
				c.is(configMap, validate.Duplicate)
				// A user can switch the ConditionSet off: the copy, which says something else then, stays off.
				c.vets(version(2, func(s *v1alpha1.ConditionSet) { s.Spec.DryRun = true }))
				c.is("m", followed)
				c.is(configMap, validate.Duplicate)
				c.makeUnhealthy(2)
				c.vets(version(3))
				c.is("m", followed)
				// An invalid version keeps the one before in force.
				c.vets(version(4, asking("Disk", "perhaps")))
				c.is("m", validate.Invalid)
				c.is(configMap, validate.Duplicate)
				c.vets(version(5))
				// Of two copies the older takes over, and the other one names it.
				c.vets(inConfigMap("k/sets/Disk", 4))
				c.is("k/sets/Disk", validate.Duplicate)
				c.makeUnhealthy(8)
				c.remove(time.Now(), "m")
				c.vets()
				c.is("k/sets/Disk", followed)
				c.is(configMap, validate.Duplicate)
				if message := c.accepted(configMap).Message; !strings.Contains(message, "a set in ConfigMap k, key sets") {
					t.Errorf("the message is %s", message)
				}
			})
		})
	}
}

// An edit can bypass the webhook. The last accepted version stays in force, also under the next
// leader, and other sets are compared with it.
func TestAnInvalidEditKeepsTheAcceptedVersion(t *testing.T) {
	open(t, func(c *fixture) {
		version := func(generation int64, changes ...func(*v1alpha1.ConditionSet)) *v1alpha1.ConditionSet {
			return setNamed("a", append(changes, createdAt(1), func(s *v1alpha1.ConditionSet) { s.Generation = generation })...)
		}
		matches := func(c *fixture, when string, want int) {
			t.Helper()
			if counts, _ := c.core.Population(setRule("a")); counts.Unhealthy != want {
				t.Errorf("%s: %d nodes match, want %d", when, counts.Unhealthy, want)
			}
		}
		statusOf := func(c *fixture) v1alpha1.ConditionSetStatus {
			counts, _ := c.core.Population(setRule("a"))
			return c.statusOf(c.known["a"], counts)
		}
		c.makeUnhealthy(2)
		c.vets(version(1))
		c.is("a", followed)
		stored := statusOf(c)

		invalid := version(2, asking("Disk", "perhaps"))
		c.vets(invalid)
		c.is("a", validate.Invalid)
		matches(c, "after an invalid edit", 2)
		for _, condition := range statusOf(c).Conditions[:2] {
			if !strings.Contains(condition.Message, "the last accepted version stays in force") {
				t.Errorf("%s says %q", condition.Type, condition.Message)
			}
		}
		testkit.Same(t, statusOf(c).AcceptedSpec, stored.AcceptedSpec, "the accepted version in the status")
		c.vets(setNamed("b", createdAt(2)))
		c.is("b", validate.Duplicate) // of the version in force
		c.vets(version(3, asking("Disk", "perhaps"), func(s *v1alpha1.ConditionSet) { s.Spec.DryRun = true }))
		c.is("a", validate.Invalid)
		if !c.known["a"].rule.DryRun {
			t.Error("dryRun in an invalid version does not switch the set off")
		}
		invalid.Generation = 4
		c.vets(invalid)
		if c.known["a"].rule.DryRun {
			t.Error("the set stays switched off")
		}

		next := newFixture(t, Config{})
		next.configMaps.hasRevisions = true
		next.makeUnhealthy(2)
		invalid.Status = statusOf(c)
		next.vets(invalid)
		next.is("a", validate.Invalid)
		matches(next, "under the next leader", 2)

		next.vets(version(5, asking("Ready", "False")))
		next.is("a", followed)
		matches(next, "after a valid edit", 0)
		if statusOf(next).AcceptedSpec == stored.AcceptedSpec {
			t.Error("the status still has the old version")
		}
	})
	open(t, func(c *fixture) { // an earlier release with fewer checks accepted it
		harmful := setNamed("a", asking("OutOfDisk", "False"), acceptedBefore(1))
		harmful.Status.AcceptedSpec = format.EncodeSpec(harmful.Spec)
		c.makeUnhealthy(0)
		c.vets(harmful)
		c.is("a", validate.HealthyStatus)
		counts, isFollowed := c.core.Population(setRule("a"))
		if is := c.statusOf(c.known["a"], counts); isFollowed || is.AcceptedSpec != "" {
			t.Errorf("a version that is rejected itself stays: followed %t, %q", isFollowed, is.AcceptedSpec)
		}
		harmful.Generation = 2 // for the next leader it is not the accepted version any more
		next := newFixture(t, Config{})
		next.configMaps.hasRevisions = true
		next.makeUnhealthy(0)
		next.vets(harmful)
		next.is("a", validate.HealthyStatus)
		testkit.Check(t, !next.known["a"].keepsPrevious(), "the next leader follows the version that was rejected")
	})
}

// The previous leader accepted the set; nodes became unhealthy later.
func TestANewLeaderKeepsAcceptedSets(t *testing.T) {
	for name, test := range map[string]struct {
		set  *v1alpha1.ConditionSet
		want validate.Reason
	}{
		"accepted":                    {setNamed("a", acceptedBefore(1)), followed},
		"accepted, and changed since": {setNamed("a", acceptedBefore(1), func(s *v1alpha1.ConditionSet) { s.Generation = 2 }), validate.Impact},
		"never judged":                {setNamed("a"), validate.Impact},
		"accepted by an earlier release with fewer checks": {setNamed("a", acceptedBefore(1), asking("OutOfDisk", "False")), validate.HealthyStatus},
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.upsert(time.Now(), test.set)
				c.validateDue(time.Now(), false) // as at the start, before nodes are known
				if pol := c.known["a"]; pol.needsValidation != (test.want != followed) {
					t.Errorf("without knowing a node, it is judged: %t", !pol.needsValidation)
				}
				c.makeUnhealthy(10)
				c.vets()
				c.is("a", test.want)
			})
		})
	}
}

// The previous leader rejected the set because too many nodes matched; now few do.
func TestANewLeaderKeepsRejectedSets(t *testing.T) {
	for name, test := range map[string]struct {
		set  *v1alpha1.ConditionSet
		want validate.Reason
	}{
		"refused":                     {setNamed("a", refusedBefore(1, validate.Impact)), validate.Impact},
		"refused, and changed since":  {setNamed("a", refusedBefore(1, validate.Impact), func(s *v1alpha1.ConditionSet) { s.Generation = 2 }), followed},
		"refused, and accepted since": {setNamed("a", refusedBefore(1, validate.Impact), func(s *v1alpha1.ConditionSet) { s.Annotations = accepting }), followed},
		"refused for a name":          {setNamed("a", refusedBefore(1, validate.NearMiss)), followed},
		"refused for another set":     {setNamed("a", refusedBefore(1, validate.Duplicate)), followed},
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.upsert(time.Now(), test.set)
				c.validateDue(time.Now(), false)
				c.makeUnhealthy(1)
				c.vets()
				c.is("a", test.want)
				if pol := c.known["a"]; test.want != followed && (pol.err == nil || pol.err.Error() != "spec.conditions: as it was told: then") {
					t.Errorf("the message differs: %v", pol.err)
				}
			})
		})
	}
}

// The previous leader followed a version of the set without writing a status. Existing
// taints stay, and no more are placed.
func TestANewLeaderKeepsPlacedTaints(t *testing.T) {
	const NoExecute, NoSchedule, PreferNoSchedule = corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule
	evict := func(s *v1alpha1.ConditionSet) { s.Spec.Effect = NoExecute } // four of ten
	for name, test := range map[string]struct {
		set    *v1alpha1.ConditionSet
		placed []corev1.TaintEffect // by node, for the first ones
		want   validate.Reason
	}{
		"all that match":                 {setNamed("a"), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 8), followed},
		"more than match":                {setNamed("a"), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 10), followed},
		"all but one":                    {setNamed("a"), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 7), validate.Impact},
		"a weaker effect on one":         {setNamed("a"), append(slices.Repeat([]corev1.TaintEffect{NoSchedule}, 7), PreferNoSchedule), validate.Impact},
		"a stronger effect on all":       {setNamed("a"), slices.Repeat([]corev1.TaintEffect{NoExecute}, 8), followed},
		"as many as are emptied":         {setNamed("a", evict), append(slices.Repeat([]corev1.TaintEffect{NoExecute}, 4), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 4)...), followed},
		"fewer than would be emptied":    {setNamed("a", evict), append(slices.Repeat([]corev1.TaintEffect{NoExecute}, 3), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 5)...), validate.Impact},
		"as many, but of them some well": {setNamed("a", evict), append(slices.Repeat([]corev1.TaintEffect{NoSchedule}, 8), NoExecute, NoExecute), validate.Impact},
		"under another key":              {setNamed("a", func(s *v1alpha1.ConditionSet) { s.Spec.TaintKey = "example.com/b" }), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 8), validate.Impact},
		"and refused for it":             {setNamed("a", refusedBefore(1, validate.Impact)), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 8), validate.Impact},
		"healthy nodes are meant":        {setNamed("a", asking("OutOfDisk", "False")), slices.Repeat([]corev1.TaintEffect{NoSchedule}, 10), validate.HealthyStatus},
	} {
		for _, hasLoaded := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", met later: ", hasLoaded), func(t *testing.T) {
				open(t, func(c *fixture) {
					c.makeUnhealthy(8)
					for i, effect := range test.placed {
						c.carries(c.nodes[fmt.Sprintf("node-%d", i)].Object, "a", "example.com/a", effect)
					}
					c.loaded = hasLoaded
					c.vets(test.set)
					want := test.want
					if hasLoaded && want == followed {
						want = validate.Impact // whatever is on the nodes, its arrival was observed
					}
					c.is("a", want)
				})
			})
		}
	}
}

// carries puts a taint of a set on a node, with its ownership record.
func (c *fixture) carries(node *corev1.Node, set, key string, effect corev1.TaintEffect) {
	c.t.Helper()
	added := metav1.Unix(1000, 0)
	note := ownership.Record{Taints: []ownership.Taint{{Rule: ownership.Rule(setRule(set)), Key: key, Effect: effect, Added: added.UTC()}}}
	text, _ := note.Encode()
	node = node.DeepCopy()
	node.ResourceVersion = "2"
	node.Spec.Taints = []corev1.Taint{{Key: key, Effect: effect, TimeAdded: &added}}
	node.Annotations = map[string]string{ownership.Annotation: text}
	c.upsertNode(node)
}

func TestTheYoungerDuplicateIsRejected(t *testing.T) {
	older := setNamed("z", createdAt(1), typed("Same"))
	younger := setNamed("a", createdAt(2), typed("Same"), asking("Other", "True"))
	for name, arrivals := range map[string][]*v1alpha1.ConditionSet{
		"the older comes first":   {older, younger},
		"the younger comes first": {younger, older},
	} {
		for how, leave := range map[string]func(c *fixture){
			"it takes over when the older goes": func(c *fixture) { c.remove(time.Now(), "z") },
			"it takes over when the older becomes another": func(c *fixture) {
				c.upsert(time.Now(), setNamed("z", createdAt(1), func(s *v1alpha1.ConditionSet) { s.Generation = 2 }))
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				open(t, func(c *fixture) {
					c.makeUnhealthy(0)
					c.vets(arrivals...)
					c.is("z", followed)
					c.is("a", validate.Duplicate)
					leave(c)
					c.vets()
					c.is("a", followed)
				})
			})
		}
	}
}

// A user has bypassed the webhook. A followed set stays, whichever is older, and a
// rejected set blocks no other.
func TestAFollowedSetStaysBesideADuplicate(t *testing.T) {
	second := func(s *v1alpha1.ConditionSet) { s.Generation = 2 }
	open(t, func(c *fixture) {
		c.makeUnhealthy(0)
		c.vets(setNamed("old", createdAt(1), typed("One")), setNamed("young", createdAt(2), typed("Two"), asking("Other", "True")))
		c.is("old", followed)
		c.is("young", followed)
		c.vets(setNamed("old", createdAt(1), typed("Two"), second))
		c.is("old", validate.Duplicate)
		c.is("young", followed)
	})
	open(t, func(c *fixture) {
		c.makeUnhealthy(0)
		// The first set is rejected for its content, after the second was compared with
		// it.
		c.vets(setNamed("z", createdAt(1), typed("Same"), asking("OutOfDisk", "False")), setNamed("a", createdAt(2), typed("Same")))
		c.is("z", validate.HealthyStatus)
		c.is("a", followed)
	})
	open(t, func(c *fixture) {
		c.makeUnhealthy(0)
		c.vets(setNamed("z", createdAt(1), typed("One")), setNamed("a", createdAt(2), typed("Same"), asking("Other", "True")))
		c.vets(setNamed("z", createdAt(1), typed("Same"), asking("OutOfDisk", "False"), second))
		c.is("z", validate.HealthyStatus)
		c.is("a", followed)
	})
}

// A shorter duration affects nodes at once, so it does not narrow the set.
func TestAShorterDurationIsComparedWithNodes(t *testing.T) {
	lasting := func(d string, generation int64) func(*v1alpha1.ConditionSet) {
		return func(s *v1alpha1.ConditionSet) {
			s.Generation = generation
			for kind, c := range s.Spec.Conditions {
				c.Duration = d
				s.Spec.Conditions[kind] = c
			}
		}
	}
	open(t, func(c *fixture) {
		c.makeUnhealthy(0)
		c.vets(setNamed("a", lasting("1h", 1)))
		c.is("a", followed)
		c.makeUnhealthy(9)
		c.vets(setNamed("a", lasting("2h", 2)))
		c.is("a", followed)
		c.vets(setNamed("a", lasting("1h", 3)))
		c.is("a", validate.Impact)
	})
}

// A set that was rejected as a duplicate was never compared with nodes, or long ago.
func TestAFormerDuplicateIsComparedWithNodes(t *testing.T) {
	open(t, func(c *fixture) {
		c.makeUnhealthy(10)
		c.vets(setNamed("z", createdAt(1), typed("Same"), asking("Other", "True")), setNamed("a", createdAt(2), typed("Same")))
		c.is("a", validate.Duplicate)
		if message := c.known["a"].err.Error(); !strings.Contains(message, "10 of 10 selected nodes") {
			t.Errorf("the message does not name the impact: %s", message)
		}
		c.remove(time.Now(), "z")
		c.vets()
		c.is("a", validate.Impact)
	})
}

func TestAnAnnotationIsNoticedWithoutANewGeneration(t *testing.T) {
	open(t, func(c *fixture) {
		c.makeUnhealthy(10)
		c.vets(setNamed("a"))
		c.is("a", validate.Impact)
		c.vets(setNamed("a", func(s *v1alpha1.ConditionSet) { s.Annotations = accepting }))
		c.is("a", followed)
		c.vets(setNamed("a"))
		c.is("a", followed) // what is in force stays in force
		c.vets(setNamed("a", func(s *v1alpha1.ConditionSet) { s.UID = "another" }))
		c.is("a", validate.Impact)
	})
}

func TestANarrowingEditIsAcceptedDuringAStorm(t *testing.T) {
	open(t, func(c *fixture) {
		c.makeUnhealthy(4)
		c.vets(setNamed("a"))
		c.makeUnhealthy(9)
		c.vets(setNamed("a", func(s *v1alpha1.ConditionSet) {
			s.Generation, s.Spec.Effect = 2, corev1.TaintEffectPreferNoSchedule
		}))
		c.is("a", followed)
		c.vets(setNamed("a", func(s *v1alpha1.ConditionSet) { s.Generation, s.Spec.Effect = 3, corev1.TaintEffectNoExecute }))
		c.is("a", validate.Impact)
	})
}

// A set that matched too many nodes stays rejected, however few match later, until the
// user changes it.
func TestASetThatMatchesTooManyNodesStaysRejected(t *testing.T) {
	touched := func(value string) func(*v1alpha1.ConditionSet) {
		return func(s *v1alpha1.ConditionSet) {
			s.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: value}
		}
	}
	// With the written status, as every later version has it.
	told := refusedBefore(1, validate.Impact)
	for name, again := range map[string]*v1alpha1.ConditionSet{
		"until it is changed":             setNamed("a", told, func(s *v1alpha1.ConditionSet) { s.Generation = 2 }),
		"until a user accepts the impact": setNamed("a", told, touched("true")),
		"until a user does not accept it": setNamed("a", told, touched("no")),
		"until it is created again":       setNamed("a", func(s *v1alpha1.ConditionSet) { s.UID = "another" }),
	} {
		t.Run(name, func(t *testing.T) {
			open(t, func(c *fixture) {
				c.loaded = true
				c.makeUnhealthy(10)
				c.vets(setNamed("a"))
				c.is("a", validate.Impact)
				if message := c.known["a"].err.Error(); !strings.Contains(message, "delete the set and create it again") {
					t.Errorf("the message does not say what to do: %s", message)
				}
				c.makeUnhealthy(4)
				pass(validateWaitingEvery)
				if due := c.vets(); !due.IsZero() {
					t.Errorf("it is to be judged again at %s", due)
				}
				c.is("a", validate.Impact)
				// Other sets come and go, including a conflicting one.
				c.vets(setNamed("other", asking("Other", "True")), setNamed("same", typed("a"), asking("Another", "True")))
				c.is("same", followed)
				c.is("a", validate.Impact)
				c.remove(time.Now(), "same")
				c.vets(setNamed("a", told))
				c.is("a", validate.Impact)
				if len(c.events) != 1 {
					t.Errorf("it was reported %d times", len(c.events))
				}
				c.vets(again)
				c.is("a", followed)
			})
		})
	}
}

// A set waits for a condition that no node reports. It is validated again after a while,
// and only if nodes change.
func TestASetWaitsForACondition(t *testing.T) {
	open(t, func(c *fixture) {
		c.makeUnhealthy(0)
		c.vets(setNamed("a", asking("KubletUnhealthy", "True")))
		c.is("a", validate.NearMiss)
		pass(validateWaitingEvery)
		c.vets()
		if due := c.vets(); !due.IsZero() {
			t.Errorf("nothing changes, and it is to be judged again at %s", due)
		}
		c.reports("extra", "KubletUnhealthy")
		due := c.vets()
		if wait := time.Until(due); wait <= 0 || wait > validateWaitingEvery {
			t.Errorf("it is to be judged again in %s", wait)
		}
		c.is("a", validate.NearMiss)
		pass(time.Until(due))
		c.vets()
		c.is("a", followed)
		c.makeUnhealthy(10)
		pass(validateWaitingEvery)
		if due := c.vets(); !due.IsZero() {
			t.Error("a validation is due although no set waits for it")
		}
	})
}

// Of two conflicting sets that wait, the first is accepted, and the other when the first
// is deleted.
func TestTheFirstOfTwoWaitingSetsIsAccepted(t *testing.T) {
	for range 20 { // repeated, because the order of a map is random
		open(t, func(c *fixture) {
			c.makeUnhealthy(0)
			same := asking("KubletUnhealthy", "True")
			c.vets(setNamed("z", createdAt(1), typed("Same"), same), setNamed("a", createdAt(2), typed("Same"), same), setNamed("b", createdAt(3), typed("Same"), same))
			for _, name := range []string{"z", "a", "b"} {
				c.is(name, validate.NearMiss)
			}
			c.reports("extra", "KubletUnhealthy")
			pass(3 * validateWaitingEvery)
			c.vets()
			c.is("z", followed)
			c.is("a", validate.Duplicate)
			c.is("b", validate.Duplicate)
			c.makeUnhealthy(1)
			pass(3 * validateWaitingEvery)
			if due := c.vets(); !due.IsZero() {
				t.Errorf("two are in another's way, and are to be judged by the nodes at %s", due)
			}
			c.remove(time.Now(), "z")
			c.vets()
			c.is("a", followed)
			c.is("b", validate.Duplicate)
		})
	}
}

// Every written status comes back through the watch, which does not cause a validation.
func TestAStatusUpdateCausesNoValidation(t *testing.T) {
	open(t, func(c *fixture) {
		c.makeUnhealthy(0)
		c.vets(setNamed("a"))
		c.upsert(time.Now(), setNamed("a", acceptedBefore(1), func(s *v1alpha1.ConditionSet) { s.ResourceVersion = "2" }))
		if c.validation.due {
			t.Error("a status has sets judged")
		}
	})
}

// The loop must schedule the second validation itself.
func TestARoundIsDueForAWaitingSet(t *testing.T) {
	open(t, func(c *fixture) {
		c.loaded = true
		c.makeUnhealthy(0)
		c.upsert(time.Now(), setNamed("a", asking("KubletUnhealthy", "True")))
		for tries := 0; c.known["a"].err == nil; tries++ {
			if c.round(t.Context(), time.Now()); tries > 3 {
				t.Fatal("the set is not validated")
			}
		}
		c.reports("node-0", "KubletUnhealthy")
		due := c.round(t.Context(), time.Now())
		if wait := time.Until(due); due.IsZero() || wait > validateWaitingEvery {
			t.Fatalf("the next round is due at %s", due)
		}
		pass(time.Until(due))
		c.round(t.Context(), time.Now())
		c.is("a", followed)
	})
}

// A pause by annotation keeps taints and places no new ones, also under an invalid version and under
// the next leader.
func TestAnAnnotationPausesASet(t *testing.T) {
	open(t, func(c *fixture) {
		c.begin()
		c.says(0, "Disk", corev1.ConditionTrue)
		for i := 1; i < 13; i++ {
			c.says(i, "Disk", corev1.ConditionFalse)
		}
		set := setNamed("a")
		c.judges(set)
		c.wants(metav1.ConditionTrue, "Followed", 1)
		c.says(1, "Disk", corev1.ConditionTrue)
		c.wants(metav1.ConditionTrue, "Followed", 2)

		paused := set.DeepCopy() // with the same generation
		paused.Annotations = map[string]string{v1alpha1.PausedAnnotation: "Anna looks at it"}
		c.judges(paused)
		c.says(2, "Disk", corev1.ConditionTrue)
		c.wants(metav1.ConditionTrue, "Paused", 0, "paused by annotation: Anna looks at it: the set places no new taint") // no taint is on a node yet
		status := c.statusOf(c.known["a"], triage.Population{})
		testkit.Same(t, status.Mode, v1alpha1.Paused, "the mode")
		if ready := status.Conditions[1].Message; !strings.Contains(ready, "Anna looks at it") {
			t.Errorf("the condition Ready says %q", ready)
		}
		if plan, _ := c.core.Plan("node-2"); !strings.Contains(plan.Reason.String(), "nothing new starts: paused by annotation: Anna looks at it") {
			t.Errorf("the node says %s", plan.Reason)
		}

		paused = paused.DeepCopy()
		paused.Annotations[v1alpha1.PausedAnnotation] = "false"
		c.judges(paused)
		c.wants(metav1.ConditionTrue, "Followed", 3)

		observing := paused.DeepCopy()
		observing.Generation, observing.Spec.Mode = 2, v1alpha1.PolicyObserve
		c.judges(observing)
		c.wants(metav1.ConditionTrue, "DryRun", 0)
		testkit.Same(t, c.statusOf(c.known["a"], triage.Population{}).Mode, v1alpha1.Observe, "the mode")
	})
}
