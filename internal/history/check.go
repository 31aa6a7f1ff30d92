package history

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// DefaultLag is the maximal age of the writer's caches if Config.Lag is zero. Two busy
// cores need some time to deliver watch events.
const DefaultLag = time.Second

// A run must record these resources, and testbed.NodesResource and testbed.LeasesResource.
// Resources that are not installed are skipped.
var (
	SetsResource       = v1alpha1.GroupVersion.WithResource("conditionsets")
	ChecksResource     = remediationv1alpha1.GroupVersion.WithResource("nodehealthchecks")
	ConfigMapsResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	PoliciesResource   = v1alpha1.GroupVersion.WithResource("repairpolicies")
	ClaimsResource     = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	PoolsResource      = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
	RailsResource      = v1alpha1.GroupVersion.WithResource("guardrails")
)

// Resources returns what a cluster must record for this package: also the Leases within
// Namespaces, and the given remediation objects and templates.
func Resources(remediation ...schema.GroupVersionResource) []schema.GroupVersionResource {
	return append([]schema.GroupVersionResource{
		testbed.NodesResource, SetsResource, ConfigMapsResource, ChecksResource, testbed.LeasesResource, PoliciesResource, ClaimsResource, PoolsResource, RailsResource,
	}, remediation...)
}

// Namespaces returns the namespaces in which a cluster must record Leases: the namespace of
// node Leases, and those in which medik8s' own controller runs.
func Namespaces(ofPeer ...string) map[schema.GroupVersionResource][]string {
	return map[schema.GroupVersionResource][]string{testbed.LeasesResource: append([]string{leaseNamespace}, ofPeer...)}
}

// Config says which client is judged, and by which rules.
type Config struct {
	// Us reports whether an author belongs to the judged system. All replicas do.
	Us func(testbed.Author) bool

	// Remediation has the resources of remediation objects and of their templates. Template
	// kinds end in Template. If it is empty, health checks are not judged.
	Remediation []schema.GroupVersionResource

	// Repairs has the rules for the replacement of nodes. The zero value is a controller
	// with default flags.
	Repairs Repairs

	// FieldManager, if not empty, is the field manager of our writes. It identifies our
	// writes by managedFields if the audit log does not name the author. That happens when
	// an API server is killed.
	FieldManager string

	// Lag is the maximal age of the writer's view of sets and other nodes. Durations may be
	// missed by the same amount. Zero means DefaultLag.
	Lag time.Duration

	// Delay is the longest time from the decision of a treatment to its write. A leader may
	// be killed in between. Guardrails limit the pace of decisions. Zero means Lag.
	Delay time.Duration

	// DefaultMode is the controller's flag --default-mode. While there is no Guardrails object, the
	// default limits apply with this mode, also if the CRD is not installed. If it is empty, steps
	// without an object are not judged: use that if the recording leaves out the object.
	DefaultMode v1alpha1.Mode

	// Ledger is the ConfigMap that must name every NoExecute taint before it is placed. If
	// it is empty, the ledger is not judged.
	Ledger types.NamespacedName

	// Written, if not nil, reads the sets in a ConfigMap. It returns their specs by name,
	// <configmap>/<key>/<type>, or none if the ConfigMap has no sets. An invalid ConfigMap
	// changes nothing: its last valid content stays in force. Only the test knows which
	// content is valid.
	Written func(configMap *unstructured.Unstructured) (specs map[string]v1alpha1.ConditionSetSpec, isGood bool)

	// AnyTurn allows the controller to serve nodes in any order. A node whose write was
	// refused loses its turn, and the recording does not show the refusal. Set it if the
	// test injects faults into writes.
	AnyTurn bool

	// Refused, if not nil, names the versions of sets that the controller must refuse
	// because of the whole cluster: too many matching nodes, or another set with the same
	// taint. The recording does not show this, so the test has to.
	Refused func(set string, generation int64) bool

	// EndAt is the time at which the final state is judged. Durations that ended before
	// must have had their effect. Zero means the time of the last change.
	EndAt time.Time

	// Unfinished skips the checks of the final state, for a recording that ends early.
	Unfinished bool
}

// Repairs describes the flags by which the judged controller replaces nodes.
type Repairs struct {
	// Machines and Plain are the unhealthy conditions that hold in addition to the
	// policies, for nodes of a NodePool and for all other nodes. A key has the form
	// Ready=False. The value is the default toleration. Nil means the built-in list.
	Machines, Plain map[string]time.Duration

	// ReadyTimeout is how long a node may take to become Ready if its pool does not set a
	// time. Zero: no node may be replaced for this reason.
	ReadyTimeout time.Duration

	// HeldFor is the minimal pause of a pool after three nodes in a row did not become
	// Ready. It doubles with every further node. Zero means the ready timeout of the pool.
	HeldFor time.Duration

	// WithoutPolicy allows the replacement of nodes in a pool without a policy.
	WithoutPolicy bool

	// SchemaLost says that the test removes the schema of repair blocks. Then a block that
	// the API server no longer returns may still be in force.
	SchemaLost bool

	// MayRestore allows the controller to restore a repair block that is missing.
	MayRestore bool
}

// Validate returns all problems of the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Us == nil {
		errs = append(errs, errors.New("there is no Us, so no write can be attributed"))
	}
	if c.Lag < 0 || c.Delay < 0 {
		errs = append(errs, fmt.Errorf("a Lag of %s and a Delay of %s: one is less than 0", c.Lag, c.Delay))
	}
	if c.Repairs.ReadyTimeout < 0 || c.Repairs.HeldFor < 0 {
		errs = append(errs, fmt.Errorf("a ReadyTimeout of %s and a HeldFor of %s: one is less than 0", c.Repairs.ReadyTimeout, c.Repairs.HeldFor))
	}
	if (c.Ledger.Namespace == "") != (c.Ledger.Name == "") {
		errs = append(errs, fmt.Errorf("the Ledger %q needs a namespace and a name", c.Ledger))
	}
	return errors.Join(errs...)
}

// UserAgent returns a Config.Us that matches the program name in the user agent, before the
// first slash.
func UserAgent(program string) func(testbed.Author) bool {
	return func(a testbed.Author) bool {
		name, _, _ := strings.Cut(a.UserAgent, "/")
		return name == program
	}
}

// User returns a Config.Us that matches the user name.
func User(name string) func(testbed.Author) bool {
	return func(a testbed.Author) bool { return a.User == name }
}

// Kind is a kind of violation.
type Kind string

// The kinds of violation. The package documentation explains them.
const (
	CapExceeded    Kind = "CapExceeded"
	ForeignTouched Kind = "ForeignTouched"
	DoneTwice      Kind = "DoneTwice"
	Unjustified    Kind = "Unjustified"
	Unrecorded     Kind = "Unrecorded"
	Misrecorded    Kind = "Misrecorded"
	OutOfTurn      Kind = "OutOfTurn"
	WrongEnd       Kind = "WrongEnd"
	UnknownAuthor  Kind = "UnknownAuthor"

	GateIgnored  Kind = "GateIgnored"
	RailIgnored  Kind = "RailIgnored"
	TreatedTwice Kind = "TreatedTwice"
	Malformed    Kind = "Malformed"
	TooSoon      Kind = "TooSoon"
	Conflicting  Kind = "Conflicting"
)

// Moment is a position in a recording: a change, or the end.
type Moment struct {
	// Index of the change in the recording; the length of the recording for the end.
	Index int
	// ResourceVersion that the change created; empty for the end.
	ResourceVersion string
	Time            time.Time
}

// Violation is a broken rule.
type Violation struct {
	Kind Kind
	At   Moment
	// These are the objects of the violation; any may be empty. Check is a health check,
	// Policy a RepairPolicy.
	Node, Set, Check, Claim, Pool, Policy string
	Text                                  string
}

// String returns the violation on one line.
func (v Violation) String() string {
	where := "at the end"
	if v.At.ResourceVersion != "" {
		where = fmt.Sprintf("change %d (resourceVersion %s)", v.At.Index, v.At.ResourceVersion)
	}
	var about strings.Builder
	for _, each := range []struct{ what, name string }{
		{"node", v.Node}, {"set", v.Set}, {"health check", v.Check}, {"claim", v.Claim}, {"pool", v.Pool}, {"policy", v.Policy},
	} {
		if each.name != "" {
			about.WriteString(" " + each.what + " " + each.name)
		}
	}
	return fmt.Sprintf("%s %s %s%s: %s", v.At.Time.UTC().Format("15:04:05.000"), v.Kind, where, about.String(), v.Text)
}

// Counts is the number of judged changes of each kind.
type Counts struct {
	Changes    int // changes in the recording
	Writes     int // our writes to nodes
	Placements int // taints that we placed, counted per set
	Evictions  int // of those, taints with NoExecute
	Fallbacks  int // of those, NoSchedule for a set that declares NoExecute
	Removals   int // taints that we removed, counted per set
	Fences     int // our writes that changed the fence in the record
	Statuses   int // our writes to sets
	Unproved   int // changes whose author the audit log does not name

	Remediations  int // remediation objects that we created
	Escalations   int // of those, objects of a later step
	Releases      int // remediation objects that we started to delete
	Notes         int // our writes to remediation objects
	Leases        int // our writes to the Leases of nodes
	CheckStatuses int // our writes to health checks
	Confirmations int // confirmations that we removed from nodes

	Marks          int // claims that we marked for replacement
	Unmarks        int // marks that we removed again
	Forced         int // drains of other clients that we ended by force
	Terminations   int // claims that we deleted
	PolicyStatuses int // our writes to repair policies
	Restores       int // repair blocks that we restored

	Railed       int // our steps that Guardrails limit
	RailStatuses int // our writes to Guardrails
}

// Report is the result of Check.
type Report struct {
	Counts
	Violations []Violation
	// Peak has four kinds of maxima. By set: nodes with its NoExecute taint at once. By
	// NodeHealthCheck/<name>: unhealthy nodes at once when we created an object for a node.
	// By NodePool/<name>: nodes in repair at once. By Guardrails/<rail>: what the rail
	// counts.
	Peak map[string]int
}

// Of returns the violations of one kind.
func (r Report) Of(kind Kind) []Violation {
	var found []Violation
	for _, v := range r.Violations {
		if v.Kind == kind {
			found = append(found, v)
		}
	}
	return found
}

// String returns the report with one line for each violation.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d violations in %d changes: %d writes, %d taints placed (%d NoExecute, %d fell back), %d removed, %d fences, %d statuses, %d changes without proof of their author",
		len(r.Violations), r.Changes, r.Writes, r.Placements, r.Evictions, r.Fallbacks, r.Removals, r.Fences, r.Statuses, r.Unproved)
	if r.Remediations+r.Releases+r.CheckStatuses > 0 {
		fmt.Fprintf(&b, "; %d remediation objects created (%d of later steps), %d deleted, %d notes on them, %d Leases written, %d statuses of health checks, %d confirmations removed",
			r.Remediations, r.Escalations, r.Releases, r.Notes, r.Leases, r.CheckStatuses, r.Confirmations)
	}
	if r.Marks+r.Terminations+r.PolicyStatuses > 0 {
		fmt.Fprintf(&b, "; %d claims marked, %d unmarked, %d deleted, %d statuses of repair policies, %d repair blocks restored", r.Marks, r.Unmarks, r.Terminations, r.PolicyStatuses, r.Restores)
	}
	if r.Railed > 0 {
		fmt.Fprintf(&b, "; %d steps under Guardrails, at most: %s", r.Railed, strings.Join(r.railPeaks(), ", "))
	}
	for _, v := range r.Violations {
		b.WriteString("\n\t" + v.String())
	}
	return b.String()
}

// Check replays a recording and returns all violations in order. The error reports an
// invalid recording or configuration.
func Check(recording testbed.Recording, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, fmt.Errorf("checking a history: %w", err)
	}
	if cfg.Lag == 0 {
		cfg.Lag = DefaultLag
	}
	if cfg.Delay == 0 {
		cfg.Delay = cfg.Lag
	}
	if cfg.Repairs.Machines == nil {
		cfg.Repairs.Machines = statedAnywhere()
	}
	if cfg.Repairs.Plain == nil {
		cfg.Repairs.Plain = statedAnywhere()
	}
	r := newReplay(cfg)
	judged := map[schema.GroupResource]func(testbed.Change){
		testbed.NodesResource.GroupResource(): r.nodeChanged,
		SetsResource.GroupResource():          r.setChanged,
		PoliciesResource.GroupResource():      r.policyChanged,
		ClaimsResource.GroupResource():        r.claimChanged,
		PoolsResource.GroupResource():         r.poolChanged,
		RailsResource.GroupResource():         r.railsChanged,
	}
	if len(cfg.Remediation) > 0 {
		judged[ChecksResource.GroupResource()] = r.checkChanged
		judged[testbed.LeasesResource.GroupResource()] = r.leaseChanged
	}
	for _, resource := range cfg.Remediation {
		judged[resource.GroupResource()] = r.remediationChanged
	}
	last, created, mirrors := uint64(0), map[types.UID]bool{}, map[types.UID]bool{}
	for i, change := range recording {
		version, err := strconv.ParseUint(change.ResourceVersion, 10, 64)
		switch {
		case err != nil:
			return Report{}, fmt.Errorf("checking a history: change %d has the resourceVersion %q: %w", i, change.ResourceVersion, err)
		case version <= last:
			return Report{}, fmt.Errorf("checking a history: change %d has the resourceVersion %d, the one before has %d", i, version, last)
		case change.Object == nil:
			return Report{}, fmt.Errorf("checking a history: change %d has no object", i)
		}
		last = version
		resource := change.GVR.GroupResource()
		take, isJudged := judged[resource]
		if isJudged {
			created[change.UID] = created[change.UID] || change.Type == watch.Added
			if !created[change.UID] {
				return Report{}, fmt.Errorf("checking a history: change %d is of %s %s, whose creation was not recorded", i, resource, change.Name)
			}
		}
		r.at = Moment{Index: i, ResourceVersion: change.ResourceVersion, Time: change.Time}
		r.report.Changes++
		if _, isMirror := change.Object.GetLabels()[v1alpha1.MirrorLabel]; isMirror && change.Type == watch.Added {
			mirrors[change.UID] = true
		}
		switch {
		case mirrors[change.UID]: // it asks for nothing, and we may write it
		case isJudged:
			take(change)
		case resource == ConfigMapsResource.GroupResource():
			r.configMapChanged(change)
		}
	}
	if !cfg.Unfinished {
		end := r.at.Time
		if cfg.EndAt.After(end) {
			end = cfg.EndAt
		}
		r.at = Moment{Index: len(recording), Time: end}
		r.judgeEnd()
	}
	return r.report, nil
}

// strength orders the effects.
var strength = map[string]int{
	string(corev1.TaintEffectPreferNoSchedule): 1,
	string(corev1.TaintEffectNoSchedule):       2,
	string(corev1.TaintEffectNoExecute):        3,
}

const (
	noExecute  = string(corev1.TaintEffectNoExecute)
	noSchedule = string(corev1.TaintEffectNoSchedule)
)
