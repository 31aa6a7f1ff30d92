package controller

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
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// checks are the health checks, and the kinds that they speak of.
type checks struct {
	inbox   *optionalInbox[*remediationv1alpha1.NodeHealthCheck]
	watches dynamicWatches
	medik8s medik8sLeader

	known     map[string]*check
	templates map[remediation.Template]*unstructured.Unstructured
	// deferring says that another controller follows the health checks, and this one
	// leaves them to it.
	deferring  bool
	changed    bool   // something that a health check depends on
	unreadable string // why nobody can tell what all health checks have under way, empty if somebody can
}

// check is a health check and what has come of it.
type check struct {
	findings
	object *remediationv1alpha1.NodeHealthCheck
	ladder []remediation.Template // of the version that is followed
	rule   triage.Rule            // likewise; its ID is zero if none is
	// problem is why nothing new is begun, pauses aside, empty for nothing; disabled
	// is the reason of it in the status, empty if it will pass in a moment.
	problem, disabled string
	storm             storm
	waits             map[triage.Code]int // as they were last told
	skipped           triage.Code         // why nothing new is begun at all, as it was last told

	status  remediationv1alpha1.NodeHealthCheckStatus
	version string // of the object that the status was last stored in
	writing bool
	mayFrom time.Time // when it may be written next, at the earliest
	trouble writeFailure
}

// storm is what was last told of one.
type storm struct{ isOn, isCooling bool }

func checkRule(name string) triage.RuleID {
	return triage.RuleID{Kind: triage.NodeHealthCheck, Name: name}
}

// isFollowed says whether some version of the health check is followed.
func (c *check) isFollowed() bool { return c.rule.ID != triage.RuleID{} }

// isNew says that nobody has looked yet whether its templates are there.
func (c *check) isNew() bool { return c.problem != "" && c.disabled == "" }

// checkOf returns the health check of a rule, nil if there is none any more.
func (l *loop) checkOf(rule triage.RuleID) *check {
	if rule.Kind != triage.NodeHealthCheck {
		return nil
	}
	return l.checks.known[rule.Name]
}

// knowsChecks says whether everything is known that health checks depend on: they
// themselves, who else follows them, and all objects of the kinds that they speak
// of. A kind that is not there has none, and one that cannot be read keeps nobody
// else waiting.
func (l *loop) knowsChecks(now time.Time) bool {
	checks, _ := l.checks.inbox.availability()
	peers, _ := l.checks.medik8s.inbox.availability()
	leases, _ := l.leaseInbox.availability()
	if checks == notAnswered || peers == notAnswered || leases == notAnswered {
		return false
	}
	l.takeChecks(now)
	for _, k := range l.checks.watches.known {
		if k.answered == notAnswered {
			return false
		}
	}
	return true
}

// takeChecks takes in the health checks that have changed, and what they depend on.
func (l *loop) takeChecks(now time.Time) {
	letter := l.checks.inbox.take()
	if letter.listVersion != "" {
		for name := range l.checks.known {
			if _, there := letter.changes[name]; !there {
				l.removeCheck(now, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(letter.changes)) {
		if a := letter.changes[name]; a.gone {
			l.removeCheck(now, name)
		} else {
			l.upsertCheck(now, a.object)
		}
	}
	if l.checks.changed {
		l.ensureWatches()
	}
	l.takeTemplates(now)
	l.checks.medik8s.take(now)
	if unread := l.checks.whyUnreadable(); unread != l.checks.unreadable {
		l.checks.unreadable = unread
		l.reobserveControlPlane(now)
	}
}

// whyUnreadable names the kinds of remediation objects of which nobody can tell which
// there are.
func (c *checks) whyUnreadable() string {
	var unread []string
	for of, k := range c.watches.known {
		if !isTemplates(of) && k.answered != available && k.answered != notServed {
			unread = append(unread, of.Kind)
		}
	}
	if len(unread) == 0 {
		return ""
	}
	slices.Sort(unread)
	return "objects of kind " + strings.Join(unread, ", ") + " could not be read"
}

// template returns a template, nil if there is none. A kind without namespaces is
// often referred to with one all the same.
func (c *checks) template(t remediation.Template) *unstructured.Unstructured {
	if template := c.templates[t]; template != nil {
		return template
	}
	t.Namespace = ""
	return c.templates[t]
}

// upsertCheck takes over a health check that is new or has changed.
func (l *loop) upsertCheck(now time.Time, object *remediationv1alpha1.NodeHealthCheck) {
	c := l.checks.known[object.Name]
	if c == nil || c.object.UID != object.UID {
		if c != nil {
			l.removeCheck(now, object.Name)
		}
		c = &check{findings: findings{nodes: map[string]triage.Reason{}}}
		l.checks.known[object.Name] = c
		delete(l.retiredRules, checkRule(object.Name))
	}
	// Of the version that was written here, the answer told. A CRD of somebody else may
	// not keep all of it, and to write it once more would not help.
	if c.object == nil || object.ResourceVersion != c.version && !olderVersion(object.ResourceVersion, c.version) {
		c.status = object.Status
	}
	if c.object == nil || c.object.Generation != object.Generation || (c.object.DeletionTimestamp == nil) != (object.DeletionTimestamp == nil) {
		l.checks.changed = true
	}
	c.object, c.stale = object, true
	l.lookAtStatuses(now)
}

func (l *loop) removeCheck(now time.Time, name string) {
	c := l.checks.known[name]
	if c == nil {
		return
	}
	delete(l.checks.known, name)
	l.checks.changed = true
	l.core.RemoveRule(now, checkRule(name))
	l.cfg.Metrics.forgetCheck(name)
	l.retire(now, checkRule(name))
	l.reobserveCheck(now, name)
	l.cfg.Logger.Info("health check gone", "nodeHealthCheck", name)
}

// ensureWatches watches the kinds that somebody speaks of, and no others. Those of
// objects that are known stay, also if the template was taken out of the ladder.
func (l *loop) ensureWatches() {
	spoken := map[schema.GroupVersionKind]bool{}
	for _, c := range l.checks.known {
		for _, ref := range references(c.object) {
			if t, err := remediation.TemplateOf(ref); err == nil {
				spoken[t.GroupVersionKind], spoken[t.ObjectKind()] = true, true
			}
		}
		for _, node := range c.object.Status.UnhealthyNodes {
			for _, r := range node.Remediations {
				if of := r.Resource.GroupVersionKind(); of.Kind != "" && of.Group != "" {
					spoken[of] = true
				}
			}
		}
	}
	for _, bed := range l.treatments {
		for _, object := range bed.objects {
			spoken[object.GroupVersionKind] = true
		}
	}
	for _, pol := range l.repairs.policies {
		for _, ref := range pol.templates() {
			if t, err := remediation.TemplateOf(ref); err == nil {
				spoken[t.GroupVersionKind], spoken[t.ObjectKind()] = true, true
			}
		}
	}
	for of := range spoken {
		l.checks.watches.ensure(of)
	}
	for of := range l.checks.watches.known {
		if !spoken[of] {
			l.checks.watches.stop(of)
			maps.DeleteFunc(l.checks.templates, func(t remediation.Template, _ *unstructured.Unstructured) bool { return t.GroupVersionKind == of })
		}
	}
}

// isTemplates says whether the objects of a kind are templates.
func isTemplates(of schema.GroupVersionKind) bool { return strings.HasSuffix(of.Kind, "Template") }

// takeTemplates takes in the templates that have changed.
func (l *loop) takeTemplates(now time.Time) {
	for of, k := range l.checks.watches.known {
		if k.watch(now) {
			l.checks.changed = true
			l.reportKind(k)
		}
		if !isTemplates(of) {
			continue
		}
		letter := k.take()
		if letter.listVersion != "" {
			maps.DeleteFunc(l.checks.templates, func(t remediation.Template, _ *unstructured.Unstructured) bool { return t.GroupVersionKind == of })
			l.checks.changed = true
		}
		for _, a := range letter.changes {
			t := remediation.Template{GroupVersionKind: of, Namespace: a.object.GetNamespace(), Name: a.object.GetName()}
			l.checks.changed = true
			if a.gone {
				delete(l.checks.templates, t)
			} else {
				l.checks.templates[t] = a.object
			}
		}
	}
}

func (l *loop) reportKind(k *dynamicWatch) {
	switch k.answered {
	case available:
		l.cfg.Logger.Info("kind watched", "kind", k.String())
	case notServed, accessDenied, failing:
		l.cfg.Logger.Warn("kind not read", "kind", k.String(), "err", k.why)
	case notAnswered:
	}
}

// followChecks has the health checks followed as they and what they depend on are
// now. It comes when all objects of theirs are known: a rule that is followed
// before could begin what is under way already.
func (l *loop) followChecks(now time.Time) {
	if isBack := l.checks.medik8s.isActive(); isBack != l.checks.deferring {
		l.deferToMedik8s(now, isBack)
	}
	if !l.checks.changed {
		return
	}
	l.checks.changed, l.repairs.changed = false, true // a template is gone, or there
	for _, name := range slices.Sorted(maps.Keys(l.checks.known)) {
		if !l.checks.deferring {
			l.followCheck(now, l.checks.known[name])
		}
	}
}

// deferToMedik8s leaves the health checks to another controller, or takes them over
// from it. What either has under way the other goes on with.
func (l *loop) deferToMedik8s(now time.Time, isBack bool) {
	l.checks.deferring, l.checks.changed = isBack, true
	l.cfg.Metrics.setDeferring(isBack)
	if isBack {
		l.cfg.Logger.Warn("standing back", "reason", l.checks.medik8s.message())
	} else {
		l.cfg.Logger.Info("following health checks", "nodeHealthChecks", len(l.checks.known))
	}
	for name, c := range l.checks.known {
		c.stale, c.mayFrom = true, time.Time{} // who follows it now is news
		if isBack {
			l.core.RemoveRule(now, checkRule(name))
			c.rule, c.ladder = triage.Rule{}, nil
		}
	}
	l.reobserve(now, slices.Sorted(maps.Keys(l.treatments))...)
	l.lookAtStatuses(now)
}

// followCheck has a health check followed as it is now. A version that cannot be
// followed changes nothing about what is under way: the one before stays, if there
// was one, and begins nothing new.
func (l *loop) followCheck(now time.Time, c *check) {
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
	problem, disabled := l.templateProblem(ladder)
	if err != nil {
		problem, disabled = err.Error(), remediationv1alpha1.ReasonInvalid
		rule, ladder = c.rule, c.ladder
	}
	if disabled != c.disabled || disabled != "" && problem != c.problem {
		l.reportCheck(now, c, problem, disabled)
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
		l.reobserveCheck(now, name)
		return
	}
	if !wasFollowed {
		l.reobserveCheck(now, name) // so that what is under way is known first
	}
	if err := l.core.SetRule(now, rule); err != nil { // which was compiled, so it is valid
		l.cfg.Logger.Error("health check not followed", "nodeHealthCheck", name, "err", err)
		return
	}
	if wasFollowed && !isSame {
		l.reobserveCheck(now, name) // a step has another number now
	}
	if isOn, calmSince := stormOf(c.status); isOn && !wasFollowed {
		l.core.ResumeStorm(now, rule.ID, calmSince)
		c.storm = storm{isOn: true, isCooling: !calmSince.IsZero()} // which has been told
	}
	c.stale = true
	l.lookAtStatuses(now)
}

// templateProblem says what is wrong with the templates of a ladder.
func (l *loop) templateProblem(ladder []remediation.Template) (problem, disabled string) {
	for _, t := range ladder {
		for _, of := range []schema.GroupVersionKind{t.GroupVersionKind, t.ObjectKind()} {
			k := l.checks.watches.known[of]
			if k == nil {
				continue
			}
			switch k.answered {
			case available:
			case notServed:
				return fmt.Sprintf("there is no kind %s (%s); install its CRD, or name another template", of.Kind, of.GroupVersion()), remediationv1alpha1.ReasonTemplateNotFound
			case accessDenied:
				return fmt.Sprintf("kind %s (%s) may not be read: %v; label a ClusterRole that allows it with rbac.ext-remediation/aggregate-to-ext-remediation=true", of.Kind, of.GroupVersion(), k.why), remediationv1alpha1.ReasonTemplateNotFound
			case failing:
				return fmt.Sprintf("kind %s (%s) could not be read: %v", of.Kind, of.GroupVersion(), k.why), remediationv1alpha1.ReasonTemplateNotFound
			case notAnswered:
				return fmt.Sprintf("kind %s (%s) has not been read yet", of.Kind, of.GroupVersion()), ""
			}
		}
		template := l.checks.template(t)
		if template == nil {
			return fmt.Sprintf("there is no template %s", t), remediationv1alpha1.ReasonTemplateNotFound
		}
		if err := remediation.Check(template); err != nil {
			return err.Error(), remediationv1alpha1.ReasonTemplateInvalid
		}
	}
	if same := l.checks.sameNames(ladder); same != "" {
		return same, remediationv1alpha1.ReasonTemplateInvalid
	}
	return "", ""
}

// sameNames says which templates would make objects of one name: those of one kind,
// unless all of them say that a node may have several. The webhook may not have seen
// them.
func (c *checks) sameNames(ladder []remediation.Template) string {
	for i, t := range ladder {
		for _, other := range ladder[:i] {
			if t.GroupKind() != other.GroupKind() || t == other {
				continue
			}
			for _, one := range []remediation.Template{other, t} {
				if !remediation.TakesSeveral(c.template(one)) {
					return fmt.Sprintf("%s and %s are of one kind, and its remediator may take but one request for a node; if it does take several, annotate %s with %s: \"true\"", other, t, one, remediation.MultipleTemplatesAnnotation)
				}
			}
		}
	}
	return ""
}

// reportCheck lets people know that a health check is disabled, or no longer.
func (l *loop) reportCheck(now time.Time, c *check, problem, disabled string) {
	name := c.object.Name
	c.stale = true
	l.lookAtStatuses(now)
	if disabled == "" {
		l.cfg.Logger.Info("health check enabled", "nodeHealthCheck", name)
		l.announce(c, nil, treat.Enabled, triage.Reason{}, "nothing speaks against it any more, the health check is enabled")
		return
	}
	l.cfg.Logger.Warn("health check disabled", "nodeHealthCheck", name, "reason", disabled, "err", problem)
	l.announce(c, nil, treat.Disabled, triage.Reason{}, disabled+": "+problem)
}

// references returns the templates that a health check names, as it names them.
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
