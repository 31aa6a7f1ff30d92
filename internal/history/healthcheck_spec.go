package history

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/naive"
)

const (
	excludeLabel     = "remediation.medik8s.io/exclude-from-remediation"
	shortestTimeout  = time.Minute
	defaultSignsLast = 5 * time.Minute
)

// checkSpec is the parsed spec of a version of a NodeHealthCheck.
type checkSpec struct {
	when     naive.When
	selector labels.Selector
	limit    naive.Limit
	paused   bool
	steps    []step
	delay    time.Duration // how long a node must have been healthy
	byHand   bool          // only a user can confirm that the node is healthy
	cooldown time.Duration
	windows  []window
	urgent   []string // the names of the templates that do not wait for a window

	// invalid is the reason why the health check cannot be applied. All other fields except paused are
	// empty then.
	invalid string
}

// step is a remediation in the list of a health check.
type step struct {
	template templateName
	timeout  time.Duration // 0: no timeout
}

// templateName identifies a template, without its version.
type templateName struct {
	schema.GroupKind
	namespace, name string
}

func (t templateName) String() string { return t.Kind + " " + t.namespace + "/" + t.name }

// makes returns the kind of the objects that are created from the template.
func (t templateName) makes() schema.GroupKind {
	return schema.GroupKind{Group: t.Group, Kind: strings.TrimSuffix(t.Kind, "Template")}
}

// The annotations of a health check. Its spec is that of medik8s.
const (
	windowsAnnotation = "autohealer.resourcestack.com/windows"
	urgentAnnotation  = "autohealer.resourcestack.com/urgent"

	acceptImpactAnnotation = "autohealer.resourcestack.com/accept-impact"
)

// sameCheck reports whether two versions of a health check ask for the same.
func sameCheck(a, b *unstructured.Unstructured) bool {
	same := a.GetUID() == b.GetUID() && reflect.DeepEqual(a.Object["spec"], b.Object["spec"])
	for _, key := range []string{windowsAnnotation, urgentAnnotation, modeAnnotation, acceptImpactAnnotation} {
		same = same && a.GetAnnotations()[key] == b.GetAnnotations()[key]
	}
	return same
}

// readCheck parses a stored health check.
func readCheck(object *unstructured.Unstructured) *checkSpec {
	r := readCheckSpec(object.Object["spec"])
	if !r.isValid() {
		return r
	}
	if err := r.readWindows(object.GetAnnotations()); err != nil {
		return &checkSpec{invalid: err.Error(), paused: r.paused}
	}
	return r
}

// readWindows parses the annotations about windows.
func (r *checkSpec) readWindows(annotations map[string]string) (err error) {
	r.windows, r.urgent = nil, nil
	if text, has := annotations[windowsAnnotation]; has {
		if r.windows, err = parseWindows(text); err != nil {
			return err
		}
	}
	text, has := annotations[urgentAnnotation]
	if !has {
		return nil
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if !slices.ContainsFunc(r.steps, func(s step) bool { return s.template.name == name }) {
			return fmt.Errorf("there is no template %q", name)
		}
		r.urgent = append(r.urgent, name)
	}
	return nil
}

// switchedOffCheck says why an annotation lets a health check start nothing, empty if it may.
func switchedOffCheck(object *unstructured.Unstructured) string {
	switch mode := object.GetAnnotations()[modeAnnotation]; mode {
	case "", "Enforce":
		return ""
	case "Observe":
		return observing
	default:
		return fmt.Sprintf("the mode of the health check is %q", mode)
	}
}

const observing = "the health check observes"

// readCheckSpec parses the stored spec of a health check.
func readCheckSpec(spec any) *checkSpec {
	s, err := decoded[v1alpha1.NodeHealthCheckSpec](spec)
	if err != nil {
		return &checkSpec{invalid: err.Error()}
	}
	if s.Unreadable != "" {
		return &checkSpec{invalid: s.Unreadable}
	}
	r := &checkSpec{paused: len(s.PauseRequests) > 0, selector: labels.Everything()}
	for _, read := range []func(v1alpha1.NodeHealthCheckSpec) error{r.readSelector, r.readSigns, r.readBound, r.readSteps, r.readWaits} {
		if err := read(s); err != nil {
			return &checkSpec{invalid: err.Error(), paused: r.paused}
		}
	}
	return r
}

func (r *checkSpec) readSelector(s v1alpha1.NodeHealthCheckSpec) (err error) {
	if s.Selector != nil {
		r.selector, err = metav1.LabelSelectorAsSelector(s.Selector)
	}
	return err
}

func (r *checkSpec) readSigns(s v1alpha1.NodeHealthCheckSpec) error {
	given := s.UnhealthyConditions
	if given == nil {
		for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown} {
			given = append(given, v1alpha1.UnhealthyCondition{Type: corev1.NodeReady, Status: status, Duration: defaultSignsLast.String()})
		}
	}
	if len(given) == 0 {
		return fmt.Errorf("there are no conditions")
	}
	for _, c := range given {
		status, known := statusIn(string(c.Status))
		wait, err := duration(c.Duration)
		if !known || err != nil || c.Type == "" {
			return fmt.Errorf("the condition %s=%s for %q", c.Type, c.Status, c.Duration)
		}
		if slices.ContainsFunc(r.when.Signals, func(s naive.Signal) bool { return s.Condition == string(c.Type) && s.Status == status }) {
			return fmt.Errorf("the condition %s=%s is there twice", c.Type, c.Status)
		}
		r.when.Signals = append(r.when.Signals, naive.Signal{Condition: string(c.Type), Status: status, For: wait})
	}
	return nil
}

func (r *checkSpec) readBound(s v1alpha1.NodeHealthCheckSpec) (err error) {
	bound := defaultBound
	switch {
	case s.MinHealthy != nil && s.MaxUnhealthy != nil:
		return fmt.Errorf("there are two bounds")
	case s.MinHealthy != nil:
		bound = s.MinHealthy.String()
	case s.MaxUnhealthy != nil:
		bound = s.MaxUnhealthy.String()
	}
	r.limit, err = limitIn(bound)
	r.limit.RoundUp, r.limit.Healthy = true, s.MinHealthy != nil
	return err
}

func (r *checkSpec) readSteps(s v1alpha1.NodeHealthCheckSpec) error {
	given := slices.Clone(s.EscalatingRemediations)
	slices.SortFunc(given, func(a, b v1alpha1.EscalatingRemediation) int { return cmp.Compare(a.Order, b.Order) })
	if (s.RemediationTemplate == nil) == (len(given) == 0) {
		return fmt.Errorf("want one form of templates")
	}
	if s.RemediationTemplate != nil {
		given = []v1alpha1.EscalatingRemediation{{RemediationTemplate: *s.RemediationTemplate}}
	}
	for i, e := range given {
		ref := e.RemediationTemplate
		group, version, _ := strings.Cut(ref.APIVersion, "/")
		kind, isTemplate := strings.CutSuffix(ref.Kind, "Template")
		if group == "" || version == "" || kind == "" || !isTemplate || ref.Name == "" {
			return fmt.Errorf("the template %s %s %s", ref.APIVersion, ref.Kind, ref.Name)
		}
		if i > 0 && given[i-1].Order == e.Order {
			return fmt.Errorf("the order %d is there twice", e.Order)
		}
		next := step{template: templateName{schema.GroupKind{Group: group, Kind: ref.Kind}, ref.Namespace, ref.Name}}
		if s.RemediationTemplate == nil {
			timeout, err := time.ParseDuration(e.Timeout)
			if err != nil || timeout < shortestTimeout {
				return fmt.Errorf("the timeout is %q", e.Timeout)
			}
			next.timeout = timeout
		}
		if slices.ContainsFunc(r.steps, func(s step) bool { return s.template == next.template }) {
			return fmt.Errorf("the template %s is there twice", next.template)
		}
		r.steps = append(r.steps, next)
	}
	return nil
}

func (r *checkSpec) readWaits(s v1alpha1.NodeHealthCheckSpec) error {
	for _, wait := range []struct {
		text string
		into *time.Duration
	}{{s.HealthyDelay, &r.delay}, {s.StormCooldownDuration, &r.cooldown}} {
		if wait.text == "" {
			continue
		}
		d, err := time.ParseDuration(wait.text)
		if err != nil {
			return err
		}
		*wait.into = d
	}
	if r.cooldown < 0 {
		return fmt.Errorf("the cooldown is %s", r.cooldown)
	}
	r.byHand = r.delay < 0
	return nil
}

// isValid reports whether the health check exists and is valid.
func (r *checkSpec) isValid() bool { return r != nil && r.invalid == "" }

// selects reports whether the health check selects a node with these labels.
func (r *checkSpec) selects(set map[string]string) bool {
	return r.isValid() && r.selector.Matches(labels.Set(set))
}

// actsAs reports whether two specs have the same selector and the same templates, in the same form.
func (r *checkSpec) actsAs(other *checkSpec) bool {
	return sameSelector(r.selector, other.selector) && slices.EqualFunc(r.steps, other.steps, func(a, b step) bool {
		return a.template == b.template && (a.timeout == 0) == (b.timeout == 0)
	})
}

// sameSelector reports whether two selectors have the same requirements. Equality with a value is a list
// with one value.
func sameSelector(a, b labels.Selector) bool {
	texts := func(s labels.Selector) (list []string) {
		requirements, _ := s.Requirements()
		for _, r := range requirements {
			list = append(list, fmt.Sprint(r.Key(), strings.Trim(strings.Replace(string(r.Operator()), "=", "in", 1), "="), r.Values().List()))
		}
		return slices.Sorted(slices.Values(list))
	}
	return slices.Equal(texts(a), texts(b))
}

// bound returns how many of the selected nodes may be unhealthy when a treatment starts.
// Percentages are rounded up.
func (r *checkSpec) bound(selected int) int {
	if !r.isValid() {
		return 0
	}
	return naive.Allows(&r.limit, selected)
}

// stepOf returns the step for which an object was created.
func (r *checkSpec) stepOf(o *remediationObject) (int, bool) {
	if !r.isValid() {
		return 0, false
	}
	i := slices.IndexFunc(r.steps, func(s step) bool {
		samePlace := o.namespace == "" || o.namespace == s.template.namespace
		return s.template.makes() == o.kind && samePlace && (o.template == "" || o.template == s.template.name)
	})
	return max(i, 0), i >= 0
}

// examine judges a node by a health check. A node that is not selected is not unhealthy.
func (n *node) examine(r *checkSpec) finding {
	if !r.selects(n.labels) {
		return finding{timed: true}
	}
	return n.find(r.when)
}
