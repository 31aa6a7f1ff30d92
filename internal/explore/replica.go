package explore

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/policy/guardrails"
	"github.com/resourcestack/autohealer/internal/policy/nodehealthcheck"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/remediation"
	"github.com/resourcestack/autohealer/internal/treatment/taint"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// inbox is an inbox of a policy, a treatment or the engine.
type inbox interface {
	Update(obj any) error
	Delete(obj any) error
	Replace(list []any, version string) error
}

// event is a change that a watch has not delivered yet.
type event struct {
	order int
	change
}

// stream is the watch of one kind by one replica.
type stream struct {
	kind      string
	events    []event
	needsList bool // nothing is delivered until a list
	listFrom  int  // since when, in the order of everything that is on its way
	isHeld    bool
}

// replica is a process of the controller that has claimed the ledger. It has the real engine,
// the real core, the real treatments and the real policy of health checks. The rules of
// condition sets are fixed.
type replica struct {
	id      int
	name    string
	stepper *engine.Stepper
	cancel  context.CancelFunc
	done    chan struct{}
	streams map[string]*stream
	kinds   *watch.Kinds
	leases  *watch.Optional[*coordinationv1.Lease]
	rails   *watch.Optional[*v1alpha1.Guardrails]
	reads   map[objectKey]bool // objects that it has read since its last write to them

	isClaiming bool // its requests are answered at once
	hasEnded   bool
}

// sharedMetrics are the metrics of all replicas of all runs. No test reads them.
var sharedMetrics = struct {
	engine *engine.Metrics
	taints *taint.Metrics
	checks *nodehealthcheck.Metrics
	rails  *guardrails.Metrics
}{engine.NewMetrics(), taint.NewMetrics(), nodehealthcheck.NewMetrics(), guardrails.NewMetrics()}

// claim starts a replica: it claims the ledger, and its loop waits for the first lists.
func (c *cluster) claim() {
	id := len(c.replicas) + 1
	r := &replica{
		id: id, name: "replica-" + strconv.Itoa(id), done: make(chan struct{}), isClaiming: true,
		streams: map[string]*stream{}, reads: map[objectKey]bool{},
	}
	for _, kind := range c.streamKinds() {
		c.order++
		r.streams[kind] = &stream{kind: kind, needsList: true, listFrom: c.order}
	}
	ctx, cancel := context.WithCancel(c.ctx)
	r.cancel = cancel
	r.build(c)
	if err := r.stepper.Claim(ctx); err != nil {
		panic("the model refused the claim of the ledger: " + err.Error())
	}
	r.isClaiming = false
	c.replicas = append(c.replicas, r)
	go func() {
		defer close(r.done)
		_ = r.stepper.Loop(ctx) // it ends after a crash, or when another replica has claimed the ledger
	}()
}

// build wires the parts as internal/controller does.
func (r *replica) build(c *cluster) {
	api := client.WithWatch(&modelClient{cluster: c, replica: r})
	if c.faults.client != nil {
		api = c.faults.client(api)
	}
	r.stepper = engine.NewStepper(engine.Config{
		Client: api, Namespace: ledgerNamespace, Identity: r.name, Event: func(treat.Event) {},
		Random:  func(below time.Duration) time.Duration { return below }, // so that runs can be repeated
		Metrics: sharedMetrics.engine, Liveness: &engine.Liveness{}, Logger: slog.New(slog.DiscardHandler),
	})
	signal := r.stepper.Signal()
	host := engine.WriterHost(r.stepper)
	if c.faults.host != nil {
		host = c.faults.host(host)
	}
	if c.faults.checks != nil {
		r.stepper.SetStartChecks(c.faults.checks(r.stepper))
	}
	r.leases = watch.NewOptional(signal, &coordinationv1.Lease{}, nil)
	r.kinds = &watch.Kinds{Signal: signal, Start: func(func(context.Context)) context.CancelFunc { return func() {} }}
	remediations := remediation.New(host, r.leases, r.kinds)
	inboxes := nodehealthcheck.Inboxes{
		Checks: watch.NewOptional(signal, &remediationv1alpha1.NodeHealthCheck{}, nil),
		Leases: watch.NewOptional(signal, &coordinationv1.Lease{}, nil),
	}
	checks := nodehealthcheck.New(host, inboxes, remediations, sharedMetrics.checks)
	remediations.Serve(checks)
	fillInbox(inboxes.Leases, nil, "1")
	fillInbox(inboxes.Checks, c.delivered(checkKind), "1")
	inboxes.Checks.SetAvailability(nil)
	inboxes.Leases.SetAvailability(nil)
	var writer engine.NodeWriter = taint.New(host, r.name, sharedMetrics.taints)
	if c.faults.writer != nil {
		writer = c.faults.writer(writer)
	}
	var treatment engine.Treatment = remediations
	if c.faults.treatment != nil {
		treatment = c.faults.treatment(treatment)
	}
	if c.scenario.Rails != (Rails{}) {
		r.rails = watch.NewOptional(signal, &v1alpha1.Guardrails{}, nil)
		if !c.scenario.Switches {
			fillInbox(r.rails, c.delivered(guardrailsKind), "1")
			r.rails.SetAvailability(nil)
		}
		r.stepper.AddPolicies(guardrails.New(host, r.rails, dialect.Rails{}, sharedMetrics.rails))
	}
	r.stepper.AddPolicies(checks, &fixedRules{host: r.stepper, rules: c.rules()})
	r.stepper.AddTreatments(treatment)
	r.stepper.SetNodeWriter(writer)
}

// rules returns the rules of the condition sets.
func (c *cluster) rules() []triage.Rule {
	rules := make([]triage.Rule, len(c.scenario.rules))
	for i, rule := range c.scenario.rules {
		if c.faults.rule != nil {
			rule = c.faults.rule(rule)
		}
		rules[i] = rule
	}
	return rules
}

// fillInbox fills an inbox.
func fillInbox(into inbox, objects []any, version string) {
	if err := into.Replace(objects, version); err != nil {
		panic(err)
	}
}

// inboxOf returns the inbox of a kind, nil if the replica does not ask for the kind yet.
func (r *replica) inboxOf(kind string) inbox {
	switch kind {
	case "Node":
		return r.stepper.NodeInbox()
	case "Lease":
		return r.leases
	case guardrailsKind:
		return r.rails
	}
	if known := r.kinds.Known[rebootKind]; known != nil {
		return known
	}
	return nil
}

// listAll delivers a list of everything that exists, and starts the watch again.
func (c *cluster) listAll(r *replica, s *stream) {
	s.needsList, s.events = false, nil
	into := r.inboxOf(s.kind)
	switch s.kind {
	case "Lease":
		r.leases.SetAvailability(nil)
	case guardrailsKind:
		r.rails.SetAvailability(nil)
	case rebootKind.Kind:
		r.kinds.Known[rebootKind].SetAvailability(nil)
		templates := r.kinds.Known[templateKind]
		templates.SetAvailability(nil)
		fillInbox(templates, []any{template.DeepCopy()}, "1")
	}
	fillInbox(into, c.delivered(s.kind), strconv.Itoa(c.model.version))
}

// deliver delivers the next event of a watch.
func (c *cluster) deliver(r *replica, s *stream) {
	e := s.events[0]
	s.events = s.events[1:]
	into := r.inboxOf(s.kind)
	var err error
	if e.after == nil {
		err = into.Delete(c.asDelivered(e.deleted))
	} else {
		err = into.Update(c.asDelivered(e.after))
	}
	if err != nil {
		panic(err)
	}
}

// delivered returns what a list delivers of a kind.
func (c *cluster) delivered(kind string) (objects []any) {
	for _, object := range c.model.list(kind) {
		objects = append(objects, c.asDelivered(object))
	}
	return objects
}

// asDelivered returns what a watch delivers of a stored object.
func (c *cluster) asDelivered(object client.Object) client.Object {
	switch known := object.(type) {
	case *corev1.Node:
		object = nodewatch.Trim(known)
	case *unstructured.Unstructured, *v1alpha1.Guardrails, *remediationv1alpha1.NodeHealthCheck:
		object = copyOf(object)
	}
	if c.faults.delivered != nil {
		c.faults.delivered(object)
	}
	return object
}

// rebootKind is the kind of remediation objects, and templateKind that of their template.
var (
	rebootKind   = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Reboot"}
	templateKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "RebootTemplate"}
	template     = newTemplate()
)

const (
	ledgerNamespace = "autohealer"
	rebootNamespace = "reboots"
)

func newTemplate() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
	u.SetGroupVersionKind(templateKind)
	u.SetNamespace(rebootNamespace)
	u.SetName("quick")
	u.SetResourceVersion("1")
	return u
}

// fixedRules is a policy with fixed rules. It stands for the policy of condition sets, which
// would validate the sets again in every run.
type fixedRules struct {
	host  engine.Host
	rules []triage.Rule
	isSet bool
}

func (p *fixedRules) Watch(context.Context)                                {}
func (p *fixedRules) Ready(time.Time) bool                                 { return true }
func (p *fixedRules) Take(time.Time)                                       {}
func (p *fixedRules) WriteStatuses(context.Context, time.Time)             {}
func (p *fixedRules) Size() (name string, objects int)                     { return "sets", len(p.rules) }
func (p *fixedRules) About(triage.RuleID, *corev1.Node) (s engine.Subject) { return s }

func (p *fixedRules) SetRules(_ context.Context, now time.Time) time.Time {
	if !p.isSet {
		p.isSet = true
		for _, rule := range p.rules {
			if err := p.host.Core().SetRule(now, rule); err != nil {
				panic(err)
			}
		}
	}
	return time.Time{}
}

func (p *fixedRules) Findings(triage.RuleID) (nodes map[string]triage.Reason, stale *bool) {
	return nil, nil
}
