package guardrails

import (
	"cmp"
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Policy follows the Guardrails. It implements [engine.Policy], [engine.Recorder] and
// [engine.Vetoer]. It must be the first policy, so that the limits are set before any rule.
type Policy struct {
	host     engine.TreatmentHost
	metrics  *Metrics
	inbox    *watch.Optional[*v1alpha1.Guardrails]
	defaults dialect.Rails // apply without an object

	object   *v1alpha1.Guardrails // nil if there is none
	changed  bool
	rails    dialect.Rails // in force
	accepted string        // the spec in force, in JSON
	problem  string        // why the newest version is not in force; empty if it is
	released string        // what is wrong with the annotation that releases holds; empty if nothing
	status   status.Status[v1alpha1.GuardrailsStatus]
	now      time.Time // of the current round
	totals   triage.RailTotals

	unreadable string // why the Guardrails cannot be read, as reported in the log
}

// NewInbox returns an inbox that reads from the API server.
func NewInbox(c client.WithWatch, signal chan<- struct{}) *watch.Optional[*v1alpha1.Guardrails] {
	return watch.NewOptional(signal, &v1alpha1.Guardrails{}, watch.Source(c, func() client.ObjectList { return &v1alpha1.GuardrailsList{} }))
}

// New returns the policy without an object. The defaults apply until there is one.
func New(host engine.TreatmentHost, inbox *watch.Optional[*v1alpha1.Guardrails], defaults dialect.Rails, metrics *Metrics) *Policy {
	return &Policy{host: host, inbox: inbox, defaults: defaults, metrics: metrics, changed: true}
}

// Watch watches the Guardrails.
func (p *Policy) Watch(ctx context.Context) { p.inbox.Run(ctx) }

// Ready reports whether the Guardrails are loaded, or known not to be served. A restarted API
// server denies access for a while: that does not mean that there are no limits.
func (p *Policy) Ready(now time.Time) bool {
	switch is, err := p.inbox.Availability(); is {
	case watch.Available, watch.NotServed:
		p.Take(now)
		return true
	case watch.NotAnswered:
	default:
		if text := err.Error(); text != p.unreadable {
			p.unreadable = text
			p.host.Logger().Warn("nothing starts until the Guardrails can be read; if access is denied for longer, apply deploy/install.yaml", "err", text)
		}
	}
	return false
}

// Take takes in a changed object.
func (p *Policy) Take(now time.Time) {
	p.now = now
	known := func(yield func(string) bool) {
		if p.object != nil {
			yield(p.object.Name)
		}
	}
	p.inbox.Take().Apply(known, func(name string) {
		if p.object != nil && p.object.Name == name {
			p.object, p.changed, p.accepted, p.problem, p.released = nil, true, "", "", ""
			p.status = status.Status[v1alpha1.GuardrailsStatus]{}
		}
	}, func(object *v1alpha1.Guardrails) {
		if object.Name != v1alpha1.GuardrailsName { // older than the rule of the CRD
			return
		}
		p.changed = p.changed || p.object == nil || p.object.UID != object.UID || p.object.Generation != object.Generation ||
			!maps.Equal(p.object.Annotations, object.Annotations)
		p.object, p.status.Stale = object, true
		p.status.Observe(object, object.Status)
		p.host.Statuses().Schedule(now)
	})
}

// SetRules sets the limits of the newest valid version. A change of the totals makes the status
// stale: a cordon, for example, changes no plan.
func (p *Policy) SetRules(_ context.Context, now time.Time) (due time.Time) {
	if totals := p.host.Core().RailTotals(); totals != p.totals {
		p.totals = totals
		p.host.Statuses().Schedule(now)
	}
	if !p.changed {
		return time.Time{}
	}
	p.changed = false
	wasMode, wasProblem, wasReleased := p.rails.Mode, p.problem, p.released
	p.rails, p.problem = p.compile()
	p.release()
	if err := p.host.Core().SetRails(now, p.rails.Core); err != nil { // compile returns valid limits only
		p.host.Logger().Error("guardrails refused by the core", "err", err)
	}
	if p.rails.Mode == "" { // there are none
		p.host.SetRespect(now, nil)
	} else {
		p.host.SetRespect(now, &p.rails.Respect)
	}
	if p.rails.Mode != wasMode {
		p.host.Logger().Info("guardrails in force", "mode", p.rails.Mode, "defaults", p.object == nil)
	}
	if p.problem != wasProblem || p.released != wasReleased {
		p.report()
	}
	p.status.Stale = true
	p.host.Statuses().Schedule(now)
	return time.Time{}
}

// AddVetoes adds the work of others that the guardrails respect.
func (p *Policy) AddVetoes(_ time.Time, n *engine.Node, facts *triage.Node) {
	respect := p.host.Respect()
	if respect == nil {
		return
	}
	for _, reason := range observe.WorkOfOthers(n.Object, *respect, len(facts.Treatments) > 0) {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: reason, Respected: true})
	}
}

// compile returns the limits in force, and why the newest version is not in force. An invalid
// version keeps the last valid one in force, but it can pause everything.
func (p *Policy) compile() (rails dialect.Rails, problem string) {
	if p.object == nil {
		return p.defaults, ""
	}
	rails, err := observe.Guardrails(p.object)
	if err == nil {
		p.accepted = format.EncodeSpec(p.object.Spec)
	} else {
		rails, problem = p.lastValid()
		if p.object.Spec.Mode == v1alpha1.Paused && rails.Mode != string(v1alpha1.Paused) {
			rails, problem = rails.Paused("has mode Paused"), problem+", in mode Paused"
		}
		problem = err.Error() + problem
	}
	if by := observe.PausedBy(p.object.Annotations); by != "" {
		rails = rails.Paused("is " + by)
	}
	return rails, problem
}

// lastValid returns the limits of the last valid version, even that of a previous leader, and what is
// in force. Without any valid version the defaults apply.
func (p *Policy) lastValid() (rails dialect.Rails, keeps string) {
	p.accepted = cmp.Or(p.accepted, p.status.Stored.AcceptedSpec)
	if spec, err := format.DecodeSpec[v1alpha1.GuardrailsSpec](p.accepted); p.accepted != "" && err == nil {
		version := p.object.DeepCopy()
		version.Spec = spec
		if rails, err := observe.Guardrails(version); err == nil {
			return rails, status.KeepsAccepted
		}
	}
	return p.defaults.WithoutValid(), "; the defaults are in force"
}

// release reads until when correlated failures hold nothing.
func (p *Policy) release() {
	p.released = ""
	if p.object == nil || p.rails.Core.CorrelatedFailure == nil {
		return
	}
	until, err := observe.ReleasedUntil(p.object)
	if err != nil {
		p.released = err.Error()
	}
	failure := *p.rails.Core.CorrelatedFailure // the defaults must not change
	failure.Released = until
	p.rails.Core.CorrelatedFailure = &failure
}

// report publishes whether the newest version is in force.
func (p *Policy) report() {
	if p.object == nil {
		return
	}
	event := treat.Event{Policy: treat.AboutGuardrails(p.object), EventReason: treat.Accepted, Message: "the guardrails are in force"}
	if problem := cmp.Or(p.problem, p.released); problem != "" {
		event.EventReason, event.Message = treat.NotAccepted, problem
		p.host.Logger().Warn("guardrails not accepted", "problem", problem)
	}
	p.host.Event(event)
}

// Findings returns nothing: the Guardrails have no rule.
func (p *Policy) Findings(triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	return nil, nil
}

// About returns nothing: the Guardrails have no rule.
func (p *Policy) About(triage.RuleID, *corev1.Node) (s engine.Subject) { return s }

// Size counts the objects.
func (p *Policy) Size() (name string, objects int) {
	if p.object == nil {
		return "guardrails", 0
	}
	return "guardrails", 1
}

// RestoreEntries takes in the treatments that the pace of the previous leader counted.
func (p *Policy) RestoreEntries(restored []ledger.Entry) {
	var starts []triage.Start
	for _, e := range restored {
		if e, is := e.(ledger.Starts); is {
			starts = append(starts, triage.Start{At: e.At, Treatments: e.Treatments})
		}
	}
	p.host.Core().ResumeStarts(p.now, starts)
}

// Entries returns the treatments that the pace counts. The core has counted a treatment before
// the ledger stores its slot.
func (p *Policy) Entries(time.Time, []ledger.Entry) (entries []ledger.Entry) {
	for _, s := range p.host.Core().Starts() {
		entries = append(entries, ledger.Starts{At: s.At, Treatments: s.Treatments})
	}
	return entries
}

// EntriesFor returns an entry of the largest size, in case a new treatment begins an interval.
func (p *Policy) EntriesFor(now time.Time, _ []ledger.Entry) []ledger.Entry {
	if p.rails.Core.Pace == nil {
		return nil
	}
	return []ledger.Entry{ledger.Starts{At: now.UTC(), Treatments: 1 << 30}}
}

// HasEnded returns false: entries end by time, which the next leader knows too. Places that were
// given back stay in the ledger until the next snapshot: the next leader may count too many.
func (p *Policy) HasEnded([]ledger.Entry) bool { return false }
