package conditionset

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/required"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
	"github.com/resourcestack/autohealer/internal/watch"
)

// Config holds the dependencies of a Policy.
type Config struct {
	// Client talks to the API server. It must not read from a cache.
	Client client.WithWatch
	// Namespace holds the ConfigMaps with condition sets.
	Namespace string
	// Signal starts a round of the engine.
	Signal chan<- struct{}
	// Taints says why planned taints are not on their nodes.
	Taints Taints
	// Event publishes an Event. It must not block and must be safe for concurrent use.
	Event func(treat.Event)
	// Wrote counts a write by its result.
	Wrote   func(resource string, result treat.Outcome)
	Metrics *Metrics
	Logger  *slog.Logger
}

// Taints is what the policy asks the writer of taints.
type Taints interface {
	// Problem returns why the taint of a rule is not on a node although it is planned: the
	// last refusal of the API server, and what delays the write. Each is empty for nothing.
	Problem(n *engine.Node, rule triage.RuleID) (refusal, delay string)
}

// Validate returns an error that names every missing field.
func (c Config) Validate() error {
	return required.Fields{
		"Client": c.Client == nil, "Namespace": c.Namespace == "", "Signal": c.Signal == nil, "Taints": c.Taints == nil, "Event": c.Event == nil, "Wrote": c.Wrote == nil,
		"Metrics": c.Metrics == nil, "Logger": c.Logger == nil,
	}.Check()
}

// Policy follows the ConditionSets of a cluster. It implements [engine.Policy].
type Policy struct {
	cfg        Config
	host       engine.Host
	inbox      *watch.Inbox[*v1alpha1.ConditionSet]
	known      map[string]*conditionSet
	validation setValidation
	unowned    unowned
	configMaps *configMapSets
	mirrors    *mirrors
	nameTaken  map[string]bool // sets in ConfigMaps for which an Event said that a user's ConditionSet has the name of the mirror
}

// New returns a policy that has loaded nothing.
func New(host engine.Host, cfg Config) (*Policy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring condition sets: %w", err)
	}
	return newPolicy(host, cfg), nil
}

func newPolicy(host engine.Host, cfg Config) *Policy {
	p := &Policy{
		cfg: cfg, host: host, inbox: watch.NewInbox[*v1alpha1.ConditionSet](cfg.Signal, nil), known: map[string]*conditionSet{},
		unowned: newUnowned(), configMaps: newConfigMapSets(cfg), mirrors: newMirrors(treat.NewWriter(cfg.Client)),
	}
	p.tellUnreadable(time.Now()) // until the ConfigMaps are loaded
	return p
}

// Watch lists and watches ConditionSets and the ConfigMaps that contain some.
func (p *Policy) Watch(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() {
		p.inbox.Fill(ctx, &v1alpha1.ConditionSet{}, watch.Source(p.cfg.Client, func() client.ObjectList { return &v1alpha1.ConditionSetList{} }), p.cfg.Logger)
	})
	watches.Go(func() { p.readRevisions(ctx) })
	watches.Go(func() {
		p.configMaps.inbox.Fill(ctx, &corev1.ConfigMap{}, configMapSource(p.cfg.Client, p.cfg.Namespace, p.sendAccess), p.cfg.Logger)
	})
	watches.Wait()
	p.cfg.Metrics.configMapsRead.Set(0) // only the leader sets it
}

// Ready reports whether all sets are loaded. ConfigMaps that may not be read do not block.
func (p *Policy) Ready(time.Time) bool {
	return p.inbox.HasSynced() && (p.configMaps.canBeRead() || len(p.configMaps.denied) > 0)
}

// Take takes in changed sets. Before the nodes are known, sets that an earlier term
// accepted are followed: otherwise each new rule would be evaluated on all nodes.
func (p *Policy) Take(now time.Time) {
	p.takeSets(now)
	if !p.host.IsLoaded() {
		p.validateDue(now, false)
	}
}

// NodeChanged takes in a changed node.
func (p *Policy) NodeChanged(n *engine.Node, _, after *corev1.Node) {
	var unowned []taintID
	if after != nil {
		unowned = unownedOn(after)
	}
	p.unowned.update(n.Object.Name, unowned)
	p.nodesChanged()
}

// nodesChanged records that nodes may report something else than at the last validation.
func (p *Policy) nodesChanged() {
	p.validation.changed, p.validation.toProve, p.configMaps.changed = true, true, true
}

// SetRules validates sets and ConfigMaps against the nodes, and sets their rules. Sets that
// node reports contradict are held before the engine carries out a plan.
func (p *Policy) SetRules(ctx context.Context, now time.Time) (due time.Time) {
	p.validateDue(now, true)
	p.takeConfigMaps(now) // validated against the followed sets
	p.validateDue(now, true)
	due = times.Earliest(p.proveSets(now), p.validateWaiting(now))
	p.reportUnowned(now)
	return times.Earliest(due, p.writeRevisions(ctx, now))
}

// Findings returns what the rule of a set has found.
func (p *Policy) Findings(rule triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	if pol := p.setOf(rule); pol != nil {
		return pol.nodes, &pol.status.Stale
	}
	return nil, nil
}

// About returns the set that a rule was compiled from.
func (p *Policy) About(rule triage.RuleID, _ *corev1.Node) (s engine.Subject) {
	pol := p.setOf(rule)
	if pol == nil {
		return s
	}
	if pol.err != nil && pol.inForce == nil {
		s.Problem = "the set is not accepted: " + pol.err.Error()
	}
	s.Policy = treat.AboutSet(pol.set)
	return s
}

// Size counts the sets.
func (p *Policy) Size() (name string, objects int) { return "conditionSets", len(p.known) }

// setOf returns the set of a rule, nil if it is gone.
func (p *Policy) setOf(rule triage.RuleID) *conditionSet {
	if rule.Kind != policykind.ConditionSet {
		return nil
	}
	return p.known[rule.Name]
}

// conditionSet is a ConditionSet and its state.
type conditionSet struct {
	set   *v1alpha1.ConditionSet
	rule  triage.Rule
	nodes map[string]triage.Reason // the findings

	inForce         *v1alpha1.ConditionSet // the followed version; nil for none
	needsValidation bool                   // this version has not been validated
	restored        bool                   // this version is unchanged since the start of this term
	problems        []validate.Problem     // why it is not followed
	standing        []validate.Problem     // those that do not depend on nodes, without their impact
	err             error                  // the problems as one error
	awaitsNodes     bool                   // rejected because of node reports, so validate again when they change
	proof           proof                  // reports that are missing until the set is in force without restrictions
	unclearTaints   map[string]taintID     // nodes with a taint that the set may have placed, but no record proves it
	status          status.Status[v1alpha1.ConditionSetStatus]
}

// isInAPI reports whether the set is an API object with a status, and not part of a
// ConfigMap.
func (pol *conditionSet) isInAPI() bool { return configmaps.ConfigMapOf(pol.set) == nil }

func setRule(name string) triage.RuleID {
	return triage.RuleID{Kind: policykind.ConditionSet, Name: name}
}

// upsert stores a new or changed set. Validation comes later in the round, when nodes
// and other sets are known.
func (p *Policy) upsert(now time.Time, set *v1alpha1.ConditionSet) {
	pol := p.known[set.Name]
	if pol == nil {
		pol = &conditionSet{nodes: map[string]triage.Reason{}}
		p.known[set.Name] = pol
		p.host.Revive(setRule(set.Name))
	}
	isSame := pol.set != nil && pol.set.UID == set.UID
	// Annotations do not change the generation.
	known := isSame && pol.set.Generation == set.Generation &&
		pol.set.Annotations[v1alpha1.AcceptImpactAnnotation] == set.Annotations[v1alpha1.AcceptImpactAnnotation]
	pol.status.Observe(set, set.Status)
	pol.set, pol.status.Stale = set, true
	switch {
	case !isSame:
		pol.inForce = nil
		p.restoreAccepted(now, pol)
	case pol.inForce != nil:
		p.applyHold(now, pol)
	}
	p.host.Statuses().Schedule(now)
	if !known {
		pol.needsValidation, pol.restored, p.validation.due = true, !p.host.IsLoaded(), true
	}
}

func (p *Policy) remove(now time.Time, name string) {
	if p.known[name] == nil {
		return
	}
	p.handOver(now, p.known[name])
	delete(p.known, name)
	p.validation.due = true
	p.host.Core().RemoveRule(now, setRule(name))
	p.host.PolicyMetrics().Forget(policykind.PolicyOf(setRule(name)))
	p.host.Retire(now, setRule(name))
	p.cfg.Logger.Info("set gone", "conditionSet", name)
}

// namesInAPI yields the names of the known sets that are not from ConfigMaps.
func (p *Policy) namesInAPI(yield func(string) bool) {
	for name, set := range p.known {
		if set.isInAPI() && !yield(name) {
			return
		}
	}
}

// takeSets takes in changed sets.
func (p *Policy) takeSets(now time.Time) {
	mirror.Apply(p.mirrors, p.inbox.Take(), p.namesInAPI,
		func(name string) {
			p.remove(now, name)
			p.host.Statuses().Schedule(now)
		},
		func(set *v1alpha1.ConditionSet) { p.upsert(now, set) },
		func(set *v1alpha1.ConditionSet) (v1alpha1.ConditionSetSpec, v1alpha1.ConditionSetStatus) {
			return set.Spec, set.Status
		})
	if p.validation.due && !p.configMaps.validateAt.IsZero() { // the change may unblock a ConfigMap
		p.configMaps.validateAt, p.configMaps.changed = now, true
	}
}
