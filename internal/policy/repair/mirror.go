package repair

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/validate"
	"github.com/resourcestack/autohealer/internal/watch"
)

// The mirror of a NodePool is the RepairPolicy that shows its repair block.
type (
	poolMirror    = mirror.Mirror[v1alpha1.RepairPolicySpec, v1alpha1.RepairPolicyStatus]
	mirrorContent = mirror.Content[v1alpha1.RepairPolicySpec, v1alpha1.RepairPolicyStatus]
	wantedMirror  = mirror.Wanted[v1alpha1.RepairPolicySpec, v1alpha1.RepairPolicyStatus]
)

// poolMirrors are the mirrors of all pools.
type poolMirrors struct {
	*mirror.Mirrors[v1alpha1.RepairPolicySpec, v1alpha1.RepairPolicyStatus]
	stale     map[string]bool // pools whose mirror may be outdated
	nameTaken map[string]bool // pools for which an Event said that a user's RepairPolicy has the name of the mirror
}

func newPoolMirrors(writer *treat.Writer) poolMirrors {
	return poolMirrors{
		Mirrors: mirror.New[v1alpha1.RepairPolicySpec, v1alpha1.RepairPolicyStatus](writer, "RepairPolicy", "repairpolicies", "NodePool"),
		stale:   map[string]bool{},
	}
}

// mirrorName returns the name of the mirror of a pool.
func mirrorName(pool string) string { return "nodepool-" + pool }

// writeMirrors writes the mirrors of pools with a repair block. sums counts the nodes of a pool.
func (r *Policy) writeMirrors(ctx context.Context, now time.Time, sums map[string]*repairCounts) {
	if served, _ := r.inbox.Availability(); served != watch.Available {
		return
	}
	wanted, taken := map[string]wantedMirror{}, map[string]bool{}
	for name, pool := range r.pools {
		switch {
		case pool.Block == nil && pool.Problem == "": // it has none
		case r.policies[mirrorName(name)] != nil:
			taken[name] = true
			r.reportNameTaken(name)
		default:
			sum := entryOf(sums, name)
			wanted[mirrorName(name)] = wantedMirror{
				Owner:   &metav1.OwnerReference{APIVersion: karpenter.GroupVersion.String(), Kind: "NodePool", Name: name, UID: pool.UID},
				IsStale: r.mirrors.stale[name] || r.mirrors.Get(mirrorName(name)).Stored().Nodes != status.Count(sum.nodes.Selected),
				Content: func(of *poolMirror) *mirrorContent { return r.mirrorContent(pool, of, sum) },
			}
		}
	}
	r.mirrors.nameTaken = taken
	clear(r.mirrors.stale)
	r.mirrors.Write(ctx, now, r.host.Statuses(), wanted)
}

// mirrorContent returns what the mirror of a pool says. The spec is the newest block.
func (r *Policy) mirrorContent(pool *repairblock.Pool, of *poolMirror, sum *repairCounts) *mirrorContent {
	newest := pool.Spec.Repair
	if newest == nil { // hidden, because its schema is lost
		newest = pool.Block
	}
	result := r.countsStatus(of.Generation(), of.Stored().Conditions, sum)
	if pool.Block != nil {
		result.AcceptedSpec = format.EncodeSpec(mirrorSpec(pool.Name, pool.Block))
	}
	result.Mode = observe.AnnotatedSwitches(pool.Annotations).Mode()
	accepted := r.acceptedBlock(pool)
	accepted.ObservedGeneration = of.Generation()
	r.setConditions(&result, accepted, accepted.Status != metav1.ConditionTrue && pool.Block != nil, sum)
	return &mirrorContent{Spec: mirrorSpec(pool.Name, newest), Status: result}
}

// mirrorSpec returns a block as the spec of a RepairPolicy, with the default that the schema of
// RepairPolicies adds.
func mirrorSpec(pool string, block *v1alpha1.RepairSpec) v1alpha1.RepairPolicySpec {
	spec := v1alpha1.RepairPolicySpec{NodePool: pool}
	if block != nil {
		block.DeepCopyInto(&spec.Repair)
	}
	if spec.Repair.Termination == "" {
		spec.Repair.Termination = v1alpha1.Forceful
	}
	return spec
}

// acceptedBlock returns the condition Accepted of the block of a pool.
func (r *Policy) acceptedBlock(pool *repairblock.Pool) metav1.Condition {
	accepted := metav1.Condition{Type: v1alpha1.Accepted, Status: metav1.ConditionTrue, Reason: "Followed", Message: "the block is in force"}
	switch switches := observe.AnnotatedSwitches(pool.Annotations); {
	case pool.Problem != "":
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, "Invalid", pool.Problem
	case switches.Problem != "":
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, "Invalid", switches.Problem
	case !isEnabled(pool.Block):
		accepted.Reason, accepted.Message = "SwitchedOff", "the block is disabled: nothing is repaired"
	case switches.Mode() != v1alpha1.Enforce:
		accepted.Reason, accepted.Message = modeReason(switches)
	case hasReadyTimeout(pool.Block) && r.cfg.ReadyTimeout == 0:
		accepted.Message += "; spec.repair.readyTimeout: " + validate.ReadyTimeoutsOffMessage
	}
	return accepted
}

// reportNameTaken reports once that a user's RepairPolicy has the name of a mirror.
func (r *Policy) reportNameTaken(pool string) {
	if r.mirrors.nameTaken[pool] {
		return
	}
	r.host.Logger().Warn("repair block without a mirror", "nodePool", pool, "repairPolicy", mirrorName(pool))
	r.host.Event(treat.Event{
		Policy: treat.AboutNodePool(r.pools[pool]), EventReason: treat.MirrorNameTaken,
		Message: "no RepairPolicy shows the status of spec.repair, because a user's RepairPolicy has the name " + mirrorName(pool) + ": give that policy another name",
	})
}
