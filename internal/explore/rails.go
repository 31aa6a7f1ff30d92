package explore

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/nodepause"
)

// Rails are the limits of the Guardrails of a scenario; 0 for no limit.
type Rails struct {
	InTreatment, Unschedulable int
	InZone                     int  // nodes of a zone in treatment
	Pace                       int  // remediations that begin in a minute
	Attempts                   int  // of a node in a day
	Together                   int  // nodes of a zone, and more than half of it, that fail within a minute by a common cause
	LongestHold                bool // treatments in the zone go on longestHold after the last of these failures
	Last                       bool // the nodes are Ready, so that the last open one is protected
}

// guardrailsKind is the kind of Guardrails.
const guardrailsKind = "Guardrails"

var guardrailsKey = objectKey{kind: guardrailsKind, name: v1alpha1.GuardrailsName}

const (
	pacePeriod     = time.Minute
	attemptsWindow = 24 * time.Hour
	failureWindow  = time.Minute
	longestHold    = time.Minute
)

// object returns the Guardrails. Limits that the scenario does not name have a value that limits nothing.
func (r Rails) object() *v1alpha1.Guardrails {
	limit := func(number int) *intstr.IntOrString {
		if number == 0 {
			return new(intstr.FromString("100%"))
		}
		return new(intstr.FromInt32(int32(number)))
	}
	spec := v1alpha1.GuardrailsSpec{
		Mode: v1alpha1.Enforce, MaxInTreatment: limit(r.InTreatment), MaxUnschedulable: limit(r.Unschedulable),
		Pace:              v1alpha1.Pace{Max: limit(r.Pace), Period: pacePeriod.String()},
		Topology:          []v1alpha1.TopologyLimit{},
		CorrelatedFailure: v1alpha1.CorrelatedFailure{MinNodes: int32(r.Together), Window: failureWindow.String(), Keys: []v1alpha1.DomainKey{}},
		MaxAttempts:       v1alpha1.MaxAttempts{Limit: 1000, Window: attemptsWindow.String()},
		Respect:           v1alpha1.Respect{DoNotDisrupt: new(false)}, // the model has no pods
	}
	if r.InZone > 0 {
		spec.Topology = append(spec.Topology, v1alpha1.TopologyLimit{Key: corev1.LabelTopologyZone, Max: limit(r.InZone)})
	}
	if r.Together > 0 {
		spec.CorrelatedFailure.Keys = append(spec.CorrelatedFailure.Keys, v1alpha1.DomainKey(corev1.LabelTopologyZone))
	}
	if r.LongestHold {
		spec.CorrelatedFailure.LongestHold = longestHold.String()
	}
	if r.Attempts > 0 {
		spec.MaxAttempts.Limit = int32(r.Attempts)
	}
	return &v1alpha1.Guardrails{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: guardrailsKind},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.GuardrailsName}, Spec: spec,
	}
}

// modeChange is the text of a change of the mode, without the mode.
const modeChange = "a user sets the mode "

// modeChanges returns the changes of the mode that a user may make now.
func (s *Scenario) modeChanges(m *model) []string {
	guardrails, is := m.objects[guardrailsKey].(*v1alpha1.Guardrails)
	switch {
	case !is || !s.Switches:
		return nil
	case guardrails.Spec.Mode == v1alpha1.Enforce:
		return []string{modeChange + string(v1alpha1.Paused), modeChange + string(v1alpha1.Observe)}
	}
	return []string{modeChange + string(v1alpha1.Enforce)}
}

func setMode(m *model, mode v1alpha1.Mode) bool {
	before, _ := m.objects[guardrailsKey].(*v1alpha1.Guardrails)
	after := before.DeepCopy()
	after.Spec.Mode = mode
	_, err := m.replace(guardrailsKey, before, after)
	return err == nil
}

// What a user does with the pause of a node.
const (
	isPausedByUser = "is paused for a minute"
	isNotPaused    = "is not paused any more"
)

// pauseChange returns what a user may do with the pause of a node.
func pauseChange(node *corev1.Node) string {
	if _, has := node.Annotations[nodepause.Annotation]; has {
		return node.Name + " " + isNotPaused
	}
	return node.Name + " " + isPausedByUser
}

func setPause(node *corev1.Node, isPaused bool) {
	if !isPaused {
		delete(node.Annotations, nodepause.Annotation)
		return
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[nodepause.Annotation] = "until=" + time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
}

// What a user does with a node beside the controller.
const (
	isCordoned   = "is cordoned by a user"
	isUncordoned = "is uncordoned"
)

// cordonChange returns what a user may do with the cordon of a node.
func cordonChange(node *corev1.Node) string {
	if node.Spec.Unschedulable {
		return node.Name + " " + isUncordoned
	}
	return node.Name + " " + isCordoned
}

// isWindowed reports whether a check of the scenario has a window.
func (s *Scenario) isWindowed() bool {
	return slices.ContainsFunc(s.Checks, func(check Check) bool { return check.IsWindowed })
}

// The windows are open in even minutes. A scenario with a window begins shortly before the window closes,
// so that a write which is on its way soon finds it closed.
const (
	windowPeriod  = 2 * time.Minute
	windowLength  = time.Minute
	firstInWindow = windowLength - grid
)

// inWindow returns how long ago the window has opened.
func inWindow(now time.Time) time.Duration { return now.Sub(now.Truncate(windowPeriod)) }

// untilTurn returns how long it takes until the window opens or closes.
func untilTurn(now time.Time) time.Duration { return windowLength - inWindow(now)%windowLength }
