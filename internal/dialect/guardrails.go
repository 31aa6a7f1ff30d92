package dialect

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// Guardrails limit what all policies together may do. An empty field has its default, which
// the schema of the object repeats.
type Guardrails struct {
	Name string // always cluster
	Mode string // Enforce, Observe or Paused; empty means Enforce

	// Enforce lists the stages that act in mode Enforce. Nil means all of them, and an empty
	// list none.
	Enforce []string

	MaxInTreatment   string // empty means 49%
	MaxUnschedulable string // empty means 49%
	Pace             Pace
	// Topology limits the nodes with the same value of a label. Nil means 49% of a zone, and
	// an empty list no limit.
	Topology          []TopologyLimit
	CorrelatedFailure CorrelatedFailure
	MaxAttempts       MaxAttempts
	Respect           *Respect // nil means everything
}

// Pace is how many treatments may start within a period.
type Pace struct {
	Max     string // empty means 10%
	AtLeast *int   // nil means 2; has no effect unless Max is a percentage
	Period  string // empty means 1m
}

// TopologyLimit limits the nodes with the same value of a label.
type TopologyLimit struct {
	Key string
	Max string // empty means 49%
}

// CorrelatedFailure says when unhealthy nodes probably have a common cause.
type CorrelatedFailure struct {
	Threshold   string   // empty means 50%
	MinNodes    int      // 0 means 3
	Window      string   // empty means 5m
	Keys        []string // nil means the zone, the node pool, the instance type and the image
	LongestHold string   // empty means no limit
}

// MaxAttempts is how often a node is treated.
type MaxAttempts struct {
	Limit  int    // 0 means 3
	Window string // empty means 24h
}

// Respect says which work of others keeps the controller from treating a node.
type Respect struct {
	Cordons, ClusterAutoscaler, Karpenter, Maintenance, DeletingMachines, ExcludeLabel, DoNotDisrupt bool
}

// HeldByRespect says which field of respect holds a node, because of which work, and when it continues.
func HeldByRespect(field, what, ends string) string {
	return "held by respect." + field + " of Guardrails: " + what + "; continues when " + ends
}

// RespectAll returns the default.
func RespectAll() Respect { return Respect{true, true, true, true, true, true, true} }

// The modes of Guardrails.
const (
	ModeEnforce = "Enforce"
	ModeObserve = "Observe"
	ModePaused  = "Paused"
)

// GuardrailsName is the name of the only object.
const GuardrailsName = "cluster"

// Rails are compiled Guardrails.
type Rails struct {
	Mode string
	// Core is the part that the core applies.
	Core    triage.Rails
	Respect Respect
}

const (
	defaultPace      = "10%"
	defaultThreshold = "50%"
	defaultAtLeast   = 2
	defaultMinNodes  = 3
	defaultAttempts  = 3

	maxRailNodes = 100_000 // of AtLeast and MinNodes
	maxAttempts  = 1000

	zoneLabel = "topology.kubernetes.io/zone"
	imageKey  = "image" // not a label
)

// PoolLabels are the labels with the name of a node's pool, of each provider that labels its nodes. A
// provider replaces a node by another of the same pool.
var PoolLabels = []string{"karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool"}

var defaultFailureKeys = slices.Concat([]string{zoneLabel}, PoolLabels, []string{"node.kubernetes.io/instance-type", imageKey})

// DefaultRails returns the compiled defaults for a cluster without Guardrails, with the mode
// of the flag --default-mode.
func DefaultRails(mode string) (Rails, error) {
	var f fields
	f.mode("--default-mode", mode)
	if f.err != nil {
		return Rails{}, f.err
	}
	rails, err := Guardrails{Name: GuardrailsName, Mode: mode}.Rails()
	return rails.withHold("there is no Guardrails " + GuardrailsName + ", and --default-mode is " + mode), err
}

// withHold replaces the reason of every stage that is on hold.
func (r Rails) withHold(reason string) Rails {
	r.Core.Hold = maps.Clone(r.Core.Hold)
	for stage := range r.Core.Hold {
		r.Core.Hold[stage] = reason
	}
	return r
}

// WithoutValid returns the defaults for Guardrails that never had a valid version.
func (r Rails) WithoutValid() Rails {
	return r.withHold("Guardrails " + GuardrailsName + " has no valid version, and --default-mode is " + r.Mode)
}

// Paused returns the same limits in mode Paused. why completes the sentence "Guardrails cluster ...".
func (r Rails) Paused(why string) Rails {
	r.Mode, r.Core.Hold = ModePaused, map[triage.Stage]string{}
	for _, stage := range policykind.Stages() {
		r.Core.Hold[stage] = "Guardrails " + GuardrailsName + " " + why
	}
	return r
}

// Rails compiles the guardrails. The error is a *[triage.FieldError].
func (g Guardrails) Rails() (Rails, error) {
	var f fields
	if g.Name != GuardrailsName {
		f.fail("metadata.name", g.Name, "the cluster has one Guardrails object; want metadata.name: "+GuardrailsName)
	}
	mode := f.mode("spec.mode", orDefault(g.Mode, ModeEnforce))
	rails := Rails{
		Mode: mode,
		Core: triage.Rails{
			Hold:          g.hold(&f, mode),
			InTreatment:   f.limit("spec.maxInTreatment", orDefault(g.MaxInTreatment, DefaultMaxUnhealthy)),
			Unschedulable: f.limit("spec.maxUnschedulable", orDefault(g.MaxUnschedulable, DefaultMaxUnhealthy)),
			Pace:          g.Pace.compile(&f),
			Topology:      g.topology(&f),

			CorrelatedFailure: g.CorrelatedFailure.compile(&f),
			MaxAttempts:       g.MaxAttempts.compile(&f),
		},
		Respect: RespectAll(),
	}
	if g.Respect != nil {
		rails.Respect = *g.Respect
	}
	rails.Core.KeepLast = *rails.Core.InTreatment != allNodes || *rails.Core.Unschedulable != allNodes
	if f.err != nil {
		return Rails{}, f.err
	}
	return rails, nil
}

// hold says by stage why nothing new may begin; nil if every stage acts.
func (g Guardrails) hold(f *fields, mode string) map[triage.Stage]string {
	enforced := map[triage.Stage]bool{}
	for i, given := range g.Enforce {
		path, stage := fmt.Sprintf("spec.enforce[%d]", i), triage.Stage(given)
		switch {
		case !slices.Contains(policykind.Stages(), stage):
			f.fail(path, given, "want Taint, Remediate or Repair")
		case enforced[stage]:
			f.fail(path, given, "named twice; want each stage once")
		}
		enforced[stage] = true
	}
	var hold map[triage.Stage]string
	for _, stage := range policykind.Stages() {
		reason := "Guardrails " + g.Name + " has mode " + mode
		if mode == ModeEnforce {
			if g.Enforce == nil || enforced[stage] {
				continue
			}
			reason = "Guardrails " + g.Name + " does not enforce " + string(stage)
		}
		if hold == nil {
			hold = map[triage.Stage]string{}
		}
		hold[stage] = reason
	}
	return hold
}

// allNodes is a limit of 100%, which limits nothing.
var allNodes = triage.Limit{Number: 100, Percent: true}

// compile returns nil if the pace is not limited.
func (p Pace) compile(f *fields) *triage.Pace {
	limit := f.limit("spec.pace.max", orDefault(p.Max, defaultPace))
	atLeast := defaultAtLeast
	if p.AtLeast != nil {
		atLeast = f.number("spec.pace.atLeast", *p.AtLeast, 0, maxRailNodes, "nodes")
	}
	if !limit.Percent || limit.Number == 0 {
		atLeast = 0 // it must not raise a number that the user has chosen
	}
	period := f.durationWithin("spec.pace.period", orDefault(p.Period, "1m"), "1s", "24h")
	if *limit == allNodes {
		return nil
	}
	return &triage.Pace{Limit: *limit, AtLeast: atLeast, Period: period}
}

func (g Guardrails) topology(f *fields) []triage.Share {
	limits := g.Topology
	if limits == nil {
		limits = []TopologyLimit{{Key: zoneLabel}}
	}
	shares := make([]triage.Share, 0, len(limits))
	for i, limit := range limits {
		path := fmt.Sprintf("spec.topology[%d].", i)
		f.labelKey(path+"key", limit.Key)
		if slices.ContainsFunc(shares, func(other triage.Share) bool { return other.Label == limit.Key }) {
			f.fail(path+"key", limit.Key, "named twice; want one limit for each key")
		}
		shares = append(shares, triage.Share{Label: limit.Key, Limit: *f.limit(path+"max", orDefault(limit.Max, DefaultMaxUnhealthy))})
	}
	return shares
}

// compile returns nil if the rail is switched off.
func (c CorrelatedFailure) compile(f *fields) *triage.CorrelatedFailure {
	const path = "spec.correlatedFailure."
	rail := &triage.CorrelatedFailure{
		Threshold: *f.limit(path+"threshold", orDefault(c.Threshold, defaultThreshold)),
		MinNodes:  defaultMinNodes,
		Window:    f.durationWithin(path+"window", orDefault(c.Window, "5m"), "1s", "24h"),
	}
	if c.MinNodes != 0 {
		rail.MinNodes = f.number(path+"minNodes", c.MinNodes, 1, maxRailNodes, "nodes")
	}
	keys := c.Keys
	if keys == nil {
		keys = defaultFailureKeys
	}
	for i, key := range keys {
		at := fmt.Sprintf("%skeys[%d]", path, i)
		f.labelKey(at, key)
		if slices.Contains(keys[:i], key) {
			f.fail(at, key, "named twice; want each key once")
		}
		if key == imageKey {
			rail.Image = true
		} else {
			rail.Labels = append(rail.Labels, key)
		}
	}
	if c.LongestHold != "" {
		rail.LongestHold = f.durationWithin(path+"longestHold", c.LongestHold, "1m", "720h")
	}
	if len(keys) == 0 || rail.Threshold.Percent && rail.Threshold.Number == 100 {
		return nil // more than 100% is impossible
	}
	return rail
}

func (m MaxAttempts) compile(f *fields) *triage.MaxAttempts {
	rail := &triage.MaxAttempts{
		Limit:  defaultAttempts,
		Window: f.durationWithin("spec.maxAttempts.window", orDefault(m.Window, "24h"), "1m", "720h"),
	}
	if m.Limit != 0 {
		rail.Limit = f.number("spec.maxAttempts.limit", m.Limit, 1, maxAttempts, "attempts")
	}
	return rail
}

func (f *fields) mode(path, value string) string {
	if !slices.Contains([]string{ModeEnforce, ModeObserve, ModePaused}, value) {
		f.fail(path, value, "want Enforce, Observe or Paused")
	}
	return value
}

// number checks the range of a number.
func (f *fields) number(path string, value, least, most int, of string) int {
	if value < least || value > most {
		f.fail(path, strconv.Itoa(value), fmt.Sprintf("want a number of %s from %d to %d", of, least, most))
	}
	return value
}

// durationWithin parses a duration within a range.
func (f *fields) durationWithin(path, value, least, most string) time.Duration {
	d := f.duration(path, value)
	if d < f.duration(path, least) || d > f.duration(path, most) {
		f.fail(path, value, "want a duration from "+least+" to "+most)
	}
	return d
}

// labelKey checks the key of a label.
func (f *fields) labelKey(path, key string) {
	if !isQualifiedName(key) {
		f.fail(path, key, "want the key of a label, without a value, for example "+zoneLabel)
	}
}
