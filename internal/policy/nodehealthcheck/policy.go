package nodehealthcheck

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autohealerv1alpha1 "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/metricset"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Policy follows the NodeHealthChecks. It implements [engine.Policy].
type Policy struct {
	host         engine.TreatmentHost
	metrics      *Metrics
	remediations Remediations
	inbox        *watch.Optional[*remediationv1alpha1.NodeHealthCheck]
	medik8s      medik8sLeader
	known        map[string]*check
	objects      map[types.UID]remediation.Object // existing remediations, for a metric
	// deferring says that another controller (medik8s) follows the health checks, so this
	// controller does not.
	deferring bool
	changed   bool // something that health checks depend on has changed
}

// Inboxes deliver what the policy watches: the NodeHealthChecks, and the leader-election
// Leases of medik8s.
type Inboxes struct {
	Checks *watch.Optional[*remediationv1alpha1.NodeHealthCheck]
	Leases *watch.Optional[*coordinationv1.Lease]
}

// NewInboxes returns inboxes that read from the API server.
func NewInboxes(c client.WithWatch, signal chan<- struct{}) Inboxes {
	return Inboxes{
		Checks: watch.NewOptional(signal, &remediationv1alpha1.NodeHealthCheck{}, watch.Source(c, func() client.ObjectList { return &remediationv1alpha1.NodeHealthCheckList{} })),
		Leases: watch.NewOptional(signal, &coordinationv1.Lease{}, medik8sLeases(c)),
	}
}

// New returns the policy without objects.
func New(host engine.TreatmentHost, inboxes Inboxes, remediations Remediations, metrics *Metrics) *Policy {
	inboxes.Leases.Namespaced = true
	return &Policy{
		host: host, inbox: inboxes.Checks, medik8s: medik8sLeader{inbox: inboxes.Leases, leases: map[string]observedLease{}},
		known: map[string]*check{}, objects: map[types.UID]remediation.Object{}, remediations: remediations, metrics: metrics,
	}
}

// check is a NodeHealthCheck and its state.
type check struct {
	object *remediationv1alpha1.NodeHealthCheck
	nodes  map[string]triage.Reason // the findings
	ladder []remediation.Template   // of the followed version
	rule   triage.Rule              // of the followed version; its ID is zero for none
	// problem is why no treatment starts, apart from pauses; empty for none. disabled is
	// the condition reason for it in the status, empty if the problem is about to pass.
	problem, disabled string
	// invalid is why the newest version is not followed, while an earlier one is; empty if it
	// is followed, or if none is. invalidReason is the condition reason for it. accepted is the
	// spec of the followed version, in JSON.
	invalid, invalidReason, accepted string
	mode                             observe.Switches // of its annotation
	storm                            storm
	skipped                          triage.Code // why no treatment starts at all, as last reported
	status                           status.Status[remediationv1alpha1.NodeHealthCheckStatus]
}

// storm is the last reported state of a storm.
type storm struct{ isOn, isCooling bool }

func checkRule(name string) triage.RuleID {
	return triage.RuleID{Kind: policykind.NodeHealthCheck, Name: name}
}

// isFollowed reports whether a version of the health check is in force.
func (c *check) isFollowed() bool { return c.rule.ID != triage.RuleID{} }

// isNew reports whether its templates have not been checked yet.
func (c *check) isNew() bool { return c.problem != "" && c.disabled == "" }

// checkOf returns the health check of a rule, nil if it is gone.
func (h *Policy) checkOf(rule triage.RuleID) *check {
	if rule.Kind != policykind.NodeHealthCheck {
		return nil
	}
	return h.known[rule.Name]
}

// Watch watches the health checks and the Lease of medik8s' own controller.
func (h *Policy) Watch(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { h.inbox.Run(ctx) })
	watches.Go(func() { h.medik8s.inbox.Run(ctx) })
	watches.Wait()
}

// Ready reports whether the health checks and the medik8s leader are loaded.
func (h *Policy) Ready(now time.Time) bool {
	// While the Leases cannot be read, medik8s may lead, and this controller starts nothing.
	medik8s, _ := h.medik8s.inbox.Availability()
	if !h.inbox.IsLoaded(now) || medik8s == watch.NotAnswered {
		return false
	}
	h.Take(now)
	return true
}

// Size counts the health checks.
func (h *Policy) Size() (name string, objects int) { return "nodeHealthChecks", len(h.known) }

// Findings returns what the rule of a health check has found.
func (h *Policy) Findings(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	if c := h.checkOf(rule); c != nil {
		return c.nodes, &c.status.Stale
	}
	return nil, nil
}

// About returns the health check of a rule.
func (h *Policy) About(rule triage.RuleID, _ *corev1.Node) (s engine.Subject) {
	if c := h.checkOf(rule); c != nil {
		s.Policy = treat.AboutCheck(c.object)
	}
	return s
}

// AddFacts adds whether the health of a node is confirmed, and whether a user has excluded
// the node.
func (h *Policy) AddFacts(_ time.Time, n *engine.Node, facts *triage.Node) {
	if h.deferring {
		return
	}
	_, facts.Confirmed = n.Object.Annotations[remediation.ConfirmedAnnotation]
	respect := h.host.Respect() // with guardrails in force they decide about the label
	if respect == nil && n.Object.Labels[remediation.ExcludeLabel] == remediation.ExcludeValue {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Action: triage.Remediate, Reason: "the node is labelled " + remediation.ExcludeLabel + "=" + remediation.ExcludeValue})
	}
}

// AddVetoes adds what forbids the remediation of a node: another control-plane node, or the
// holder of the node's Lease.
func (h *Policy) AddVetoes(now time.Time, n *engine.Node, facts *triage.Node) {
	if h.deferring {
		return
	}
	veto := func(message string, isRespected bool) {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Action: triage.Remediate, Reason: message, Respected: isRespected})
	}
	if message := h.remediations.ControlPlaneProblem(); message != "" && facts.ControlPlane {
		veto(message, false)
	}
	if message := h.remediations.ForeignLease(now, n.Object.Name); message != "" {
		respect := h.host.Respect()
		isRespected := respect != nil && respect.Maintenance
		if isRespected {
			message = dialect.HeldByRespect("maintenance", message, "the Lease ends")
		}
		veto(message, isRespected)
	}
}

// Take takes in changed health checks and Leases of medik8s.
func (h *Policy) Take(now time.Time) {
	h.inbox.Take().Apply(maps.Keys(h.known),
		func(name string) { h.remove(now, name) },
		func(object *remediationv1alpha1.NodeHealthCheck) { h.upsert(now, object) })
	h.medik8s.take(now)
}

// upsert stores a new or changed health check.
func (h *Policy) upsert(now time.Time, object *remediationv1alpha1.NodeHealthCheck) {
	c := h.known[object.Name]
	if c == nil || c.object.UID != object.UID {
		if c != nil {
			h.remove(now, object.Name)
		}
		c = &check{nodes: map[string]triage.Reason{}}
		h.known[object.Name] = c
		h.host.Revive(checkRule(object.Name))
	}
	c.status.Observe(object, object.Status)
	if c.object == nil || c.object.Generation != object.Generation || !maps.Equal(c.object.Annotations, object.Annotations) || (c.object.DeletionTimestamp == nil) != (object.DeletionTimestamp == nil) {
		h.changed = true
		h.remediations.ReferencesChanged()
	}
	c.object, c.status.Stale = object, true
	h.host.Statuses().Schedule(now)
}

func (h *Policy) remove(now time.Time, name string) {
	c := h.known[name]
	if c == nil {
		return
	}
	delete(h.known, name)
	h.changed = true
	h.remediations.ReferencesChanged()
	h.host.Core().RemoveRule(now, checkRule(name))
	h.host.PolicyMetrics().Forget(policykind.PolicyOf(checkRule(name)))
	h.host.Retire(now, checkRule(name))
	h.remediations.ReobserveRule(now, checkRule(name))
	h.host.Logger().Info("health check gone", "nodeHealthCheck", name)
}

// SetRules updates the rules of the health checks.
func (h *Policy) SetRules(_ context.Context, now time.Time) (due time.Time) {
	if deferring := h.medik8s.isActive(); deferring != h.deferring {
		h.deferToMedik8s(now, deferring)
	}
	if h.changed {
		h.changed = false
		for _, name := range slices.Sorted(maps.Keys(h.known)) {
			if !h.deferring {
				h.followCheck(now, h.known[name])
			}
		}
	}
	return h.medik8s.until()
}

// deferToMedik8s hands the health checks to the other controller, or takes them back.
// Each side continues the treatments of the other.
func (h *Policy) deferToMedik8s(now time.Time, deferring bool) {
	h.deferring, h.changed = deferring, true
	h.metrics.deferring.Set(metricset.Bool(deferring))
	if deferring {
		h.host.Logger().Warn("deferring to another controller", "reason", h.medik8s.message())
	} else {
		h.host.Logger().Info("following health checks", "nodeHealthChecks", len(h.known))
	}
	for name, c := range h.known {
		c.status.Stale, c.status.NotBefore = true, time.Time{} // report the change at once
		if deferring {
			h.host.Core().RemoveRule(now, checkRule(name))
			c.rule, c.ladder = triage.Rule{}, nil
		}
	}
	h.host.ReobserveTreated(now)
	h.host.Statuses().Schedule(now)
}

// compile returns the rule of a health check and its templates.
func compile(object *remediationv1alpha1.NodeHealthCheck) (rule triage.Rule, ladder []remediation.Template, err error) {
	rule, err = observe.NodeHealthCheck(object)
	for _, step := range rule.Response.Ladder {
		t, bad := remediation.ParseTemplate(step.Ref)
		if err == nil && bad != nil {
			err = bad
		}
		ladder = append(ladder, t)
	}
	return rule, ladder, err
}

// compileAccepted compiles a version that was accepted before. Its annotations are not stored: if those
// of today are invalid, the rule has no windows, and only continues what has begun.
func compileAccepted(object *remediationv1alpha1.NodeHealthCheck, spec remediationv1alpha1.NodeHealthCheckSpec) (rule triage.Rule, ladder []remediation.Template, err error) {
	version := object.DeepCopy()
	version.Spec = spec
	rule, ladder, invalid := compile(version)
	if invalid == nil {
		return rule, ladder, nil
	}
	delete(version.Annotations, autohealerv1alpha1.WindowsAnnotation)
	delete(version.Annotations, autohealerv1alpha1.UrgentAnnotation)
	rule, ladder, err = compile(version)
	rule.Hold = invalid.Error()
	return rule, ladder, err
}

// restoreAccepted returns the rule of the version that was followed last, by this process or by
// a previous leader; a zero rule for none.
func (h *Policy) restoreAccepted(c *check) (triage.Rule, []remediation.Template) {
	accepted := cmp.Or(c.accepted, c.status.Stored.AcceptedSpec)
	if accepted == "" {
		return triage.Rule{}, nil
	}
	var rule triage.Rule
	var ladder []remediation.Template
	spec, err := format.DecodeSpec[remediationv1alpha1.NodeHealthCheckSpec](accepted)
	if err == nil {
		rule, ladder, err = compileAccepted(c.object, spec)
	}
	if err != nil {
		h.host.Logger().Warn("accepted version unreadable", "nodeHealthCheck", c.object.Name, "err", err)
		return triage.Rule{}, nil
	}
	c.accepted = accepted
	return rule, ladder
}

// inForce returns the health check with the spec that was followed last and the nodes under
// remediation in its status; nil for none. While the controller deferred, another controller followed
// the newest version, so an edit of that time interrupts nothing. The same is true of a stored version
// that does not fit the remediations in progress: another controller began them while this one was off.
func (h *Policy) inForce(c *check) *remediationv1alpha1.NodeHealthCheck {
	version := &remediationv1alpha1.NodeHealthCheck{ObjectMeta: c.object.ObjectMeta, Spec: c.object.Spec}
	objects := h.remediations.ObjectsOf(checkRule(c.object.Name))
	for node := range objects {
		objects[node] = slices.DeleteFunc(objects[node], func(o remediation.Object) bool { return o.Deleting })
	}
	switch {
	case c.isFollowed():
		version.Status.AcceptedSpec = c.accepted
	case c.accepted != "":
		return nil
	case h.fitsStored(c, objects): // a previous leader wrote the status
		version.Status.AcceptedSpec, version.Status.Conditions = c.status.Stored.AcceptedSpec, c.status.Stored.Conditions
	}
	for _, node := range slices.Sorted(maps.Keys(objects)) {
		if len(objects[node]) > 0 {
			version.Status.UnhealthyNodes = append(version.Status.UnhealthyNodes, remediationv1alpha1.UnhealthyNode{Name: node, Remediations: make([]remediationv1alpha1.Remediation, 1)})
		}
	}
	return version
}

// fitsStored reports whether the stored accepted version selects the nodes of the objects, and has
// their templates.
func (h *Policy) fitsStored(c *check, objects map[string][]remediation.Object) bool {
	spec, err := format.DecodeSpec[remediationv1alpha1.NodeHealthCheckSpec](c.status.Stored.AcceptedSpec)
	if err != nil {
		return false
	}
	_, ladder, err := compileAccepted(c.object, spec)
	if err != nil {
		return false
	}
	selector := labels.Everything()
	if spec.Selector != nil {
		if selector, err = metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
			return false
		}
	}
	for name, all := range objects {
		node := h.host.Node(name)
		for _, object := range all {
			if _, isStep := object.Step(ladder); !isStep || node != nil && !selector.Matches(labels.Set(node.Object.Labels)) {
				return false
			}
		}
	}
	return true
}

// followCheck updates the rule of a health check. If the new version is invalid, or would
// interrupt remediations, the last accepted one stays in force.
func (h *Policy) followCheck(now time.Time, c *check) {
	name := c.object.Name
	wasFollowed := c.isFollowed()
	reason := remediationv1alpha1.ReasonInvalid
	rule, ladder, err := compile(c.object)
	if err == nil {
		verdict := validate.StoredHealthCheck(c.object, h.inForce(c))
		if err = verdict.Err(); err != nil && verdict.Problems[0].Reason == validate.Remediating {
			reason = string(validate.Remediating)
		}
	}
	invalid := ""
	switch {
	case err == nil:
		c.accepted = format.EncodeSpec(c.object.Spec)
	case wasFollowed:
		rule, ladder, invalid = c.rule, c.ladder, err.Error()
	default:
		if rule, ladder = h.restoreAccepted(c); len(ladder) > 0 {
			invalid = err.Error()
		}
	}
	problem, disabled := h.remediations.TemplateProblem(ladder)
	if err != nil && invalid == "" {
		problem, disabled = err.Error(), remediationv1alpha1.ReasonInvalid
	}
	if invalid != c.invalid {
		h.reportInvalid(now, c, invalid, reason)
	}
	if disabled != c.disabled || disabled != "" && problem != c.problem {
		h.reportCheck(now, c, problem, disabled)
	}
	isSame := slices.Equal(c.ladder, ladder)
	if !isSame {
		h.remediations.ReferencesChanged()
	}
	c.rule, c.ladder, c.problem, c.disabled, c.invalid, c.invalidReason = rule, ladder, problem, disabled, invalid, reason
	switch pauses := c.object.Spec.PauseRequests; {
	case problem != "":
		rule.Hold = problem
	case invalid != "" && len(pauses) > 0: // a pause counts also in an invalid version
		rule.Hold = "paused: " + strings.Join(pauses, ", ")
	case c.object.DeletionTimestamp != nil:
		rule.Hold = "the health check is being deleted"
	}
	h.followMode(now, c, &rule)
	if rule.ID == (triage.RuleID{}) {
		h.remediations.ReobserveRule(now, checkRule(name))
		return
	}
	if !wasFollowed {
		h.remediations.ReobserveRule(now, checkRule(name)) // existing treatments first
	}
	if err := h.host.Core().SetRule(now, rule); err != nil { // it compiled, so it is valid
		h.host.Logger().Error("health check not followed", "nodeHealthCheck", name, "err", err)
		return
	}
	if wasFollowed && !isSame {
		h.remediations.ReobserveRule(now, checkRule(name)) // steps have new numbers
	}
	if isOn, calmSince := stormOf(c.status.Stored); isOn && !wasFollowed {
		h.host.Core().ResumeStorm(now, rule.ID, calmSince)
		c.storm = storm{isOn: true, isCooling: !calmSince.IsZero()} // reported by the previous leader
	}
	c.status.Stale = true
	h.host.Statuses().Schedule(now)
}

// followMode applies the annotation for the mode of a health check, and reports an invalid value.
func (h *Policy) followMode(now time.Time, c *check, rule *triage.Rule) {
	was := c.mode.Problem
	c.mode = observe.AnnotatedMode(c.object.Annotations)
	c.mode.Apply(rule)
	if c.mode.Problem == was {
		return
	}
	c.status.Stale = true
	h.host.Statuses().Schedule(now)
	if c.mode.Problem == "" {
		h.publishEvent(c, nil, treat.Accepted, triage.Reason{}, "the annotation "+autohealerv1alpha1.ModeAnnotation+" is valid again")
		return
	}
	h.host.Logger().Warn("mode of a health check invalid", "nodeHealthCheck", c.object.Name, "err", c.mode.Problem)
	h.publishEvent(c, nil, treat.NotAccepted, triage.Reason{}, c.mode.Problem)
}

// reportInvalid reports that the newest version is not followed, or is again.
func (h *Policy) reportInvalid(now time.Time, c *check, invalid, reason string) {
	c.status.Stale = true
	h.host.Statuses().Schedule(now)
	if invalid == "" {
		h.host.Logger().Info("health check valid again", "nodeHealthCheck", c.object.Name)
		h.publishEvent(c, nil, treat.Accepted, triage.Reason{}, "the newest version is in force")
		return
	}
	if c.invalid != "" && c.invalidReason == reason && reason == string(validate.Remediating) {
		return // only the nodes that the message names have changed
	}
	h.host.Logger().Warn("health check invalid", "nodeHealthCheck", c.object.Name, "reason", reason, "err", invalid)
	c.invalid = invalid
	h.publishEvent(c, nil, treat.NotAccepted, triage.Reason{}, c.invalidMessage())
}

// invalidMessage says why the newest version is not followed, and what is in force.
func (c *check) invalidMessage() string { return c.invalid + status.KeepsAccepted }

// reportCheck reports that a health check is disabled or enabled again.
func (h *Policy) reportCheck(now time.Time, c *check, problem, disabled string) {
	name := c.object.Name
	c.status.Stale = true
	h.host.Statuses().Schedule(now)
	if disabled == "" {
		h.host.Logger().Info("health check enabled", "nodeHealthCheck", name)
		h.publishEvent(c, nil, treat.Enabled, triage.Reason{}, "no problem remains, and the controller follows the health check again")
		return
	}
	h.host.Logger().Warn("health check disabled", "nodeHealthCheck", name, "reason", disabled, "err", problem)
	h.publishEvent(c, nil, treat.Disabled, triage.Reason{}, disabled+": "+problem)
}
