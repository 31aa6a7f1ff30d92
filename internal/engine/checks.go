package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// checks holds the NodeHealthChecks and the watches of the kinds that they reference.
type checks struct {
	engine  *Engine
	inbox   *watch.Optional[*remediationv1alpha1.NodeHealthCheck]
	watches watch.Kinds
	medik8s medik8sLeader

	known     map[string]*check
	templates map[remediation.Template]*unstructured.Unstructured
	// deferring says that another controller (medik8s) follows the health checks, so this
	// controller does not.
	deferring  bool
	changed    bool   // something that health checks depend on has changed
	unreadable string // why the remediation objects are not all known, empty if they are
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
	storm             storm
	reportedWaits     map[triage.Code]int // as last reported
	skipped           triage.Code         // why no treatment starts at all, as last reported
	status            status.Status[remediationv1alpha1.NodeHealthCheckStatus]
}

// storm is the last reported state of a storm.
type storm struct{ isOn, isCooling bool }

func checkRule(name string) triage.RuleID {
	return triage.RuleID{Kind: triage.NodeHealthCheck, Name: name}
}

// isFollowed reports whether a version of the health check is followed.
func (c *check) isFollowed() bool { return c.rule.ID != triage.RuleID{} }

// isNew reports whether its templates have not been checked yet.
func (c *check) isNew() bool { return c.problem != "" && c.disabled == "" }

// of returns the health check of a rule, nil if it is gone.
func (h *checks) of(rule triage.RuleID) *check {
	if rule.Kind != triage.NodeHealthCheck {
		return nil
	}
	return h.known[rule.Name]
}

// isReady reports whether everything that health checks depend on is loaded: the
// checks, the medik8s leader, and all objects of the referenced kinds. A kind that is not
// served has no objects. A kind that cannot be read does not block the others.
func (h *checks) isReady(now time.Time) bool {
	checks, _ := h.inbox.Availability()
	medik8s, _ := h.medik8s.inbox.Availability()
	leases, _ := h.engine.remediations.leases.Availability()
	if checks == watch.NotAnswered || medik8s == watch.NotAnswered || leases == watch.NotAnswered {
		return false
	}
	h.take(now)
	for _, kind := range h.watches.Known {
		if kind.Current == watch.NotAnswered {
			return false
		}
	}
	return true
}

// take takes in changed health checks and their dependencies.
func (h *checks) take(now time.Time) {
	batch := h.inbox.Take()
	if batch.ListVersion != "" {
		for name := range h.known {
			if _, there := batch.Changes[name]; !there {
				h.remove(now, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(batch.Changes)) {
		if change := batch.Changes[name]; change.Gone {
			h.remove(now, name)
		} else {
			h.upsert(now, change.Object)
		}
	}
	if h.changed {
		h.ensureWatches()
	}
	h.takeTemplates(now)
	h.medik8s.take(now)
	if unread := h.unreadableKinds(); unread != h.unreadable {
		h.unreadable = unread
		h.engine.reobserveControlPlane(now)
	}
}

// unreadableKinds names the kinds of remediation objects that could not be listed, empty
// for none.
func (h *checks) unreadableKinds() string {
	var unread []string
	for gvk, kind := range h.watches.Known {
		if !isTemplates(gvk) && kind.Current != watch.Available && kind.Current != watch.NotServed {
			unread = append(unread, gvk.Kind)
		}
	}
	if len(unread) == 0 {
		return ""
	}
	slices.Sort(unread)
	return "objects of kind " + strings.Join(unread, ", ") + " could not be read"
}

// template returns a template, nil if it does not exist. References to cluster-scoped
// templates often contain a namespace, so it looks for those too.
func (h *checks) template(t remediation.Template) *unstructured.Unstructured {
	if template := h.templates[t]; template != nil {
		return template
	}
	t.Namespace = ""
	return h.templates[t]
}

// upsert stores a new or changed health check.
func (h *checks) upsert(now time.Time, object *remediationv1alpha1.NodeHealthCheck) {
	c := h.known[object.Name]
	if c == nil || c.object.UID != object.UID {
		if c != nil {
			h.remove(now, object.Name)
		}
		c = &check{nodes: map[string]triage.Reason{}}
		h.known[object.Name] = c
		delete(h.engine.retiredRules, checkRule(object.Name))
	}
	c.status.Observe(object, object.Status)
	if c.object == nil || c.object.Generation != object.Generation || (c.object.DeletionTimestamp == nil) != (object.DeletionTimestamp == nil) {
		h.changed = true
	}
	c.object, c.status.Stale = object, true
	h.engine.statuses.Schedule(now)
}

func (h *checks) remove(now time.Time, name string) {
	c := h.known[name]
	if c == nil {
		return
	}
	delete(h.known, name)
	h.changed = true
	h.engine.core.RemoveRule(now, checkRule(name))
	h.engine.cfg.Metrics.forgetCheck(name)
	h.engine.Retire(now, checkRule(name))
	h.engine.remediations.reobserveCheck(now, name)
	h.engine.cfg.Logger.Info("health check gone", "nodeHealthCheck", name)
}

// ensureWatches watches exactly the kinds that policies reference. Kinds of known objects
// stay watched even if their template has been removed from the ladder.
func (h *checks) ensureWatches() {
	referenced := map[schema.GroupVersionKind]bool{}
	for _, c := range h.known {
		for _, ref := range references(c.object) {
			if t, err := remediation.TemplateOf(ref); err == nil {
				referenced[t.GroupVersionKind], referenced[t.ObjectKind()] = true, true
			}
		}
		for _, node := range c.object.Status.UnhealthyNodes {
			for _, r := range node.Remediations {
				if gvk := r.Resource.GroupVersionKind(); gvk.Kind != "" && gvk.Group != "" {
					referenced[gvk] = true
				}
			}
		}
	}
	for _, treatments := range h.engine.tasks.treatments {
		for _, object := range treatments.objects {
			referenced[object.GroupVersionKind] = true
		}
	}
	for _, pol := range h.engine.repairs.policies {
		for _, ref := range pol.templates() {
			if t, err := remediation.TemplateOf(ref); err == nil {
				referenced[t.GroupVersionKind], referenced[t.ObjectKind()] = true, true
			}
		}
	}
	for gvk := range referenced {
		h.watches.Ensure(gvk)
	}
	for gvk := range h.watches.Known {
		if !referenced[gvk] {
			h.watches.Stop(gvk)
			maps.DeleteFunc(h.templates, func(t remediation.Template, _ *unstructured.Unstructured) bool { return t.GroupVersionKind == gvk })
		}
	}
}

// isTemplates reports whether the kind is a template.
func isTemplates(gvk schema.GroupVersionKind) bool { return strings.HasSuffix(gvk.Kind, "Template") }

// takeTemplates takes in changed templates.
func (h *checks) takeTemplates(now time.Time) {
	for gvk, kind := range h.watches.Known {
		if kind.UpdateAvailability(now) {
			h.changed = true
			h.logAvailability(kind)
		}
		if !isTemplates(gvk) {
			continue
		}
		batch := kind.Take()
		if batch.ListVersion != "" {
			maps.DeleteFunc(h.templates, func(t remediation.Template, _ *unstructured.Unstructured) bool { return t.GroupVersionKind == gvk })
			h.changed = true
		}
		for _, change := range batch.Changes {
			t := remediation.Template{GroupVersionKind: gvk, Namespace: change.Object.GetNamespace(), Name: change.Object.GetName()}
			h.changed = true
			if change.Gone {
				delete(h.templates, t)
			} else {
				h.templates[t] = change.Object
			}
		}
	}
}

func (h *checks) logAvailability(kind *watch.Kind) {
	switch kind.Current {
	case watch.Available:
		h.engine.cfg.Logger.Info("kind watched", "kind", kind.String())
	case watch.NotServed, watch.AccessDenied, watch.Failing:
		h.engine.cfg.Logger.Warn("kind not read", "kind", kind.String(), "err", kind.Err)
	case watch.NotAnswered:
	}
}

// follow updates the rules of the health checks. It runs after all remediation
// objects are known, because a rule without them could start a treatment twice.
func (h *checks) follow(now time.Time) {
	if deferring := h.medik8s.isActive(); deferring != h.deferring {
		h.deferToMedik8s(now, deferring)
	}
	if !h.changed {
		return
	}
	h.changed, h.engine.repairs.changed = false, true // a template may have appeared or gone
	for _, name := range slices.Sorted(maps.Keys(h.known)) {
		if !h.deferring {
			h.followCheck(now, h.known[name])
		}
	}
}

// deferToMedik8s hands the health checks to the other controller, or takes them back.
// Each side continues the treatments of the other.
func (h *checks) deferToMedik8s(now time.Time, deferring bool) {
	h.deferring, h.changed = deferring, true
	h.engine.cfg.Metrics.setDeferring(deferring)
	if deferring {
		h.engine.cfg.Logger.Warn("deferring to another controller", "reason", h.medik8s.message())
	} else {
		h.engine.cfg.Logger.Info("following health checks", "nodeHealthChecks", len(h.known))
	}
	for name, c := range h.known {
		c.status.Stale, c.status.NotBefore = true, time.Time{} // report the change at once
		if deferring {
			h.engine.core.RemoveRule(now, checkRule(name))
			c.rule, c.ladder = triage.Rule{}, nil
		}
	}
	h.engine.reobserve(now, slices.Sorted(maps.Keys(h.engine.tasks.treatments))...)
	h.engine.statuses.Schedule(now)
}

// followCheck updates the rule of a health check. If the new version is invalid, the
// previous one stays in force for running treatments and starts no new ones.
func (h *checks) followCheck(now time.Time, c *check) {
	name := c.object.Name
	rule, err := observe.NodeHealthCheck(c.object)
	ladder := make([]remediation.Template, 0, len(rule.Response.Ladder))
	for _, step := range rule.Response.Ladder {
		t, bad := remediation.ParseTemplate(step.Ref)
		if err == nil && bad != nil {
			err = bad
		}
		ladder = append(ladder, t)
	}
	problem, disabled := h.templateProblem(ladder)
	if err != nil {
		problem, disabled = err.Error(), remediationv1alpha1.ReasonInvalid
		rule, ladder = c.rule, c.ladder
	}
	if disabled != c.disabled || disabled != "" && problem != c.problem {
		h.reportCheck(now, c, problem, disabled)
	}
	wasFollowed, isSame := c.isFollowed(), slices.Equal(c.ladder, ladder)
	c.rule, c.ladder, c.problem, c.disabled = rule, ladder, problem, disabled
	switch {
	case problem != "":
		rule.Hold = problem
	case c.object.DeletionTimestamp != nil:
		rule.Hold = "the health check is being deleted"
	}
	if rule.ID == (triage.RuleID{}) {
		h.engine.remediations.reobserveCheck(now, name)
		return
	}
	if !wasFollowed {
		h.engine.remediations.reobserveCheck(now, name) // existing treatments first
	}
	if err := h.engine.core.SetRule(now, rule); err != nil { // it compiled, so it is valid
		h.engine.cfg.Logger.Error("health check not followed", "nodeHealthCheck", name, "err", err)
		return
	}
	if wasFollowed && !isSame {
		h.engine.remediations.reobserveCheck(now, name) // steps have new numbers
	}
	if isOn, calmSince := stormOf(c.status.Stored); isOn && !wasFollowed {
		h.engine.core.ResumeStorm(now, rule.ID, calmSince)
		c.storm = storm{isOn: true, isCooling: !calmSince.IsZero()} // reported by the previous leader
	}
	c.status.Stale = true
	h.engine.statuses.Schedule(now)
}

// templateProblem returns what is wrong with the templates of a ladder, empty for
// nothing.
func (h *checks) templateProblem(ladder []remediation.Template) (problem, disabled string) {
	for _, t := range ladder {
		for _, gvk := range []schema.GroupVersionKind{t.GroupVersionKind, t.ObjectKind()} {
			kind := h.watches.Known[gvk]
			if kind == nil {
				continue
			}
			switch kind.Current {
			case watch.Available:
			case watch.NotServed:
				return fmt.Sprintf("there is no kind %s (%s); install its CRD, or name another template", gvk.Kind, gvk.GroupVersion()), remediationv1alpha1.ReasonTemplateNotFound
			case watch.AccessDenied:
				return fmt.Sprintf("kind %s (%s) may not be read: %v; label a ClusterRole that allows it with rbac.ext-remediation/aggregate-to-ext-remediation=true", gvk.Kind, gvk.GroupVersion(), kind.Err), remediationv1alpha1.ReasonTemplateNotFound
			case watch.Failing:
				return fmt.Sprintf("kind %s (%s) could not be read: %v", gvk.Kind, gvk.GroupVersion(), kind.Err), remediationv1alpha1.ReasonTemplateNotFound
			case watch.NotAnswered:
				return fmt.Sprintf("kind %s (%s) has not been read yet", gvk.Kind, gvk.GroupVersion()), ""
			}
		}
		template := h.template(t)
		if template == nil {
			return fmt.Sprintf("there is no template %s", t), remediationv1alpha1.ReasonTemplateNotFound
		}
		if err := remediation.Check(template); err != nil {
			return err.Error(), remediationv1alpha1.ReasonTemplateInvalid
		}
	}
	if same := h.nameConflict(ladder); same != "" {
		return same, remediationv1alpha1.ReasonTemplateInvalid
	}
	return "", ""
}

// nameConflict returns a message if two templates of the ladder would create objects of the
// same name. Templates of one kind do, unless all of them allow several objects per node.
// The webhook may not have seen the templates.
func (h *checks) nameConflict(ladder []remediation.Template) string {
	for i, t := range ladder {
		for _, other := range ladder[:i] {
			if t.GroupKind() != other.GroupKind() || t == other {
				continue
			}
			for _, one := range []remediation.Template{other, t} {
				if !remediation.TakesSeveral(h.template(one)) {
					return fmt.Sprintf("%s and %s are of one kind, and its remediator may take but one request for a node; if it does take several, annotate %s with %s: \"true\"", other, t, one, remediation.MultipleTemplatesAnnotation)
				}
			}
		}
	}
	return ""
}

// reportCheck reports that a health check is disabled or enabled again.
func (h *checks) reportCheck(now time.Time, c *check, problem, disabled string) {
	name := c.object.Name
	c.status.Stale = true
	h.engine.statuses.Schedule(now)
	if disabled == "" {
		h.engine.cfg.Logger.Info("health check enabled", "nodeHealthCheck", name)
		h.publishEvent(c, nil, treat.Enabled, triage.Reason{}, "nothing speaks against it any more, the health check is enabled")
		return
	}
	h.engine.cfg.Logger.Warn("health check disabled", "nodeHealthCheck", name, "reason", disabled, "err", problem)
	h.publishEvent(c, nil, treat.Disabled, triage.Reason{}, disabled+": "+problem)
}

// references returns the template references of a health check.
func references(object *remediationv1alpha1.NodeHealthCheck) []corev1.ObjectReference {
	var refs []corev1.ObjectReference
	if object.Spec.RemediationTemplate != nil {
		refs = append(refs, *object.Spec.RemediationTemplate)
	}
	for _, step := range object.Spec.EscalatingRemediations {
		refs = append(refs, step.RemediationTemplate)
	}
	return refs
}
