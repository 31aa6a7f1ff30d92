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

// DefaultLag is how old the writer's view of sets and other nodes may be unless
// Config.Lag says something else. Two busy cores take some time to pass word on.
const DefaultLag = time.Second

// These are what a run must have recorded beside testbed.NodesResource and
// testbed.LeasesResource. What is not installed has nothing to record.
var (
	SetsResource       = v1alpha1.GroupVersion.WithResource("conditionsets")
	ChecksResource     = remediationv1alpha1.GroupVersion.WithResource("nodehealthchecks")
	ConfigMapsResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	PoliciesResource   = v1alpha1.GroupVersion.WithResource("repairpolicies")
	ClaimsResource     = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	PoolsResource      = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}
)

// Resources is what a cluster should record for this package: the Leases within
// Namespaces, and the remediation objects and their templates of whatever kinds a
// test has.
func Resources(remediation ...schema.GroupVersionResource) []schema.GroupVersionResource {
	return append([]schema.GroupVersionResource{
		testbed.NodesResource, SetsResource, ConfigMapsResource, ChecksResource, testbed.LeasesResource, PoliciesResource, ClaimsResource, PoolsResource,
	}, remediation...)
}

// Namespaces is where a cluster should record Leases: those of nodes, and that of
// medik8s' own controller, if it runs in one of these namespaces.
func Namespaces(ofPeer ...string) map[schema.GroupVersionResource][]string {
	return map[schema.GroupVersionResource][]string{testbed.LeasesResource: append([]string{leaseNamespace}, ofPeer...)}
}

// Config says whose history it is, and by what it is judged.
type Config struct {
	// Us says whether an author is the system that is judged. All of its
	// replicas are.
	Us func(testbed.Author) bool

	// Remediation names the resources of remediation objects and of their templates,
	// which end in Template. Without it nothing is said about health checks.
	Remediation []schema.GroupVersionResource

	// Repairs says by what the replacement of nodes is judged. It is judged in any
	// case: the zero value is a controller as it is installed.
	Repairs Repairs

	// FieldManager, if not empty, is the field manager of our writes. It decides
	// where the audit log cannot name an author, which happens when an API server is
	// killed: the object's own managedFields tell whose write it was.
	FieldManager string

	// Lag is how old the writer's view of sets and of other nodes may be, and by
	// how much a duration may be missed. Zero means DefaultLag.
	Lag time.Duration

	// Ledger is the ConfigMap in which NoExecute is written down before it is
	// placed. Empty: nothing is said about it.
	Ledger types.NamespacedName

	// Written, if not nil, reads a ConfigMap in which sets are written: what they
	// ask for by their names, <configmap>/<key>/<type>; none if it is not one of
	// those. One that is not good changes nothing: what it said before still holds.
	// Which are good, whoever wrote them knows.
	Written func(configMap *unstructured.Unstructured) (specs map[string]v1alpha1.ConditionSetSpec, isGood bool)

	// AnyTurn allows nodes to be served in any order. A write that was refused
	// loses its node's turn, and no recording tells of it: set it where faults
	// are injected into writes.
	AnyTurn bool

	// Refused, if there is one, names the versions of sets that must not be followed
	// for what only the whole cluster tells: too many nodes that match, another set
	// that asks the same. A recording alone cannot, so whoever made it says so.
	Refused func(set string, generation int64) bool

	// EndAt is the moment at which the end is judged: durations that were over by
	// then must have had their effect. Zero means the time of the last change.
	EndAt time.Time

	// Unfinished says that the recording ends in the middle of things: the end is
	// not judged.
	Unfinished bool
}

// Repairs is how the controller that is judged replaces nodes.
type Repairs struct {
	// Machines and Plain are what is called sick beside what the policies say, of
	// nodes of a NodePool and of all others: such as Ready=False, with how long it is
	// tolerated if nobody says otherwise. Nil means what is stated by default.
	Machines, Plain map[string]time.Duration

	// ReadyTimeout is how long a node may take to become ready where its pool does
	// not say. Zero: no node may be replaced for that.
	ReadyTimeout time.Duration

	// HeldFor is for how long at least a pool is left alone of which three nodes in a
	// row have not become ready; twice as long after the next, and so on. Zero means
	// as long as a node of it has to become ready.
	HeldFor time.Duration

	// WithoutPolicy allows the nodes of a pool to be replaced that no policy speaks of.
	WithoutPolicy bool

	// SchemaLost says that somebody takes away the schema of repair blocks in this
	// run: a block that is not seen any more may be in force.
	SchemaLost bool

	// MayRestore allows a block to be put back that is not there any more.
	MayRestore bool
}

// Validate says everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Us == nil {
		errs = append(errs, errors.New("there is no Us: nobody's history can be judged"))
	}
	if c.Lag < 0 {
		errs = append(errs, fmt.Errorf("a Lag of %s is less than 0", c.Lag))
	}
	if c.Repairs.ReadyTimeout < 0 || c.Repairs.HeldFor < 0 {
		errs = append(errs, fmt.Errorf("a ReadyTimeout of %s and a HeldFor of %s: one is less than 0", c.Repairs.ReadyTimeout, c.Repairs.HeldFor))
	}
	if (c.Ledger.Namespace == "") != (c.Ledger.Name == "") {
		errs = append(errs, fmt.Errorf("the Ledger %q needs a namespace and a name", c.Ledger))
	}
	return errors.Join(errs...)
}

// UserAgent returns a Config.Us that knows us by the program's name in the user
// agent: what stands before the first slash.
func UserAgent(program string) func(testbed.Author) bool {
	return func(a testbed.Author) bool {
		name, _, _ := strings.Cut(a.UserAgent, "/")
		return name == program
	}
}

// User returns a Config.Us that knows us by our user.
func User(name string) func(testbed.Author) bool {
	return func(a testbed.Author) bool { return a.User == name }
}

// Kind is a kind of violation.
type Kind string

// The kinds of violation; the package documentation explains them.
const (
	CapExceeded    Kind = "CapExceeded"
	ForeignTouched Kind = "ForeignTouched"
	DoneTwice      Kind = "DoneTwice"
	Unlawful       Kind = "Unlawful"
	Unrecorded     Kind = "Unrecorded"
	Misrecorded    Kind = "Misrecorded"
	OutOfTurn      Kind = "OutOfTurn"
	WrongEnd       Kind = "WrongEnd"
	UnknownAuthor  Kind = "UnknownAuthor"

	GateIgnored  Kind = "GateIgnored"
	TreatedTwice Kind = "TreatedTwice"
	Malformed    Kind = "Malformed"
	TooSoon      Kind = "TooSoon"
	Fought       Kind = "Fought"
)

// Moment is a place in a recording: that of a change, or the end.
type Moment struct {
	// Index of the change in the recording; the length of it for the end.
	Index int
	// ResourceVersion that the change brought about; empty for the end.
	ResourceVersion string
	Time            time.Time
}

// Violation is one thing that should not have happened.
type Violation struct {
	Kind Kind
	At   Moment
	// These are whom it is about; any may be empty. Check is a health check, Policy a
	// RepairPolicy.
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

// Counts is how much there was to look at.
type Counts struct {
	Moments    int // changes in the recording
	Writes     int // of ours to nodes
	Placements int // taints that we placed, once for each set
	Evictions  int // of those, the ones with NoExecute
	Fallbacks  int // of those, NoSchedule for a set that declares NoExecute
	Removals   int // taints that we took away, once for each set
	Fences     int // writes of ours that changed the record's fence
	Statuses   int // writes of ours to sets
	Unproved   int // changes whose author the audit log does not name

	Remediations  int // remediation objects that we made
	Escalations   int // of those, the ones of a later step
	Releases      int // remediation objects that we began to delete
	Notes         int // writes of ours to remediation objects
	Leases        int // writes of ours to the Leases of nodes
	CheckStatuses int // writes of ours to health checks
	Confirmations int // confirmations that we took off nodes

	Marks          int // claims that we marked, because their nodes are to be replaced
	Spares         int // marks that we took off again
	Terminations   int // claims that we deleted
	PolicyStatuses int // writes of ours to repair policies
	Restores       int // repair blocks that we put back
}

// Report is what was found.
type Report struct {
	Counts
	Violations []Violation
	// Peak is, by set, how many of its nodes carried its NoExecute at once; and by
	// NodeHealthCheck/<name>, how many of its nodes were not healthy at once when we
	// made something for one of them; and by NodePool/<name>, how many of its nodes were
	// in repair at once.
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
	fmt.Fprintf(&b, "%d violations in %d moments: %d writes, %d taints placed (%d NoExecute, %d fell back), %d removed, %d fences, %d statuses, %d changes without proof of their author",
		len(r.Violations), r.Moments, r.Writes, r.Placements, r.Evictions, r.Fallbacks, r.Removals, r.Fences, r.Statuses, r.Unproved)
	if r.Remediations+r.Releases+r.CheckStatuses > 0 {
		fmt.Fprintf(&b, "; %d remediation objects made (%d of later steps), %d deleted, %d notes on them, %d Leases written, %d statuses of health checks, %d confirmations taken",
			r.Remediations, r.Escalations, r.Releases, r.Notes, r.Leases, r.CheckStatuses, r.Confirmations)
	}
	if r.Marks+r.Terminations+r.PolicyStatuses > 0 {
		fmt.Fprintf(&b, "; %d claims marked, %d spared, %d deleted, %d statuses of repair policies, %d repair blocks put back", r.Marks, r.Spares, r.Terminations, r.PolicyStatuses, r.Restores)
	}
	for _, v := range r.Violations {
		b.WriteString("\n\t" + v.String())
	}
	return b.String()
}

// Check replays a recording and returns all violations in it, in order. The
// error says that this is no recording, or that the configuration is wrong.
func Check(recording testbed.Recording, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, fmt.Errorf("checking a history: %w", err)
	}
	if cfg.Lag == 0 {
		cfg.Lag = DefaultLag
	}
	if cfg.Repairs.Machines == nil {
		cfg.Repairs.Machines = statedOfMachines()
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
	}
	if len(cfg.Remediation) > 0 {
		judged[ChecksResource.GroupResource()] = r.checkChanged
		judged[testbed.LeasesResource.GroupResource()] = r.leaseChanged
	}
	for _, resource := range cfg.Remediation {
		judged[resource.GroupResource()] = r.remediationChanged
	}
	last, created := uint64(0), map[types.UID]bool{}
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
		r.report.Moments++
		switch {
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
